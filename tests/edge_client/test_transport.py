"""What goes over the link for one body or one report, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import wire
from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, Unreachable
from shoal.core.message import Ack, Fail, Order, Ref, Report
from shoal.core.tree import Tree
from shoal.runtime.node_link import Polled
from shoal.runtime.store import FileBodies, digest_of
from shoal_edge_client.transport import DAMAGED_MAX, HttpTransport

SLOTS: dict[str, Any] = {"model": Tree.of({"w": np.arange(100_000, dtype=np.float32)})}
DATA = b"".join(bytes(piece) for piece in wire.payload_pieces(SLOTS))
REF = Ref(digest_of([DATA]), len(DATA))
SAID = Report("a", (1, 7), 3, 2.0, REF)
ACK = Ack((1, 7), True)


class Script:
    """A link that notes its calls; what `then` holds for one is raised or returned, in its order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.then: dict[str, list[Any]] = {}

    def _next(self, name: str, note: str, otherwise: Any = None) -> Any:
        self.calls.append(note)
        found = self.then.get(name, [])
        value = found.pop(0) if found else otherwise
        if isinstance(value, BaseException):
            raise value
        return value

    def work(self, *given: Any) -> Any:
        return self._next("work", "work")

    def job(self, name: str) -> Any:
        return self._next("job", "job", {})

    def report(self, job: str, said: Report, payload: bytes = b"") -> Any:
        return self._next("report", f"report {len(payload)}", ACK)

    def fail(self, job: str, said: Fail) -> Any:
        return self._next("fail", "fail", Ack(said.order, False))

    def uploaded(self, job: str, ref: Ref) -> Any:
        return self._next("uploaded", "uploaded?", 0)

    def upload(self, job: str, ref: Ref, source: Any, start: int, cancelled: Callable[[], bool]) -> None:
        self._next("upload", f"upload from {start}")

    @contextmanager
    def download(self, job: str, ref: Ref, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """By default what was asked for, in pieces; else (begin, pieces)."""
        begins, pieces = self._next("download", f"download from {start}", (start, [DATA[start:]]))
        yield begins, iter(pieces)


@pytest.fixture
def link() -> Script:
    return Script()


@pytest.fixture
def transport(link: Script, tmp_path: Path) -> HttpTransport:
    bodies = FileBodies(tmp_path / "bodies")
    script: Any = link
    return HttpTransport(script, script, lambda job: bodies, wait_s=1.0, leave_s=1.0)


def never() -> bool:
    return False


# Reports


def test_a_large_report_is_uploaded_then_sent(transport: HttpTransport, link: Script) -> None:
    assert transport.report("j", SAID, DATA, never) == ACK
    assert link.calls == ["upload from 0", "report 0"]


def test_a_small_one_goes_along(transport: HttpTransport, link: Script) -> None:
    small = Report("a", (1, 7), 3, 2.0, Ref(digest_of([b"x"]), 1))
    transport.report("j", small, b"x", never)
    transport.report("j", Report("a", (1, 7), 3, 2.0), None, never)
    assert link.calls == ["report 1", "report 0"]


def test_after_a_lost_answer_it_asks_before_it_uploads_again(transport: HttpTransport, link: Script) -> None:
    """The report may have been counted, and its body be folded and gone: only the answer was lost."""
    link.then["report"] = [Unreachable("lost"), ACK]
    with pytest.raises(Unreachable):
        transport.report("j", SAID, DATA, never)
    assert transport.report("j", SAID, DATA, never) == ACK
    assert link.calls == ["upload from 0", "report 0", "report 0"]


def test_a_report_of_an_earlier_process_asks_too(transport: HttpTransport, link: Script) -> None:
    transport.resumed("j", SAID.order)
    assert transport.report("j", SAID, DATA, never) == ACK
    assert link.calls == ["report 0"]


def test_the_next_order_begins_anew(transport: HttpTransport, link: Script) -> None:
    transport.report("j", SAID, DATA, never)
    later = Report("a", (1, 8), 3, 2.0, REF)
    transport.report("j", later, DATA, never)
    assert link.calls == ["upload from 0", "report 0"] * 2


def test_a_broken_upload_goes_on_where_it_was(transport: HttpTransport, link: Script) -> None:
    missing = Refused("upload it", code="body.missing")
    link.then.update(upload=[Unreachable("broken")], report=[missing, ACK], uploaded=[1000])
    with pytest.raises(Unreachable):
        transport.report("j", SAID, DATA, never)
    assert transport.report("j", SAID, DATA, never) == ACK
    assert link.calls == ["upload from 0", "report 0", "uploaded?", "upload from 1000", "report 0"]


def test_what_is_there_already_is_not_sent(transport: HttpTransport, link: Script) -> None:
    link.then.update(report=[Refused("upload it", code="body.missing"), ACK], uploaded=[REF.nbytes])
    transport.resumed("j", SAID.order)
    transport.report("j", SAID, DATA, never)
    assert link.calls == ["report 0", "uploaded?", "report 0"]


@pytest.mark.parametrize("code", ["body.offset", "upload.range", "http.416"])
def test_an_offset_that_is_no_more_begins_anew(transport: HttpTransport, link: Script, code: str) -> None:
    link.then.update(report=[Refused("x", code="body.missing"), ACK], uploaded=[1000], upload=[Refused("x", code=code)])
    transport.resumed("j", SAID.order)
    transport.report("j", SAID, DATA, never)
    assert link.calls == ["report 0", "uploaded?", "upload from 1000", "upload from 0", "report 0"]


def test_a_body_that_no_order_wants_any_more(transport: HttpTransport, link: Script) -> None:
    """The upload is refused; what became of the report is asked all the same."""
    late = Ack((1, 7), False, "superseded")
    link.then.update(upload=[Refused("none", code="order.none")], report=[late])
    assert transport.report("j", SAID, DATA, never) == late


def test_a_body_that_is_refused(transport: HttpTransport, link: Script) -> None:
    link.then["upload"] = [Refused("another model", code="payload.header")]
    with pytest.raises(Refused, match="another model"):
        transport.report("j", SAID, DATA, never)
    assert link.calls == ["upload from 0"]


def test_a_body_that_gets_lost_is_tried_again(transport: HttpTransport, link: Script) -> None:
    link.then["report"] = [Refused("x", code="body.missing")]
    with pytest.raises(Unreachable) as lost:
        transport.report("j", SAID, DATA, never)
    assert lost.value.code == "body.missing"


# Bodies


def test_a_body_is_fetched_once(transport: HttpTransport, link: Script) -> None:
    for _ in range(2):
        model = transport.body("j", REF, never)["model"]
        assert isinstance(model, Tree)
        assert model["w"][99_999] == 99_999.0
    assert link.calls == ["download from 0"]


def test_a_broken_download_goes_on_where_it_was(transport: HttpTransport, link: Script) -> None:
    def breaking() -> Iterator[bytes]:
        yield DATA[:1000]
        raise Unreachable("broken")

    link.then["download"] = [(0, breaking())]
    with pytest.raises(Unreachable):
        transport.body("j", REF, never)
    transport.body("j", REF, never)
    assert link.calls == ["download from 0", "download from 1000"]


def test_a_download_that_ends_early_goes_on_too(transport: HttpTransport, link: Script) -> None:
    link.then["download"] = [(0, [DATA[:1000]])]
    with pytest.raises(Unreachable, match="ended after 1000"):
        transport.body("j", REF, never)
    transport.body("j", REF, never)
    assert link.calls == ["download from 0", "download from 1000"]


def test_a_coordinator_that_begins_anew(transport: HttpTransport, link: Script) -> None:
    link.then["download"] = [(0, [DATA[:1000]]), (0, [DATA])]
    with pytest.raises(Unreachable):
        transport.body("j", REF, never)
    transport.body("j", REF, never)
    assert link.calls == ["download from 0", "download from 1000"]


def test_all_had_come_before_the_process_died(transport: HttpTransport, link: Script, tmp_path: Path) -> None:
    bodies = transport.bodies("j")
    incoming = bodies.incoming("coordinator", REF)
    incoming.write(DATA)
    incoming.__exit__(None, None, None)
    transport.body("j", REF, never)
    assert link.calls == []


@pytest.mark.parametrize("bad", [DATA[:-1] + b"x", DATA + b"x"], ids=["changed", "longer"])
def test_a_damaged_body_is_fetched_anew(transport: HttpTransport, link: Script, bad: bytes) -> None:
    link.then["download"] = [(0, [bad])] * (DAMAGED_MAX - 1)
    transport.body("j", REF, never)
    assert link.calls == ["download from 0"] * DAMAGED_MAX


def test_a_body_that_is_always_damaged(transport: HttpTransport, link: Script) -> None:
    link.then["download"] = [(0, [DATA[:-1] + b"x"])] * DAMAGED_MAX
    with pytest.raises(InvalidPayload):
        transport.body("j", REF, never)


def test_a_body_that_nobody_wants_any_more(transport: HttpTransport, link: Script) -> None:
    link.then["download"] = [(0, [DATA[:10], DATA[10:]])]
    with pytest.raises(Cancelled):
        transport.body("j", REF, lambda: True)


def test_a_body_that_is_no_body(transport: HttpTransport, link: Script) -> None:
    ref = Ref(digest_of([b"x" * 300_000]), 300_000)
    link.then["download"] = [(0, [b"x" * 300_000])]
    with pytest.raises(InvalidPayload):
        transport.body("j", ref, never)


def test_what_is_forbidden_or_superseded_revokes_nobody(transport: HttpTransport, link: Script) -> None:
    link.then["download"] = [Refused("a newer one stands", code="order.superseded")]
    with pytest.raises(Refused, match="a newer one stands"):
        transport.body("j", REF, never)
    link.then["download"] = [NotAllowed("not yours", code="auth.forbidden")]
    with pytest.raises(Refused, match="not yours"):
        transport.body("j", REF, never)
    link.then["job"] = [NotAllowed("nodes may not", code="auth.forbidden"), NotAllowed("revoked")]
    with pytest.raises(Refused):
        transport.job("j")
    with pytest.raises(NotAllowed):
        transport.job("j")


def test_a_small_body_comes_with_its_order(transport: HttpTransport, link: Script) -> None:
    payload = b"".join(bytes(piece) for piece in wire.payload_pieces({"step": 4.0}))
    ref = Ref(digest_of([payload]), len(payload))
    order = Order((1, 1), "a", "train", 0, 1, ref)
    link.then["work"] = [Polled(wire.Frame("j", order, payload)), Polled(None)]
    assert transport.poll({}) == ("j", order)
    assert transport.at_hand("j", ref) == {"step": 4.0}
    assert transport.at_hand("j", REF) is None
    assert transport.at_hand("k", ref) is None
    assert transport.poll({}) is None
    assert link.calls == ["work", "work"]


@pytest.mark.parametrize("payload", [b"x", b"another body"])
def test_a_damaged_small_body_is_polled_again(transport: HttpTransport, link: Script, payload: bytes) -> None:
    order = Order((1, 1), "a", "train", 0, 1, Ref("0" * 64, len(payload)))
    link.then["work"] = [Polled(wire.Frame("j", order, payload))]
    with pytest.raises(Unreachable):
        transport.poll({})
