"""The node protocol, request by request, as it stands on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from shoal.core.errors import Cancelled, NotAllowed, Refused, ShoalError, Unreachable
from shoal.core.protocol.message import Ack, BlobRef, NoTask, Report, Task, TaskFailed
from shoal.runtime.http.node_client import NodeClient, NodeWelcome, Polled
from shoal.wire import codec
from tests.support.http_servers import Asked, Said, answering
from tests.support.waiting import pause

REF = BlobRef("a" * 64, 3 * 2**20 + 17)
DATA = bytes(17) * (REF.nbytes // 17) + bytes(REF.nbytes % 17)
REPORT = Report("a", (2, 7), 3, 1.5, BlobRef("b" * 64, 3), {"train/loss": 0.5})
OURS = {"Shoal-Protocol": "1"}


class Place:
    """A link, and what was asked over it."""

    def __init__(self, client: NodeClient, asked: list[Asked]) -> None:
        self.client, self.asked = client, asked

    @property
    def last(self) -> Asked:
        return self.asked[-1]


@contextmanager
def linked(answer: Said | Callable[[Asked], Said]) -> Iterator[Place]:
    asked: list[Asked] = []

    def remember(one: Asked) -> Said:
        asked.append(one)
        return answer(one) if callable(answer) else answer

    with answering(remember) as url, NodeClient(url, credential="shn_me") as client:
        yield Place(client, asked)


def frame(message: object, payload: bytes = b"") -> Said:
    return Said(200, codec.encode(codec.Frame("j", message, payload)), OURS)  # type: ignore[arg-type]


def values(**more: object) -> Said:
    return Said(200, json.dumps(more).encode(), OURS)


def test_enrol() -> None:
    with linked(values(credential="shn_x", name="a", protocol=1)) as place:
        assert place.client.enrol("sht_one", "a", {"python": "3"}, "a key") == ("shn_x", "a")
    assert (place.last.method, place.last.path) == ("POST", "/api/v1/enrol")
    assert json.loads(place.last.body) == {"token": "sht_one", "name": "a", "info": {"python": "3"}, "protocols": [1]}
    assert place.last.headers["Idempotency-Key"] == "a key"


def test_hello() -> None:
    with linked(values(name="a", protocol=1, lease_s=15, heartbeat_s=2.5, wait_s_max=25)) as place:
        assert place.client.hello({}) == NodeWelcome("a", 15.0, 2.5, 25.0)
    assert (place.last.method, place.last.path) == ("POST", "/api/v1/hello")
    assert place.last.headers["Authorization"] == "Bearer shn_me"


@pytest.mark.parametrize(
    "answer", [{}, {"protocol": 1}, {"protocol": 1, "name": "a", "lease_s": "soon"}, {"protocol": None}]
)
def test_a_welcome_that_is_none(answer: dict[str, object]) -> None:
    with linked(values(**answer)) as place, pytest.raises(ShoalError) as error:
        place.client.hello({})
    assert error.value.code in ("protocol.foreign", "protocol.unknown")


def test_a_protocol_that_we_do_not_speak() -> None:
    answer = values(name="a", protocol=9, lease_s=1, heartbeat_s=1, wait_s_max=1)
    with linked(answer) as place, pytest.raises(Refused) as error:
        place.client.hello({})
    assert (error.value.code, "same release" in error.value.hint) == ("protocol.unknown", True)


def test_work() -> None:
    task = Task((1, 2), "a", "train", 0, 5, BlobRef("c" * 64, 2))
    with linked(frame(task, b"xy")) as place:
        found = place.client.poll_work(12.5, {"k": (3, 4), "j": (1, 2)}, ("j", "k"))
        assert found == Polled(codec.Frame("j", task, b"xy"))
    parts = urlsplit(place.last.target)
    assert parts.path == "/api/v1/work"
    assert parse_qs(parts.query) == {"wait_s": ["12.5"], "held": ["j:1.2", "k:3.4"], "job": ["j", "k"]}


def test_no_work() -> None:
    with linked(Said(204, b"", OURS)) as place:
        assert place.client.poll_work(0.1, {}) == Polled(None)
        assert place.client.poll_work(0.1, {}) == Polled(None)
    assert place.asked[0].address == place.asked[1].address  # the connection was used again


def test_a_late_answer_to_a_poll_is_waited_for() -> None:
    """The poll's own time comes on top of the usual patience."""

    def late(asked: Asked) -> Said:
        pause(0.4)
        return frame(NoTask((0, 0)))

    with answering(late) as url, NodeClient(url, read_s=0.1) as client:
        assert client.poll_work(0.2, {}).frame is not None


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00\x0b" + b'{"shoal":1}', b"<html>", b"\xff" * 40])
def test_a_garbled_frame_is_asked_for_again(body: bytes) -> None:
    with linked(Said(200, body, OURS)) as place, pytest.raises(Unreachable) as error:
        place.client.poll_work(0.1, {})
    assert error.value.code == "protocol.foreign"


def test_a_report() -> None:
    with linked(frame(Ack((2, 7), True))) as place:
        assert place.client.report("j", REPORT, b"abc") == Ack((2, 7), True)
    assert (place.last.method, place.last.path) == ("POST", "/api/v1/jobs/j/reports")
    assert place.last.headers["Content-Type"] == codec.MEDIA_TYPE
    assert codec.decode(place.last.body) == codec.Frame("j", REPORT, b"abc")


def test_a_failure() -> None:
    with linked(frame(Ack((2, 7), False, "noted"))) as place:
        assert place.client.fail("j", TaskFailed("a", (2, 7), "why")) == Ack((2, 7), False, "noted")
    assert place.last.path == "/api/v1/jobs/j/failures"
    assert codec.decode(place.last.body).message == TaskFailed("a", (2, 7), "why")


@pytest.mark.parametrize("answer", [Ack((2, 8), True), NoTask((2, 7))])
def test_an_acknowledgement_of_something_else_is_none(answer: object) -> None:
    with linked(frame(answer)) as place, pytest.raises(Unreachable):
        place.client.report("j", REPORT)


def test_beat_and_leave() -> None:
    with linked(Said(204, b"", OURS)) as place:
        place.client.heartbeat("j", (2, 7), 0.123456)
        assert json.loads(place.last.body) == {"job": "j", "task": "2.7", "progress": 0.1235}
        place.client.leave(1.0)
    assert (place.last.method, place.last.path) == ("POST", "/api/v1/leave")


def test_a_job() -> None:
    with linked(values(name="j", spec={})) as place:
        assert place.client.job("j") == {"name": "j", "spec": {}}
    assert place.last.path == "/api/v1/jobs/j"
    with linked(Said(200, b"[]", OURS)) as place, pytest.raises(Unreachable):
        place.client.job("j")


@pytest.mark.parametrize(
    ("status", "offset", "held"),
    [
        (200, "", REF.nbytes),
        (404, "", 0),
        (404, "1000", 1000),
        (404, "x", 0),
        (404, "-5", 0),
        (404, "9" * 30, REF.nbytes),
    ],
)
def test_how_much_is_there(status: int, offset: str, held: int) -> None:
    headers = {**OURS, **({"Upload-Offset": offset} if offset else {})}
    with linked(Said(status, b"", headers)) as place:
        assert place.client.blobs.uploaded_bytes("j", REF) == held
    assert (place.last.method, place.last.path) == ("HEAD", f"/api/v1/jobs/j/blobs/{REF.digest}")


def test_how_much_is_there_is_not_what_a_proxy_says() -> None:
    with linked(Said(404, b"", {})) as place, pytest.raises(Unreachable):
        place.client.blobs.uploaded_bytes("j", REF)
    with linked(Said(401, b"", OURS)) as place, pytest.raises(NotAllowed):
        place.client.blobs.uploaded_bytes("j", REF)


@pytest.mark.parametrize("start", [0, 5, 2**20, REF.nbytes - 1])
def test_an_upload(start: int) -> None:
    with linked(Said(201, b"{}", OURS)) as place:
        place.client.blobs.upload("j", REF, DATA, start)
        assert place.client.link.traffic.up_bytes == REF.nbytes - start
    assert place.last.body == DATA[start:]
    assert place.last.headers["Content-Length"] == str(REF.nbytes - start)
    said = f"bytes {start}-{REF.nbytes - 1}/{REF.nbytes}" if start else None
    assert place.last.headers["Content-Range"] == said


def test_an_upload_ends_when_nobody_wants_it() -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 2

    with linked(Said(201, b"{}", OURS)) as place, pytest.raises(Cancelled):
        place.client.blobs.upload("j", REF, DATA, cancelled=cancelled)
    assert len(asked) == 3


@pytest.mark.parametrize(("start", "ranged"), [(0, False), (1000, True), (1000, False)])
def test_a_download(start: int, ranged: bool) -> None:
    def answer(asked: Asked) -> Said:
        assert asked.headers["Range"] == (f"bytes={start}-" if start else None)
        said = f"bytes {start}-{REF.nbytes - 1}/{REF.nbytes}"
        return Said(206, DATA[start:], {**OURS, "Content-Range": said}) if ranged else Said(200, DATA, OURS)

    with linked(answer) as place, place.client.blobs.download("j", REF, start) as (begins, pieces):
        assert begins == (start if ranged else 0)
        assert b"".join(pieces) == DATA[begins:]


def test_a_part_of_something_else_is_not_taken() -> None:
    answer = Said(206, b"xyz", {**OURS, "Content-Range": "bytes 5-7/8"})
    with linked(answer) as place, pytest.raises(Unreachable), place.client.blobs.download("j", REF, 1000):
        raise AssertionError("it was another part")
