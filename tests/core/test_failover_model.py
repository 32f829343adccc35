"""From which model a node carries on without its hub, and with which work: see `shoal.core.failover`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.anchor import SYNC, Anchor
from shoal.core.failover import carried_on
from shoal.core.filter import Filter, pack
from shoal.core.message import Order, Ref, Report
from shoal.core.tree import Slots, Tree
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.sim.bodies import MemoryBodies

ALGORITHM = DynamicAveraging()


def model(*values: float) -> Slots:
    return {"model": Tree.of({"w": np.array(values, np.float32)})}


def numbers(slots: Slots) -> list[float]:
    return [float(value) for value in tree_slot(slots, "model")["w"]]


def order_of(body: Ref, base: Ref | None, **told: float) -> Order:
    return Order((1, 1), "a", "train", 3, 7, body, base=base, numbers=told)


def test_work_against_a_base_is_carried_on_from_that_base() -> None:
    """The version holds a part of what the node has learned since: it would count twice."""
    bodies = MemoryBodies()
    base, version = bodies.put(model(1.0, 2.0)), bodies.put(model(4.0, 4.0))
    order = order_of(version, base, **{SYNC: 0.0})
    slots, in_hand = carried_on(ALGORITHM, (), bodies, version, order)
    assert (numbers(slots), in_hand) == ([1.0, 2.0], order)


@pytest.mark.parametrize("filters", [(Quantize(bits=4, bucket=2),), (Half(),)])
def test_a_new_base_that_came_as_a_difference_is_carried_on_from(filters: tuple[Filter, ...]) -> None:
    bodies, anchor = MemoryBodies(), Anchor(filters)
    anchor.rebase(bodies, model(1.0, 2.0))
    slots = anchor.moved(bodies, model(3.3, -7.7), True, 5)
    sent = bodies.put(anchor.sent(slots))
    anchor.rebase(bodies, slots)
    order = order_of(sent, anchor.base, **anchor.numbers)
    assert order.base is not None
    newest = bodies.put(model(9.0, 9.0))
    found, in_hand = carried_on(ALGORITHM, filters, bodies, newest, order)
    assert (numbers(found), in_hand) == (numbers(slots), order)


def test_work_that_cannot_have_been_begun_is_dropped() -> None:
    """Its base was still to be fetched."""
    bodies = MemoryBodies()
    version, missing = bodies.put(model(4.0, 4.0)), Ref("0" * 64, 8)
    order = order_of(version, missing, **{SYNC: 0.0})
    slots, in_hand = carried_on(ALGORITHM, (), bodies, version, order)
    assert (numbers(slots), in_hand) == ([4.0, 4.0], None)


def test_without_a_base_work_joins_the_version() -> None:
    bodies = MemoryBodies()
    older, version = bodies.put(model(1.0, 2.0)), bodies.put(model(4.0, 4.0))
    order = order_of(older, None)
    slots, in_hand = carried_on(Algorithm(), (), bodies, version, order)
    assert (numbers(slots), in_hand) == ([4.0, 4.0], order)
    assert numbers(carried_on(Algorithm(), (), bodies, version, None)[0]) == [4.0, 4.0]


def test_a_report_that_nobody_has_acknowledged_is_added_at_once() -> None:
    bodies, filters = MemoryBodies(), (Half(),)
    base = bodies.put(model(1.0, 2.0))
    said = Report("a", (1, 1), 3, 5.0, bodies.put(pack(filters, model(0.5, -1.0), 1)))
    slots, in_hand = carried_on(ALGORITHM, filters, bodies, base, said)
    assert (numbers(slots), in_hand) == ([1.5, 1.0], None)
    assert numbers(carried_on(ALGORITHM, filters, bodies, base, replace(said, body=None))[0]) == [1.0, 2.0]
