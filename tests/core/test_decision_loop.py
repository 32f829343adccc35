"""A schedule that waits for many reports is not shown each of them, and all that follows is the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Algorithm
from shoal.core.hub import Hub
from shoal.core.machine import Boot, Event, Lost, Timer
from shoal.core.message import About, Fail, Join, Leave, Order, Pause, Report, Resume
from shoal.core.metric import FINISHED
from shoal.core.plan import Plan
from shoal.core.schedule import Close, Decision, View, Wait
from shoal.core.tree import Tree
from shoal.schedules.rounds import Rounds
from shoal.sim.bodies import MemoryBodies

NODES = [f"n{i}" for i in range(8)]
AT_NIGHT = About((), ("00:00-12:00",))


@dataclass(frozen=True)
class Calm(Rounds):
    """What was asked before a version closed stands on, and is refused when it comes."""

    keeps: bool = False

    def decide(self, view: View) -> list[Decision]:
        return [replace(one, keep=self.keeps) if isinstance(one, Close) else one for one in super().decide(view)]


@dataclass(frozen=True)
class Watchful(Calm):
    """The same, but it looks at each report."""

    def decide(self, view: View) -> list[Decision]:
        return [replace(one, reports=0) if isinstance(one, Wait) else one for one in super().decide(view)]


def tree(value: float) -> Tree:
    return Tree.of({"w": np.full(3, value)})


def reported(order: Order, bodies: MemoryBodies, rng: Random) -> Report:
    """An answer to that order; now and then one that is refused, said twice, or the node's last."""
    body = bodies.put({"model": tree(rng.random())}) if order.kind == "train" else None
    weight = 0.0 if rng.random() < 0.1 else 1.0
    done = {FINISHED: 1.0} if rng.random() < 0.1 else {}
    return Report(order.node, order.id, order.version, weight, body, done, 1.0)


def anything(hub: Hub, rng: Random, past: list[Report], *more: About) -> Event:
    """What may happen to a hub; mostly a report."""
    standing = [order for order in map(hub.standing, NODES) if isinstance(order, Order)]
    if standing and rng.random() < 0.8:
        past.append(reported(rng.choice(standing), hub.bodies, rng))  # type: ignore[arg-type]
        return past[-1]
    node = rng.choice(NODES)
    others: list[Event] = [Leave(node), Lost(node, "silent"), Timer(), Timer(), Pause("now"), *3 * [Resume("on")]]
    others += [Join(node), Join(node), Join(f"late{rng.randrange(3)}"), *(Join(node, about=one) for one in more)]
    others += [Fail(order.node, order.id, "broken") for order in standing[:1]] + past[-2:]
    return rng.choice(others)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"deadline_s": 20.0},
        {"deadline_s": 20.0, "quorum": 4},
        {"deadline_s": 15.0, "cohort": 5, "over": 2, "quorum": 2},
        {"fraction": 0.5, "min_nodes": 4},
        {"cohort": 3, "over": 2, "keeps": True},
    ],
)
@pytest.mark.parametrize("seed", range(20))
def test_all_that_follows_is_the_same(seed: int, how: dict[str, Any]) -> None:
    rng, now, unseen, bodies = Random(seed), 43_000.0, 0, MemoryBodies()  # shortly before noon
    hours = [AT_NIGHT] if seed % 2 else []  # then it has to look at each, for some time
    plan, past = Plan(40, 7, "float64", bodies.put({"model": tree(0.0)})), list[Report]()
    calm, watchful = (Hub(plan, Algorithm(), kind(**how), bodies) for kind in (Calm, Watchful))
    for event in (Boot(), *map(Join, NODES)):
        assert calm.on(event, now) == watchful.on(event, now)
    for _ in range(300):
        now += rng.choice([0.0, 0.1, 4.0])
        event, before = anything(calm, rng, past, *hours), calm.calm
        assert calm.on(event, now) == watchful.on(event, now), event
        assert calm.state() == watchful.state()
        assert watchful.calm is None
        unseen += calm.calm is not None and calm.calm is before
    assert calm.version > 1
    assert unseen > 0 or hours


@dataclass(frozen=True)
class Looking(Rounds):
    """Remembers what it saw: how many members, and how many reports."""

    seen: list[tuple[int, int]] = field(default_factory=list)

    def decide(self, view: View) -> list[Decision]:
        self.seen.append((len(view.members), len(view.reports)))
        return super().decide(view)


def looked_at(nodes: list[str]) -> tuple[Hub, list[tuple[int, int]]]:
    """A hub that has asked all of them, and what its schedule sees from now on."""
    bodies = MemoryBodies()
    schedule = Looking(min_nodes=len(nodes), deadline_s=60.0)
    hub = Hub(Plan(2, 7, "float64", bodies.put({"model": tree(0.0)})), Algorithm(), schedule, bodies)
    for event in (Boot(), *map(Join, nodes)):
        hub.on(event, 0.0)
    schedule.seen.clear()
    return hub, schedule.seen


def answer(hub: Hub, node: str, weight: float = 1.0) -> None:
    order, body = hub.standing(node), hub.bodies.put({"model": tree(1.0)})
    assert isinstance(order, Order)
    hub.on(Report(node, order.id, order.version, weight, body, {}, 1.0), 1.0)


def test_of_a_thousand_reports_few_are_looked_at() -> None:
    nodes = [f"n{i:03}" for i in range(1000)]
    hub, seen = looked_at(nodes)
    for node in nodes:
        answer(hub, node)
    assert hub.version == 1
    assert seen == [(1000, 1000), (1000, 0), (1000, 0)], "the last, and then the next round opens"


def test_it_looks_when_somebody_is_back_with_his_report() -> None:
    hub, seen = looked_at(NODES)
    hub.on(Lost("n1"), 0.0)
    for node in ("n2", "n1", "n3"):
        answer(hub, node)
    assert seen == [(7, 0), (8, 2)]


def test_it_looks_at_what_was_refused() -> None:
    hub, seen = looked_at(NODES)
    answer(hub, "n1")
    answer(hub, "n2", weight=0.0)
    answer(hub, "n3")
    assert seen == [(8, 1)]
