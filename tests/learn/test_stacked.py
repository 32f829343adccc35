"""Training several learners at once gives what each would give alone."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.core.model.tree import digest
from shoal.learn import TorchLearner, digits, models
from shoal.learn.stacked.stacked_training import train_stacked, why_not
from shoal.learn.training.torch_learner import TorchConfig
from tests.learn.stacked_learners import LENGTHS, assert_alone, equal_parts, ragged


@pytest.mark.parametrize("model", [models.mlp, models.cnn])
@pytest.mark.parametrize(("epochs", "steps", "batch_size"), [(1.5, 0, 16), (1, 5, 10), (2, 0, 0)])
def test_together_is_alone(model, epochs: float, steps: int, batch_size: int) -> None:
    learners = equal_parts(model=model)
    base = learners[0].init(0)
    learners[0].init(9)
    configs = [TrainConfig(epochs, steps, batch_size, 0.05, seed=seed) for seed in (5, 6, 2**60)]
    together = train_stacked(learners, base, configs)
    for learner, config, (done, tree, *_) in zip(learners, configs, together, strict=True):
        learner.load(base)
        alone = learner.train(config)
        assert done.weight == alone.weight
        assert done.metrics == {"train/loss": pytest.approx(alone.metrics["train/loss"], rel=1e-5)}
        assert all(np.allclose(tree[name], learner.model()[name], atol=1e-6) for name in tree)
    assert len({digest(tree) for _, tree, *_ in together}) == 3


def other_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, other_cross_entropy], ids=["padded", "by size"])
@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(batch_size=8),
        TrainConfig(epochs=2.5, batch_size=8),
        TrainConfig(steps=7, batch_size=8),
        TrainConfig(steps=2, batch_size=16),
        TrainConfig(epochs=2, batch_size=0),
        TrainConfig(steps=5, batch_size=8, batch_index=4, sequence_seed=3),
        TrainConfig(epochs=0, batch_size=8),
    ],
    ids=["a pass", "passes", "steps", "fewer steps", "whole", "sequence", "nothing"],
)
def test_learners_with_unequal_numbers_of_examples(config: TrainConfig, loss) -> None:
    assert_alone(ragged(LENGTHS, loss=loss), config)


def test_full_batches_go_together_and_then_last_ones_of_a_size() -> None:
    """Last batches of similar sizes are padded, if the loss allows it. Few learners are not worth a stacked step."""
    lengths, config = [11, 11, 11, 11, 19, 19, 19, 21, 4, 6, 7, 40], TrainConfig(batch_size=8)
    assert assert_alone(ragged(lengths), config) == [*[0.0] * 11, 3 / 5]
    by_size = assert_alone(ragged(lengths, loss=other_cross_entropy), config)
    assert by_size == [*[0.0] * 7, 1 / 3, 1.0, 1.0, 1.0, 3 / 5]


def local_norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10))


class Centered(nn.Module):
    """A model whose output for an example depends on the others in its batch, so that none may be padded."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("model", [Centered, local_norm], ids=["centered", "norm"])
def test_models_that_look_at_the_whole_batch(model) -> None:
    """Their batches are not padded. Those of a norm are merged with last ones that are small."""
    lengths = [10, 10, 10, 10, 13, 13, 13, 13, 20, 7, 7, 7, 7, 5]
    alone = assert_alone(ragged(lengths, model=model), TrainConfig(epochs=2, batch_size=8))
    assert alone == [*[0.0] * 8, 2 / 3, *[0.0] * 5]


class Attention(nn.Module):
    """Attention between the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x.view(-1, 1, 8, 8)).chunk(3, -1)
        output: torch.Tensor = self.out(nn.functional.scaled_dot_product_attention(query, key, value).flatten(1))
        return output


def test_attention_is_batched() -> None:
    """Torch warns where it goes through the rows of a stack one by one, and a warning fails a test."""
    assert assert_alone(equal_parts(5, Attention), TrainConfig(batch_size=16)) == [0.0] * 5


def tied() -> nn.Module:
    one, other = nn.Linear(64, 64), nn.Linear(64, 64)
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), other, nn.Linear(64, 10))


def test_a_weight_of_two_layers_is_that_of_both() -> None:
    assert assert_alone(equal_parts(5, tied), TrainConfig(batch_size=16)) == [0.0] * 5


def test_one_learner_with_many_more_examples() -> None:
    assert assert_alone(ragged([100, 9, 10, 11, 12, 13]), TrainConfig(batch_size=8)) == [12 / 13, *[0.5] * 5]


def test_a_target_with_a_special_meaning() -> None:
    """Only torch's own loss knows which targets to ignore, so no batch is padded."""
    x, y = digits.digits()
    learners = ragged([9, 10, 11, 12])
    learners[2] = TorchLearner(models.mlp, (x[:11], torch.tensor([-100, *y[1:11]])), device="cpu")
    assert assert_alone(learners, TrainConfig(batch_size=8)) == [0.5] * 4


def test_frozen_parameters_stay() -> None:
    def half_frozen() -> nn.Module:
        module = models.mlp()
        module[0].weight.requires_grad_(False)
        return module

    learners = equal_parts(model=half_frozen, config=TorchConfig(travels="all"))
    base = learners[1].init(0)
    for _, tree, *_ in train_stacked(learners, base, [TrainConfig(seed=seed) for seed in range(3)]):
        assert np.array_equal(tree["0.weight"], base["0.weight"])
        assert not np.array_equal(tree["2.weight"], base["2.weight"])
    exchanging = equal_parts(model=half_frozen)
    start, configs = exchanging[0].init(0), [TrainConfig(seed=seed) for seed in range(3)]
    for learner, config, (_, tree, *_) in zip(
        exchanging, configs, train_stacked(exchanging, start, configs), strict=True
    ):
        learner.load(start)
        learner.train(config)
        assert np.abs(tree["2.weight"] - learner.model()["2.weight"]).max() < 1e-6
        assert "0.weight" not in tree


class Mixed(nn.Module):
    """Weights of several types, one of them a scalar, in an odd number of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.scale + self.shift.sum()).float()


@pytest.mark.parametrize(("make", "ignored"), [(Mixed, 0), (models.mlp, 3)], ids=["mixed types", "ignored examples"])
def test_unusual_weights_and_targets(make, ignored: int) -> None:
    x, y = digits.digits()
    targets = y[:150].clone()
    targets[:ignored] = -100
    parts = [slice(k * 50, k * 50 + 50) for k in range(3)]
    learners = [TorchLearner(make, (x[part], targets[part]), device="cpu") for part in parts]
    base, configs = learners[0].init(0), [TrainConfig(batch_size=10, seed=seed) for seed in range(3)]
    for learner, config, (done, tree, *_) in zip(
        learners, configs, train_stacked(learners, base, configs), strict=True
    ):
        learner.load(base)
        assert done.metrics == pytest.approx(learner.train(config).metrics, rel=1e-4)
        assert all(np.allclose(tree[name], learner.model()[name], atol=1e-5) for name in tree)


def test_ticks_and_cancelling() -> None:
    learners = equal_parts(4)
    seen: list[float] = []
    base = learners[0].init(0)
    train_stacked(learners, base, [TrainConfig(batch_size=25)] * 4, progress=seen.append)
    assert seen == [0.5, 1.0]

    def stop(fraction: float) -> None:
        raise Cancelled("superseded")

    with pytest.raises(Cancelled):
        train_stacked(learners, base, [TrainConfig()] * 4, progress=stop)


def test_who_cannot_be_trained_together() -> None:
    x, y = digits.digits()
    first = equal_parts(1)[0]
    pairs = list(zip(x[:50], y[:50], strict=True))
    others = {
        "models differ": TorchLearner(models.cnn, (x[:50], y[:50])),
        "differ in shape": TorchLearner(models.mlp, (x[:50].reshape(50, 1, 64), y[:50])),
        "not tensors": TorchLearner(models.mlp, pairs),
        "optimizers or settings differ": TorchLearner(models.mlp, (x[:50], y[:50]), optimizer=torch.optim.Adam),
    }
    for reason, other in others.items():
        assert reason in why_not([first, other])
    local = equal_parts(2, local_norm, config=TorchConfig(batch_norm="local"))
    assert "weights stay on the node" in why_not(local)
    assert why_not(equal_parts(2)) == ""
    with pytest.raises(InvalidJob, match="models differ"):
        train_stacked([first, others["models differ"]], first.init(0), [TrainConfig(), TrainConfig()])


class Attending(nn.Module):
    """Attention with dropout inside it, with its weights or without."""

    def __init__(self, has_weights: bool) -> None:
        super().__init__()
        self.attention, self.has_weights = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), has_weights
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 8, 8)
        output: torch.Tensor = self.out(self.attention(rows, rows, rows, need_weights=self.has_weights)[0].flatten(1))
        return output


class Noisy(nn.Module):
    """A model that adds noise, and chooses by Gumbel noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(x + 0.1 * torch.randn_like(x) + torch.rand_like(x))
        return hidden * nn.functional.gumbel_softmax(hidden)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10), nn.Dropout(0.1))


def dropping_channels() -> nn.Module:
    layers = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.AlphaDropout(0.2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(144, 10))


class Transposing(nn.Module):
    """A model with masks that have the examples of a batch in their last dimension, so that none may be padded."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(nn.functional.dropout(x.T.contiguous(), 0.3).T)
        return output


@pytest.mark.parametrize(
    "model",
    [dropping, dropping_channels, partial(Attending, True), partial(Attending, False), Noisy, Transposing],
    ids=["dropout", "channels", "attention", "fused attention", "noise", "transposed"],
)
def test_random_numbers_are_those_that_each_draws_alone(model) -> None:
    """Also in padded batches, and in the steps that a learner makes alone."""
    alone = assert_alone(ragged(LENGTHS, model=model), TrainConfig(epochs=2, batch_size=8))
    assert min(alone) == 0.0 < max(alone)


def test_global_random_numbers_go_on_as_if_nothing_had_been_drawn() -> None:
    learners = ragged([20, 20, 20, 20, 33], model=dropping)
    base = learners[0].init(0)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train_stacked(learners, base, [TrainConfig(batch_size=8)] * 5)
    assert torch.equal(torch.rand(2), expected)


class Permuting(nn.Module):
    """A model whose noise lies otherwise in memory than its shape says, or that draws by an operation without a row."""

    def __init__(self, *, is_new: bool) -> None:
        super().__init__()
        self.linear, self.is_new = nn.Linear(64, 10), is_new

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(64) if self.is_new else torch.randn_like(x.T).T
        output: torch.Tensor = self.linear(x + noise)
        return output


@pytest.mark.parametrize(
    ("is_new", "reason"), [(False, "other random numbers than alone"), (True, r"random numbers by aten\.randn")]
)
def test_other_random_numbers_are_refused(is_new: bool, reason: str) -> None:
    learners = ragged([50, 20], model=partial(Permuting, is_new=is_new))
    with pytest.raises(LearnerFailed, match=reason):
        train_stacked(learners, learners[0].init(0), [TrainConfig(), TrainConfig()])
