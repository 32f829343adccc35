"""The long poll: answered the moment there is news, silent otherwise, and the sign of life of who holds it open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.core.protocol.message import NoTask, Stop, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal.wire import codec
from shoal_coordinator.composition import housekeeping
from shoal_coordinator.jobs.hub_replay import HubReplay
from shoal_coordinator.node_protocol import held_polls
from tests.support.coordinator import Inside, Server, inside
from tests.support.node import Node
from tests.support.raw_http import connected, head
from tests.support.scenario import Clock, by_hand, set_up, task_of
from tests.support.waiting import PATIENCE_S, pause, until

LONG_S = 100
"""Duration of a poll here: longer than a test waits for an answer."""


@pytest.fixture
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator whose polls are long."""
    with inside(tmp_path_factory.mktemp("poll") / "data", poll_s_max=LONG_S) as running:
        yield running


class Polling(threading.Thread):
    """A poll in the background."""

    def __init__(self, node: Node, **params: Any) -> None:
        super().__init__(daemon=True)
        self.node, self.params = node, {"wait_s": LONG_S, **params}
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.answer = self.node.once("GET", "/work", params=self.params)

    def frame(self) -> codec.Frame:
        """Return its answer before its time was over."""
        self.join(PATIENCE_S)
        assert self.answer is not None, "no answer yet"
        assert self.answer.status_code == 200
        return codec.decode(self.answer.content)


def open_polls(running: Inside, node: str) -> int:
    return running.coordinator.nodes.presence._open_polls[node]


def held(task: Task, job: str = "main") -> str:
    return f"{job}:{task.id[0]}.{task.id[1]}"


def test_an_order_comes_the_moment_there_is_one(patient: Inside) -> None:
    nodes = [by_hand(patient, f"n{i}") for i in range(2)]
    polls = [Polling(node) for node in nodes]
    until("the polls to be open", lambda: all(open_polls(patient, node.node) for node in nodes))
    patient.begin("main", nodes=2)
    until("one to be asked", lambda: not all(poll.is_alive() for poll in polls))
    (answered,) = [poll for poll in polls if not poll.is_alive()]
    assert isinstance(answered.frame().message, Task)
    for node in nodes:
        node.client.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The seconds that polls have waited for news, None at the end of one."""
    found: list[float | None] = []
    decide = held_polls.seconds_to_wait

    def noted(left_s: float, **more: bool) -> float | None:
        found.append(decide(left_s, **more))
        return found[-1]

    monkeypatch.setattr(held_polls, "seconds_to_wait", noted)
    return found


def test_a_quiet_poll_ends_with_204_in_its_time(patient: Inside, waits: list[float | None]) -> None:
    node = by_hand(patient, "n0")
    assert node.ask("GET", "/work", params={"wait_s": 0}).status_code == 204
    assert waits == [None]
    assert node.ask("GET", "/work", params={"wait_s": 0.3}).status_code == 204
    assert all(left_s is None or left_s < 0.31 for left_s in waits[1:]), waits
    node.client.close()


def test_a_busy_job_is_not_taken_for_a_quiet_one(patient: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that does not want to wait is answered with the task that stands, though the hub is folding a report."""
    monkeypatch.setattr(held_polls, "BUSY_S", 60.0)
    stage, go, feed = set_up(patient), threading.Event(), HubReplay.apply_all

    def slow_feed(replay: HubReplay, hub: Hub, entries: Any) -> Any:
        assert go.wait(PATIENCE_S)
        return feed(replay, hub, entries)

    monkeypatch.setattr(HubReplay, "apply_all", slow_feed)
    report = threading.Thread(target=lambda: stage.report(node="n1"))
    report.start()
    until("the hub to be busy", lambda: not patient.runner("main").gate.is_consistent("n0"))
    poll = Polling(stage.nodes[0], wait_s=0)
    until("the poll to be open", lambda: open_polls(patient, "n0"))
    go.set()
    assert poll.frame().message == stage.tasks["n0"]
    report.join()
    stage.close()


def test_no_poll_lasts_longer_than_the_setting(coordinator: Inside, waits: list[float | None]) -> None:
    node = by_hand(coordinator, "n0")
    poll = Polling(node, wait_s=300)
    until("the poll to wait", lambda: waits)
    assert all(left_s is None or left_s <= coordinator.settings.poll_s_max for left_s in waits)
    poll.join(PATIENCE_S)
    assert poll.answer is not None
    assert poll.answer.status_code == 204
    node.client.close()


def test_the_order_that_is_held_is_not_sent_again(patient: Inside) -> None:
    stage = set_up(patient)
    task = stage.tasks["n0"]
    assert stage.send("n0", "GET", "/work", params={"wait_s": 0, "held": held(task)}).status_code == 204
    older = {"wait_s": 0, "held": "main:0.1"}
    assert codec.decode(stage.send("n0", "GET", "/work", params=older).content).message == task
    stage.close()


def test_a_withdrawn_order_is_called_back(patient: Inside) -> None:
    stage = set_up(patient, schedule={"cohort": 1, "over_select": 1})
    poll = Polling(stage.nodes[1], held=held(stage.tasks["n1"]))
    until("the poll to be open", lambda: open_polls(patient, "n1"))
    patient.post("/jobs/main/pause")
    assert stage.report(node="n0").status_code == 200
    patient.post("/jobs/main/resume")  # the round closes without n1, and the next one opens
    message = poll.frame().message
    if isinstance(message, NoTask):
        assert message.newest_task >= stage.tasks["n1"].id
    else:
        assert isinstance(message, Task)
        assert message.version == 1
    stage.close()


def test_an_answered_order_is_not_called_back(patient: Inside) -> None:
    stage = set_up(patient)
    assert stage.report(node="n0").status_code == 200
    params = {"wait_s": 0.2, "held": held(stage.tasks["n0"])}
    assert stage.send("n0", "GET", "/work", params=params).status_code == 204
    stage.close()


def test_the_end_of_a_job_is_told_to_who_holds_an_order(patient: Inside) -> None:
    stage = set_up(patient)
    poll = Polling(stage.nodes[0], held=held(stage.tasks["n0"]))
    until("the poll to be open", lambda: open_polls(patient, "n0"))
    patient.post("/jobs/main/stop", {"why": "enough"})
    assert isinstance(poll.frame().message, Stop)
    late = codec.decode(stage.report(node="n0").content).message
    assert not late.counted  # type: ignore[union-attr]
    assert "ended" in late.why  # type: ignore[union-attr]
    failed = codec.encode(codec.Frame("main", TaskFailed("n0", stage.tasks["n0"].id, "too late")))
    assert stage.send("n0", "POST", "/jobs/main/failures", content=failed).status_code == 200
    stage.close()


def test_a_job_that_nobody_knows_is_over(patient: Inside) -> None:
    node = by_hand(patient, "n0")
    found = node.ask("GET", "/work", params={"wait_s": 20, "held": "forgotten:1.1"})
    assert codec.decode(found.content) == codec.Frame("forgotten", Stop("there is no such job"))
    node.client.close()


def test_only_the_jobs_that_are_asked_for(patient: Inside) -> None:
    """A node that takes part in some jobs is not waited for in the others."""
    only = by_hand(patient, "only")
    patient.begin("wanted", nodes=1)
    task, _ = task_of(only, "wanted")
    assert (
        only.ask("GET", "/work", params={"wait_s": 0, "job": "wanted", "held": held(task, "wanted")}).status_code == 204
    )
    patient.begin("other", nodes=1)
    assert (
        only.ask("GET", "/work", params={"wait_s": 0.2, "job": "wanted", "held": held(task, "wanted")}).status_code
        == 204
    )
    member = patient.runner("other").hub.roster.get("only")
    assert member is None or not member.is_present
    only.client.close()


def test_hello_joins_only_the_jobs_that_the_node_polls_for(patient: Inside) -> None:
    patient.begin("wanted", nodes=1)
    patient.begin("other", nodes=1)
    only = by_hand(patient, "only")
    task_of(only, "wanted")
    assert only.ask("GET", "/work", params={"wait_s": 0.2, "job": "wanted", "held": "wanted:1.9"}).status_code == 204
    member = patient.runner("other").hub.roster.get("only")
    assert member is None or not member.is_present, "the other job would wait for it for an hour"
    only.client.close()


# Signs of life


@pytest.fixture
def brief(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Inside]:
    """A coordinator that takes a node for lost after a second of silence, by the test's clock."""
    with inside(tmp_path_factory.mktemp("lease") / "data", poll_s_max=LONG_S, lease_s=1.0) as running:
        yield running


def members(running: Inside, job: str = "main") -> list[str]:
    return [member.node for member in running.runner(job).hub.roster.present_members()]


def test_an_open_poll_is_a_sign_of_life(brief: Inside, clock: Clock) -> None:
    node = by_hand(brief, "n0")
    brief.begin("main", nodes=1)
    task, _ = task_of(node, "main")
    poll = Polling(node, held=held(task))
    until("the poll to be open", lambda: open_polls(brief, "n0"))
    for _ in range(3):
        clock.now += 0.9
        pause(2 * housekeeping.TICK_S)  # the coordinator looks for silent nodes
    assert members(brief) == ["n0"]
    assert poll.is_alive()
    brief.post("/jobs/main/stop")
    poll.join(PATIENCE_S)
    node.client.close()


def test_who_hangs_up_is_lost_after_a_lease_and_replaced(brief: Inside, clock: Clock) -> None:
    nodes = [by_hand(brief, f"n{i}") for i in range(3)]
    brief.begin("main", nodes=2, schedule={"min_nodes": 3})
    nodes[0].sizes["main"] = 10
    for node in nodes:
        node.ask("GET", "/work", params={"wait_s": 0})
    task, _ = task_of(nodes[0], "main")
    assert nodes[0].report("main", task).counted
    polls = {node.node: Polling(node, job="main") for node in nodes}
    until("two to be asked", lambda: sum(not poll.is_alive() for poll in polls.values()) == 2)
    asked = sorted(name for name, poll in polls.items() if not poll.is_alive())
    spare = next(node for node in nodes if node.node not in asked)
    quiet = next(node for node in nodes if node.node == asked[0])
    other = next(node for node in nodes if node.node == asked[1])
    Polling(other, held=held(polls[other.node].frame().message))  # type: ignore[arg-type]
    until("the other's poll to be open", lambda: open_polls(brief, other.node) == 1)
    head_of = head(
        "GET", f"/api/v1/work?wait_s={LONG_S}&held=main:9.9", Authorization=quiet.client.headers["Authorization"]
    )
    with connected(brief.url) as raw:
        raw.sendall(head_of)
        until("the poll to be open", lambda: open_polls(brief, quiet.node) == 1)
    until("the hang-up to be seen", lambda: open_polls(brief, quiet.node) == 0)
    clock.now += 1.5  # more than a lease
    message = polls[spare.node].frame().message
    assert isinstance(message, Task)
    assert message.kind == "train"
    assert quiet.node not in members(brief)
    for said in (f"{quiet.node} is lost: no sign of life for 1 s", "1 of 2 lost"):
        until(said, lambda said=said: any(event["text"].startswith(said) for event in brief.events("main")))
    late = task_of(quiet, "main")[0]
    assert late.version == 0, "its task still stands: if its report comes in time, it counts"
    assert quiet.node in members(brief)
    brief.post("/jobs/main/stop")
    for node in nodes:
        node.client.close()


def test_many_are_asked_to_stay_away_and_are_not_lost_for_it(tmp_path: Path) -> None:
    """Two are many where one in five seconds is all that is taken on; their lease is shorter than that."""
    with inside(tmp_path / "data", checkins_per_s_max=0.2, lease_s=1.0) as running:
        nodes = [by_hand(running, f"n{i}") for i in range(2)]
        presence, before = running.coordinator.nodes.presence, time.monotonic()
        answers = [node.ask("GET", "/work", params={"wait_s": 0}) for node in nodes]
        assert [answer.status_code for answer in answers] == [204, 204]
        pauses = [float(answer.headers["shoal-retry-after"]) for answer in answers]
        assert all(10.0 <= pause <= 200.0 for pause in pauses), "a load above 0.7 makes them longer"
        assert "shoal_poll_backoff_total 2.0" in running.request("GET", "/metrics").text
        assert presence.leases.expired(before + 9.0) == []
        assert presence.silent_s("n0") == 0.0
        assert sorted(presence.leases.expired(before + 3600.0)) == ["n0", "n1"]
        for node in nodes:
            node.client.close()


def test_few_are_not_asked_to_stay_away(coordinator: Inside) -> None:
    node = by_hand(coordinator, "n0")
    answer = node.ask("GET", "/work", params={"wait_s": 0})
    assert answer.status_code == 204
    assert "shoal-retry-after" not in answer.headers
    node.client.close()


def test_who_comes_before_the_pause_is_over_has_no_pause(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        presence = running.coordinator.nodes.presence
        presence.pause("n0", 100.0)
        with presence.open_poll("n0"):
            pass
        later = time.monotonic() + 99.0
        assert presence.leases.expired(later) == ["n0"]


def test_who_leaves_hands_the_order_back_at_once(patient: Inside) -> None:
    stage = set_up(patient)
    poll = Polling(stage.nodes[2], job="main")
    until("the poll to be open", lambda: open_polls(patient, "n2"))
    assert stage.send("n0", "POST", "/leave").status_code == 204
    message = poll.frame().message
    assert isinstance(message, Task)
    assert message.kind == "train"
    assert "n0" not in members(patient)
    stage.close()


def test_a_beat_is_shown_and_is_a_sign_of_life(tmp_path: Path, clock: Clock) -> None:
    with inside(tmp_path / "data", lease_s=3.0) as running:
        stage = set_up(running)
        task = stage.tasks["n0"]

        def beat(progress: float, task_id: str = f"{task.id[0]}.{task.id[1]}") -> dict[str, dict[str, Any]]:
            clock.now += 0.5
            said = {"job": "main", "task": task_id, "progress": progress}
            assert stage.send("n0", "POST", "/heartbeat", json=said).status_code == 204
            return {node["name"]: node for node in running.get("/jobs/main/nodes")["nodes"]}

        until("the others to be gone", lambda: beat(0.25)["n1"]["state"] == "gone", every_s=0.1)
        seen = beat(0.5)["n0"]
        assert (seen["state"], seen["progress"]) == ("training", 0.5)
        assert beat(0.9, "1.999")["n0"]["progress"] == 0.5, "that is another order's"
        assert not any(event["text"].startswith("n0 is lost") for event in running.events("main"))
        stage.close()


def test_after_a_restart_nodes_have_a_lease_to_come_back_in(server: Callable[..., Server]) -> None:
    lease_s = 2.0
    running = server(lease_s=lease_s).start()
    node = Node(lambda: running.url, "n0", running.token(), {"main": 10})
    running.begin("main", nodes=1, rounds=1000)
    node.enter()
    task_of(node, "main")
    running.kill()
    running.start()

    def lost() -> list[dict[str, Any]]:
        return [event for event in running.events("main", "node") if "n0 is lost" in event["text"]]

    (gone,) = until("the node to be lost", lost)
    back = running.events("main", "state")[-1]
    assert "term 2" in back["text"]
    waited = datetime.fromisoformat(gone["at"]) - datetime.fromisoformat(back["at"])
    assert waited.total_seconds() >= lease_s - 0.1, "a whole lease; the two clocks may differ a little"
    assert running.job("main")["nodes"] == 0
    task, _ = task_of(node, "main")
    assert task.kind == "init"
    heard = lambda: [event for event in running.events("main", "node") if "n0 is heard again" in event["text"]]  # noqa: E731
    until("the event", heard)  # the task is answered before what happened is written down for people
    node.client.close()
