"""What operators change in a running job: from which version on, what nodes are told, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.algorithms.lbfgs import LBFGS
from shoal.core.algorithm import Algorithm, Local
from shoal.core.errors import InvalidJob
from shoal.core.hub import Hub
from shoal.core.machine import Boot, Effect, Note
from shoal.core.message import Change, Order, Switch
from shoal.core.piecework import Piecework
from shoal.core.plan import Plan
from shoal.core.settings_change import adjusted, configured
from shoal.core.tree import Tree
from shoal.core.worker import Worker
from shoal.schedules.rounds import Rounds
from shoal.sim.bodies import MemoryBodies
from tests.core.test_hub import NODES, hub_of, model, report

HALF = Change({"algorithm.lr": 0.05, "algorithm.batch_size": 64.0}, "the loss stands still")


def orders(hub: Hub) -> list[dict[str, float]]:
    """What each node is told with its order."""
    found = [hub.standing(node) for node in NODES]
    return [order.numbers for order in found if isinstance(order, Order)]


def close(hub: Hub, now: float = 1.0) -> list[Effect]:
    return [effect for node in NODES for effect in hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), now)]


def notes(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Note)]


def test_a_change_begins_with_the_next_version() -> None:
    hub = hub_of(MemoryBodies())
    before = orders(hub)
    said = notes(hub.on(HALF, 1.0))
    assert said == ["from version 2 on: algorithm.batch_size 32 → 64, algorithm.lr 0.1 → 0.05 (the loss stands still)"]
    assert orders(hub) == before, "orders that stand keep their values"
    assert (hub.changed, hub.awaited) == ({}, HALF.values)
    close(hub)
    assert orders(hub) == [HALF.values] * len(NODES)
    assert (hub.algorithm.lr, hub.algorithm.batch_size, hub.awaited) == (0.05, 64, {})


def test_before_the_first_order_it_begins_at_once() -> None:
    hub = Hub(Plan(3, 7), Algorithm(), Rounds(min_nodes=2), MemoryBodies())
    hub.on(Boot(), 0.0)
    assert notes(hub.on(Change({"schedule.min_nodes": 1.0, "rounds": 9.0}), 0.0)) == [
        "from version 1 on: rounds 3 → 9, schedule.min_nodes 2 → 1 (by an operator)"
    ]
    assert (hub.schedule.least, hub.plan.versions) == (1, 9)


@pytest.mark.parametrize(("rounds", "ends_at"), [(1.0, 1), (2.0, 2)])
def test_the_round_in_hand_may_become_the_last(rounds: float, ends_at: int) -> None:
    hub = hub_of(MemoryBodies(), versions=3)
    hub.on(Change({"rounds": rounds}), 0.5)
    while hub.phase == "running":
        close(hub)
    assert hub.version == ends_at


def test_more_rounds_are_made_though_the_last_was_open() -> None:
    hub = hub_of(MemoryBodies(), versions=1)
    hub.on(Change({"rounds": 2.0}), 0.5)
    close(hub)
    assert (hub.phase, hub.version) == ("running", 1)


@pytest.mark.parametrize("when", ["awaited", "changed"])
def test_a_snapshot_keeps_changes(when: str) -> None:
    bodies = MemoryBodies()
    hub = hub_of(bodies)
    hub.on(HALF, 0.5)
    if when == "changed":
        close(hub)
    state: dict[str, Any] = json.loads(json.dumps(hub.state()))
    again = Hub.restore(hub_of(bodies).plan, Algorithm(), Rounds(min_nodes=5, quorum=5), bodies, state)
    assert json.loads(json.dumps(again.state())) == state
    if when == "awaited":
        close(again)
    assert orders(again) == [HALF.values] * len(NODES)
    assert again.algorithm.lr == 0.05


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"seed": 1.0}, "seed cannot be changed"),
        ({"algorithm.name": 1.0}, "algorithm.name cannot be changed"),
        ({"algorithm.batch_size": 1.5}, "whole number"),
        ({"schedule.deadline_s": -1.0}, "deadline_s is -1"),
        ({"rounds": 0.0}, "there are 0 versions already"),
    ],
)
def test_what_may_not_change_changes_nothing(values: dict[str, float], why: str) -> None:
    hub = hub_of(MemoryBodies())
    before = json.dumps(hub.state())
    said = notes(hub.on(Change(values), 1.0))
    assert len(said) == 1
    assert why in said[0]
    assert json.dumps(hub.state()) == before


def test_nodes_that_carry_on_keep_what_they_were_told() -> None:
    """Among themselves nothing can be changed; the order to carry on names what was changed before, open or not."""
    hub = hub_of(MemoryBodies())
    hub.on(HALF, 0.5)
    hub.on(Switch("gossip"), 1.0)
    assert orders(hub) == [HALF.values] * len(NODES)
    assert "is with its nodes" in notes(hub.on(Change({"algorithm.lr": 1.0}), 2.0))[0]
    assert hub.changed == HALF.values
    worker = Worker("a")
    order = hub.standing("a")
    assert isinstance(order, Order)
    worker.on(order, 1.0)
    assert worker.settings == HALF.values


class Learner:
    """It tells what it is asked to train with."""

    def __init__(self) -> None:
        self.told: list[tuple[float, int]] = []

    def load(self, tree: Tree) -> None:
        self.now = tree

    def model(self) -> Tree:
        return self.now

    def evaluate(self) -> dict[str, float]:
        return {}

    def train(self, budget: Any, **_: Any) -> Any:
        self.told.append((budget.lr, budget.batch_size))
        return Local(1.0)


def test_a_node_trains_as_its_order_says() -> None:
    learner = Learner()
    for numbers in ({}, HALF.values, {}):
        order = Order((1, 1), "a", "train", 0, 7, numbers=numbers)
        Piecework(Algorithm(), learner, {"model": model(1.0)}).piece(order)  # type: ignore[arg-type]
    assert learner.told == [(0.1, 32), (0.05, 64), (0.1, 32)]


def test_no_order_can_change_what_an_algorithm_does_not_allow() -> None:
    assert adjusted(LBFGS(), {"share": 1.0}) == LBFGS()
    with pytest.raises(InvalidJob, match="lbfgs does not allow"):
        adjusted(LBFGS(), {"algorithm.lr": 0.5})


def test_every_changeable_field_is_one() -> None:
    from shoal.core.settings_change import changeable, current
    from shoal.plugins import algorithms, schedules

    for algorithm in algorithms().values():
        for schedule in schedules().values():
            made = Plan(3), algorithm(), schedule()
            values = {key: current(made, key) for key in changeable(*made[1:])}
            assert configured(made, values) == made
