"""The machines of split learning: refused input, late messages, failures, and the bytes of a step."""

import numpy as np
import pytest

from shoal.core.errors import InvalidJob, InvalidPayload, Refused
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import (
    SplitEnded,
    SplitPoll,
    SplitRequest,
    SplitTurn,
    TurnFailed,
    TurnOver,
    TurnReport,
)
from shoal.core.split.part_state import Compute, Computed, SplitEffect, SplitSend
from shoal.core.split.split_coordinator import SplitCoordinator
from shoal.core.split.split_node import SplitNode
from shoal.core.split.split_plan import ACTIVATIONS, GRADIENT, LABELS, SplitPlan, TensorForm
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK
from shoal.sim.network.blobs import MemoryBlobs
from tests.sim.split_toy import plan_of, slots

BLOB = BlobRef("0" * 64, 8)
CUT, LABEL = TensorForm("F32", (64,)), TensorForm("I64")


def coordinator(nodes: int = 1, **more: object) -> tuple[SplitCoordinator, MemoryBlobs]:
    """A coordinator that waits for that number of nodes."""
    blobs = MemoryBlobs()
    plan = plan_of(1, "parallel", rounds=2, min_nodes=nodes, **more)
    return SplitCoordinator(plan, blobs, blobs.put(slots(1.0)), blobs.put(slots(2.0))), blobs


def messages(effects: list[SplitEffect]) -> list[object]:
    """The messages among effects."""
    return [one.message for one in effects if isinstance(one, SplitSend)]


@pytest.mark.parametrize(
    ("filters", "up", "down"),
    [
        ((), 32 * 64 * 4 + 32 * 8, 32 * 64 * 4),
        ((Half(),), 32 * 64 * 2 + 32 * 8, 32 * 64 * 2),
        ((Quantize(),), 32 * 64 + 4 * 4 + 32 * 8, 32 * 64 + 4 * 4),
    ],
)
def test_the_bytes_of_a_step(filters: tuple[Half | Quantize, ...], up: int, down: int) -> None:
    plan = SplitPlan((CUT,), LABEL, filters=filters)
    assert plan.step_bytes(32) == (up, down)
    rng = np.random.default_rng(0)
    sent = {ACTIVATIONS: rng.random((32, 64), np.float32), LABELS: np.arange(32)}
    packed = plan.packed({name: Tree.of({name: values}) for name, values in sent.items()}, 0)
    assert sum(tree.layout.nbytes for tree in packed.values() if isinstance(tree, Tree)) == up
    found = plan.opened(packed, 0, "request", 32)
    assert found[LABELS][LABELS].tolist() == sent[LABELS].tolist()
    assert np.abs(found[ACTIVATIONS][ACTIVATIONS] - sent[ACTIVATIONS]).max() <= (1 / 127 if filters else 0)


def test_labels_at_the_node_are_never_sent() -> None:
    plan = SplitPlan((CUT, TensorForm("F32", (5,))))
    assert [list(plan.layouts(leg, "request", 4)) for leg in (0, 1)] == [[ACTIVATIONS], [GRADIENT]]
    assert plan.step_bytes(4) == (4 * 4 * (64 + 5), 4 * 4 * (5 + 64))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cuts": (CUT,)}, "labels at the node need two cuts"),
        ({"cuts": (CUT, CUT), "label_form": LABEL}, "at the coordinator one"),
        ({"cuts": (TensorForm("F32", (1 << 30,)),), "label_form": LABEL}, "use smaller batches"),
        ({"cuts": (CUT, CUT), "filters": (TopK(),)}, "use filters that round each number"),
        ({"cuts": (CUT, CUT), "rounds": 0}, "rounds is 0"),
        ({"cuts": (CUT, CUT), "order": "random"}, "use sequential or parallel"),
    ],
)
def test_plans_that_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        SplitPlan(**given)  # type: ignore[arg-type]


def test_a_body_of_another_form_is_refused() -> None:
    plan = SplitPlan((CUT, CUT))
    blob = {ACTIVATIONS: Tree.of({ACTIVATIONS: np.zeros((3, 64), np.float32)})}
    with pytest.raises(InvalidPayload):
        plan.opened(blob, 0, "request", 4)
    with pytest.raises(InvalidPayload, match="slots"):
        plan.opened(blob, 1, "request", 3)


def test_a_request_that_is_refused_changes_nothing() -> None:
    machine, _ = coordinator()
    machine.on(SplitPoll("a"), 0.0)
    with pytest.raises(Refused, match="a batch of 2 examples; at most 1"):
        machine.on(SplitRequest("a", 1, 0, 0, 2, BLOB), 0.0)
    assert isinstance(machine.on(SplitRequest("a", 1, 0, 0, 1, BLOB), 0.0)[0], Compute)


def test_a_node_ignores_a_turn_that_it_has_had() -> None:
    node = SplitNode("a", plan_of(1, "sequential"), 5, 1.0)
    assert any(isinstance(one, Compute) for one in node.on(SplitTurn(2, 0, BLOB), 0.0))
    assert node.on(SplitTurn(2, 0, BLOB), 0.0) == []
    assert messages(node.on(TurnOver(2, counted=True), 0.0)) == [SplitPoll("a")]
    assert node.on(SplitTurn(1, 0, BLOB), 0.0) == []


@pytest.mark.parametrize(
    ("weight", "value", "text"), [(0.0, 1.0, "its weight is 0"), (1.0, float("nan"), "w is not finite")]
)
def test_a_node_with_a_bad_report_is_excluded(weight: float, value: float, text: str) -> None:
    machine, blobs = coordinator(nodes=1)
    for node in ("a", "b"):
        machine.on(SplitPoll(node), 0.0)
    effects = machine.on(TurnReport("a", 1, weight, blobs.put(slots(value))), 0.0)
    assert any(isinstance(one, JobEvent) and text in one.text for one in effects)
    (told,) = messages(machine.on(SplitPoll("a"), 0.0))
    assert isinstance(told, SplitEnded)
    assert "has failed" in told.why
    assert text in machine.state.excluded["a"]
    assert isinstance(messages(machine.on(SplitPoll("b"), 0.0))[0], SplitTurn)


def test_the_job_ends_when_too_few_nodes_are_left() -> None:
    machine, _ = coordinator(nodes=2)
    for node in ("a", "b"):
        machine.on(SplitPoll(node), 0.0)
    machine.on(TurnFailed("a", 1, "no data"), 0.0)
    assert messages(machine.on(SplitPoll("b"), 0.0)) == [SplitEnded("a failed: no data")]


@pytest.mark.parametrize("how", ["error", "not finite"])
def test_a_node_whose_batches_break_the_coordinators_part_is_excluded(how: str) -> None:
    machine, blobs = coordinator(nodes=1)
    for node in ("a", "b"):
        machine.on(SplitPoll(node), 0.0)
    before = machine.state.coordinator_part
    if how == "error":
        machine.on(SplitRequest("a", 1, 0, 0, 1, BLOB), 0.0)
        effects = machine.on(Computed(1, 0, 0, error="no such label"), 0.0)
        assert any(isinstance(one, JobEvent) and "part failed: no such label" in one.text for one in effects)
    else:
        machine.on(TurnReport("a", 1, 1.0, blobs.put(slots(1.0))), 0.0)
        effects = machine.on(Computed(1, 0, 0, checkpoint=blobs.put(slots(float("nan")))), 0.0)
        assert any(isinstance(one, JobEvent) and "not finite after its turn" in one.text for one in effects)
    assert machine.state.coordinator_part == before
    assert isinstance(messages(machine.on(SplitPoll("a"), 0.0))[0], SplitEnded)
    assert isinstance(messages(machine.on(SplitPoll("b"), 0.0))[0], SplitTurn)
