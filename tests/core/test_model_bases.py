"""Bases at both ends: the body of a task, the base that it names, and the state after a crash."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import Filter, unpack_difference
from shoal.core.algorithm.reference_model import NEW_REFERENCE, ReferenceModel, reference_refs
from shoal.core.model.tree import Slots, Tree, digest
from shoal.core.protocol.message import Task, TaskStatus
from shoal.core.scheduling.round import Round
from shoal.core.server.roster import NodeRoster
from shoal.filters.quantize import Quantize
from shoal.sim.network.blobs import MemoryBlobs

EIGHT: tuple[Filter, ...] = (Quantize(8, 2),)


def model(*values: float) -> Slots:
    return {"model": Tree.of({"w": np.array(values, np.float32)})}


def again(anchor: ReferenceModel, filters: tuple[Filter, ...], blobs: MemoryBlobs) -> ReferenceModel:
    """The anchor of another process, whose disk has kept only what the anchor says that it needs."""
    state = json.loads(json.dumps(anchor.state()))
    assert {ref.digest for ref in reference_refs(state)} == {ref.digest for ref in anchor.refs()}
    blobs.keep_only(reference_refs(state))
    return ReferenceModel.restore(filters, state, blobs)


def same(a: ReferenceModel, b: ReferenceModel, slots: Slots) -> None:
    assert (a.task_reference, a.task_numbers, a.squared_norm(), a.refs(), a.state()) == (
        b.task_reference,
        b.task_numbers,
        b.squared_norm(),
        b.refs(),
        b.state(),
    )
    for left, right in ((a.slots, b.slots), (a.packed_slots(slots), b.packed_slots(slots))):
        assert {n: digest(tree_slot(left, n)) for n in left} == {n: digest(tree_slot(right, n)) for n in right}


def test_without_a_base_models_are_sent_as_they_are() -> None:
    anchor, blobs, slots = ReferenceModel(EIGHT), MemoryBlobs(), model(1.0, 2.0)
    assert anchor.pack_version(blobs, slots, False, 7) is slots
    assert anchor.packed_slots(slots) is slots
    assert (anchor.task_reference, anchor.task_numbers, anchor.slots, anchor.state(), anchor.refs()) == (
        None,
        {},
        {},
        None,
        [],
    )
    assert ReferenceModel.restore(EIGHT, None, blobs).state() is None
    assert anchor.squared_norm() == 0.0


@pytest.mark.parametrize("filters", [(), EIGHT], ids=["plain", "filtered"])
def test_a_life_of_versions(filters: tuple[Filter, ...]) -> None:
    anchor, blobs = ReferenceModel(filters), MemoryBlobs()

    anchor.rebase(blobs, model(3.0, 4.0))  # version 0: all get it whole, and it is the reference
    first = anchor.refs()[0]
    assert (anchor.task_reference, anchor.task_numbers, anchor.squared_norm()) == (None, {NEW_REFERENCE: 1.0}, 25.0)
    same(anchor, again(anchor, filters, blobs), model(3.0, 4.0))

    balanced = anchor.pack_version(blobs, model(3.1, 4.3), False, 7)  # a balancing: the reference stays
    assert (anchor.task_reference, anchor.task_numbers, anchor.squared_norm()) == (first, {NEW_REFERENCE: 0.0}, 25.0)
    same(anchor, again(anchor, filters, blobs), balanced)
    whole = tree_slot(anchor.packed_slots(balanced), "model")
    received = unpack_difference(filters, whole, tree_slot(anchor.slots, "model")) if filters else whole
    assert digest(received) == digest(tree_slot(balanced, "model"))

    moved = anchor.pack_version(blobs, model(3.3, 4.9), True, 8)  # a full synchronization: a new one
    before = tree_slot(anchor.slots, "model")
    anchor.rebase(blobs, moved)
    assert anchor.refs()[0] != first
    assert anchor.task_numbers == {NEW_REFERENCE: 1.0}
    assert anchor.task_reference == (first if filters else None)
    same(anchor, again(anchor, filters, blobs), moved)
    whole = tree_slot(anchor.packed_slots(moved), "model")
    received = unpack_difference(filters, whole, before) if filters else whole
    assert digest(received) == digest(tree_slot(moved, "model")) == digest(tree_slot(anchor.slots, "model"))


@pytest.mark.parametrize("filters", [(), EIGHT], ids=["plain", "filtered"])
def test_a_model_that_replaces_all_goes_whole(filters: tuple[Filter, ...]) -> None:
    """No filter rounds it, and an order of it names no base."""
    anchor, blobs = ReferenceModel(filters), MemoryBlobs()
    anchor.rebase(blobs, model(3.0, 4.0))
    anchor.pack_version(blobs, model(3.1, 4.3), False, 7)
    merged = model(5.0001, 6.0003)
    anchor.send_whole()
    anchor.rebase(blobs, merged)
    assert (anchor.task_reference, anchor.task_numbers, len(anchor.refs())) == (None, {NEW_REFERENCE: 1.0}, 1)
    assert anchor.packed_slots(merged) is merged
    assert digest(tree_slot(anchor.slots, "model")) == digest(tree_slot(merged, "model"))
    same(anchor, again(anchor, filters, blobs), merged)
    later = anchor.pack_version(blobs, model(5.1, 6.1), False, 8)
    received = unpack_difference(filters, tree_slot(anchor.packed_slots(later), "model"), tree_slot(merged, "model"))
    assert digest(received if filters else tree_slot(later, "model")) == digest(tree_slot(later, "model"))


def test_a_roster_outlives_its_process_with_amendments_and_statuses() -> None:
    roster = NodeRoster()
    asked, waits, done = (roster.admit(name) for name in ("asked", "waits", "done"))
    for number, member in enumerate((asked, waits, done)):
        member.assign(
            Task((1, number), member.node, "train", 3, 7, numbers={"delta": 0.5, NEW_REFERENCE: 1.0}, checks_allowed=1)
        )
        member.status = TaskStatus(member.node, (1, number), 1, {"gap": 0.25}, b"\x00\xff")
    asked.recall()
    waits.allow_next_check()
    done.is_finished = True
    found = NodeRoster.restore(json.loads(json.dumps(roster.state())))
    assert found.all_members() == roster.all_members()
    assert [member.is_waiting for member in found.all_members()] == [False, True, False]
    assert (found["asked"].task, found["asked"].task.revision, found["waits"].task.checks_allowed) == (asked.task, 1, 2)  # type: ignore[union-attr]


def test_who_was_recalled_is_part_of_a_snapshot() -> None:
    """A schedule may close and recall at one and the same event."""
    gathered = Round()
    gathered.opened_at, gathered.recalled, gathered.recalled_at = 3.0, {"b", "a"}, 4.0
    found = Round.restore(json.loads(json.dumps(gathered.state())))
    assert (found.recalled, found.recalled_at) == ({"a", "b"}, 4.0)
