"""A node that fails again and again is left alone for a while, each time for longer, and then asked again."""

from __future__ import annotations

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import Effect, JobEvent, Restarted, Timer, Wake
from shoal.core.protocol.message import DrainNode, Join, NodeInfo, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal.core.server.roster import FAILURES_MAX, PAUSE_S, PAUSE_S_MAX
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import model, report, restored


def begun() -> Hub:
    blobs = MemoryBlobs()
    plan = JobPlan(9, 7, "float64", blobs.put({"model": model(1.0, 2.0)}))
    hub = Hub(plan, Algorithm(), Rounds(min_nodes=1, quorum=1, deadline_s=1e6), blobs)
    hub.on(Join("a"), 0.0)
    return hub


def fail(hub: Hub, now: float) -> list[Effect]:
    task = hub.poll_reply("a")
    assert isinstance(task, Task), task
    return hub.on(TaskFailed("a", task.id, "the disk is full"), now)


def failed(hub: Hub, now: float = 1.0) -> list[Effect]:
    """Fail three times in a row; return the effects of the last."""
    return [fail(hub, now) for _ in range(FAILURES_MAX)][-1]


def texts(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, JobEvent)]


def wakes(effects: list[Effect]) -> list[float]:
    return [effect.at for effect in effects if isinstance(effect, Wake)]


def test_a_disk_that_was_full_for_a_moment_costs_a_minute() -> None:
    hub = begun()
    effects = failed(hub)
    assert "a failed 3 times in a row and is not asked for 60 s, or until it restarts: the disk is full" in texts(
        effects
    )
    assert not isinstance(hub.poll_reply("a"), Task)
    assert min(wakes(effects)) == 1.0 + PAUSE_S, "the hub looks again by itself"
    assert not isinstance(hub.poll_reply("a"), Task)
    told = texts(hub.on(Timer(), 1.0 + PAUSE_S))
    assert "a is asked again, after 3 failures in a row" in told
    hub.on(report(hub, "a", {"model": model(0.0, 1.0)}, 1.0), 62.0)
    assert hub.progress.version == 1
    assert (hub.roster["a"].failures, hub.roster["a"].error) == (0, "")


def test_each_failure_doubles_the_pause_up_to_an_hour() -> None:
    hub = begun()
    effects, now, pauses = failed(hub), 1.0, []
    for _ in range(9):
        due = min(wakes(effects))
        pauses.append(due - now)
        hub.on(Timer(), due)
        now = due + 1.0
        effects = fail(hub, now)
    assert pauses == [min(PAUSE_S_MAX, PAUSE_S * 2**n) for n in range(9)]
    hub.on(Join("a"), now + 1.0)
    assert isinstance(hub.poll_reply("a"), Task), "a restart ends it"
    assert hub.roster["a"].failures == 0


def test_a_pause_outlives_the_coordinator() -> None:
    hub = begun()
    failed(hub)
    twin = restored(hub)
    assert (twin.roster["a"].is_set_aside, twin.roster["a"].error) == (True, "the disk is full")
    twin.on(Timer(), 1.0 + PAUSE_S)
    assert isinstance(twin.poll_reply("a"), Task)


@pytest.mark.parametrize(
    ("hours", "barring"),
    [
        ((), DrainNode("a", "drained by an operator")),
        ((), DrainNode("a", "blocked by an operator", withdraw=True)),
        (("12:00-13:00",), Timer()),
    ],
    ids=["drained", "blocked", "outside its hours"],
)
def test_a_node_set_aside_that_may_not_be_asked_does_not_count_for_the_quorum(
    hours: tuple[str, ...], barring: DrainNode | Timer
) -> None:
    blobs = MemoryBlobs()
    plan = JobPlan(9, 7, "float64", blobs.put({"model": model(1.0, 2.0)}))
    hub, close = Hub(plan, Algorithm(), Rounds(min_nodes=2), blobs), 13 * 3600.0
    for event in (Restarted(close - 10.0), Join("b"), Join("a", node_info=NodeInfo(hours=hours))):
        hub.on(event, -10.0)
    hub.on(report(hub, "b", {"model": model(0.0, 1.0)}, 1.0), -9.0)
    failed(hub, -8.0)
    assert hub.progress.waiting_for.startswith("below the quorum: 1 of 2; set aside after failures: a")
    hub.on(barring, 1.0)
    assert hub.progress.version == 1
    assert hub.state.make_view(1.0).nodes.present == 1
