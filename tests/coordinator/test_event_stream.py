"""The event stream: nothing that has an id is missed, across reconnections and restarts; slow readers are dropped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable

import httpx
import pytest

import shoal_coordinator.api.routes.stream as routes_stream
import shoal_coordinator.telemetry.event_bus as coordinator_stream
from shoal_coordinator.schemas.events import StreamEvent
from shoal_coordinator.telemetry.event_bus import BEHIND_MAX, EventBus, Item
from tests.support.coordinator import Api, Inside, Server, inside
from tests.support.node import Node
from tests.support.raw_http import connected, head
from tests.support.sse import Event, listening
from tests.support.waiting import PATIENCE_S, until

Swarm = Callable[..., list[Node]]
REPLAYED = {"job_event", "version", "metrics"}


def feed(api: Api) -> list[tuple[int, str]]:
    """(id, topic) of all that can be replayed."""
    return [(row[0], row[1]) for row in api.rows("SELECT id, topic FROM job_events ORDER BY id")]


def replay(api: Api, last: int, count: int, job: str = "") -> list[Event]:
    """Read that many events with an id, after `last`."""
    with listening(api.url, last, job) as events:
        return list(itertools.islice((event for event in events if event.id is not None), count))


def finished(running: Api, swarm: Swarm, *jobs: str) -> None:
    for job in jobs:
        running.begin(job, nodes=2, rounds=3)
    for node in swarm(running, 2, dict.fromkeys(jobs, 10)):
        node.finish()
    for job in jobs:
        until("the job to be done", lambda job=job: running.job(job)["ended_at"])


def test_a_replay_is_the_feed(coordinator: Inside, swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_stream, "REPLAY_PAGE", 7)
    finished(coordinator, swarm, "a", "b")
    everything = feed(coordinator)
    assert len(everything) > 30
    assert {topic for _, topic in everything} == REPLAYED
    found = replay(coordinator, 0, len(everything))
    assert [(event.id, event.name) for event in found] == everything
    for cut in (1, 6, 7, 8, len(everything) - 1):
        rest = replay(coordinator, everything[cut - 1][0], len(everything) - cut)
        assert [(event.id, event.name) for event in rest] == everything[cut:]


def test_the_events_say_what_the_api_says(coordinator: Inside, swarm: Swarm) -> None:
    finished(coordinator, swarm, "a")
    found = replay(coordinator, 0, len(feed(coordinator)), job="a")
    assert {event.data["job"] for event in found} == {"a"}
    events = [
        {name: value for name, value in event.data.items() if name != "job"}
        for event in found
        if event.name == "job_event"
    ]
    assert events == coordinator.get("/jobs/a/events")["events"]
    versions = coordinator.get("/jobs/a/versions")["versions"]
    told = [event.data for event in found if event.name == "version"]
    assert [one["number"] for one in told] == [0, 1, 2, 3]
    for one, version in zip(told, versions, strict=True):
        assert {name: one[name] for name in version} == version
    for number in range(4):
        known: dict[str, float] = {}
        for event in found:
            if event.name == "metrics" and event.data["number"] == number:
                known |= event.data["metrics"]
        assert versions[number]["metrics"] == known


def test_only_the_jobs_own_events_come(coordinator: Inside, swarm: Swarm) -> None:
    finished(coordinator, swarm, "a", "b")
    count = len(coordinator.rows("SELECT 1 FROM job_events WHERE job = 'b'"))
    assert {event.data["job"] for event in replay(coordinator, 0, count, job="b")} == {"b"}


def test_what_is_about_no_job_is_told_to_all() -> None:
    async def items() -> list[str]:
        broadcast = EventBus()
        reader = broadcast.open("a")
        for job in ("b", "", "a"):
            broadcast.publish(Item("alert", job, {}))
        found = []
        async for item in reader.items():
            assert item is not None
            found.append(item.job)
            if item.job == "a":
                break
        return found

    assert asyncio.run(items()) == ["", "a"]


def test_what_happens_is_told_as_it_happens(coordinator: Inside, swarm: Swarm) -> None:
    with listening(coordinator.url) as events:
        hello = next(events)
        assert hello.name == "hello"
        assert hello.id is None
        assert set(hello.data) == {"server_time", "version", "started_at"}
        coordinator.begin("live", nodes=2, rounds=3)
        swarm(coordinator, 2, {"live": 10})
        seen: list[Event] = []
        names, done = set[str](), False
        while not (done and {"nodes", "traffic"} <= names):  # those two come every now and then, also after the end
            seen.append(next(events))
            names.add(seen[-1].name)
            done = done or (seen[-1].name == "job" and seen[-1].data["state"] == "done")
    assert names - {"ping"} == REPLAYED | {"job", "nodes", "traffic"}
    for event in (hello, *seen):
        typed = StreamEvent.model_validate({"event": event.name, "data": event.data})
        assert typed.model_dump(mode="json")["data"] == event.data, "the document says all that is sent, and no more"
    assert all((event.id is not None) == (event.name in REPLAYED) for event in seen)
    ids = [event.id for event in seen if event.id is not None]
    assert ids == sorted(set(ids))
    assert ids == [number for number, _ in feed(coordinator)][: len(ids)]


class Browser(threading.Thread):
    """Reconnects whenever it was cut off, and cuts itself off every few events."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self.where, self.ids, self.quit = where, [0], threading.Event()

    def run(self) -> None:
        for few in itertools.cycle((1, 5, 2, 17)):
            if self.quit.is_set():
                return
            with contextlib.suppress(httpx.HTTPError), listening(self.where(), self.ids[-1], read_s=0.5) as events:
                fresh = (event.id for event in events if event.id is not None)
                for number in itertools.islice(fresh, few):
                    self.ids.append(number)


def test_nothing_is_missed_across_reconnections_and_kills(server: Callable[..., Server], swarm: Swarm) -> None:
    running = server().start()
    running.begin("a", nodes=2, rounds=60)
    browsers = [Browser(lambda: running.url) for _ in range(3)]
    for browser in browsers:
        browser.start()
    nodes = swarm(running, 2, {"a": 10})
    for _ in range(2):
        seen = running.job("a")["version"]
        until("progress", lambda seen=seen: running.job("a")["version"] > seen + 2)
        running.kill()
        running.start()
    for node in nodes:
        node.finish()
    until("the job to be done", lambda: running.job("a")["ended_at"])
    everything = [number for number, _ in feed(running)]
    for browser in browsers:
        until("the browser to have seen all", lambda browser=browser: browser.ids[-1] >= everything[-1])
        browser.quit.set()
        assert browser.ids[1:] == everything


# Slow readers


def test_a_reader_that_falls_behind_is_dropped() -> None:
    async def items() -> list[int | None]:
        broadcast = EventBus()
        reader = broadcast.open(None)
        for number in range(BEHIND_MAX + 10):
            broadcast.publish(Item("job_event", "a", {}, number))
        return [item.id async for item in reader.items() if item is not None]

    assert asyncio.run(items()) == []


def test_a_browser_that_does_not_read_holds_little_and_catches_up(coordinator: Inside) -> None:
    coordinator.begin("a", nodes=2)
    runner, text, told = coordinator.runner("a"), "x" * 2000, itertools.count()

    async def tell(count: int) -> None:
        for _ in range(count):
            data = {"at": 0.0, "text": text, "version": 0, "kind": "warning", "node": None}
            coordinator.coordinator.telemetry.event_bus.publish(Item("job_event", "a", data, 1000 + next(told)))

    with connected(coordinator.url) as raw:
        raw.sendall(head("GET", "/api/v1/stream"))
        assert raw.recv(100).startswith(b"HTTP/1.1 200")
        until("the reader", lambda: coordinator.coordinator.telemetry.event_bus.has_readers)
        (reader,) = coordinator.coordinator.telemetry.event_bus._readers
        until("its connection to be full", lambda: coordinator.call(tell(100)) or reader._queue.qsize() > 50)
        coordinator.call(tell(BEHIND_MAX + 100))
        coordinator.call(runner.feed.record_event("warning", "the last one"))
        assert reader.dropped
        assert reader._queue.qsize() <= BEHIND_MAX
        raw.settimeout(PATIENCE_S)
        received, piece = 0, b""
        while not piece.endswith(b"0\r\n\r\n"):  # the end of the answer: it was let go
            piece = piece[-10:] + raw.recv(1 << 20)
            received += len(piece)
        assert received < next(told) * len(text)
    until("the reader to be gone", lambda: not coordinator.coordinator.telemetry.event_bus.has_readers)
    assert replay(coordinator, 0, len(feed(coordinator)))[-1].data["text"] == "the last one"


def test_a_quiet_stream_is_kept_alive(coordinator: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_stream, "PING_S", 0.05)
    with listening(coordinator.url) as events:
        assert [next(events).name for _ in range(3)] == ["hello", "ping", "ping"]


def test_streams_and_polls_do_not_hold_up_the_end(server: Callable[..., Server]) -> None:
    running = server(poll_s_max=2 * PATIENCE_S).start()
    token = running.token()
    node = Node(lambda: running.url, "n0", token, {})
    node.enter()
    statuses: list[int] = []
    poll = threading.Thread(
        target=lambda: statuses.append(node.once("GET", "/work", params={"wait_s": 2 * PATIENCE_S}).status_code)
    )
    with listening(running.url) as events:
        next(events)
        until("the node to be silent", lambda: running.get("/nodes")["nodes"][0]["last_seen_s"] > 0)
        poll.start()
        until("the poll to be open", lambda: running.get("/nodes")["nodes"][0]["last_seen_s"] == 0)
        assert running.end() == 0
        assert list(events) == []
    poll.join(PATIENCE_S)
    node.client.close()
    assert statuses == [204]


def test_old_notes_are_forgotten(tmp_path_factory: pytest.TempPathFactory, swarm: Swarm) -> None:
    with inside(tmp_path_factory.mktemp("feed") / "data", events_kept=100) as running:
        running.begin("a", nodes=1, rounds=150)
        (node,) = swarm(running, 1, {"a": 4})
        node.finish(100)
        until("the job to be done", lambda: running.job("a")["ended_at"])
        assert len(feed(running)) < 100 + 64 * 8
        assert len(running.get("/jobs/a/versions")["versions"]) == 151
