"""Split learning computes what central training does, and refuses what it cannot cut."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Tree
from shoal.core.split.split_plan import LabelPlace
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.split.part_legs import batch_at
from shoal.sim.network.faults import Faults

FAULTS = Faults(message_loss=0.1, message_duplicates=0.1, delay_s=0.02, coordinator_crashes=5, node_crashes=5)
STEPS = 30


def network() -> nn.Sequential:
    """A model with BatchNorm and a chain inside a chain."""
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.ReLU(),
        nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8)),
        nn.ReLU(),
        nn.Linear(8, 4),
        nn.Linear(4, 3),
    )


def momentum(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam, whose state counts steps."""
    return torch.optim.Adam(parameters, lr=lr)


def data(seed: int = 0, examples: int = 50) -> tuple[Tensor, Tensor]:
    """Inputs, and labels that depend on them."""
    x = torch.randn(examples, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long() + (x[:, 3] > 0).long()


def learner(
    seed: int = 0, examples: int = 50, model: Callable[[], nn.Module] = network, **more: object
) -> TorchLearner:
    """A learner of the network, with momentum."""
    return TorchLearner(model, data(seed, examples), **{"optimizer": momentum, "device": "cpu", **more})  # type: ignore[arg-type]


def centrally(learners: list[TorchLearner], optimizer: Callable[..., torch.optim.Optimizer], rounds: int = 1) -> Tree:
    """The model after training on the batches of all learners in turn, by a loop of torch."""
    first = learners[0]
    first.init(0)
    module = first.module.train()
    stepper = optimizer(module.parameters(), 0.05)
    for number in range(rounds):
        for one in learners:
            for step in range(STEPS):
                inputs, target, _ = batch_at(one.train_data, 8, 0, number * STEPS + step)
                stepper.zero_grad()
                nn.functional.cross_entropy(module(*inputs), target).backward()
                stepper.step()
    return first.model()


def greatest_difference(one: Tree, other: Tree) -> float:
    """The greatest difference of two models' tensors."""
    assert set(one) == set(other)
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max()) for name in one)


@pytest.mark.parametrize("labels", ["node", "coordinator"])
@pytest.mark.parametrize("cut", [1, "2.1", 4])
def test_it_equals_central_training_with_crashes_in_the_middle(cut: int | str, labels: LabelPlace) -> None:
    job = shoal.SplitJob(cut=cut, labels=labels, steps=STEPS, batch_size=8, lr=0.05, checkpoint_every=4)
    plain = shoal.simulate_split(job, [learner()])
    faulty = shoal.simulate_split(job, [learner()], faults=FAULTS, fault_seed=1)
    central = learner()
    central.init(0)
    central.train(TrainConfig(steps=STEPS, batch_size=8, batch_index=0, lr=0.05))
    assert greatest_difference(plain.model, central.model()) == 0.0
    assert greatest_difference(faulty.model, central.model()) == 0.0
    assert faulty.versions[-1].up_bytes > plain.versions[-1].up_bytes


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, adam])
def test_nodes_one_after_another_equal_central_training_on_their_data_in_turn(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    def three() -> list[TorchLearner]:
        return [learner(seed, 40 + seed, optimizer=optimizer) for seed in range(3)]

    job = shoal.SplitJob(cut=(2, 4), steps=STEPS, batch_size=8, lr=0.05, rounds=2, checkpoint_every=7)
    found = shoal.simulate_split(job, three(), faults=FAULTS)
    assert greatest_difference(found.model, centrally(three(), optimizer, rounds=2)) == 0.0


def test_nodes_in_parallel_give_the_mean_by_examples() -> None:
    sizes = (40, 80)
    job = shoal.SplitJob(cut=3, order="parallel", steps=STEPS, batch_size=8, lr=0.05)
    found = shoal.simulate_split(job, [learner(seed, size) for seed, size in enumerate(sizes)], faults=FAULTS)
    ends = [centrally([learner(seed, size)], momentum) for seed, size in enumerate(sizes)]
    for name in ends[0]:
        mean = sum(size * end[name].astype(np.float64) for size, end in zip(sizes, ends, strict=True)) / sum(sizes)
        if name.endswith("num_batches_tracked"):
            continue
        assert np.abs(found.model[name] - mean).max() < 1e-6, name


@pytest.mark.parametrize("filters", [(Half(),), (Quantize(bucket=64),)])
def test_filters_send_less_and_learn_as_well(filters: tuple[Half | Quantize]) -> None:
    job = shoal.SplitJob(cut=2, labels="coordinator", epochs=8, batch_size=16, lr=0.05)
    plain = shoal.simulate_split(job, [learner()])
    found = shoal.simulate_split(replace(job, filters=filters), [learner()], faults=FAULTS, fault_seed=3)
    again = shoal.simulate_split(replace(job, filters=filters), [learner()])
    assert greatest_difference(found.model, again.model) == 0.0
    assert again.versions[-1].up_bytes < 0.8 * plain.versions[-1].up_bytes
    assert found.metrics["train/loss"] == pytest.approx(plain.metrics["train/loss"], abs=0.02)


def test_a_measured_cut_gives_the_same_model() -> None:
    job = shoal.SplitJob(steps=STEPS, batch_size=8, lr=0.05)
    found = shoal.simulate_split(job, [learner()])
    assert any(f"the model is cut at {cut};" in found.events[0].text for cut in range(1, 5))
    assert greatest_difference(found.model, centrally([learner()], momentum)) == 0.0


def test_held_out_data_are_measured_in_each_round() -> None:
    held_out = TorchLearner(network, data(), data(9), device="cpu")
    found = shoal.simulate_split(shoal.SplitJob(cut=1, rounds=2, batch_size=8), [learner()], held_out=held_out)
    assert [version.number for version in found.versions] == [0, 1, 2]
    assert all("held_out/accuracy" in version.metrics for version in found.versions)
    assert found.load_into(network())(data()[0]).shape == (50, 3)


class Residual(nn.Module):
    """A block whose input skips its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def with_block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), Residual(), nn.Linear(16, 3))


def tied() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(6, 3))


class Pair(nn.Module):
    """A module with two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def with_pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), Pair(), nn.Linear(6, 3), nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("model", "cut", "labels", "text"),
    [
        (with_block, "1.inner.1", "coordinator", "a cut inside a module that is not a chain: '1' is a Residual"),
        (Residual, 1, "node", "the model is a Residual"),
        (network, 0, "node", "a cut at 0, in a model of 6 modules"),
        (network, 6, "coordinator", "use 1 to 5"),
        (network, "7", "coordinator", "no module '7'"),
        (network, (3, 2), "node", "no module '2' to cut at"),
        (network, (1, 2), "coordinator", "two cuts, with the labels at the coordinator"),
        (network, (4, 4), "node", "the coordinator's modules have no parameter"),
        (tied, 2, "coordinator", "is on both sides of the cut"),
        (with_pair, 2, "coordinator", "the activations at the first cut are tuple"),
    ],
)
def test_cuts_that_are_refused(
    model: Callable[[], nn.Module], cut: int | str | tuple[int, int], labels: LabelPlace, text: str
) -> None:
    with pytest.raises(InvalidJob, match=text.replace("(", r"\(")):
        shoal.simulate_split(shoal.SplitJob(cut=cut, labels=labels), [learner(model=model)])


def test_data_labels_and_learners_that_are_refused() -> None:
    x, y = data()
    job = shoal.SplitJob(cut=1)
    with pytest.raises(InvalidJob, match="labels is 'nobody'"):
        shoal.SplitJob(cut=1, labels="nobody")  # type: ignore[arg-type]
    for train, text in (((x,), "have no labels"), ((x, x, y), "several inputs")):
        with pytest.raises(InvalidJob, match=text):
            shoal.simulate_split(job, [TorchLearner(network, train, device="cpu")])
    with pytest.raises(InvalidJob, match="needs a TorchLearner"):
        shoal.simulate_split(job, [network()])  # type: ignore[list-item]
    with pytest.raises(InvalidJob, match="clip_norm"):
        shoal.simulate_split(job, [learner(config=TorchConfig(clip_norm=1.0))])
    with pytest.raises(InvalidJob, match="at least one learner"):
        shoal.simulate_split(job, [])


def test_an_error_of_the_users_loss_is_raised() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        raise ValueError("no such class")

    with pytest.raises(LearnerFailed, match="no such class"):
        shoal.simulate_split(shoal.SplitJob(cut=1), [learner(loss=loss)])
