"""What both ends hold: which body an order carries, which base it names, and what is left after a crash."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.core.algorithm import tree_slot
from shoal.core.anchor import SYNC, Anchor, anchor_refs
from shoal.core.filter import Filter, unpack_onto
from shoal.core.gathered import Gathered
from shoal.core.message import Order, Status
from shoal.core.roster import Roster
from shoal.core.tree import Slots, Tree, digest
from shoal.filters.quantize import Quantize
from shoal.sim.bodies import MemoryBodies

EIGHT: tuple[Filter, ...] = (Quantize(8, 2),)


def model(*values: float) -> Slots:
    return {"model": Tree.of({"w": np.array(values, np.float32)})}


def again(anchor: Anchor, filters: tuple[Filter, ...], bodies: MemoryBodies) -> Anchor:
    """The anchor of another process, whose disk has kept only what the anchor says that it needs."""
    state = json.loads(json.dumps(anchor.state()))
    assert {ref.digest for ref in anchor_refs(state)} == {ref.digest for ref in anchor.refs()}
    bodies.keep_only(anchor_refs(state))
    return Anchor.restore(filters, state, bodies)


def same(a: Anchor, b: Anchor, slots: Slots) -> None:
    assert (a.base, a.numbers, a.size(), a.refs(), a.state()) == (b.base, b.numbers, b.size(), b.refs(), b.state())
    for left, right in ((a.held, b.held), (a.sent(slots), b.sent(slots))):
        assert {n: digest(tree_slot(left, n)) for n in left} == {n: digest(tree_slot(right, n)) for n in right}


def test_without_a_base_models_are_sent_as_they_are() -> None:
    anchor, bodies, slots = Anchor(EIGHT), MemoryBodies(), model(1.0, 2.0)
    assert anchor.moved(bodies, slots, False, 7) is slots
    assert anchor.sent(slots) is slots
    assert (anchor.base, anchor.numbers, anchor.held, anchor.state(), anchor.refs()) == (None, {}, {}, None, [])
    assert Anchor.restore(EIGHT, None, bodies).state() is None
    assert anchor.size() == 0.0


@pytest.mark.parametrize("filters", [(), EIGHT], ids=["plain", "filtered"])
def test_a_life_of_versions(filters: tuple[Filter, ...]) -> None:
    anchor, bodies = Anchor(filters), MemoryBodies()

    anchor.rebase(bodies, model(3.0, 4.0))  # version 0: all get it whole, and it is the reference
    first = anchor.refs()[0]
    assert (anchor.base, anchor.numbers, anchor.size()) == (None, {SYNC: 1.0}, 25.0)
    same(anchor, again(anchor, filters, bodies), model(3.0, 4.0))

    balanced = anchor.moved(bodies, model(3.1, 4.3), False, 7)  # a balancing: the reference stays
    assert (anchor.base, anchor.numbers, anchor.size()) == (first, {SYNC: 0.0}, 25.0)
    same(anchor, again(anchor, filters, bodies), balanced)
    whole = tree_slot(anchor.sent(balanced), "model")
    received = unpack_onto(filters, whole, tree_slot(anchor.held, "model")) if filters else whole
    assert digest(received) == digest(tree_slot(balanced, "model"))

    moved = anchor.moved(bodies, model(3.3, 4.9), True, 8)  # a full synchronisation: a new one
    before = tree_slot(anchor.held, "model")
    anchor.rebase(bodies, moved)
    assert anchor.refs()[0] != first
    assert anchor.numbers == {SYNC: 1.0}
    assert anchor.base == (first if filters else None)
    same(anchor, again(anchor, filters, bodies), moved)
    whole = tree_slot(anchor.sent(moved), "model")
    received = unpack_onto(filters, whole, before) if filters else whole
    assert digest(received) == digest(tree_slot(moved, "model")) == digest(tree_slot(anchor.held, "model"))


@pytest.mark.parametrize("filters", [(), EIGHT], ids=["plain", "filtered"])
def test_a_model_that_replaces_all_goes_whole(filters: tuple[Filter, ...]) -> None:
    """No filter rounds it, and an order of it names no base."""
    anchor, bodies = Anchor(filters), MemoryBodies()
    anchor.rebase(bodies, model(3.0, 4.0))
    anchor.moved(bodies, model(3.1, 4.3), False, 7)
    merged = model(5.0001, 6.0003)
    anchor.replaced()
    anchor.rebase(bodies, merged)
    assert (anchor.base, anchor.numbers, len(anchor.refs())) == (None, {SYNC: 1.0}, 1)
    assert anchor.sent(merged) is merged
    assert digest(tree_slot(anchor.held, "model")) == digest(tree_slot(merged, "model"))
    same(anchor, again(anchor, filters, bodies), merged)
    later = anchor.moved(bodies, model(5.1, 6.1), False, 8)
    received = unpack_onto(filters, tree_slot(anchor.sent(later), "model"), tree_slot(merged, "model"))
    assert digest(received if filters else tree_slot(later, "model")) == digest(tree_slot(later, "model"))


def test_a_roster_outlives_its_process_with_amendments_and_statuses() -> None:
    roster = Roster()
    asked, waits, done = (roster.welcome(name) for name in ("asked", "waits", "done"))
    for number, member in enumerate((asked, waits, done)):
        member.give(Order((1, number), member.node, "train", 3, 7, numbers={"delta": 0.5, SYNC: 1.0}, until=1))
        member.status = Status(member.node, (1, number), 1, {"gap": 0.25}, b"\x00\xff")
    asked.recall()
    waits.advance()
    done.finished = True
    found = Roster.restore(json.loads(json.dumps(roster.state())))
    assert found.all() == roster.all()
    assert [member.waits for member in found.all()] == [False, True, False]
    assert (found["asked"].order, found["asked"].order.rev, found["waits"].order.until) == (asked.order, 1, 2)  # type: ignore[union-attr]


def test_who_was_recalled_is_part_of_a_snapshot() -> None:
    """A schedule may close and recall at one and the same event."""
    gathered = Gathered("fixed")
    gathered.opened, gathered.recalled, gathered.recalled_at = 3.0, {"b", "a"}, 4.0
    found = Gathered.restore("fixed", json.loads(json.dumps(gathered.state())))
    assert (found.recalled, found.recalled_at) == ({"a", "b"}, 4.0)
