"""The node protocol over a `Link`: one method per request, frames in and out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import structlog

from shoal import peer_wire, strict_json, wire
from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.core.message import Ack, Fail, Lease, OrderId, Ref, Report, Status
from shoal.runtime import tracing
from shoal.runtime.backoff import RETRY_AFTER_S_MAX
from shoal.runtime.http import ANY, Answer, Link
from shoal.runtime.relay import Carried, Said
from shoal.runtime.targets import Target, told
from shoal.trust.papers import Charter, Manifest, Roster

log = structlog.get_logger()

UNKNOWN = (NotAllowed.default_code, "node.removed")
"""Codes of the error that says: the credential is not known any more."""
UNTOLD_MAX = 1000
"""Transfers that wait to be told; more are forgotten, the oldest first."""
POLL_GRACE_S = 15.0
"""Seconds that the answer to a long poll may be late."""
PAUSE_HEADER = "Shoal-Retry-After"
FRAME_BYTES_MAX = 4 + wire.HEAD_BYTES_MAX + wire.INLINE_BYTES_MAX
SMALL_BYTES_MAX = 64 * 1024
LOGS_WAIT_S_MAX = 600.0
PAPERS_BYTES_MAX = 2 * (Charter.BYTES_MAX + Roster.BYTES_MAX)
"""As JSON in JSON: quotation marks are escaped."""


@dataclass(frozen=True)
class Welcome:
    """What a coordinator answers to a node's hello: how long it bears silence, and what it proposes."""

    name: str
    lease_s: float
    beat_s: float
    wait_s_max: float


@dataclass(frozen=True)
class Contact:
    """How a node is known and reached among its peers. `inbound`: whether it can be called at `urls` (else none)."""

    pub: str
    urls: tuple[str, ...]
    inbound: bool


@dataclass(frozen=True)
class JobLease:
    """A sign of life of the coordinator, for a job that its nodes may carry on: its term, and its roster's version."""

    job: str
    term: int
    roster: int


@dataclass(frozen=True)
class Polled:
    """What a poll was answered with. `frame`: what is new; None when nothing came in time."""

    frame: wire.Frame | None
    leases: tuple[JobLease, ...] = ()
    pause_s: float = 0.0
    """How long the coordinator asks to be left alone, if at all."""
    traceparent: str = ""
    """Of the round that the order belongs to, where the coordinator traces."""


@dataclass(frozen=True)
class SealedPapers:
    """A job's charter and roster as they were signed. `version`: of the roster. `certificate`: this node's, if any."""

    version: int
    charter: bytes
    roster: bytes
    certificate: bytes = b""


class NodeLink(Link):
    """A node's connection. Only an answer with the protocol's header is the coordinator's word, so that a proxy's 404
    or 403 neither discards a report nor ends the node."""

    targets = False
    """Whether the coordinator has said that bodies have addresses of their own."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._beside: list[Link] = []  # links of transfers that go past the coordinator now
        self._untold: deque[tuple[str, dict[str, Any]]] = deque(maxlen=UNTOLD_MAX)

    unknown: Callable[[str, NotAllowed], ShoalError] | None = None
    """Asked what it means when the coordinator does not know the credential that was used."""

    hears: Callable[[str, int, int], None] | None = None
    """Told of which coordinator an answer is: job, term, life. It raises for one that must not be heard."""

    @contextmanager
    def exchange(self, method: str, path: str, **more: Any) -> Iterator[Answer]:
        used = self.credential
        if traced := tracing.header():
            more["headers"] = {**(more.get("headers") or {}), tracing.HEADER: traced}
        try:
            with super().exchange(method, path, **more) as answer:
                self._hear(answer.headers)
                yield answer
        except NotAllowed as error:
            if self.unknown is None or not used or error.code not in UNKNOWN:
                raise
            raise self.unknown(used, error) from error

    def _hear(self, headers: Mapping[str, str]) -> None:
        """Look which coordinator answers. Raises what `hears` raises."""
        if self.hears is not None:
            with self._understood():
                lives = _by_job(headers.get("shoal-life", ""))
            for one in lives:
                self.hears(*one)

    def _problem(self, response: Any) -> ShoalError:
        """What must not be heard can refuse nothing."""
        try:
            self._hear(response.headers)
        except ShoalError as error:
            return error
        return super()._problem(response)

    def enrol(self, token: str, name: str, info: Mapping[str, Any], key: str) -> tuple[str, str]:
        """Turn a one-time token into (credential, name). The same `key` asks for the same answer again."""
        body = {"token": token, "name": name, "info": dict(info), "protocols": list(wire.PROTOCOLS)}
        answer = self.json("POST", "/api/v1/enrol", body=body, headers={"Idempotency-Key": key}, own=True)
        with self._understood():
            wire.negotiate([answer["protocol"]])
            return str(answer["credential"]), str(answer["name"])

    def hello(
        self, info: Mapping[str, Any], peer: Contact | None = None, layout: Mapping[str, str] | None = None
    ) -> Welcome:
        """Say that this node's process has started. Without `peer` it takes no part in gossip. `layout`: the tensors of
        its learner's model, so that others can be told which of them differ."""
        body: dict[str, Any] = {"info": dict(info), "protocols": list(wire.PROTOCOLS)}
        if layout:
            body["layout"] = dict(layout)
        if peer is not None:
            body["peer"] = {"pub": peer.pub, "urls": list(peer.urls), "inbound": peer.inbound}
        answer = self.json("POST", "/api/v1/hello", body=body, own=True)
        with self._understood():
            wire.negotiate([answer["protocol"]])
            self.targets = answer.get("targets") is True  # an earlier release says nothing of it
            seconds = [float(answer[name]) for name in ("lease_s", "beat_s", "wait_s_max")]
            return Welcome(str(answer["name"]), *seconds)

    def job(self, job: str) -> dict[str, Any]:
        """A job as its page shows it; `spec` is its plan."""
        found = self.json("GET", f"/api/v1/jobs/{quote(job)}", own=True)
        if not isinstance(found, dict):
            raise self.foreign()
        return found

    def work(self, wait_s: float, held: Mapping[str, tuple[int, ...]], jobs: tuple[str, ...] = ()) -> Polled:
        """What stands, when it differs from what is held; and where the coordinator stands in each job."""
        params = [("wait_s", f"{wait_s:g}")]
        params += [("held", f"{job}:{'.'.join(map(str, order))}") for job, order in sorted(held.items())]
        params += [("job", job) for job in jobs]
        patience_s = wait_s + POLL_GRACE_S
        with self.exchange("GET", "/api/v1/work", params=params, read_s=patience_s, own=True) as answer:
            data = answer.read(FRAME_BYTES_MAX)  # even of an empty answer, for the connection to be used again
            with self._understood():
                leases = tuple(JobLease(*one) for one in _by_job(answer.headers.get("shoal-lease", "")))
            pause_s = _seconds(answer.headers.get(PAUSE_HEADER, ""))
            parent = tracing.parent_of(answer.headers.get(tracing.HEADER, ""))
            return Polled(None if answer.status == 204 else self._frame(data), leases, pause_s, parent)

    def report(self, job: str, said: Report, payload: bytes = b"") -> Ack:
        """Send a report, its body inline where it is given. Raises `Refused` when it can never count."""
        return self._say(job, "reports", wire.encode(wire.Frame(job, said, payload)), said.order)

    def fail(self, job: str, said: Fail) -> Ack:
        """Say that an order was not done."""
        return self._say(job, "failures", wire.encode_head(job, said), said.order)

    def status(self, job: str, said: Status) -> None:
        """Say where this node is in the middle of an order."""
        path, headers = f"/api/v1/jobs/{quote(job)}/status", {"Content-Type": wire.MEDIA_TYPE}
        with self.exchange("POST", path, headers=headers, content=wire.encode_head(job, said), own=True) as answer:
            answer.read(SMALL_BYTES_MAX)

    def beat(self, job: str, order: OrderId, progress: float) -> None:
        """Say how far the work is."""
        body = {"job": job, "order": f"{order[0]}.{order[1]}", "progress": round(progress, 4)}
        self.json("POST", "/api/v1/beat", body=body, own=True)

    def logs(self, boot: str, lines: Sequence[Mapping[str, Any]], dropped: int, read_s: float) -> float:
        """Show what this process (`boot`) has logged; seconds to wait before more is welcome."""
        body = {"boot": boot, "lines": list(lines), "dropped": dropped}
        answer = self.json("POST", "/api/v1/logs", body=body, read_s=read_s, own=True)
        with self._understood():
            return min(max(float(answer["wait_s"]), 0.0), LOGS_WAIT_S_MAX)

    def system_metrics(self, sample: Mapping[str, float | bool], read_s: float) -> None:
        """Show how this machine does."""
        self.json("POST", "/api/v1/system-metrics", body=dict(sample), read_s=read_s, own=True)

    def leave(self, read_s: float) -> None:
        """Hand all orders back."""
        self.json("POST", "/api/v1/leave", read_s=read_s, own=True)

    # In place of the coordinator

    def papers(self, job: str, held: int = 0) -> SealedPapers | None:
        """The job's papers; None if the roster of version `held` is still the newest.

        Raises `Refused`: `papers.none` (never), `papers.early` (not yet).
        """
        headers = {"If-None-Match": f'"{held}"'} if held else {}
        path = f"/api/v1/jobs/{quote(job)}/papers"
        with self.exchange("GET", path, headers=headers, own=True, accept=304) as answer:
            data = answer.read(PAPERS_BYTES_MAX)
            if answer.status == 304:
                return None
        with self._understood():
            found = strict_json.loads(data)
            charter, roster = str(found["charter"]), str(found["roster"])
            certificate = str(found.get("certificate", "")).encode("ascii")
            return SealedPapers(int(found["version"]), charter.encode("ascii"), roster.encode("ascii"), certificate)

    def manifest(self, job: str, held: int = -1) -> bytes | None:
        """The job's newest version, signed; None if version `held` still is. Raises as `papers` does."""
        headers = {"If-None-Match": f'"{held}"'} if held >= 0 else {}
        path = f"/api/v1/jobs/{quote(job)}/manifest"
        with self.exchange("GET", path, headers=headers, own=True, accept=304) as answer:
            data = answer.read(2 * Manifest.BYTES_MAX)
            if answer.status == 304:
                return None
        with self._understood():
            return str(strict_json.loads(data)["manifest"]).encode("ascii")

    def knock(self, job: str, term: int) -> Lease:
        """Ask whether the coordinator is there, and tell it this node's term; its own is above. -1: only ask.

        Raises `Refused`: `job.over` when the job has ended, `term.leap` for a term that cannot be.
        """
        found = self.json("POST", f"/api/v1/jobs/{quote(job)}/knock", body={"term": term}, own=True)
        with self._understood():
            return Lease(int(found["term"]))

    def join(self, job: str, away: tuple[int, int] | None) -> wire.Frame:
        """Come back, with the (term, local rounds) of the time without the coordinator; what stands for this node."""
        content = json.dumps({"away": away}).encode()
        path, headers = f"/api/v1/jobs/{quote(job)}/join", {"Content-Type": "application/json"}
        with self.exchange("POST", path, headers=headers, content=content, own=True) as answer:
            return self._frame(answer.read(FRAME_BYTES_MAX))

    def peering(self, job: str, told: Mapping[str, Any]) -> None:
        """Tell how this node does as a peer. Sums are of this process (`boot`); what is lost, the next one makes up."""
        self.json("POST", f"/api/v1/jobs/{quote(job)}/peering", body=dict(told), own=True)

    def carry(self, carried: Carried, read_s: float | None = None) -> Said:
        """Pass on what another node says, and bring back what it is answered, whatever that is."""
        request = carried.request
        headers = {**request.headers(), "Content-Type": peer_wire.MEDIA_TYPE}
        path = f"{request.path}?{request.query}"
        with self.exchange(
            request.method, path, headers=headers, content=carried.content, read_s=read_s, own=True, accept=ANY
        ) as answer:
            return Said(answer.status, dict(answer.headers), answer.read(FRAME_BYTES_MAX))

    def come_back(self, carried: Carried) -> Said:
        """Ask to be taken in again by one's own key; what is answered, whatever that is."""
        request, headers = carried.request, {"Content-Type": "application/json"}
        path = f"{request.path}?{request.query}"
        headers |= request.headers()
        with self.exchange("POST", path, headers=headers, content=carried.content, own=True, accept=ANY) as answer:
            return Said(answer.status, dict(answer.headers), answer.read(SMALL_BYTES_MAX))

    # Bodies

    def uploaded(self, job: str, ref: Ref) -> int:
        """How many bytes of a body the coordinator has already."""
        with self.exchange("HEAD", _body(job, ref), own=True, accept=404) as answer:
            answer.read(0)
            if answer.status != 404:
                return ref.nbytes
            said = answer.headers.get("upload-offset", "0")
        return min(int(said), ref.nbytes) if said.isdecimal() else 0

    def upload(
        self, job: str, ref: Ref, source: wire.ByteSource, start: int = 0, cancelled: Callable[[], bool] = bool
    ) -> None:
        """Send a body from `start` on, reading it piece by piece. Raises `Cancelled` as soon as nobody wants it.

        To where the coordinator says, as a whole; if it is not taken there, to the coordinator itself.
        """

        def pieces(link: Link = self, start: int = start) -> Iterator[bytes]:
            for place in range(start, ref.nbytes, wire.PIECE_BYTES):
                if cancelled():
                    raise Cancelled("nobody wants this body any more")
                piece = bytes(source[place : min(place + wire.PIECE_BYTES, ref.nbytes)])
                link.traffic.count(up=len(piece))
                yield piece

        target = self._target(job, ref, "POST") if self.targets else None
        if target is not None:
            try:
                with self._past(job, ref, target) as link:
                    made = pieces(link, 0)
                    with link.exchange(target.method, target.path, headers=target.headers, content=made) as answer:
                        answer.read(SMALL_BYTES_MAX)
                return
            except (Refused, NotAllowed, StorageFailed, Unreachable) as error:
                log.warning("the store takes no body; sending it to the coordinator", job=job, error=error.message)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(ref.nbytes - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{ref.nbytes - 1}/{ref.nbytes}"
        with self.exchange("PUT", _body(job, ref), headers=headers, content=pieces(), own=True) as answer:
            answer.read(SMALL_BYTES_MAX)

    @contextmanager
    def download(self, job: str, ref: Ref, start: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A body from `start` on, or from its beginning if the coordinator prefers: (where it begins, its pieces)."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        target = self._target(job, ref, "GET") if self.targets else None
        with ExitStack() as stack:
            answer = None
            if target is not None:
                try:
                    link = stack.enter_context(self._past(job, ref, target))
                    sent = {**target.headers, **headers}
                    answer = stack.enter_context(link.exchange(target.method, target.path, headers=sent))
                except (Refused, NotAllowed, StorageFailed, Unreachable) as error:
                    log.warning("the store gives no body; asking the coordinator", job=job, error=error.message)
            if answer is None:
                answer = stack.enter_context(self.exchange("GET", _body(job, ref), headers=headers, own=True))
            begins = start if answer.status == 206 else 0
            if begins and not answer.headers.get("content-range", "").startswith(f"bytes {begins}-"):
                raise self.foreign()
            yield begins, answer.pieces()

    def _target(self, job: str, ref: Ref, method: str) -> Target | None:
        """Where the coordinator wants a body to be got or put; None: at its own address."""
        body = {"bytes": ref.nbytes} if method == "POST" else None
        found = self.json(method, f"{_body(job, ref)}/target", body=body, own=True)
        with self._understood():
            target = Target.of(found)
        return target if target.elsewhere else None

    @contextmanager
    def _past(self, job: str, ref: Ref, target: Target) -> Iterator[Link]:
        """A link for one transfer that goes past the coordinator, which is told afterwards what has crossed."""
        link = self.elsewhere(target.origin)
        self._beside.append(link)
        try:
            yield link
        finally:
            self._beside.remove(link)
            link.close()
            self._untold.append((job, told(link, target, ref)))
            self._tell()

    def _tell(self) -> None:
        """Tell what has crossed elsewhere. What cannot be told now is told with the next."""
        while self._untold:
            job, one = self._untold[0]
            try:
                self.json("POST", f"/api/v1/jobs/{quote(job)}/moved", body=one, own=True)
            except (Unreachable, StorageFailed) as error:
                log.info("bytes not told yet", job=job, error=error.message)
                return
            except (Refused, NotAllowed) as error:
                log.warning("bytes not booked", job=job, error=error.message)
            if self._untold and self._untold[0][1] is one:
                self._untold.popleft()

    def abort(self) -> None:
        for link in list(self._beside):
            link.abort()
        super().abort()

    def _say(self, job: str, what: str, frame: bytes, order: OrderId) -> Ack:
        path, headers = f"/api/v1/jobs/{quote(job)}/{what}", {"Content-Type": wire.MEDIA_TYPE}
        with self.exchange("POST", path, headers=headers, content=frame, own=True) as answer:
            said = self._frame(answer.read(FRAME_BYTES_MAX)).message
        if not isinstance(said, Ack) or said.order != order:
            raise self.foreign()
        return said

    def _frame(self, data: bytes) -> wire.Frame:
        with self._understood():
            return wire.decode(data)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """What cannot be read was garbled or cut off on its way: asking again may help. A foreign protocol stays."""
        try:
            yield
        except (InvalidPayload, KeyError, TypeError, ValueError) as error:
            raise self.foreign() from error
        except Refused as error:
            raise Refused(f"{self.address.url}: {error.message}", code=error.code, hint=error.hint) from error


def _by_job(text: str) -> list[tuple[str, int, int]]:
    """What `Shoal-Lease` and `Shoal-Life` say: `JOB=TERM.NUMBER`, with commas between. Raises `ValueError`."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        job, _, numbers = part.partition("=")
        term, _, number = numbers.partition(".")
        if not (job and term.isdecimal() and number.isdecimal()):
            raise ValueError(f"{part[:80]!r} is no lease")
        found.append((job, int(term), int(number)))
    return found


def _seconds(text: str) -> float:
    """A pause; whatever is none is nothing, and none is longer than `RETRY_AFTER_S_MAX`."""
    plain = text.replace(".", "", 1).isdecimal() and text.isascii() and len(text) < 20
    return min(float(text), RETRY_AFTER_S_MAX) if plain else 0.0


def _body(job: str, ref: Ref) -> str:
    return f"/api/v1/jobs/{quote(job)}/bodies/{ref.digest}"
