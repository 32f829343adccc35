"""How commands talk to a coordinator, and what they say when it doesn't answer as one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cli.connection import connect, own_token
from shoal.client import api as module
from shoal.client.api import CoordinatorApi, segment
from shoal.core.errors import NotAllowed, Refused, Unreachable
from shoal.runtime.http.retry import Backoff
from tests.cli.conftest import Shoal
from tests.support.fake_coordinator import FakeCoordinator, Problem, raw
from tests.support.http_servers import Said


@pytest.fixture
def api(fake: FakeCoordinator) -> Iterator[CoordinatorApi]:
    with connect(fake.url, "sho_x") as found:
        yield found


def test_names_are_one_part_of_a_path() -> None:
    assert segment("a/../b?c#d e") == "a%2F..%2Fb%3Fc%23d%20e"


def test_json_goes_and_comes(api: CoordinatorApi, fake: FakeCoordinator) -> None:
    fake.answers = {"GET /jobs": {"jobs": []}, "POST /tokens": {"token": "t"}, "DELETE /nodes/a": None}
    assert api.get("/jobs", limit=3) == {"jobs": []}
    assert api.post("/tokens", {"role": "node"}) == {"token": "t"}
    api.delete("/nodes/a")
    read, made, removed = fake.asked
    assert (read.query, made.json(), removed.method) == ("limit=3", {"role": "node"}, "DELETE")
    assert {asked.headers["Authorization"] for asked in fake.asked} == {"Bearer sho_x"}


def test_problems_are_told_as_they_are(api: CoordinatorApi, fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs/x"] = Problem(404, "job.unknown", "no job is called 'x'", "jobs here: a")
    with pytest.raises(Refused, match="no job is called 'x'") as caught:
        api.get("/jobs/x")
    assert (caught.value.code, caught.value.hint) == ("job.unknown", "jobs here: a")


@pytest.mark.parametrize("answer", [raw(b"<html>"), raw(b"[1]"), raw(b"Not Found", {}, 404), raw(b"No", {}, 405)])
def test_another_server_is_no_coordinator(api: CoordinatorApi, fake: FakeCoordinator, answer: Said) -> None:
    fake.answers["GET /jobs"] = answer
    with pytest.raises(Unreachable, match="not as a coordinator does"):
        api.get("/jobs")


def test_without_a_token_the_hint_says_where_it_is(fake: FakeCoordinator) -> None:
    fake.answers["GET /jobs"] = Problem(401, "auth.missing", "no credential", "send a header")
    with connect(fake.url) as api, pytest.raises(NotAllowed) as caught:
        api.get("/jobs")
    assert "operator.token" in caught.value.hint
    with connect(fake.url, "sho_wrong") as api, pytest.raises(NotAllowed) as caught:
        api.get("/jobs")
    assert caught.value.hint == "send a header"


def test_beside_a_coordinator_its_token_is_found(place: Path, fake: FakeCoordinator) -> None:
    (place / "shoal-data").mkdir()
    (place / "shoal-data/operator.token").write_text("sho_found\n")
    assert own_token(fake.url) == "sho_found"
    assert own_token("http://192.0.2.1:8080") == ""  # it is never sent to another machine
    fake.answers["GET /jobs"] = {"jobs": []}
    with connect(fake.url) as api:
        api.get("/jobs")
    assert fake.asked[-1].headers["Authorization"] == "Bearer sho_found"


def test_nobody_there(shoal: Shoal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        result = shoal("jobs", "list", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr
    assert "hint: " in result.stderr


@pytest.mark.parametrize("url", ["host:8080", "ftp://x", "http://", "8080"])
def test_an_address_that_is_none(shoal: Shoal, url: str) -> None:
    result = shoal("jobs", "list", "--url", url)
    assert result.exit_code == 2
    assert "url" in result.stderr


def test_downloads_say_length_and_digest(api: CoordinatorApi, fake: FakeCoordinator) -> None:
    fake.answers["GET /file"] = raw(b"x" * 100_000, {"ETag": '"sha256:abc"'})
    with api.download("/file") as body:
        assert (body.nbytes, body.digest) == (100_000, "abc")
        assert b"".join(body.pieces) == b"x" * 100_000


def test_uploads_arrive(api: CoordinatorApi, fake: FakeCoordinator) -> None:
    fake.answers["PUT /blobs/abc"] = {"digest": "abc", "bytes": 6}
    api.upload("/blobs/abc", 6, iter([b"abc", b"def"]))
    assert fake.asked[-1].body == b"abcdef"


def test_the_other_clock(api: CoordinatorApi, fake: FakeCoordinator) -> None:
    fake.answers["GET /version"] = {"version": "0.1.0", "protocols": [1]}
    assert abs(api.clock_skew_s()) < 1.5


def test_events_arrive_and_silence_is_told(
    api: CoordinatorApi, fake: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module, "RECONNECT", Backoff(0.01, 0.02, 5.0))
    fake.events = [[("hello", {}), ("job_event", {"text": "ä"})], [("job_event", {"text": "later"})]]
    found = []
    with api.events("digits") as events:
        for event in events:
            found.append((event.name, event.data) if event else None)
            if ("job_event", {"text": "later"}) in found and None in found:
                break
    told = [one for one in found if one is not None]
    assert told[:3] == [("hello", {}), ("job_event", {"text": "ä"}), ("job_event", {"text": "later"})]
    first, second = [asked for asked in fake.asked if asked.path.endswith("/stream")][:2]
    assert first.query == "job=digits"
    assert "Last-Event-ID" not in {name.title().replace("Id", "ID") for name in first.headers}
    assert {name.lower(): value for name, value in second.headers.items()}["last-event-id"] == "2"


def test_a_stream_that_is_refused_ends_the_watch(api: CoordinatorApi, fake: FakeCoordinator) -> None:
    fake.answers["GET /stream"] = Problem(403, "auth.forbidden", "not you")
    with api.events("digits") as events, pytest.raises(NotAllowed, match="not you"):
        list(events)
