"""Server-sent events: however the bytes are cut, whatever breaks."""

from __future__ import annotations

from itertools import islice, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload, NotAllowed, Unreachable
from shoal.runtime.http import sse
from shoal.runtime.http.client import Link
from shoal.runtime.http.retry import Backoff
from shoal.runtime.http.sse import ServerEvent, events, parse
from tests.support.http_servers import Asked, Said, answering

STREAM = (
    "retry: 1000\n\n: ping\n\n"
    'event: job_event\nid: 7\ndata: {"text":\ndata:  "grün"}\n\n'
    'event: nodes\r\ndata:{"a": 1}\r\n\r\n'
    "event: lost\n\n"  # no data: no event
    "data: [1]\rid: 8\r\rid: 9\ndata: 3\n\ndata: unfinished"
).encode()
EXPECTED = [
    ServerEvent("job_event", {"text": "grün"}, "7"),
    ServerEvent("nodes", {"a": 1}),
    ServerEvent("message", [1], "8"),
    ServerEvent("message", 3, "9"),
]
QUICK = Backoff(first_s=0.01, most_s=0.02, give_up_s=5.0)


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(STREAM)})
    assert list(parse(STREAM[a:b] for a, b in pairwise(places))) == EXPECTED


def test_one_byte_at_a_time() -> None:
    assert list(parse(STREAM[i : i + 1] for i in range(len(STREAM)))) == EXPECTED


def test_data_that_are_no_json() -> None:
    with pytest.raises(InvalidPayload) as error:
        list(parse([b"data: {\n\n"]))
    assert error.value.code == "sse.invalid"


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LINE_CHARACTERS_MAX", 1000)
    with pytest.raises(InvalidPayload) as error:
        list(parse([b"data: " + b"x" * 600] * 3))
    assert error.value.code == "sse.too-large"


def test_a_broken_stream_is_taken_up_where_it_ended() -> None:
    asked: list[str | None] = []
    parts = [b"id: 1\ndata: 1\n\nid: 2\nda", b"", b"id: 2\ndata: 2\n\ndata: 5\n\n", b"id: 3\ndata: 3\n\n"]

    def answer(one: Asked) -> Said | None:
        asked.append(one.headers.get("Last-Event-ID"))
        if len(asked) == 2:
            return Said(503)
        # More is announced than comes: the connection breaks.
        return Said(200, parts[len(asked) - 1], length=1000)

    with answering(answer) as url, Link(url) as link:
        found = list(islice(events(link, "/stream", params={"job": "j"}, backoff=QUICK), 4))
    assert [(event.data, event.id) for event in found] == [(1, "1"), (2, "2"), (5, ""), (3, "3")]
    assert asked == [None, "1", "1", "2"]


def test_a_stream_begins_where_it_is_told() -> None:
    asked: list[str] = []

    def answer(one: Asked) -> Said:
        asked.append(one.headers["Last-Event-ID"])
        return Said(200, b"data: 1\n\n")

    with answering(answer) as url, Link(url) as link:
        assert next(events(link, "/stream", last_id="41", backoff=QUICK)).data == 1
    assert asked == ["41"]


def test_a_refusal_ends_it() -> None:
    with answering(lambda one: Said(401)) as url, Link(url) as link, pytest.raises(NotAllowed):
        next(events(link, "/stream", backoff=QUICK))


def test_it_gives_up_in_the_end() -> None:
    patience = Backoff(first_s=0.01, most_s=0.02, give_up_s=0.1)
    with answering(lambda one: None) as url, Link(url) as link, pytest.raises(Unreachable):
        next(events(link, "/stream", backoff=patience))


def test_a_stream_that_always_ends_at_once_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(sse, "time", SimpleNamespace(sleep=pauses.append))
    patience = Backoff(first_s=1.0, most_s=30.0, give_up_s=0.2)

    def answer(one: Asked) -> Said:
        return Said(503) if len(pauses) > 6 else Said(200, b": nothing\n\n")

    with answering(answer) as url, Link(url) as link, pytest.raises(Unreachable):
        next(events(link, "/stream", backoff=patience))
    assert len(pauses) == 7
    assert max(pauses) > 1.0
