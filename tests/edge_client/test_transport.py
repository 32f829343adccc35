"""The requests for one body or one report, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, Unreachable
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Ack, BlobRef, Report, Task, TaskFailed
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import digest_of
from shoal.runtime.http.node_client import Polled
from shoal.wire import codec
from shoal.wire.payload import payload_pieces
from shoal_edge_client.transport import DAMAGED_MAX, HttpTransport

SLOTS: dict[str, Any] = {"model": Tree.of({"w": np.arange(100_000, dtype=np.float32)})}
DATA = b"".join(bytes(piece) for piece in payload_pieces(SLOTS))
REF = BlobRef(digest_of([DATA]), len(DATA))
SAID = Report("a", (1, 7), 3, 2.0, REF)
ACK = Ack((1, 7), True)


class Script:
    """A client that records its calls and raises or returns the values in `then`, in order."""

    def __init__(self) -> None:
        self.blobs = self
        self.calls: list[str] = []
        self.then: dict[str, list[Any]] = {}

    def _next(self, name: str, note: str, otherwise: Any = None) -> Any:
        self.calls.append(note)
        found = self.then.get(name, [])
        value = found.pop(0) if found else otherwise
        if isinstance(value, BaseException):
            raise value
        return value

    def poll_work(self, *given: Any) -> Any:
        return self._next("work", "work")

    def job(self, name: str) -> Any:
        return self._next("job", "job", {})

    def report(self, job: str, said: Report, payload: bytes = b"") -> Any:
        return self._next("report", f"report {len(payload)}", ACK)

    def fail(self, job: str, said: TaskFailed) -> Any:
        return self._next("fail", "fail", Ack(said.task, False))

    def uploaded_bytes(self, job: str, ref: BlobRef) -> Any:
        return self._next("uploaded", "uploaded?", 0)

    def upload(self, job: str, ref: BlobRef, source: Any, start: int, cancelled: Callable[[], bool]) -> None:
        self._next("upload", f"upload from {start}")

    @contextmanager
    def download(self, job: str, ref: BlobRef, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """By default what was asked for, in pieces; else (begin, pieces)."""
        begins, pieces = self._next("download", f"download from {start}", (start, [DATA[start:]]))
        yield begins, iter(pieces)


@pytest.fixture
def client() -> Script:
    return Script()


@pytest.fixture
def transport(client: Script, tmp_path: Path) -> HttpTransport:
    blobs = FileBlobs(tmp_path / "blobs")
    script: Any = client
    return HttpTransport(script, lambda job: blobs, 1.0, script, wait_s=1.0)


def never() -> bool:
    return False


# Reports


def test_a_large_report_is_uploaded_then_sent(transport: HttpTransport, client: Script) -> None:
    assert transport.report("j", SAID, DATA, never) == ACK
    assert client.calls == ["upload from 0", "report 0"]


def test_a_small_one_goes_along(transport: HttpTransport, client: Script) -> None:
    small = Report("a", (1, 7), 3, 2.0, BlobRef(digest_of([b"x"]), 1))
    transport.report("j", small, b"x", never)
    transport.report("j", Report("a", (1, 7), 3, 2.0), None, never)
    assert client.calls == ["report 1", "report 0"]


def test_after_a_lost_answer_it_asks_before_it_uploads_again(transport: HttpTransport, client: Script) -> None:
    """The report may have been counted, and its body be folded and gone: only the answer was lost."""
    client.then["report"] = [Unreachable("lost"), ACK]
    with pytest.raises(Unreachable):
        transport.report("j", SAID, DATA, never)
    assert transport.report("j", SAID, DATA, never) == ACK
    assert client.calls == ["upload from 0", "report 0", "report 0"]


def test_a_report_of_an_earlier_process_asks_too(transport: HttpTransport, client: Script) -> None:
    transport.mark_resumed("j", SAID.task)
    assert transport.report("j", SAID, DATA, never) == ACK
    assert client.calls == ["report 0"]


def test_the_next_order_begins_anew(transport: HttpTransport, client: Script) -> None:
    transport.report("j", SAID, DATA, never)
    later = Report("a", (1, 8), 3, 2.0, REF)
    transport.report("j", later, DATA, never)
    assert client.calls == ["upload from 0", "report 0"] * 2


def test_a_broken_upload_goes_on_where_it_was(transport: HttpTransport, client: Script) -> None:
    missing = Refused("upload it", code="blob.missing")
    client.then.update(upload=[Unreachable("broken")], report=[missing, ACK], uploaded=[1000])
    with pytest.raises(Unreachable):
        transport.report("j", SAID, DATA, never)
    assert transport.report("j", SAID, DATA, never) == ACK
    assert client.calls == ["upload from 0", "report 0", "uploaded?", "upload from 1000", "report 0"]


def test_what_is_there_already_is_not_sent(transport: HttpTransport, client: Script) -> None:
    client.then.update(report=[Refused("upload it", code="blob.missing"), ACK], uploaded=[REF.nbytes])
    transport.mark_resumed("j", SAID.task)
    transport.report("j", SAID, DATA, never)
    assert client.calls == ["report 0", "uploaded?", "report 0"]


@pytest.mark.parametrize("code", ["blob.offset", "upload.range", "http.416"])
def test_an_offset_that_is_no_more_begins_anew(transport: HttpTransport, client: Script, code: str) -> None:
    client.then.update(
        report=[Refused("x", code="blob.missing"), ACK], uploaded=[1000], upload=[Refused("x", code=code)]
    )
    transport.mark_resumed("j", SAID.task)
    transport.report("j", SAID, DATA, never)
    assert client.calls == ["report 0", "uploaded?", "upload from 1000", "upload from 0", "report 0"]


def test_a_blob_that_no_order_wants_any_more(transport: HttpTransport, client: Script) -> None:
    """The upload is refused; the state of the report is still requested."""
    late = Ack((1, 7), False, "superseded")
    client.then.update(upload=[Refused("none", code="task.none")], report=[late])
    assert transport.report("j", SAID, DATA, never) == late


def test_a_blob_that_is_refused(transport: HttpTransport, client: Script) -> None:
    client.then["upload"] = [Refused("another model", code="payload.header")]
    with pytest.raises(Refused, match="another model"):
        transport.report("j", SAID, DATA, never)
    assert client.calls == ["upload from 0"]


def test_a_blob_that_gets_lost_is_tried_again(transport: HttpTransport, client: Script) -> None:
    client.then["report"] = [Refused("x", code="blob.missing")]
    with pytest.raises(Unreachable) as lost:
        transport.report("j", SAID, DATA, never)
    assert lost.value.code == "blob.missing"


# Bodies


def test_a_blob_is_fetched_once(transport: HttpTransport, client: Script) -> None:
    for _ in range(2):
        model = transport.fetch_blob("j", REF, never)["model"]
        assert isinstance(model, Tree)
        assert model["w"][99_999] == 99_999.0
    assert client.calls == ["download from 0"]


def test_a_broken_download_goes_on_where_it_was(transport: HttpTransport, client: Script) -> None:
    def breaking() -> Iterator[bytes]:
        yield DATA[:1000]
        raise Unreachable("broken")

    client.then["download"] = [(0, breaking())]
    with pytest.raises(Unreachable):
        transport.fetch_blob("j", REF, never)
    transport.fetch_blob("j", REF, never)
    assert client.calls == ["download from 0", "download from 1000"]


def test_a_download_that_ends_early_goes_on_too(transport: HttpTransport, client: Script) -> None:
    client.then["download"] = [(0, [DATA[:1000]])]
    with pytest.raises(Unreachable, match="ended after 1000"):
        transport.fetch_blob("j", REF, never)
    transport.fetch_blob("j", REF, never)
    assert client.calls == ["download from 0", "download from 1000"]


def test_a_coordinator_that_begins_anew(transport: HttpTransport, client: Script) -> None:
    client.then["download"] = [(0, [DATA[:1000]]), (0, [DATA])]
    with pytest.raises(Unreachable):
        transport.fetch_blob("j", REF, never)
    transport.fetch_blob("j", REF, never)
    assert client.calls == ["download from 0", "download from 1000"]


def test_all_had_come_before_the_process_died(transport: HttpTransport, client: Script, tmp_path: Path) -> None:
    blobs = transport.blobs("j")
    incoming = blobs.partials.incoming("coordinator", REF)
    incoming.write(DATA)
    incoming.__exit__(None, None, None)
    transport.fetch_blob("j", REF, never)
    assert client.calls == []


@pytest.mark.parametrize("bad", [DATA[:-1] + b"x", DATA + b"x"], ids=["changed", "longer"])
def test_a_damaged_blob_is_fetched_anew(transport: HttpTransport, client: Script, bad: bytes) -> None:
    client.then["download"] = [(0, [bad])] * (DAMAGED_MAX - 1)
    transport.fetch_blob("j", REF, never)
    assert client.calls == ["download from 0"] * DAMAGED_MAX


def test_a_blob_that_is_always_damaged(transport: HttpTransport, client: Script) -> None:
    client.then["download"] = [(0, [DATA[:-1] + b"x"])] * DAMAGED_MAX
    with pytest.raises(InvalidPayload):
        transport.fetch_blob("j", REF, never)


def test_a_blob_that_nobody_wants_any_more(transport: HttpTransport, client: Script) -> None:
    client.then["download"] = [(0, [DATA[:10], DATA[10:]])]
    with pytest.raises(Cancelled):
        transport.fetch_blob("j", REF, lambda: True)


def test_a_blob_that_is_no_blob(transport: HttpTransport, client: Script) -> None:
    ref = BlobRef(digest_of([b"x" * 300_000]), 300_000)
    client.then["download"] = [(0, [b"x" * 300_000])]
    with pytest.raises(InvalidPayload):
        transport.fetch_blob("j", ref, never)


def test_what_is_forbidden_or_superseded_revokes_nobody(transport: HttpTransport, client: Script) -> None:
    client.then["download"] = [Refused("a newer one stands", code="task.superseded")]
    with pytest.raises(Refused, match="a newer one stands"):
        transport.fetch_blob("j", REF, never)
    client.then["download"] = [NotAllowed("not yours", code="auth.forbidden")]
    with pytest.raises(Refused, match="not yours"):
        transport.fetch_blob("j", REF, never)
    client.then["job"] = [NotAllowed("nodes may not", code="auth.forbidden"), NotAllowed("revoked")]
    with pytest.raises(Refused):
        transport.job("j")
    with pytest.raises(NotAllowed):
        transport.job("j")


def test_a_small_blob_comes_with_its_order(transport: HttpTransport, client: Script) -> None:
    payload = b"".join(bytes(piece) for piece in payload_pieces({"step": 4.0}))
    ref = BlobRef(digest_of([payload]), len(payload))
    task = Task((1, 1), "a", "train", 0, 1, ref)
    client.then["work"] = [Polled(codec.Frame("j", task, payload)), Polled(None)]
    assert transport.poll({}) == ("j", task)
    assert transport.inline_blob("j", ref) == {"step": 4.0}
    assert transport.inline_blob("j", REF) is None
    assert transport.inline_blob("k", ref) is None
    assert transport.poll({}) is None
    assert client.calls == ["work", "work"]


@pytest.mark.parametrize("payload", [b"x", b"another body"])
def test_a_damaged_small_blob_is_polled_again(transport: HttpTransport, client: Script, payload: bytes) -> None:
    task = Task((1, 1), "a", "train", 0, 1, BlobRef("0" * 64, len(payload)))
    client.then["work"] = [Polled(codec.Frame("j", task, payload))]
    with pytest.raises(Unreachable):
        transport.poll({})
