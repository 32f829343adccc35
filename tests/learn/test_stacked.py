"""Training several learners at once gives what each would give alone."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.core.learner import Budget
from shoal.core.tree import digest
from shoal.learn import TorchLearner, digits, models
from shoal.learn.stacked import train_stacked, why_not


def equal_parts(count: int = 3, model=models.mlp, **more) -> list[TorchLearner]:
    x, y = digits.digits()
    return [
        TorchLearner(model, (x[k * 50 : k * 50 + 50], y[k * 50 : k * 50 + 50]), device="cpu", **more)
        for k in range(count)
    ]


@pytest.mark.parametrize("model", [models.mlp, models.cnn])
@pytest.mark.parametrize(("epochs", "steps", "batch_size"), [(1.5, 0, 16), (1, 5, 10), (2, 0, 0)])
def test_together_is_alone(model, epochs: float, steps: int, batch_size: int) -> None:
    learners = equal_parts(model=model)
    base = learners[0].init(0)
    learners[0].init(9)
    budgets = [Budget(epochs, steps, batch_size, 0.05, seed=seed) for seed in (5, 6, 2**60)]
    together = train_stacked(learners, base, budgets)
    for learner, budget, (done, tree) in zip(learners, budgets, together, strict=True):
        learner.load(base)
        alone = learner.train(budget)
        assert done.weight == alone.weight
        assert done.metrics == {"train/loss": pytest.approx(alone.metrics["train/loss"], rel=1e-5)}
        assert all(np.allclose(tree[name], learner.model()[name], atol=1e-6) for name in tree)
    assert len({digest(tree) for _, tree in together}) == 3


def test_frozen_parameters_stay() -> None:
    def half_frozen() -> nn.Module:
        module = models.mlp()
        module[0].weight.requires_grad_(False)
        return module

    learners = equal_parts(model=half_frozen)
    base = learners[1].init(0)
    for _, tree in train_stacked(learners, base, [Budget(seed=seed) for seed in range(3)]):
        assert np.array_equal(tree["0.weight"], base["0.weight"])
        assert not np.array_equal(tree["2.weight"], base["2.weight"])


def test_ticks_and_cancelling() -> None:
    learners = equal_parts()
    seen: list[float] = []
    base = learners[0].init(0)
    train_stacked(learners, base, [Budget(batch_size=25)] * 3, tick=seen.append)
    assert seen == [0.5, 1.0]

    def stop(fraction: float) -> None:
        raise Cancelled("superseded")

    with pytest.raises(Cancelled):
        train_stacked(learners, base, [Budget()] * 3, tick=stop)


def test_who_cannot_be_trained_together() -> None:
    x, y = digits.digits()
    first = equal_parts(1)[0]
    pairs = list(zip(x[:50], y[:50], strict=True))
    others = {
        "models differ": TorchLearner(models.cnn, (x[:50], y[:50])),
        "different numbers": TorchLearner(models.mlp, (x[:51], y[:51])),
        "not tensors": TorchLearner(models.mlp, pairs),
        "optimizer": TorchLearner(models.mlp, (x[:50], y[:50]), optimizer=torch.optim.Adam),
    }
    for reason, other in others.items():
        assert reason in why_not([first, other])
    assert "buffers" in why_not(equal_parts(2, models.bn))
    assert why_not(equal_parts(2)) == ""
    with pytest.raises(InvalidJob, match="models differ"):
        train_stacked([first, others["models differ"]], first.init(0), [Budget(), Budget()])


def test_randomness_in_the_model_is_refused() -> None:
    """Dropout would draw other numbers than alone."""
    learners = equal_parts(2, lambda: nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5)))
    with pytest.raises(LearnerFailed, match="random"):
        train_stacked(learners, learners[0].init(0), [Budget(), Budget()])
