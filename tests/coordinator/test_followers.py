"""Several coordinators on one database, each of which owns some of the jobs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal_coordinator.alerts import alert_rules
from shoal_coordinator.cluster.replica import Replica
from shoal_coordinator.cluster.reverse_proxy import Unanswered
from shoal_coordinator.cluster.rpc import Rpc as InsideOf
from shoal_coordinator.composition import housekeeping, job_lifecycle
from shoal_coordinator.composition.coordinator import Coordinator
from shoal_coordinator.composition.job_lifecycle import JobLifecycle
from tests.support.clients import client
from tests.support.cluster import followers, owners, settings
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.history import check
from tests.support.node import History, Node, body, initial
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy
from tests.support.sse import listening
from tests.support.waiting import PATIENCE_S, pause, pause_async, until

Swarm = Callable[..., list[Node]]
Pair = tuple[Inside, Inside]
SIZES = {"first": 10, "second": 66_000}
LASTING_S = 600.0


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.database()


@pytest.fixture
def pair(url: str, tmp_path: Path) -> Iterator[Pair]:
    with two(url, tmp_path) as found:
        yield found


@contextlib.contextmanager
def two(url: str, tmp_path: Path, **more: Any) -> Iterator[Pair]:
    """A leader and a follower, in this process."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            found.append(Inside(tmp_path / name, **settings(tmp_path, url, LASTING_S), **more).start())
            stack.callback(found[-1].stop)
        known(*found)
        yield found[0], found[1]


def known(leader: Inside, follower: Inside) -> None:
    """Wait until the leader knows where the follower is."""
    until("the follower", lambda: follower.url in followers(leader.database_url).values())
    until("the leader to know it", leader.coordinator.cluster.routes.live)


def at_follower(pair: Pair) -> Coordinator:
    """Return the follower's parts for owned jobs."""
    house = pair[1].server.host
    assert isinstance(house, Replica)
    assert house.following is not None
    return house.following.coordinator


def spread(pair: Pair, **more: Any) -> None:
    """Two jobs, of which the follower owns the second."""
    for job in SIZES:
        pair[0].begin(job, **{"nodes": 2, "rounds": 6, **more})
    assert owners(pair[0].database_url) == {"first": "", "second": pair[1].url}


def all_done(where: Inside) -> bool:
    """Return whether that coordinator lists both jobs as ended, once the nodes have measured the last model."""
    return {job["name"]: job["state"] for job in where.get("/jobs")["jobs"]} == dict.fromkeys(SIZES, "done")


def test_both_coordinators_run_their_own_jobs_and_every_model_is_right(pair: Pair, swarm: Swarm) -> None:
    history = History()
    spread(pair)
    for node in swarm(pair[0], 2, SIZES, history, breaks_uploads=True, beats=True):
        node.finish()
    check(pair[1], history, SIZES, {}, nodes=2)
    until("all to be the leader's", lambda: owners(pair[0].database_url) == {"first": "", "second": ""})
    for where in pair:
        until("both to be done", partial(all_done, where))
        assert where.job("second")["version"] == 6
    until("it to be the leader's record", lambda: "second" in pair[0].coordinator.jobs.records)
    tags = {"json": {"tags": ["good"]}}  # while it moves, people are told to come again (503)
    until("it to be tagged", lambda: pair[1].request("PUT", "/api/v1/jobs/second/tags", **tags).status_code == 200)
    assert [where.job("second")["tags"] for where in pair] == [["good"], ["good"]]
    assert pair[1].request("DELETE", "/api/v1/jobs/second").status_code == 204
    assert [[job["name"] for job in where.get("/jobs")["jobs"]] for where in pair] == [["first"], ["first"]]


def test_a_removed_jobs_name_is_free_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the follower that ran it and shows it for a while after its end; and nothing of it lives on."""
    monkeypatch.setattr(job_lifecycle, "HANDED_S", LASTING_S)
    spread(pair)
    copies, known = pair[1].folder / "blob-cache" / "second", at_follower(pair)
    copies.mkdir(parents=True)
    (copies / "stale").touch()
    known.peers.signed_checkpoints._newest["second"] = 0, b"signed"
    pair[0].post("/jobs/second/stop")
    until("it to be the leader's record", lambda: "second" in pair[0].coordinator.jobs.records)
    assert known.jobs.records["second"].ended_at is not None
    assert pair[0].request("DELETE", "/api/v1/jobs/second").status_code == 204
    pair[0].begin("second", nodes=1)
    assert owners(pair[0].database_url) == {"first": "", "second": pair[1].url}
    assert pair[1].job("second")["state"] == "waiting"
    assert not (copies / "stale").exists(), "it would stand for a body that the store no longer has"
    assert known.peers.signed_checkpoints._newest == {}


def test_a_followers_task_answers_an_open_poll(url: str, tmp_path: Path, swarm: Swarm) -> None:
    with two(url, tmp_path, poll_s_max=2 * PATIENCE_S) as pair:
        check_an_open_poll(pair, swarm)


def check_an_open_poll(pair: Pair, swarm: Swarm) -> None:
    """Open a poll for a paused job of the follower's; resume the job, and see the poll answered."""
    spread(pair, nodes=1)
    (node,) = swarm(pair[0], 1, {"first": 10, "second": 66_000})
    node.finish()
    until("both to be the leader's", lambda: not pair[0].coordinator.cluster.routes.jobs)
    pair[0].begin("third", nodes=9)
    pair[0].begin("fourth", nodes=1)
    assert owners(pair[0].database_url)["fourth"] == pair[1].url
    pair[0].post("/jobs/fourth/pause", {"why": "later"})
    answers: list[httpx.Response] = []

    def poll() -> None:
        with client(headers={"Authorization": node.client.headers["Authorization"]}) as asks:
            answers.append(asks.get(f"{pair[1].url}/api/v1/work", params={"wait_s": 2 * PATIENCE_S, "job": "fourth"}))

    polling = threading.Thread(target=poll)
    polling.start()
    until("it to be open", lambda: pair[0].coordinator.nodes.presence._open_polls["n0"])
    until("the follower to know it", lambda: at_follower(pair).jobs.runner("fourth").hub.is_poll_repeated("n0"))
    pair[0].post("/jobs/fourth/resume", {"why": "now"})
    polling.join(PATIENCE_S)
    assert answers[0].status_code == 200
    assert b'"fourth"' in answers[0].content


def test_unanswered_polls_ask_a_follower_again_when_it_speaks(
    url: str, tmp_path: Path, swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower has a task that it did not report; the wake-up for it came before and does not come again."""
    ask, silent = InsideOf.call, [1]

    async def deaf(self: InsideOf, to: Any, method: str, target: str, *rest: Any, **more: Any) -> Any:
        if target == "/internal/pending" and silent[0]:
            silent[0] -= 1
            raise Unanswered
        return await ask(self, to, method, target, *rest, **more)

    with two(url, tmp_path, poll_s_max=300.0) as (leader, _):
        leader.begin("first", nodes=9)
        leader.begin("second", nodes=1, rounds=1000)
        monkeypatch.setattr(InsideOf, "call", deaf)
        (node,) = swarm(leader, 1, SIZES, wait_s="300")
        until("a version", lambda: leader.job("second")["version"] > 0)  # else when its poll is over
        node.quit.set()
    assert silent == [0]


def test_nodes_may_report_before_a_follower_has_announced_its_job(
    pair: Pair, swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, history = InsideOf.call, History()

    async def slow(self: InsideOf, to: Any, method: str, target: str, *rest: Any, **more: Any) -> Any:
        found = await ask(self, to, method, target, *rest, **more)
        if (method, target) == ("POST", "/api/v1/jobs"):
            await pause_async(0.5)
        return found

    monkeypatch.setattr(InsideOf, "call", slow)
    (node,) = swarm(pair[0], 1, dict.fromkeys("abcd", 10), history)
    for job in "abcd":
        pair[0].begin(job, nodes=1, rounds=1000)
    until("all to go on", lambda: all(pair[0].job(job)["version"] for job in "abcd"))
    node.quit.set()
    assert len(set(owners(pair[0].database_url).values())) == 2
    assert all(ack[-1] for ack in history.acks)


def test_a_job_that_takes_long_to_begin_is_begun_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower is told meanwhile which jobs are its own."""
    drive = JobLifecycle._start_runner

    async def slow(self: JobLifecycle, *rest: Any) -> Any:
        await pause_async(2.5 if self._registry.owner else 0.0)
        return await drive(self, *rest)

    monkeypatch.setattr(JobLifecycle, "_start_runner", slow)
    spread(pair)
    pause(1.5)
    assert [event["text"] for event in pair[0].events("second", "state")] == ["coordinator started (term 1)"]


def test_jobs_that_may_gossip_stay_with_the_leader(pair: Pair) -> None:
    pair[0].begin("first", nodes=1)
    pair[0].begin("second", nodes=1, gossip={"allowed": True})
    assert owners(pair[0].database_url) == {"first": "", "second": ""}


def test_without_a_shared_blob_store_there_are_no_followers(url: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for name in ("one", "two"):
            where = Inside(tmp_path / name, **{**settings(tmp_path, url), "blobs": ""}).start()
            stack.callback(where.stop)
        until("the standby to know", lambda: where.request("GET", "/readyz").status_code == 200)
        assert "shoal_replica_jobs 0.0" in where.request("GET", "/metrics").text
        assert followers(url) == {}
        for job in SIZES:
            where.begin(job, nodes=1)
        assert owners(url) == {"first": "", "second": ""}


def test_an_initial_model_moves_with_its_job(pair: Pair, swarm: Swarm) -> None:
    data = body(initial(66_000))
    digest = hashlib.sha256(data).hexdigest()
    assert pair[0].request("PUT", f"/api/v1/blobs/{digest}", content=data).status_code in (200, 201)
    spread(pair, start=digest)
    for where in pair:
        until(
            "the first model", lambda where=where: where.request("GET", "/api/v1/jobs/second/models/0").content == data
        )


def test_a_job_name_is_taken_on_all_coordinators(pair: Pair) -> None:
    spread(pair)
    for where in pair:
        for job in SIZES:
            found = where.request("POST", "/api/v1/jobs", json={"spec": {"name": job}})
            assert (found.status_code, found.json()["code"]) == (409, "job.exists")
        draft = where.post("/jobs:validate", {"spec": {"name": "second"}})
        assert "exists" in draft["mistakes"][0]["text"]


# Views for users


def test_nodes_get_tasks_of_all_coordinators_in_turn(pair: Pair, swarm: Swarm) -> None:
    """A node finds its next task in the first job each time that it asks: it is given the others' in turn."""
    (node,) = swarm(pair[0], 1, dict.fromkeys("abcd", 10))
    for job in "abcd":
        pair[0].begin(job, nodes=1, rounds=1000)
    until("rounds", lambda: pair[0].job("a")["version"] > 60)
    versions = [pair[0].job(job)["version"] for job in "abcd"]
    node.quit.set()
    assert min(versions) > 20, versions
    assert len(set(owners(pair[0].database_url).values())) == 2


def test_lists_and_pages_show_jobs_of_both_coordinators(pair: Pair, swarm: Swarm) -> None:
    spread(pair, rounds=1000)
    nodes = swarm(pair[0], 2, SIZES)
    until("versions of both", lambda: all(pair[0].job(job)["version"] > 2 for job in SIZES))
    for where in pair:
        assert [job["name"] for job in where.get("/jobs")["jobs"]] == ["second", "first"]
        first = where.get("/jobs", limit=1)
        assert ([job["name"] for job in first["jobs"]], first["next"]) == (["second"], "second")
        assert [job["name"] for job in where.get("/jobs", after="second")["jobs"]] == ["first"]
        shown = {node["name"]: node for node in where.get("/nodes")["nodes"]}
        assert {tuple(sorted(node["jobs"])) for node in shown.values()} == {("first", "second")}
        parts = {part["job"]: part for part in where.get("/nodes/n0")["parts"]}
        assert parts.keys() == {"first", "second"}
        assert all(part["is_present"] and part["reports"] and part["up_bytes"] for part in parts.values())
        runs = where.get("/compare", run=["second", "first"])["runs"]
        assert [run["job"]["name"] for run in runs] == ["second", "first"]
        assert where.get("/leader")["followers"] == [{"address": pair[1].url, "jobs": 1}]
    for node in nodes:
        node.quit.set()
    for node in nodes:
        node.finish()
    for where in pair:
        whole = where.get("/nodes/n0")
        (row,) = [node for node in where.get("/nodes")["nodes"] if node["name"] == "n0"]
        assert sorted(part["job"] for part in whole["parts"]) == ["first", "second"]
        counts = [
            one["reports"] for job in SIZES for one in where.get(f"/jobs/{job}/nodes")["nodes"] if one["name"] == "n0"
        ]
        assert row["reports"] == whole["reports"] == sum(counts) > max(counts)


def test_a_request_waits_for_a_job_that_comes_back(pair: Pair, swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader knows that the job is its own again before it has restored it."""
    spread(pair, rounds=1)
    leader, restoring, go_on = pair[0].coordinator.cluster.parts, threading.Event(), threading.Event()
    restore = leader.restore_job

    async def held(row: Any) -> None:
        restoring.set()
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        await restore(row)

    monkeypatch.setattr(leader, "restore_job", held)
    for node in swarm(pair[0], 2, SIZES):
        node.finish()
    assert restoring.wait(PATIENCE_S)
    threading.Timer(0.5, go_on.set).start()
    assert pair[0].job("second")["state"] == "done"


def test_a_job_of_an_unreachable_owner_is_shown_as_a_stub(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer of the follower's: without its part here, it would begin another."""

    async def deaf(self: InsideOf, *request: Any, **more: Any) -> Any:
        raise Unanswered

    spread(pair)
    monkeypatch.setattr(InsideOf, "call", deaf)
    told = {job["name"]: job["state_why"] for job in pair[0].get("/jobs")["jobs"]}
    assert told == {"second": "the coordinator that owns it does not answer now", "first": "0 of 2 nodes ready"}


def test_one_event_stream_covers_both_coordinators(pair: Pair, swarm: Swarm) -> None:
    with listening(pair[1].url) as events:
        assert next(events).name == "hello"
        spread(pair, rounds=2)
        nodes = swarm(pair[0], 2, SIZES)
        seen: set[tuple[str, int]] = set()
        for event in events:
            if event.name == "version":
                seen.add((event.data["job"], event.data["number"]))
            if seen >= {(job, 2) for job in SIZES}:
                break
    for node in nodes:
        node.finish()
    with listening(pair[0].url, last=0) as events:
        again: set[tuple[str, int]] = set()
        for event in events:
            if event.name == "version":
                again.add((event.data["job"], event.data["number"]))
            if again >= {(job, number) for job in SIZES for number in (0, 1, 2)}:
                break


def test_every_byte_is_counted_once_across_coordinators(url: str, tmp_path: Path, swarm: Swarm) -> None:
    """The node that was asked, and the one that answered."""
    with contextlib.ExitStack() as stack:
        one, two = (Inside(tmp_path / name, **settings(tmp_path, url, LASTING_S)) for name in ("one", "two"))
        for where in (one, two):
            stack.callback(where.start().stop)
        known(one, two)
        places = itertools.cycle([two.url, one.url])
        proxy = Proxy(lambda: next(places))
        stack.callback(proxy.close)
        two.url = proxy.url
        for job in SIZES:
            two.begin(job, nodes=2, rounds=3)
        assert "" in owners(url).values()
        assert len(set(owners(url).values())) == 2
        for node in swarm(two, 2, SIZES, beats=True, fails_once=True):
            node.finish()
        for job in SIZES:
            until("the job to be done", lambda job=job: two.job(job)["state"] == "done")
            two.get(f"/jobs/{job}/versions")
        two.get("/jobs")
        two.get("/nodes")
        total = {job: two.get(f"/jobs/{job}/traffic")["total"] for job in SIZES}
        shown = {job: two.job(job) for job in SIZES}
        for job in SIZES:
            assert total[job] == {"up": shown[job]["up_bytes"], "down": shown[job]["down_bytes"]}
    query = "SELECT direction, SUM(head_bytes + body_bytes) FROM traffic GROUP BY direction"
    assert {way: int(size) for way, size in one.rows(query)} == {"up": proxy.up, "down": proxy.down}


def test_all_log_lines_of_a_follower_are_kept(pair: Pair) -> None:
    row = {"at": time.time(), "node": "", "job": "", "round": None, "level": 20, "text": "x" * 1000, "fields": {}}
    pair[1].call(_taken(pair, [row | {"incarnation": "b", "number": number} for number in range(1500)]))
    kept = "SELECT count(*) FROM logs WHERE incarnation = 'b'"
    until("all of it", lambda: pair[0].rows(kept) == [(1500,)])


async def _taken(pair: Pair, lines: list[dict[str, Any]]) -> None:
    at_follower(pair).telemetry.log_store.take_in(lines)


def test_an_alert_of_a_followers_job_is_raised_once_and_cleared_by_the_next_owner(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "ALERTS_S", 0.02)
    monkeypatch.setattr(alert_rules, "CLEAR_S", 1.0)  # longer than it takes the new owner to find it stalled
    more = {**settings(tmp_path, url, LASTING_S), "alert_stalled_s": 0.3, "alert_disk_bytes": 0}
    with inside(tmp_path / "one", **more) as leader:
        follower = Inside(tmp_path / "two", **more).start()
        known(leader, follower)
        leader.begin("first", nodes=9)
        leader.begin("second", nodes=1)
        node = Node(lambda: leader.url, "n0", leader.token(), SIZES)
        node.enter()
        raised = until("an alert", lambda: [one for one in leader.get("/alerts")["alerts"] if one["job"] == "second"])
        assert [one["kind"] for one in raised] == ["no-progress"]
        follower.stop()
        until("the leader to own it", lambda: "second" in leader.coordinator.jobs.records)
        pause(0.3)
        leader.post("/jobs/second/stop", {"when": "now", "why": "enough"})
        until("it to be over", lambda: next(iter(mine(leader)))["cleared_at"])
        assert len(mine(leader)) == 1
        node.client.close()


def mine(leader: Inside) -> list[dict[str, Any]]:
    return [one for one in leader.get("/alerts")["alerts"] if one["job"] == "second"]


# Authorization


def test_a_removed_node_is_refused_at_once_everywhere(pair: Pair, swarm: Swarm) -> None:
    spread(pair, nodes=1)
    (node,) = swarm(pair[0], 1, SIZES)
    until("its report", lambda: at_follower(pair).nodes.presence.activity["second", "n0"].reports)
    credential = {"Authorization": node.client.headers["Authorization"]}
    assert pair[1].request("GET", "/api/v1/jobs/second", headers=credential).status_code == 200
    held = {"json": {"availability": "drained"}}
    assert pair[1].request("PUT", "/api/v1/nodes/n0/availability", **held).status_code == 200
    assert at_follower(pair).jobs.runner("second").hub.roster["n0"].node_info.drain_reason == "drained by an operator"
    assert pair[0].coordinator.jobs.runner("first").hub.roster["n0"].node_info.drain_reason == "drained by an operator"
    node.quit.set()
    assert pair[0].request("DELETE", "/api/v1/nodes/n0").status_code == 204
    assert pair[1].request("GET", "/api/v1/jobs/second", headers=credential).status_code == 401
    assert at_follower(pair).jobs.runner("second").hub.roster["n0"].is_present is False


def test_a_session_is_valid_and_ends_on_all_coordinators(pair: Pair) -> None:
    spread(pair)
    with client() as browser:
        entered = browser.post(f"{pair[0].url}/api/v1/session", json={"token": OPERATOR})
        browser.headers.update({"Cookie": entered.headers["set-cookie"].partition(";")[0], "Origin": pair[1].url})
        tags = f"{pair[1].url}/api/v1/jobs/second/tags"
        assert browser.put(tags, json={"tags": ["a"]}).status_code == 200
        assert browser.delete(f"{pair[1].url}/api/v1/session").status_code == 204
        assert browser.put(tags, json={"tags": ["b"]}).status_code == 401


def test_internal_routes_refuse_strangers(pair: Pair) -> None:
    for where in pair:
        for method, path in (("GET", "/internal/work"), ("POST", "/internal/sync"), ("POST", "/internal/evict")):
            found = where.request(method, path, json={} if method == "POST" else None)
            assert (found.status_code, found.json()["code"]) == (404, "path.unknown")
            found = where.request(method, path, headers={"Shoal-Forwarded": "1 10.0.0.1 7 http operator 00"})
            assert (found.status_code, found.json()["code"]) == (503, "replica.no-leader")
