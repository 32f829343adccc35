"""A hub that is told to go away and to come back: what is said twice, and what is said at the wrong time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import JobEvent, Restarted, Send
from shoal.core.protocol.message import (
    CoordinatorPing,
    Join,
    NodeInfo,
    NoTask,
    Pause,
    Report,
    Resume,
    Stop,
    SwitchMode,
    Task,
)
from shoal.core.scheduling.selection import Selection
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import NODES, hub_of, model, report


def test_calling_a_job_back_that_is_there_changes_nothing() -> None:
    hub = hub_of(MemoryBlobs())
    before = hub.snapshot()
    assert not any(isinstance(effect, JobEvent | Send) for effect in hub.on(SwitchMode("server"), 1.0))
    assert hub.snapshot() == before
    assert {hub.poll_reply(node).kind for node in NODES} == {"train"}  # type: ignore[union-attr]


def test_there_and_back_twice_said_is_once() -> None:
    hub = hub_of(MemoryBlobs())
    moves = []
    for to in ("gossip", "gossip", "server", "server"):
        effects = hub.on(SwitchMode(to), 1.0)  # type: ignore[arg-type]
        moves += [effect.text for effect in effects if isinstance(effect, JobEvent) and effect.kind == "mode"]
    assert moves == ["the peers carry on: by an operator", "back to the server: by an operator"]
    for node in NODES:
        task = hub.poll_reply(node)
        assert isinstance(task, Task)
        assert (task.kind, task.recall, task.revision) == ("gossip", True, 1)
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 2.0)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [2.0, 1.0]


def test_reports_that_are_in_count_before_the_peers_carry_on() -> None:
    hub = hub_of(MemoryBlobs())
    for node, step in zip(NODES[:2], (1.0, 3.0), strict=True):
        hub.on(report(hub, node, {"model": model(step, -step)}, 2.0), 1.0)
    hub.on(SwitchMode("gossip"), 2.0)
    assert (hub.progress.mode, hub.progress.version) == ("gossip", 1)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [3.0, 0.0]


def test_a_model_that_is_handed_back_counts_by_its_weight() -> None:
    hub = hub_of(MemoryBlobs())
    hub.on(SwitchMode("gossip"), 1.0)
    hub.on(SwitchMode("server"), 1.0)
    for node, step, weight in zip(NODES, (1.0, 2.0, 3.0, 4.0, 5.0), (4.0, 1.0, 1.0, 1.0, 1.0), strict=True):
        hub.on(report(hub, node, {"model": model(step, -step)}, weight), 2.0)
    assert hub.progress.mode == "server"
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [1.0 + 18 / 8, 2.0 - 18 / 8]


@pytest.mark.parametrize("event", [Restarted(), CoordinatorPing("z", 7)])
def test_orders_to_carry_on_are_given_anew_in_a_new_term(event: Restarted | CoordinatorPing) -> None:
    """Peers obey nothing of an older term than the hub's, and would not hand back what they are asked for in one."""
    hub = hub_of(MemoryBlobs())
    hub.on(SwitchMode("gossip"), 1.0)
    hub.on(SwitchMode("server"), 1.0)
    before = {node: hub.poll_reply(node) for node in NODES}
    late = {node: report(hub, node, {"model": model(9.0, 9.0)}, 2.0) for node in NODES}
    effects = hub.on(event, 2.0)
    for node in NODES:
        old, task = before[node], hub.poll_reply(node)
        assert isinstance(old, Task)
        assert isinstance(task, Task)
        assert task.id[0] == hub.tasks.term > old.id[0]
        assert task == replace(old, id=task.id), "in everything else it is the same"
        assert Send(node, task) in effects
        assert hub.reports.check(late[node]) is not None, "a report on the old one does not count"
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 3.0)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [2.0, 1.0]


def test_a_stop_after_the_round_brings_the_job_back_first() -> None:
    hub = hub_of(MemoryBlobs())
    hub.on(SwitchMode("gossip"), 1.0)
    hub.on(Stop("enough", "round"), 2.0)
    assert (hub.progress.mode, hub.progress.phase) == ("returning", "running")
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 3.0)
    assert (hub.progress.mode, hub.progress.phase, hub.progress.version) == ("server", "evaluating", 1)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [2.0, 1.0]


def test_a_job_whose_training_is_over_cannot_go() -> None:
    hub = hub_of(MemoryBlobs(), versions=1)
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 1.0)
    assert hub.progress.phase == "evaluating"
    (event,) = hub.on(SwitchMode("gossip"), 2.0)[:1]
    assert isinstance(event, JobEvent)
    assert "cannot be switched" in event.text
    assert hub.progress.mode == "server"


def test_who_went_away_as_training_ended_hands_back_what_it_learned_since() -> None:
    """The hub died while the nodes measured its last version: peers would not measure anything, and have more."""
    hub = hub_of(MemoryBlobs(), versions=1)
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 1.0)
    assert (hub.progress.phase, hub.progress.version) == ("evaluating", 1)
    task = hub.poll_reply("a")
    assert isinstance(task, Task)
    hub.on(Report("a", task.id, 1, 5.0, None, {"eval/accuracy": 0.5}), 2.0)
    hub.on(Restarted(), 3.0)
    for node in NODES:
        hub.on(Join(node, (1, 5)), 4.0)
    assert (hub.progress.mode, hub.progress.phase) == ("returning", "running")
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 5.0)
    assert (hub.progress.mode, hub.progress.phase, hub.progress.version) == ("server", "evaluating", 2)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [3.0, 0.0]


AWAY = {
    "drained": NodeInfo(drain_reason="drained by an operator"),
    "blocked": NodeInfo(drain_reason="blocked by an operator"),
    "outside its hours": NodeInfo(hours=("22:00-06:00",)),
}


@pytest.mark.parametrize("info", AWAY.values(), ids=AWAY.keys())
def test_a_node_without_new_tasks_hands_back_what_it_learned_in_an_outage(info: NodeInfo) -> None:
    """It repeats that it is away until its model counts: a return that does not ask it would be repeated, too."""
    hub = hub_of(MemoryBlobs())
    hub.on(Restarted(12 * 3600.0), 0.0)
    hub.on(Join("a", (1, 5), info), 1.0)
    assert hub.progress.mode == "returning"
    tasks = {node: hub.poll_reply(node) for node in NODES}
    assert all(isinstance(task, Task) and task.kind == "gossip" and task.recall for task in tasks.values()), tasks
    assert Send("a", tasks["a"]) in hub.on(Join("a", (1, 5), info), 2.0), "said twice, asked once"
    for node in NODES:
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 3.0)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [2.0, 1.0]
    assert hub.poll_reply("a") == NoTask(hub.tasks.newest), "it gets no new task"


def test_a_node_that_takes_no_part_does_not_call_the_job_back() -> None:
    blobs = MemoryBlobs()
    start = blobs.put({"model": model(1.0, 2.0)})
    hub = Hub(JobPlan(3, initial_model=start, selection=Selection(("b",))), Algorithm(), Rounds(), blobs)
    for event in (Restarted(), Join("a"), Join("b"), Join("a", (1, 5))):
        hub.on(event, 1.0)
    assert (hub.progress.mode, hub.poll_reply("a")) == ("server", NoTask(hub.tasks.newest))
    task = hub.poll_reply("b")
    assert isinstance(task, Task)
    assert task.kind == "train"


def test_a_paused_job_asks_a_drained_node_for_its_model_once_it_goes_on() -> None:
    hub = hub_of(MemoryBlobs())
    hub.on(Pause(), 1.0)
    hub.on(Join("a", (1, 5), AWAY["drained"]), 2.0)
    assert hub.poll_reply("a") == NoTask(hub.tasks.newest)
    hub.on(Resume(), 3.0)
    hub.on(Join("a", (1, 5), AWAY["drained"]), 4.0)
    task = hub.poll_reply("a")
    assert isinstance(task, Task)
    assert (task.kind, task.recall) == ("gossip", True)
