"""Several coordinators on one database: one owns it, the others pass on; when the owner is gone, another takes over."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.core.errors import NotAllowed, StorageFailed
from shoal_coordinator.cluster import reverse_proxy
from tests.support.clients import client
from tests.support.cluster import Fleet, lease, nodes_of, settings, signal_of
from tests.support.coordinator import OPERATOR, Inside
from tests.support.history import check
from tests.support.node import History, Node, body, initial
from tests.support.postgres import Cluster, rows
from tests.support.waiting import PATIENCE_S, pause, until

Swarm = Callable[..., list[Node]]


@pytest.fixture
def url(cluster: Cluster) -> str:
    return cluster.database()


@pytest.fixture
def pair(url: str, tmp_path: Path) -> Iterator[tuple[Inside, Inside]]:
    """An owner and a standby, in this process."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            found.append(Inside(tmp_path / name, **settings(tmp_path, url)).start())
            stack.callback(found[-1].stop)
        until("the standby to know", lambda: found[1].request("GET", "/readyz").status_code == 200)
        yield found[0], found[1]


def test_a_standby_with_another_operators_token_does_not_start(url: str, tmp_path: Path) -> None:
    owner = Inside(tmp_path / "one", **settings(tmp_path, url)).start()
    given = {**settings(tmp_path, url), "operator_token": "sho_other"}
    with pytest.raises(NotAllowed, match="operators' token here is not that of the coordinator that owns"):
        Inside(tmp_path / "two", **given).start()
    owner.stop()
    Inside(tmp_path / "three", **given).start().stop()  # no other view could differ


# A standby passes on


def test_a_run_by_way_of_the_standby_alone(pair: tuple[Inside, Inside], swarm: Swarm) -> None:
    """Polls held open, reports, uploads that break off and go on, downloads: all of it, and every model is right."""
    owner, standby = pair
    history, sizes = History(), {"inline": 10, "large": 66_000}
    for job in sizes:
        standby.begin(job, nodes=2, rounds=6)
    nodes = swarm(standby, 2, sizes, history, breaks_uploads=True)
    for node in nodes:
        node.finish()
    check(standby, history, sizes, {}, nodes=2)
    assert owner.job("large")["version"] == 6


def test_bytes_are_counted_once_and_as_they_came(pair: tuple[Inside, Inside]) -> None:
    owner, standby = pair
    for where in (owner, standby):
        where.get("/jobs")
    ledger = owner.coordinator.telemetry.traffic
    counts = []
    for where in pair:
        before = sum(ledger.totals.values())
        where.post("/tokens", {"role": "node"})
        until("it to be booked", lambda before=before: sum(ledger.totals.values()) > before)
        counts.append(sum(ledger.totals.values()) - before)
    assert counts[0] == counts[1]


@contextlib.contextmanager
def events(where: Inside) -> Iterator[httpx.Response]:
    """The stream that a browser holds open."""
    with (
        client(headers={"Authorization": f"Bearer {OPERATOR}"}) as asks,
        asks.stream("GET", f"{where.url}/api/v1/stream") as stream,
    ):
        yield stream


def test_events_come_as_they_happen(pair: tuple[Inside, Inside]) -> None:
    owner, standby = pair
    with events(standby) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert "event: hello" in next(line for line in lines if line.startswith("event:"))
        owner.begin("main", nodes=1)
        assert any('"main"' in line for line in lines if line.startswith("data:"))


def test_who_hangs_up_at_the_standby_hangs_up_at_the_owner(pair: tuple[Inside, Inside]) -> None:
    owner, standby = pair
    until("a follower", lambda: owner.coordinator.cluster.event_relay.followers)  # else readers may be sent away
    with events(standby) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()  # kept: the end of this iterator closes the stream
        assert next(lines)
        until("the owner to know it", lambda: owner.coordinator.telemetry.event_bus.has_readers)
    until("the owner to see it", lambda: not owner.coordinator.telemetry.event_bus.has_readers)


def test_bodies_ranges_heads_and_refusals_are_the_owner_s(pair: tuple[Inside, Inside]) -> None:
    owner, standby = pair
    data = body(initial(66_000))
    digest = hashlib.sha256(data).hexdigest()
    put = standby.request("PUT", f"/api/v1/blobs/{digest}", content=data, headers={"Expect": "100-continue"})
    assert put.status_code in (200, 201), put.text
    standby.begin("main", nodes=1, start=digest)
    path = "/api/v1/jobs/main/models/0"
    until("the first model", lambda: owner.request("GET", path).status_code == 200)
    asked: list[tuple[str, str, dict[str, str]]] = [
        ("GET", path, {}),
        ("GET", path, {"Range": "bytes=10-99"}),
        ("HEAD", path, {}),
        ("GET", "/api/v1/jobs/nothing", {}),
        ("DELETE", "/api/v1/jobs", {}),
        ("GET", "/some/page", {}),
        ("POST", "/api/v1/jobs", {"Content-Encoding": "gzip"}),
        ("GET", "/api/v1/tokens?x=%2F%20&y=1", {"Authorization": "Bearer wrong"}),
    ]
    for method, where, headers in asked:
        here, there = (one.request(method, where, headers=headers) for one in pair)
        assert (here.status_code, here.content) == (there.status_code, there.content), where
        leave_out = ("date", "connection")
        assert [h for h in here.headers.multi_items() if h[0] not in leave_out] == [
            h for h in there.headers.multi_items() if h[0] not in leave_out
        ]


def test_a_stranger_s_upload_is_refused_before_it_comes(pair: tuple[Inside, Inside]) -> None:
    _, standby = pair
    with client() as asks:
        found = asks.put(f"{standby.url}/api/v1/blobs/{'0' * 64}", content=b"x" * 3_000_000)
    assert found.status_code == 401


def test_a_browser_s_session(pair: tuple[Inside, Inside]) -> None:
    """The cookie goes through, and a change must come from a page of the address that the browser sees."""
    _, standby = pair
    with client() as browser:
        entered = browser.post(f"{standby.url}/api/v1/session", json={"token": OPERATOR})
        assert entered.status_code == 204, entered.text
        cookie = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}
        for origin, status in ((standby.url, 201), ("http://elsewhere.example", 403)):
            found = browser.post(
                f"{standby.url}/api/v1/tokens", json={"role": "node"}, headers={**cookie, "Origin": origin}
            )
            assert found.status_code == status, found.text


def test_nothing_goes_in_circles(pair: tuple[Inside, Inside]) -> None:
    """A forwarded request is not forwarded again; and no other sender can mark a request as forwarded."""
    for where in pair:
        found = where.request("GET", "/api/v1/jobs", headers={"Shoal-Forwarded": "1 10.0.0.1 7 http 00"})
        assert found.status_code == 503
        assert found.json()["code"] == "replica.no-leader"


SCOPE: dict[str, Any] = {
    "method": "POST",
    "raw_path": b"/api/v1/x%2Fy",
    "query_string": b"a=1",
    "scheme": "https",
    "client": ("2001:db8::7", 4711),
    "headers": [(b"host", b"shoal.example"), (b"x-forwarded-for", b"6.6.6.6"), (b"te", b"trailers")],
}
OWNER = RemoteLeader(3, "http://owner", "secret")


def arrived(**changes: Any) -> dict[str, Any]:
    """Return the owner's view of a forwarded request."""
    head, *lines = reverse_proxy.head_of({**SCOPE, **changes}, OWNER).rstrip().split(b"\r\n")
    assert head == b"POST /api/v1/x%2Fy?a=1 HTTP/1.1"
    headers = [tuple(line.split(b": ", 1)) for line in lines]
    return {**SCOPE, "client": ("10.0.0.2", 1), "scheme": "http", "headers": headers}


def test_the_owner_sees_who_asked() -> None:
    scope = arrived()
    assert reverse_proxy.is_forwarded(scope)
    assert reverse_proxy.accept(scope, 3, "secret")
    assert (scope["client"], scope["scheme"]) == (("2001:db8::7", 4711), "https")
    assert [name for name, _ in scope["headers"]] == [b"host", b"x-forwarded-for", b"connection"]


@pytest.mark.parametrize(
    ("term", "secret", "changes"),
    [
        (4, "secret", {}),
        (3, "other", {}),
        (3, "", {}),
        (3, "secret", {"method": "GET"}),
        (3, "secret", {"raw_path": b"/api/v1/z"}),
        (3, "secret", {"query_string": b"a=2"}),
    ],
)
def test_what_was_not_passed_on_to_this_owner_is_not_believed(term: int, secret: str, changes: dict[str, Any]) -> None:
    scope = {**arrived(), **changes}
    assert not reverse_proxy.accept(scope, term, secret)
    assert scope["client"] == ("10.0.0.2", 1)


# How they stand


def test_each_says_how_it_is(pair: tuple[Inside, Inside]) -> None:
    owner, standby = pair
    for where in pair:
        assert where.request("GET", "/healthz").json() == {"status": "ok"}
        assert where.request("GET", "/readyz").status_code == 200
    standby.get("/jobs")
    assert "shoal_replica_leader 1.0" in owner.request("GET", "/metrics").text
    told = standby.request("GET", "/metrics").text
    assert "shoal_replica_leader 0.0" in told
    assert "shoal_replica_term 1.0" in told
    assert "shoal_replica_forwards_total 1.0" in told
    until("the follower", owner.coordinator.cluster.routes.live)
    wanted = {"address": owner.url, "term": 1, "followers": [{"address": standby.url, "jobs": 0}]}
    assert [where.get("/leader") for where in pair] == [wanted, wanted], "whoever is asked"


def test_they_sign_with_one_key(url: str, tmp_path: Path) -> None:
    first = Inside(tmp_path / "one", **settings(tmp_path, url)).start()
    second = Inside(tmp_path / "two", **settings(tmp_path, url)).start()
    key = (tmp_path / "one" / "coordinator.pem").read_bytes()
    (tmp_path / "two" / "coordinator.pem").write_bytes(b"another")
    first.stop()
    until("the other to own", lambda: second.server.host.coordinator is not None)
    second.stop()
    assert (tmp_path / "two" / "coordinator.pem").read_bytes() == key
    assert (tmp_path / "two" / "coordinator.pem.replaced").read_bytes() == b"another"


def test_one_folder_one_coordinator(url: str, tmp_path: Path) -> None:
    first = Inside(tmp_path / "one", **settings(tmp_path, url)).start()
    with pytest.raises(StorageFailed, match="another coordinator uses") as found:
        Inside(tmp_path / "one", **settings(tmp_path, url)).start()
    assert found.value.code == "storage.locked"
    first.stop()


# When the owner goes


def test_an_owner_that_ends_in_good_order_hands_over_at_once(fleet: Callable[..., Fleet]) -> None:
    """Its lease would last for ten minutes; the test does not wait for that."""
    both = fleet(2, 600.0)
    both.begin("main", nodes=1)
    first = both.owner()
    assert first.end() == 0
    assert both.job("main")["name"] == "main"
    assert lease(both.database_url)[0] == 2
    first.start()
    assert both.owner() is not first


def test_an_owner_that_was_stopped_for_too_long_says_nothing_of_what_it_knew(fleet: Callable[..., Fleet]) -> None:
    """Neither what it is asked before it knows, nor afterwards: it becomes a standby, in the same process."""
    both = fleet(2, 1.5)
    both.begin("old", nodes=1)
    zombie, other = both.owner(), both.standbys()[0]
    pid = zombie.pid
    signal_of(zombie, signal.SIGSTOP)
    until("the other to own", lambda: lease(both.database_url)[1] == other.url)
    both.members.remove(zombie)
    both.begin("new", nodes=1)
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(zombie.request("GET", "/api/v1/jobs/new"))

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for one in asking:
        one.start()
    pause()  # so that they wait, though nothing here tells
    signal_of(zombie, signal.SIGCONT)
    for one in asking:
        one.join(PATIENCE_S)
    assert {answer.status_code for answer in answers} <= {200, 503}
    until("the zombie to pass on", lambda: zombie.request("GET", "/api/v1/jobs/new").status_code == 200)
    until("it to know its place", lambda: "shoal_replica_leader 0.0" in zombie.request("GET", "/metrics").text)
    assert zombie.pid == pid
    assert zombie.ended() is None


def test_while_nobody_owns_it_everybody_is_asked_to_come_again(fleet: Callable[..., Fleet]) -> None:
    both = fleet(2, 600.0)
    both.begin("main", nodes=1)
    first, standby = both.owner(), both.standbys()[0]
    first.kill()
    with psycopg.connect(both.database_url) as connection:
        connection.execute("UPDATE leases SET announced_term = 0")  # it has just been taken
    found = until(
        "the standby to notice", lambda: (f := standby.request("GET", "/api/v1/jobs")).status_code == 503 and f
    )
    assert found.json()["code"] == "replica.no-leader"
    assert found.headers["retry-after"] == "2"
    assert found.headers["shoal-protocol"]
    until("the standby to say so", lambda: standby.request("GET", "/readyz").status_code == 503)
    assert standby.request("GET", "/healthz").status_code == 200


def test_a_run_goes_on_when_the_database_restarts_in_mid_round(fleet: Callable[..., Fleet], cluster: Cluster) -> None:
    both, history, sizes = fleet(2, 2.0), History(), {"main": 10}
    both.begin("main", nodes=3, rounds=40)
    nodes = nodes_of(both, 3, sizes, history)
    for version in (2, 4):
        until(
            "versions",
            lambda version=version: rows(both.database_url, "SELECT 1 FROM versions WHERE number > ?", version),
        )
        cluster.control("-m", "immediate", "restart")
    for node in nodes:
        node.finish()
    check(both, history, sizes, {}, nodes=3)
    until("the job to be done", lambda: both.job("main")["state"] == "done")
    assert both.job("main")["version"] == 40
