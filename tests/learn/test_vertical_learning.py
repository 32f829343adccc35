"""Training on vertical data computes what central training of the joined network does."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed, Unreachable
from shoal.filters.half import Half
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.split.vertical_network import VerticalNetwork
from shoal.sim.network.faults import Faults
from tests.learn.test_split_learning import greatest_difference

FAULTS = Faults(message_loss=0.1, message_duplicates=0.1, delay_s=0.02, coordinator_crashes=5, node_crashes=5)
STEPS = 20


def network() -> VerticalNetwork:
    """Two heads, one of which ends with BatchNorm, and a tail."""
    heads = {
        "bank": nn.Sequential(nn.Linear(4, 8), nn.ReLU()),
        "shop": nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7)),
    }
    return VerticalNetwork(heads, nn.Sequential(nn.Linear(15, 16), nn.ReLU(), nn.Linear(16, 2)))


def momentum(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def data(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of two parties, and labels that depend on both."""
    x = torch.randn(60, 7, generator=torch.Generator().manual_seed(seed))
    return x[:, :4], x[:, 4:], (x[:, 0] * x[:, 5] > 0).long()


def learner(model: Callable[[], nn.Module] = network, **more: object) -> TorchLearner:
    """A learner of the whole network."""
    return TorchLearner(model, data(), **{"optimizer": momentum, "device": "cpu", **more})  # type: ignore[arg-type]


def central(steps: int) -> TorchLearner:
    """The learner after training without parties."""
    found = learner()
    found.init(0)
    found.train(TrainConfig(steps=steps, batch_size=8, batch_index=0, lr=0.05))
    return found


@pytest.mark.parametrize(("labels", "fault_seed"), [("coordinator", 3), ("shop", 4)])
def test_it_equals_central_training_with_crashes_in_the_middle(labels: str, fault_seed: int) -> None:
    job = shoal.VerticalJob(labels=labels, steps=STEPS, rounds=2, batch_size=8, lr=0.05, checkpoint_every=4)
    plain = shoal.simulate_vertical(job, learner())
    faulty = shoal.simulate_vertical(job, learner(), faults=FAULTS, fault_seed=fault_seed)
    model = central(2 * STEPS).model()
    assert greatest_difference(plain.model, model) == 0.0
    assert greatest_difference(faulty.model, model) == 0.0
    assert faulty.up_bytes["bank"] > plain.up_bytes["bank"]
    assert plain.metrics == faulty.metrics


def test_a_party_that_loses_its_disk_starts_the_round_again() -> None:
    job = shoal.VerticalJob(steps=STEPS, batch_size=8, lr=0.05)
    found = shoal.simulate_vertical(job, learner(), faults=Faults(node_crashes=2, disk_survival=0.0))
    assert "no progress for 600 s" in [event.text for event in found.events]
    assert greatest_difference(found.model, central(STEPS).model()) == 0.0


def test_a_party_sends_its_activations_and_gets_their_gradient_alone() -> None:
    job = shoal.VerticalJob(labels="shop", steps=1, batch_size=8)
    found = shoal.simulate_vertical(job, learner())
    half = shoal.simulate_vertical(shoal.VerticalJob(labels="shop", steps=1, batch_size=8, filters=[Half()]), learner())
    saved = {name: found.up_bytes[name] - half.up_bytes[name] for name in ("bank", "shop")}
    assert saved == {"bank": 8 * 8 * 2, "shop": 8 * 7 * 2}
    assert {name: found.down_bytes[name] - half.down_bytes[name] for name in saved} == saved


def test_held_out_data_are_measured_in_each_round() -> None:
    held_out = TorchLearner(network, data(), data(9), device="cpu")
    found = shoal.simulate_vertical(shoal.VerticalJob(rounds=2), learner(), held_out=held_out)
    assert [version.number for version in found.versions] == [0, 1, 2]
    assert all("held_out/accuracy" in version.metrics for version in found.versions)


def one_head() -> VerticalNetwork:
    return VerticalNetwork({"bank": nn.Linear(4, 2)}, nn.Linear(2, 2))


def three_heads() -> VerticalNetwork:
    return VerticalNetwork({name: nn.Linear(4, 2) for name in "abc"}, nn.Linear(6, 2))


def with_counts() -> VerticalNetwork:
    return VerticalNetwork({"bank": nn.Linear(4, 2), "shop": nn.LSTM(3, 2)}, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("model", "job", "more", "text"),
    [
        (network, {"labels": "ann"}, {}, "'ann', which is not a party"),
        (network, {"epochs": 0.0}, {}, "a turn of 0 batches"),
        (three_heads, {}, {}, "2 inputs for 3 heads"),
        (with_counts, {}, {}, "the activations at the head of shop are tuple"),
        (lambda: nn.Linear(4, 2), {}, {}, "the learner has a Linear as its model"),
        (network, {}, {"config": TorchConfig(clip_norm=1.0)}, "clip_norm"),
    ],
)
def test_jobs_that_are_refused(
    model: Callable[[], nn.Module], job: dict[str, object], more: dict[str, object], text: str
) -> None:
    with pytest.raises(InvalidJob, match=text):
        shoal.simulate_vertical(shoal.VerticalJob(**job), learner(model, **more))  # type: ignore[arg-type]


def test_one_party_is_refused() -> None:
    x, _, y = data()
    with pytest.raises(InvalidJob, match="1 parties"):
        shoal.simulate_vertical(shoal.VerticalJob(), TorchLearner(one_head, (x, y), device="cpu"))


def test_errors_of_the_users_code_and_a_dead_network_are_raised() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        raise ValueError("no such class")

    with pytest.raises(LearnerFailed, match="no such class"):
        shoal.simulate_vertical(shoal.VerticalJob(), learner(loss=loss))
    with pytest.raises(Unreachable, match="no message arrives"):
        shoal.simulate_vertical(shoal.VerticalJob(steps=1), learner(), faults=Faults(message_loss=1.0))
