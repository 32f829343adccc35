"""A job that waits says for what, under every schedule, and a restart does not forget it."""

from __future__ import annotations

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import NodeLost, Restarted, Timer
from shoal.core.protocol.message import ChangeSettings, Join, Leave, NodeInfo, Pause, Report, Task, TaskFailed
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import Selection
from shoal.core.server.hub import Hub
from shoal.core.server.roster import FAILURES_MAX, PAUSE_S
from shoal.schedules.buffer import Buffer
from shoal.schedules.divergence import Divergence
from shoal.schedules.periodic import Periodic
from shoal.schedules.rounds import Rounds
from shoal.schedules.variance import Variance
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import model, report, restored

SCHEDULES = {kind.name: kind for kind in (Rounds, Buffer, Periodic, Divergence, Variance)}
SHIP = NodeInfo(("ship",))


def hub_of(schedule: Schedule, *nodes: Join, start: bool = True, selection: Selection | None = None) -> Hub:
    blobs = MemoryBlobs()
    body = blobs.put({"model": model(1.0, 2.0)}) if start else None
    hub = Hub(JobPlan(9, 7, "float64", body, selection=selection or Selection()), Algorithm(), schedule, blobs)
    for event in (Restarted(12 * 3600.0), *nodes):
        hub.on(event, 0.0)
    return hub


def again(hub: Hub) -> Hub:
    """The same, as a snapshot brings it back."""
    return restored(hub)


def fail(hub: Hub, *nodes: str) -> None:
    """As often in a row as sets nodes aside."""
    for _ in range(FAILURES_MAX):
        for node in nodes:
            task = hub.poll_reply(node)
            assert isinstance(task, Task), task
            hub.on(TaskFailed(node, task.id, "broken"), 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("start", [True, False], ids=["with a model", "without"])
def test_too_few_nodes(name: str, start: bool) -> None:
    hub = hub_of(SCHEDULES[name](min_nodes=3), start=start)
    assert (hub.progress.waiting_for, hub.state.is_idle) == ("0 of 3 nodes ready", True)
    hub.on(Join("a"), 1.0)
    assert (hub.progress.waiting_for, hub.state.is_idle) == ("1 of 3 nodes ready", True)
    assert (again(hub).progress.waiting_for, again(hub).state.is_idle) == ("1 of 3 nodes ready", True)
    hub.on(Join("b"), 2.0)
    assert not isinstance(hub.poll_reply("a"), Task), "no node makes a model for a job that cannot begin"
    hub.on(Join("c"), 2.0)
    assert not hub.state.is_idle
    assert hub.progress.waiting_for.startswith("an initial model from a") is not start


@pytest.mark.parametrize("name", SCHEDULES)
def test_nodes_that_the_job_does_not_want_and_nodes_that_are_lost(name: str) -> None:
    nodes = (Join("a", node_info=SHIP), Join("b"), Join("c"))
    hub = hub_of(SCHEDULES[name](), *nodes, selection=Selection(tags=("ship",)))
    assert not hub.state.is_idle
    hub.on(NodeLost("a"), 1.0)
    assert hub.state.is_idle
    assert hub.progress.waiting_for == "no node is ready; not asked: b, c: without the tag ship; silent: a"
    hub.on(Leave("a"), 2.0)
    assert hub.progress.waiting_for.endswith(" ready; not asked: b, c: without the tag ship")


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_nodes_are_set_aside(name: str) -> None:
    hub = hub_of(SCHEDULES[name](min_nodes=2), Join("a"), Join("b"))
    fail(hub, "a", "b")
    assert hub.state.is_idle
    assert hub.progress.waiting_for == "no node is ready; set aside after failures: a, b"
    hub.on(Timer(), 1.0 + PAUSE_S)
    assert not hub.state.is_idle
    assert "set aside" not in hub.progress.waiting_for


def test_outside_their_hours() -> None:
    hub = hub_of(Rounds(), Join("a", node_info=NodeInfo(hours=("22:00-06:00",))))
    assert hub.progress.waiting_for == "0 of 1 node ready; not asked: a: only 22:00-06:00 UTC"


def test_a_round_counts_its_reports_and_the_final_measurement_its_answers() -> None:
    hub = hub_of(Rounds(min_nodes=3), *map(Join, "abc"))
    for done, node in enumerate("ab"):
        assert (hub.progress.waiting_for, hub.state.is_idle) == (f"{done} of 3 reports", False)
        hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 1.0)
    hub.on(NodeLost("c"), 2.0)
    assert (hub.progress.version, hub.progress.waiting_for, hub.state.is_idle) == (
        1,
        "2 of 3 nodes ready; silent: c",
        True,
    )
    hub.on(Join("c"), 3.0)
    hub.on(ChangeSettings({"rounds": 2.0}), 3.0)
    for node in "abc":
        hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 3.0)
    assert (hub.progress.phase, hub.progress.waiting_for) == (
        "evaluating",
        "0 of 3 nodes have measured the final model",
    )
    for node in "abc":
        task = hub.poll_reply(node)
        assert isinstance(task, Task)
        hub.on(Report(node, task.id, task.version, 1.0), 4.0)
    assert (hub.progress.phase, hub.progress.waiting_for, hub.state.is_idle) == ("done", "", False)


def test_one_node_of_several_is_no_mean() -> None:
    """Where a second is there, set aside or late, a round does not close with one; where it is lost, it does."""
    hub = hub_of(Rounds(deadline_s=10.0, min_nodes=3), *map(Join, "abc"))
    hub.on(report(hub, "a", {"model": model(1.0, 1.0)}, 1.0), 2.0)
    fail(hub, "b", "c")
    assert (hub.progress.version, hub.state.is_idle) == (0, True)
    assert hub.progress.waiting_for == "below the quorum: 1 of 2; set aside after failures: b, c"
    hub.on(Timer(), 20.0)
    assert hub.progress.waiting_for == "below the quorum: 1 of 2, deadline extended; set aside after failures: b, c"
    hub.on(NodeLost("b"), 21.0)
    hub.on(NodeLost("c"), 21.0)
    assert hub.progress.version == 1


def test_who_is_paused_waits_for_an_operator() -> None:
    hub = hub_of(Rounds(), Join("a"))
    hub.on(Pause("lunch"), 1.0)
    hub.on(NodeLost("a"), 2.0)
    assert not hub.state.is_idle


def test_a_job_that_makes_a_version_is_not_idle() -> None:
    """A page that is drawn between two rounds shows the job as running."""
    seen = list[bool]()

    class Watched(Algorithm):
        def step(self, slots: Slots, totals: Totals) -> Slots:
            seen.append(hub.state.is_idle)
            return super().step(slots, totals)

    blobs = MemoryBlobs()
    start = blobs.put({"model": model(1.0, 2.0)})
    hub = Hub(JobPlan(9, 7, "float64", start), Watched(), Rounds(), blobs)
    for node in "ab":
        hub.on(Join(node), 0.0)
    for at in range(2):
        for node in "ab":
            hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 1.0 + at)
    assert (hub.progress.version, seen, hub.state.is_idle) == (2, [False, False], False)
    hub.on(NodeLost("a"), 3.0)
    hub.on(NodeLost("b"), 3.0)
    assert hub.state.is_idle
