"""A schedule that waits for many reports is not shown each of them, and all that follows is the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import Event, NodeLost, Restarted, Timer
from shoal.core.protocol.message import (
    ChangeSettings,
    DrainNode,
    Join,
    Leave,
    NodeInfo,
    Pause,
    Report,
    Resume,
    Task,
    TaskFailed,
)
from shoal.core.protocol.metrics import FINISHED
from shoal.core.scheduling.schedule import Close, Decision, View, Wait
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.support.sampling import extended

NODES = [f"n{i}" for i in range(8)]
AT_NIGHT = NodeInfo((), ("00:00-12:00",))


@dataclass(frozen=True)
class Calm(Rounds):
    """A task from before a version closed remains, and its report is refused."""

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


def reported(task: Task, blobs: MemoryBlobs, rng: Random) -> Report:
    """An answer to that task; now and then one that is refused, said twice, or the node's last."""
    body = blobs.put({"model": tree(rng.random())}) if task.kind == "train" else None
    weight = 0.0 if rng.random() < 0.1 else 1.0
    done = {FINISHED: 1.0} if rng.random() < 0.1 else {}
    return Report(task.node, task.id, task.version, weight, body, done, 1.0)


def anything(hub: Hub, rng: Random, past: list[Report], *more: NodeInfo) -> Event:
    """Draw an event of a hub; mostly a report."""
    standing = [task for task in map(hub.poll_reply, NODES) if isinstance(task, Task)]
    if standing and rng.random() < 0.8:
        past.append(reported(rng.choice(standing), hub.store.blobs, rng))  # type: ignore[arg-type]
        return past[-1]
    node = rng.choice(NODES)
    others: list[Event] = [Leave(node), NodeLost(node, "silent"), Timer(), Timer(), Pause("now"), *3 * [Resume("on")]]
    others += [Join(node), Join(node), Join(f"late{rng.randrange(3)}"), *(Join(node, node_info=one) for one in more)]
    others += [TaskFailed(task.node, task.id, "broken") for task in standing[:1]] + past[-2:]
    others += [ChangeSettings({"schedule.deadline_s": 20.0}), DrainNode(node, rng.choice(["", "an operator", "full"]))]
    return rng.choice(others)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"deadline_s": 20.0},
        {"deadline_s": 20.0, "quorum": 4},
        {"deadline_s": 15.0, "cohort": 5, "over_select": 2, "quorum": 2},
        {"fraction": 0.5, "min_nodes": 4},
        {"cohort": 3, "over_select": 2, "keeps": True},
    ],
)
@pytest.mark.parametrize("seed", extended(range(20), but=range(4)))
def test_all_that_follows_is_the_same(seed: int, how: dict[str, Any]) -> None:
    rng, now, unseen, blobs = Random(seed), 43_000.0, 0, MemoryBlobs()  # shortly before noon
    hours = [AT_NIGHT] if seed % 2 else []  # then it has to look at each, for some time
    plan, past = JobPlan(40, 7, "float64", blobs.put({"model": tree(0.0)})), list[Report]()
    calm, watchful = (Hub(plan, Algorithm(), kind(**how), blobs) for kind in (Calm, Watchful))
    for event in (Restarted(), *map(Join, NODES)):
        assert calm.on(event, now) == watchful.on(event, now)
    for _ in range(300):
        now += rng.choice([0.0, 0.1, 4.0])
        event, before = anything(calm, rng, past, *hours), calm.state.quiet_wait
        assert calm.on(event, now) == watchful.on(event, now), event
        assert calm.snapshot() == watchful.snapshot()
        assert watchful.state.quiet_wait is None
        unseen += calm.state.quiet_wait is not None and calm.state.quiet_wait is before
    assert calm.progress.version > 1
    assert unseen > 0 or hours


@dataclass(frozen=True)
class Looking(Rounds):
    """Remembers what it saw: how many members, and how many reports."""

    seen: list[tuple[int, int]] = field(default_factory=list)

    def decide(self, view: View) -> list[Decision]:
        self.seen.append((len(view.nodes.members), len(view.round.reporters)))
        return super().decide(view)


def looked_at(nodes: list[str]) -> tuple[Hub, list[tuple[int, int]]]:
    """A hub that has asked all of them, and what its schedule sees from now on."""
    blobs = MemoryBlobs()
    schedule = Looking(min_nodes=len(nodes), deadline_s=60.0)
    hub = Hub(JobPlan(2, 7, "float64", blobs.put({"model": tree(0.0)})), Algorithm(), schedule, blobs)
    for event in (Restarted(), *map(Join, nodes)):
        hub.on(event, 0.0)
    schedule.seen.clear()
    return hub, schedule.seen


def answer(hub: Hub, node: str, weight: float = 1.0) -> None:
    task, body = hub.poll_reply(node), hub.store.blobs.put({"model": tree(1.0)})
    assert isinstance(task, Task)
    hub.on(Report(node, task.id, task.version, weight, body, {}, 1.0), 1.0)


def test_of_a_thousand_reports_few_are_looked_at() -> None:
    nodes = [f"n{i:03}" for i in range(1000)]
    hub, seen = looked_at(nodes)
    for node in nodes:
        answer(hub, node)
    assert hub.progress.version == 1
    assert seen == [(1000, 1000), (1000, 0), (1000, 0)], "the last, and then the next round opens"


def test_it_looks_when_somebody_is_back_with_his_report() -> None:
    hub, seen = looked_at(NODES)
    hub.on(NodeLost("n1"), 0.0)
    for node in ("n2", "n1", "n3"):
        answer(hub, node)
    assert seen == [(7, 0), (8, 2)]


def test_it_looks_at_what_was_refused() -> None:
    hub, seen = looked_at(NODES)
    answer(hub, "n1")
    answer(hub, "n2", weight=0.0)
    answer(hub, "n3")
    assert seen == [(8, 1)]
