"""Codistillation: who is taught by whom, and that taught models disagree less (study F2)."""

from __future__ import annotations

from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.algorithms.codistillation import Codistillation
from shoal.core.algorithm.algorithm import LocalResult, LocalTask, run_task, tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Slots, Tree, digest
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner, digits
from shoal.learn.training.distill import taught_by
from tests.algorithms.softmax import Softmax, unbalanced
from tests.algorithms.softmax import digits as softmax_digits
from tests.learn.federation import versions


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def halves(seed: int) -> tuple[list[TorchLearner], tuple[Tensor, Tensor]]:
    """Two learners with 287 digits each, and the other 1,223."""
    x, y = digits.digits()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    parts = (order[:287], order[287:574])
    return [TorchLearner(network, (x[part], y[part])) for part in parts], (x[order[574:]], y[order[574:]])


def trained(weight: float, seed: int) -> tuple[float, float]:
    """(mean accuracy, share of unlike answers) of two models after 600 steps, exchanged every 50, burn-in 100."""
    torch.set_num_threads(1)
    learners, (x, y) = halves(seed)
    algorithm = Codistillation(weight=weight, burn_in=2, epochs=50 * 32 / 287, batch_size=32, lr=0.1)
    slots = next(islice(versions(algorithm, learners[0].init(0), learners, seed=seed), 11, None))
    answers = []
    for number, learner in enumerate(learners):
        learner.load(tree_slot(slots, f"model.{number}"))
        learner.module.eval()
        with torch.no_grad():
            answers.append(learner.module(x).argmax(1))
    accuracy = fmean(float((answer == y).float().mean()) for answer in answers)
    return accuracy, float((answers[0] != answers[1]).float().mean())


@pytest.mark.timeout(300)
def test_taught_models_disagree_less_and_are_as_good() -> None:
    """Study F2: at most .6 of the disagreement of models that learn alone, at no less accuracy."""
    alone, taught = ([trained(weight, seed) for seed in range(4)] for weight in (0.0, 1.0))
    assert fmean(unlike for _, unlike in taught) <= 0.6 * fmean(unlike for _, unlike in alone)
    assert fmean(accuracy for accuracy, _ in taught) >= fmean(accuracy for accuracy, _ in alone)


def model(value: float) -> Tree:
    return Tree.of({"w": np.full(3, value, np.float32)})


def test_teachers_take_turns_after_the_burn_in() -> None:
    algorithm, own = Codistillation(burn_in=1), {f"model.{node}": model(number) for number, node in enumerate("abc")}
    slots: Slots = {"model": model(0), "versions": 0.0, **own}
    assert "teacher" not in algorithm.task_slots(slots, "b", "train")
    told = [algorithm.task_slots({**slots, "versions": made}, "b", "train") for made in (1.0, 2.0, 3.0)]
    assert [tree_slot(one, "teacher")["w"][0] for one in told] == [2, 0, 2]
    assert all(tree_slot(one, "model")["w"][0] == 1 for one in told)
    assert "teacher" not in algorithm.task_slots({**slots, "versions": 9.0}, "b", "evaluate")
    assert "teacher" not in algorithm.task_slots(
        {"model": model(0), "versions": 9.0, "model.b": model(1)}, "b", "train"
    )


def test_a_teacher_that_never_comes_is_not_waited_for() -> None:
    """One node alone goes on learning."""
    job = parse_job({"name": "alone", "rounds": 4, "algorithm": {"name": "codistillation", "lr": 0.5}})
    result = shoal.simulate(job, unbalanced(tested=True)[:1])
    assert result.versions[-1].metrics["eval/loss"] < result.versions[1].metrics["eval/loss"]


def test_models_begin_differently() -> None:
    learners, _ = halves(0)
    slots = next(iter(versions(Codistillation(lr=0.0), learners[0].init(0), learners)))
    assert digest(tree_slot(slots, "model.0")) != digest(tree_slot(slots, "model.1"))
    assert digest(tree_slot(slots, "model")) == digest(tree_slot(slots, "model.0"))


def test_the_teacher_does_not_learn_and_its_word_counts() -> None:
    teacher, output = network(), torch.zeros(4, 10, requires_grad=True)
    x = torch.randn(4, 64)
    loss = taught_by(teacher, 0.5)((x, torch.zeros(4)), output)
    assert loss.item() == pytest.approx(0.5 * float(np.log(10)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert output.grad is not None
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.training
    said = teacher(x).softmax(1).detach()
    torch.testing.assert_close(output.grad, 0.5 * (output.detach().softmax(1) - said) / 4)


def test_a_model_without_logits_is_refused() -> None:
    with pytest.raises(InvalidJob, match="logits"):
        taught_by(network(), 1.0)((torch.randn(4, 64), torch.zeros(4)), torch.zeros(4))


class Unteachable(Softmax):
    teach = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(*softmax_digits())


def test_a_learner_that_cannot_be_taught() -> None:
    """Before it has trained once, not after the burn-in."""
    with pytest.raises(InvalidJob, match="Unteachable has no method teach"):
        run_task(Codistillation(), Unteachable(), LocalTask((1, 1), "init", 0, 1, {}), {})
    made = run_task(Codistillation(weight=0.0), Unteachable(), LocalTask((1, 1), "init", 0, 1, {}), {})
    assert isinstance(made, LocalResult)


@pytest.mark.parametrize("wrong", [{"weight": -1.0}, {"burn_in": -1}])
def test_numbers_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="must be at least 0"):
        Codistillation(**wrong)
