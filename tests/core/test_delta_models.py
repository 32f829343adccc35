"""Models as differences to the version before: who is sent what, and that all have the same model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.anchor import SYNC
from shoal.core.errors import InvalidJob
from shoal.core.filter import Filter, pack_all, unpack_onto
from shoal.core.hub import Hub
from shoal.core.machine import Boot
from shoal.core.message import Join, Order, Report
from shoal.core.plan import Plan
from shoal.core.tree import Tree, digest
from shoal.filters.delta import Delta
from shoal.filters.quantize import Quantize
from shoal.schedules.rounds import Rounds
from shoal.sim.bodies import MemoryBodies
from shoal.spec import parse_job

FILTERS: tuple[Filter, ...] = (Delta(), Quantize(8, 512))
SIZE = 4096


def begun(filters: tuple[Filter, ...], wanted: int = 2) -> Hub:
    """A hub that has asked `wanted` of the nodes a, b, and c."""
    bodies = MemoryBodies()
    start = bodies.put({"model": Tree.of({"w": np.linspace(-1, 1, SIZE, dtype=np.float32)})})
    hub = Hub(Plan(9, 7, "fixed", start, filters=filters), Algorithm(), Rounds(cohort=wanted, min_nodes=3), bodies)
    for event in (Boot(), *map(Join, "abc")):
        hub.on(event, 0.0)
    return hub


def asked(hub: Hub) -> dict[str, Order]:
    standing = {node: hub.standing(node) for node in "abc"}
    return {node: order for node, order in standing.items() if isinstance(order, Order)}


def answered(hub: Hub) -> set[str]:
    """Let all who are asked report something; who they were."""
    orders = asked(hub)
    for number, (node, order) in enumerate(orders.items()):
        tree = Tree.of({"w": np.random.default_rng(order.seed + number).standard_normal(SIZE).astype(np.float32)})
        slots, _ = pack_all(hub.plan.filters, {"model": tree}, {}, order.seed)
        hub.on(Report(node, order.id, order.version, 1.0, hub.bodies.put(slots), {}, 5.0), 1.0)
    return set(orders)


def received(hub: Hub, order: Order) -> Tree:
    """The model that a node makes of an order."""
    assert order.body is not None
    sent = tree_slot(hub.bodies.get(order.body), "model")
    base = tree_slot(hub.bodies.get(order.base), "model") if order.base is not None else None
    return sent if base is None else unpack_onto(hub.plan.filters, sent, base)


def test_who_took_part_is_sent_the_difference_and_others_the_model() -> None:
    hub, whole = begun(FILTERS), 4 * SIZE
    before: set[str] = set()
    kinds = set()
    for _ in range(8):
        orders = asked(hub)
        for node, order in orders.items():
            assert order.body is not None
            small = order.body.nbytes < whole / 3
            assert small is (node in before) is (order.base is not None)
            assert order.numbers[SYNC] == 1.0
            assert digest(received(hub, order)) == digest(tree_slot(hub.slots, "model"))
            kinds.add(small)
        before = answered(hub)
    assert kinds == {True, False}


def test_a_hub_that_died_knows_who_holds_what() -> None:
    hub = begun(FILTERS, 3)
    answered(hub)
    again = Hub.restore(hub.plan, hub.algorithm, hub.schedule, hub.bodies, hub.state())
    assert {member.node: member.holds for member in again.roster.all()} == dict.fromkeys("abc", 0)
    answered(hub)
    answered(again)
    assert asked(again) == asked(hub)
    assert all(order.base is not None for order in asked(again).values())


def test_one_body_is_stored_for_all_that_are_sent_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, put = begun(FILTERS, 3), MemoryBodies.put
    answered(hub)
    stored: list[Any] = []
    monkeypatch.setattr(MemoryBodies, "put", lambda self, slots: stored.append(slots) or put(self, slots))
    hub.clear_round()
    hub._withdraw()
    hub.on(Join("a"), 2.0)
    assert len(asked(hub)) == 3
    assert len(stored) == 1


NAMED = {"name": "fits", "rounds": 1}
DELTA: dict[str, Any] = {**NAMED, "filters": [{"name": "delta"}, {"name": "quantize"}]}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"algorithm": {"name": "dynamic"}, "schedule": {"name": "drift"}}, "sends differences by itself"),
        ({"schedule": {"name": "buffer"}}, "each node holds another version"),
        ({"gossip": {"allowed": True}}, "need whole models"),
    ],
)
def test_where_differences_cannot_be(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob, match=why) as caught:
        parse_job({**DELTA, **more})
    assert caught.value.code == "job.fit"
    assert parse_job(DELTA).plan().differs
