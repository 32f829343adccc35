"""The coordinator's machine for vertical data: a batch waits for all parties, and one that fails ends the job."""

from dataclasses import replace

import pytest

from shoal.core.errors import Refused
from shoal.core.protocol.machine import HUB, JobEvent, Save, Timer
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import (
    AlignRows,
    NoTurn,
    OtherIds,
    PartyIds,
    SplitAnswer,
    SplitEnded,
    SplitPoll,
    SplitRequest,
    SplitTurn,
    TurnFailed,
    TurnOver,
    TurnReport,
)
from shoal.core.split.part_state import FINISH, Compute, Computed, Masked, MaskIds, SplitEffect, SplitSend, SplitVersion
from shoal.core.split.party_node import PartyNode
from shoal.core.split.split_plan import SplitPlan, TensorForm
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.core.split.vertical_plan import VerticalPlan
from shoal.sim.network.blobs import MemoryBlobs
from tests.sim.split_toy import slots

A, B = BlobRef("a" * 64, 8), BlobRef("b" * 64, 8)
ONE = SplitPlan((TensorForm("F32", (2,)),), batch_size=4, is_party=True)


def sent(effects: list[SplitEffect]) -> list[tuple[str, object]]:
    """Receivers and messages among effects."""
    return [(one.to, one.message) for one in effects if isinstance(one, SplitSend)]


def begun() -> tuple[VerticalCoordinator, MemoryBlobs]:
    """A coordinator whose two parties have their turns of one batch."""
    blobs = MemoryBlobs()
    plan = VerticalPlan({"a": ONE, "b": ONE})
    heads = [blobs.put(slots(1.0)), blobs.put(slots(2.0))]
    machine = VerticalCoordinator(plan, blobs, heads, blobs.put(slots(3.0)))
    assert sent(machine.on(SplitPoll("a", 4, 1), 0.0)) == []
    assert sent(machine.on(SplitPoll("a", 4, 1), 0.0)) == [("a", NoTurn())]
    assert machine.state.turn_batches == {}
    turns = [("a", SplitTurn(1, 0, heads[0])), ("b", SplitTurn(1, 0, heads[1]))]
    assert sent(machine.on(SplitPoll("b", 4, 1), 0.0)) == turns
    assert machine.state.turn_batches == {"a": 0, "b": 0}
    return machine, blobs


def after_a_batch() -> tuple[VerticalCoordinator, MemoryBlobs]:
    """The same after the batch."""
    machine, blobs = begun()
    machine.on(SplitRequest("a", 1, 0, 0, 4, A), 0.0)
    machine.on(SplitRequest("b", 1, 0, 0, 4, B), 0.0)
    machine.on(Computed(1, 0, 0, None, 4, {"train/loss": 0.5}, answers=(B, A)), 1.0)
    return machine, blobs


def test_a_batch_waits_for_all_parties_and_is_answered_again() -> None:
    machine, _ = begun()
    assert machine.on(SplitRequest("b", 1, 0, 0, 4, B), 0.0) == []
    (work,) = machine.on(SplitRequest("a", 1, 0, 0, 4, A), 0.0)
    assert isinstance(work, Compute)
    assert work.received is not None
    assert work.received.blobs == (A, B)
    assert machine.on(SplitRequest("a", 1, 0, 0, 4, A), 0.0) == []
    done = Computed(1, 0, 0, None, 4, {"train/loss": 0.5}, answers=(B, A))
    saved, *answers = machine.on(done, 1.0)
    assert isinstance(saved, Save)
    assert sent(answers) == [("a", SplitAnswer(1, 0, 0, B)), ("b", SplitAnswer(1, 0, 0, A))]
    assert machine.on(done, 1.0) == []
    assert sent(machine.on(SplitRequest("b", 1, 0, 0, 4, B), 1.0)) == [("b", SplitAnswer(1, 0, 0, A))]


def test_the_round_closes_when_all_have_reported() -> None:
    machine, blobs = after_a_batch()
    heads = blobs.put(slots(4.0)), blobs.put(slots(5.0))
    assert machine.on(TurnReport("b", 1, 1.0, heads[1]), 1.0) == []
    (work,) = machine.on(TurnReport("a", 1, 1.0, heads[0]), 1.0)
    assert isinstance(work, Compute)
    assert (work.leg, work.checkpoint) == (FINISH, True)
    tail = blobs.put(slots(6.0))
    version, _, *over = machine.on(Computed(1, 1, FINISH, checkpoint=tail), 2.0)
    assert version == SplitVersion(1, (*heads, tail), {"train/loss": 0.5}, ("a", "b"), 1, 4)
    assert sent(over) == [("a", TurnOver(1, counted=True)), ("b", TurnOver(1, counted=True))]


def test_a_round_without_progress_starts_again() -> None:
    machine, _ = after_a_batch()
    assert sent(machine.on(Timer(), 600.0)) == []
    assert machine.state.turn == 1
    assert any(isinstance(one, JobEvent) for one in machine.on(Timer(), 601.0))
    over = TurnOver(1, counted=False, why="the turn is over")
    assert sent(machine.on(SplitRequest("a", 1, 0, 0, 4, A), 601.0)) == [("a", over)]
    ((_, turn),) = sent(machine.on(SplitPoll("a", 4, 1), 601.0))
    assert isinstance(turn, SplitTurn)
    assert turn.turn == 2
    assert machine.state.part.next_batch == 0


def test_parties_with_other_rows_are_refused_until_all_agree() -> None:
    machine, _ = begun()
    machine = VerticalCoordinator(machine.plan, machine.blobs, machine.state.heads, machine.state.tail)
    machine.on(SplitPoll("a", 5, 1), 0.0)
    for rows, batches in ((4, 1), (5, 2)):
        with pytest.raises(Refused, match="a 5, 1"):
            machine.on(SplitPoll("b", rows, batches), 0.0)
    assert (machine.state.nodes, machine.state.turn_batches) == (["a"], {})
    machine.on(SplitPoll("a", 4, 1), 0.0)
    assert [to for to, _ in sent(machine.on(SplitPoll("b", 4, 1), 0.0))] == ["a", "b"]
    assert machine.state.turn_batches == {"a": 0, "b": 0}
    with pytest.raises(Refused, match="a has 5 rows"):
        machine.on(SplitPoll("a", 5, 1), 0.0)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (SplitRequest("b", 1, 0, 0, 3, B), "different numbers of examples"),
        (SplitRequest("b", 1, 0, 0, 7, B), "a batch 0 of 7 examples"),
        (SplitRequest("b", 1, 1, 0, 4, B), "a batch 1 of 4 examples"),
        (SplitRequest("c", 1, 0, 0, 4, B), "c is not a party"),
    ],
    ids=["other rows", "large", "late", "unknown"],
)
def test_requests_that_are_refused_change_nothing(request_: SplitRequest, text: str) -> None:
    machine, _ = begun()
    machine.on(SplitRequest("a", 1, 0, 0, 4, A), 0.0)
    with pytest.raises(Refused, match=text):
        machine.on(request_, 0.0)
    assert isinstance(machine.on(SplitRequest("b", 1, 0, 0, 4, B), 0.0)[0], Compute)


def test_a_party_that_fails_ends_the_job() -> None:
    machine, _ = begun()
    ended = SplitEnded("b failed: no data")
    assert sent(machine.on(TurnFailed("b", 1, "no data"), 0.0)) == [("a", ended), ("b", ended)]
    assert sent(machine.on(SplitPoll("a", 4, 1), 0.0)) == [("a", ended)]


def test_a_failed_alignment_ends_the_job_unless_another_has_begun() -> None:
    machine, _ = begun()
    machine = VerticalCoordinator(replace(machine.plan, ids_max=10), machine.blobs, machine.state.heads, A)
    machine.on(PartyIds("a", 1, 0, A.digest, A), 0.0)
    machine.on(PartyIds("a", 1, 0, B.digest, B), 0.0)
    assert sent(machine.on(TurnFailed("b", 0, "no ids", number=1), 0.0)) == [("b", AlignRows(2))]
    ended = SplitEnded("b failed: no ids")
    assert sent(machine.on(TurnFailed("b", 0, "no ids", number=2), 0.0)) == [("a", ended), ("b", ended)]


def test_a_party_sends_its_failed_alignment_until_the_next_one() -> None:
    node = PartyNode("a", ONE, None, int)
    node.on(AlignRows(1), 0.0)
    node.on(Masked(1, 0, A), 0.0)
    other = OtherIds(1, 0, A.digest, B)
    assert node.on(other, 0.0) == [MaskIds(1, 1, B)]
    failed = (HUB, TurnFailed("a", 0, "no point", number=1))
    assert sent(node.on(Masked(1, 1, error="no point"), 0.0)) == [failed]
    assert node.on(other, 0.0) == []
    assert sent(node.on(Timer(), 5.0)) == [failed]
    assert node.on(AlignRows(2), 5.0) == [MaskIds(2, 0)]
    assert sent(node.on(Timer(), 10.0)) == []


def test_a_head_that_is_not_finite_ends_the_job() -> None:
    machine, blobs = after_a_batch()
    machine.on(TurnReport("a", 1, 1.0, blobs.put(slots(float("nan")))), 1.0)
    assert machine.state.ended == "a failed: w is not finite"


def test_a_tail_that_is_not_finite_ends_the_job() -> None:
    machine, blobs = after_a_batch()
    for party, value in (("a", 4.0), ("b", 5.0)):
        machine.on(TurnReport(party, 1, 1.0, blobs.put(slots(value))), 1.0)
    effects = machine.on(Computed(1, 1, FINISH, checkpoint=blobs.put(slots(float("nan")))), 2.0)
    ended = SplitEnded("the coordinator's part failed: w is not finite")
    assert sent(effects) == [("a", ended), ("b", ended)]
    assert (machine.state.round, machine.state.ended) == (0, ended.why)
