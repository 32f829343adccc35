"""Networks with an exit at each level: fusion of devices, joint training, and answers level by level."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.exits.thresholds import answering_exits
from shoal.learn.exits import ExitLevel, ExitNetwork, answer, bytes_per_answer, exit_learner, hops_of, record_exits
from shoal.learn.exits.device_fusion import binarize, fuse
from shoal.learn.exits.joint_training import JointLoss
from tests.learn.exit_networks import CLASSES, device, small, views

SCHEMES = ["MP-CC", "AP-MP", "CC-AP", "CC-CC"]
LABELS = torch.arange(50) % CLASSES


def test_an_absent_device_does_not_count_in_a_fusion() -> None:
    parts = torch.tensor([[[-3.0, -1.0]], [[-2.0, -5.0]], [[torch.nan, torch.nan]]])
    present = torch.tensor([[True], [True], [False]])
    assert fuse("MP", parts, present).tolist() == [[-2.0, -1.0]]
    assert fuse("AP", parts, present).tolist() == [[-2.5, -3.0]]
    assert fuse("CC", parts, present).tolist() == [[-3.0, -1.0, -2.0, -5.0, 0.0, 0.0]]


def test_devices_may_be_absent_for_single_examples() -> None:
    parts = torch.tensor([[[1.0], [2.0]], [[5.0], [7.0]]])
    present = torch.tensor([[True, True], [True, False]])
    assert fuse("AP", parts, present).tolist() == [[3.0], [2.0]]
    assert fuse("MP", parts, present).tolist() == [[5.0], [2.0]]


def test_features_have_two_values_and_a_gradient_near_zero() -> None:
    values = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    found = binarize(values)
    found.sum().backward()
    assert found.tolist() == [-1, -1, 1, 1, 1]
    assert values.grad is not None
    assert values.grad.tolist() == [0, 1, 1, 1, 0]


def test_each_exit_sees_the_level_below_it() -> None:
    network, x = small(2, "AP-CC", edge=True).eval(), views(2)
    assert network.edge_body is not None
    assert network.edge_exit is not None
    features = [network.bodies[k](x[:, k]) for k in range(2)]
    first = (network.exits[0](features[0]) + network.exits[1](features[1])) / 2
    middle = network.edge_body(torch.cat([binarize(one) for one in features], 1))
    expected = torch.stack([first, network.edge_exit(middle), network.cloud(binarize(middle))], 1)
    assert torch.allclose(network(x), expected, atol=1e-6)
    assert torch.equal(network(x[:, 0], x[:, 1]), network(x))
    assert network.levels == ("device", "edge", "cloud")


def test_one_device_has_nothing_to_fuse() -> None:
    network, x = small(1, "CC-CC").eval(), views(1)[:, 0]
    features = network.bodies[0](x)
    expected = torch.stack([network.exits[0](features), network.cloud(binarize(features))], 1)
    assert torch.equal(network(x), expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_answer_does_not_depend_on_a_device_that_is_left_out(scheme: str) -> None:
    network, x = small(3, scheme).eval(), views()
    network.leave_out([1])
    without = network(x)
    x[:, 1] = torch.nan
    assert torch.equal(network(x), without)
    x[:, 2] = 0
    assert not torch.equal(network(x), without)
    network.leave_out()
    assert network(x).isnan().any()


def test_devices_are_left_out_of_single_training_examples_but_never_all() -> None:
    network = small(3, "MP-MP", absence=0.9)
    scores = network(torch.ones(200, 3, 1, 4, 4))
    assert scores.isfinite().all()
    assert len({tuple(one) for one in scores[:, 0].tolist()}) == 7  # one for each set of devices but the empty one
    network.eval()
    assert len({tuple(one) for one in network(torch.ones(200, 3, 1, 4, 4))[:, 0].tolist()}) == 1


def test_the_joint_loss_is_the_weighted_sum_of_the_cross_entropies() -> None:
    scores = small(edge=True)(views())
    losses = [cross_entropy(scores[:, number], LABELS) for number in range(3)]
    assert torch.allclose(JointLoss((1.0, 0.5, 2.0))(scores, LABELS), losses[0] + 0.5 * losses[1] + 2 * losses[2])


def trained(weights: tuple[float, ...]) -> dict[str, float]:
    """The accuracies after some steps on views whose label is the brightest quarter of the first one."""
    x = views(2, 400)
    y = x[:, 0, 0].reshape(-1, 2, 2, 2, 2).mean((2, 4)).flatten(1).argmax(1)
    learner = exit_learner(lambda: small(2, "AP-CC"), (x, y), (x, y), weights=weights, device="cpu")
    learner.train(TrainConfig(epochs=4, batch_size=20, lr=0.3))
    return learner.evaluate()


def test_all_exits_are_trained_together() -> None:
    both, last = trained((1.0, 1.0)), trained((0.0, 1.0))
    assert both["eval/accuracy_device"] > 0.7
    assert both["eval/accuracy_cloud"] > 0.7
    assert last["eval/accuracy_cloud"] > 0.7
    assert last["eval/accuracy_device"] < 0.45  # chance is 0.25


def between(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """A threshold in the widest gap among the middle half of entropies: rounding moves none of them across it."""
    middle = np.sort(values)[len(values) // 4 : -len(values) // 4]
    widest = int(np.diff(middle).argmax())
    return float(middle[widest : widest + 2].mean())


@pytest.mark.parametrize(("scheme", "edge"), list(product(SCHEMES, [False, True])))
@pytest.mark.parametrize("left_out", [[], [0], [1, 2]])
def test_answers_level_by_level_are_those_of_the_whole_network(scheme: str, edge: bool, left_out: list[int]) -> None:
    network, x = small(3, scheme, edge=edge), views()
    network.leave_out(left_out)
    record = record_exits(network, [x], LABELS, batch_size=7)
    thresholds = [between(record.entropies[number]) for number in range(len(record.entropies) - 1)]
    found = answer(network, [x], thresholds)
    assert found.exits.tolist() == answering_exits(record.entropies, thresholds).tolist()
    outcome = record.outcome(thresholds)
    assert min(outcome.answered) > 0
    scores = network.eval()(x).argmax(2)
    assert found.classes.tolist() == scores[torch.arange(50), torch.from_numpy(found.exits)].tolist()
    assert (found.classes == LABELS.numpy()).mean() == pytest.approx(outcome.accuracy)
    assert found.sent == pytest.approx(50 * bytes_per_answer(hops_of(network, [x]), outcome.answered))


def test_a_network_in_training_is_measured_with_all_its_devices_and_goes_on_training() -> None:
    network, x = small(absence=0.9), views()
    record, expected = record_exits(network, [x], LABELS), record_exits(small(), [x], LABELS)
    assert np.array_equal(record.entropies, expected.entropies)
    assert network.training


def test_bytes_are_scores_of_each_device_and_packed_features() -> None:
    network, x = small(3, "AP-CC", edge=True), views()
    device, edge = hops_of(network, [x])
    assert (device.senders, device.scores, device.features) == (3, 4 * CLASSES, 2)  # 12 features
    assert (edge.senders, edge.scores, edge.features) == (1, 0, 3)  # 20 features
    network.leave_out([0])
    assert hops_of(network, [x])[0].senders == 2
    assert answer(network, [x], [1, 0]).sent == 2 * 50 * 4 * CLASSES
    assert hops_of(small(1), [views(1)[:, 0]])[0].scores == 0  # the exit is on the device itself
    assert answer(small(1), [views(1)[:, 0]], [1]).sent == 0


def test_the_metrics_are_those_of_the_answers() -> None:
    network, x = small(), views()
    thresholds = (between(record_exits(network, [x], LABELS).entropies[0]),)
    learner = exit_learner(small, (x, LABELS), (x, LABELS), thresholds=thresholds, device="cpu")
    found, record = learner.evaluate(), record_exits(small(), [x], LABELS)
    outcome = record.outcome(thresholds)
    assert found["eval/accuracy"] == pytest.approx(outcome.accuracy)
    assert (found["eval/answered_device"], found["eval/answered_cloud"]) == pytest.approx(outcome.fractions)
    pair = (found["eval/accuracy_device"], found["eval/accuracy_cloud"])
    assert pair == pytest.approx(record.exit_accuracies)
    plain = exit_learner(small, (x, LABELS), (x, LABELS), device="cpu").evaluate()
    assert plain["eval/accuracy"] == plain["eval/accuracy_cloud"]
    assert "eval/answered_device" not in plain


def test_a_curve_has_the_outcome_of_each_threshold() -> None:
    x = views()
    learner = exit_learner(lambda: small(edge=True), (x, LABELS), (x, LABELS), curve=True, device="cpu")
    found, record = learner.evaluate(), record_exits(small(edge=True), [x], LABELS)
    for step in range(11):
        outcome = record.outcome([step / 10] * 2)
        assert found[f"eval/accuracy@{step / 10}"] == pytest.approx(outcome.accuracy)
        answered = [found[f"eval/answered_{level}@{step / 10}"] for level in ("device", "edge")]
        assert answered == pytest.approx(outcome.fractions[:2])


DATA = (views(), LABELS)
BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "one scheme": ("exits.scheme", lambda: small(scheme="AP")),
    "unknown scheme": ("exits.scheme", lambda: small(scheme="AP-XX")),
    "no device": ("exits.network", lambda: ExitNetwork([], None, nn.Identity(), classes=2)),
    "always absent": ("exits.network", lambda: small(absence=1.0)),
    "too few views": ("exits.views", lambda: small()(views(2))),
    "too many views": ("exits.views", lambda: small()(*views(4).unbind(1))),
    "all left out": ("exits.devices", lambda: small().leave_out([0, 1, 2])),
    "too few weights": ("exits.weights", lambda: exit_learner(small, DATA, weights=[1])),
    "negative weight": ("exits.weights", lambda: exit_learner(small, DATA, weights=[1, -1])),
    "no weight": ("exits.weights", lambda: exit_learner(small, DATA, weights=[0, 0])),
    "too many thresholds": ("exits.thresholds", lambda: exit_learner(small, DATA, thresholds=[0.5, 0.5])),
    "high threshold": ("exits.thresholds", lambda: exit_learner(small, DATA, thresholds=[2])),
    "thresholds of answers": ("exits.thresholds", lambda: answer(small(), [views()], [])),
    "another module": ("learner.model", lambda: exit_learner(lambda: nn.Linear(2, 2), DATA)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_training(what: str) -> None:
    code, call = BAD[what]
    with pytest.raises(ShoalError) as refused:
        call()
    assert (type(refused.value), refused.value.code) == (InvalidJob, code)


def test_devices_may_share_their_weights() -> None:
    part = device()
    network = ExitNetwork([part, part], None, nn.Sequential(nn.Flatten(), nn.Linear(24, CLASSES)), classes=CLASSES)
    learner = exit_learner(lambda: network, (views(2), LABELS), device="cpu")
    assert len(learner.layout.leaves) < len(network.state_dict())
    assert isinstance(part, ExitLevel)
