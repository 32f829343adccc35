"""The pump's `Transport` over HTTP: one connection for the poll that is held open, others for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal import wire
from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, Unreachable
from shoal.core.message import Ack, Fail, Lease, Message, Order, OrderId, Ref, Report, Status
from shoal.core.tree import Slots
from shoal.runtime import tracing
from shoal.runtime.node_link import JobLease, NodeLink, SealedPapers
from shoal.runtime.pump import Held, Wanted
from shoal.runtime.store import FileBodies, digest_of

DAMAGED_MAX = 3
"""Times that a body may come damaged before its order fails."""

_OWNER = "coordinator"
_OFFSETS = {"body.offset", "upload.range", "http.416"}


@dataclass
class HttpTransport:
    """`bodies(job)`: where that job's bodies are kept. `polls` is given up to end a poll that is held open."""

    link: NodeLink
    polls: NodeLink
    bodies: Callable[[str], FileBodies]
    wait_s: float
    leave_s: float
    jobs: tuple[str, ...] = ()
    leases: tuple[JobLease, ...] = ()
    """What the last poll was told of jobs that nodes may carry on."""
    pause_s: float = 0.0
    """How long it was asked to wait before the next."""
    _inline: dict[str, tuple[Ref, bytes]] = field(default_factory=dict)
    _tried: dict[str, OrderId] = field(default_factory=dict)

    def poll(self, held: Mapping[str, Held]) -> tuple[str, Message] | None:
        polled = self.polls.work(self.wait_s, held, self.jobs)
        self.leases, self.pause_s = polled.leases, polled.pause_s
        if polled.frame is None:
            return None
        job, message = self.taken(polled.frame)
        if isinstance(message, Order):
            term = next((lease.term for lease in polled.leases if lease.job == job), 0)
            message = replace(message, given_in=term)
            tracing.current.note((job, message.id), polled.traceparent)
        return job, message

    def taken(self, frame: wire.Frame) -> tuple[str, Message]:
        """A frame that has come: its job and message. A body that came along is at hand from now on."""
        if frame.payload:
            self._keep_inline(frame)
        return frame.job, frame.message

    def _keep_inline(self, frame: wire.Frame) -> None:
        """A small body came with its order. It is looked at like any other."""
        ref = frame.message.body if isinstance(frame.message, Order) else None
        if ref is None or len(frame.payload) != ref.nbytes or digest_of([frame.payload]) != ref.digest:
            raise Unreachable("an order came with a damaged body", code="body.digest")
        self._inline[frame.job] = ref, frame.payload

    def job(self, job: str) -> dict[str, Any]:
        """The job as its page shows it; `spec` is its plan."""
        with_hint = "the coordinator must let nodes read the jobs that they take part in"
        try:
            return self.link.job(job)
        except NotAllowed as error:
            raise _unless_revoked(error, with_hint) from error

    def at_hand(self, job: str, ref: Ref) -> Slots | None:
        of, payload = self._inline.get(job, (None, b""))
        return wire.open_payload(payload) if of == ref else None

    def body(self, job: str, ref: Ref, cancelled: Wanted) -> Slots:
        bodies = self.bodies(job)
        for damaged in range(1, DAMAGED_MAX + 1):
            if bodies.size(ref.digest) == ref.nbytes:
                break
            try:
                self._fetch(job, bodies, ref, cancelled)
            except InvalidPayload:
                if damaged == DAMAGED_MAX:
                    raise
            except NotAllowed as error:
                raise _unless_revoked(error, "something on the way forbids it: look at the proxy") from error
        return bodies.get(ref)

    def _fetch(self, job: str, bodies: FileBodies, ref: Ref, cancelled: Wanted) -> None:
        """Download what is missing of a body. What came before a break is kept for the next try."""
        with bodies.incoming(_OWNER, ref, bodies.offset(_OWNER, ref.digest)) as incoming:
            if incoming.offset < ref.nbytes:
                with self.link.download(job, ref, incoming.offset) as (begins, pieces):
                    if begins != incoming.offset:
                        incoming.restart()
                    for piece in pieces:
                        if cancelled():
                            raise Cancelled("nobody wants this body any more")
                        incoming.write(piece)
            if incoming.offset < ref.nbytes:
                raise Unreachable(f"the body ended after {incoming.offset} of {ref.nbytes} bytes", code="body.short")
            incoming.finish()

    def resumed(self, job: str, order: OrderId) -> None:
        """An earlier process may have delivered this order's report already."""
        self._tried[job] = order

    def report(self, job: str, said: Report, body: wire.ByteSource | None, cancelled: Wanted) -> Ack:
        if body is None or said.body is None:
            return self.link.report(job, said)
        if len(body) <= wire.INLINE_BYTES_MAX:
            return self.link.report(job, said, bytes(body[0 : len(body)]))
        again = self._tried.get(job) == said.order
        self._tried[job] = said.order
        # The answer may be all that was lost, and the body folded and gone since: ask before sending it anew.
        answer = self._asked(job, said) if again else None
        if answer is not None:
            return answer
        try:
            self._upload(job, said.body, body, again, cancelled)
        except Refused as error:
            if error.code != "order.none":
                raise
        answer = self._asked(job, said)
        if answer is None:
            raise Unreachable("the coordinator has lost the body that it was sent", code="body.missing")
        return answer

    def _asked(self, job: str, said: Report) -> Ack | None:
        """What the coordinator says to a report whose body it should have; None when it misses the body."""
        try:
            return self.link.report(job, said)
        except Refused as error:
            if error.code != "body.missing":
                raise
        return None

    def _upload(self, job: str, ref: Ref, body: wire.ByteSource, again: bool, cancelled: Wanted) -> None:
        start = self.link.uploaded(job, ref) if again else 0
        if start == ref.nbytes:
            return
        try:
            self.link.upload(job, ref, body, start, cancelled)
        except Refused as error:
            if not start or error.code not in _OFFSETS:
                raise
            self.link.upload(job, ref, body, 0, cancelled)

    def fail(self, job: str, said: Fail) -> Ack:
        return self.link.fail(job, said)

    def status(self, job: str, said: Status) -> None:
        self.link.status(job, said)

    def beat(self, job: str, order: OrderId, fraction: float) -> None:
        self.link.beat(job, order, fraction)

    def leave(self) -> None:
        self.link.leave(self.leave_s)

    # For a node that may carry on by itself

    def papers(self, job: str, held: int) -> SealedPapers | None:
        """A job's papers, if they are newer than those held."""
        return self.link.papers(job, held)

    def manifest(self, job: str, held: int) -> bytes | None:
        """A job's newest version, signed, if it is newer than the one held."""
        return self.link.manifest(job, held)

    def knock(self, job: str, term: int) -> Lease:
        """Whether the coordinator is there."""
        return self.link.knock(job, term)

    def join(self, job: str, away: OrderId | None) -> Message:
        """Say that this node is back, and with what; what the coordinator wants then."""
        return self.taken(self.link.join(job, away))[1]

    def peering(self, job: str, told: Mapping[str, Any]) -> None:
        """Tell how this node does as a peer."""
        self.link.peering(job, told)


def _unless_revoked(error: NotAllowed, hint: str) -> NotAllowed | Refused:
    """That one thing is forbidden does not end a node; that its credential is no longer known does."""
    return Refused(error.message, code=error.code, hint=hint) if error.code == "auth.forbidden" else error
