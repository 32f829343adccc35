"""The pump's `Transport` over HTTP: one connection for the poll that is held open, others for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, Unreachable
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import (
    Ack,
    BlobRef,
    CoordinatorAlive,
    Message,
    Report,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import digest_of
from shoal.runtime.http.blob_transfers import BlobTransfers
from shoal.runtime.http.node_client import JobDocuments, JobLease, NodeClient
from shoal.runtime.observability import tracing
from shoal.runtime.worker_ports import HeldTask, IsCancelled
from shoal.wire import codec
from shoal.wire.payload import ByteSource, open_payload

DAMAGED_MAX = 3
"""Times that a blob may come damaged before its task fails."""

_OWNER = "coordinator"
_OFFSETS = {"blob.offset", "upload.range", "http.416"}


class TaskClient(Protocol):
    """The requests about a node's tasks: `NodeClient` makes them directly, `RelayedClient` through a peer."""

    blobs: BlobTransfers

    def report(self, job: str, report: Report, payload: bytes = b"") -> Ack:
        """Send a report, its blob inline where it is given."""

    def fail(self, job: str, failure: TaskFailed) -> Ack:
        """Report that a task failed."""

    def status(self, job: str, status: TaskStatus) -> None:
        """Report where this node is in a task."""

    def leave(self, read_s: float) -> None:
        """Return all tasks to the coordinator."""

    def ping(self, job: str, term: int) -> CoordinatorAlive:
        """Ping the coordinator."""

    def join(self, job: str, gossip_rounds: TaskId | None) -> codec.Frame:
        """Tell the coordinator that this node is back; return its answer."""


@dataclass
class TaskTransport:
    """Tasks, reports and their blobs over one client. `blobs(job)`: the blobs of a job."""

    client: TaskClient
    blobs: Callable[[str], FileBlobs]
    leave_s: float
    _inline: dict[str, tuple[BlobRef, bytes]] = field(default_factory=dict, kw_only=True)
    _tried: dict[str, TaskId] = field(default_factory=dict, kw_only=True)

    def decode_frame(self, frame: codec.Frame) -> tuple[str, Message]:
        """Return job and message of a received frame, and keep a blob that it carries."""
        if frame.payload:
            self._keep_inline(frame)
        return frame.job, frame.message

    def _keep_inline(self, frame: codec.Frame) -> None:
        """Verify and keep a small blob that came with its task."""
        ref = frame.message.blob if isinstance(frame.message, Task) else None
        if ref is None or len(frame.payload) != ref.nbytes or digest_of([frame.payload]) != ref.digest:
            raise Unreachable("a task came with a damaged body", code="blob.digest")
        self._inline[frame.job] = ref, frame.payload

    def inline_blob(self, job: str, ref: BlobRef) -> Slots | None:
        of, payload = self._inline.get(job, (None, b""))
        return open_payload(payload) if of == ref else None

    def fetch_blob(self, job: str, ref: BlobRef, cancelled: IsCancelled) -> Slots:
        blobs = self.blobs(job)
        self.fetch_into(blobs, job, ref, cancelled)
        return blobs.get(ref)

    def fetch_into(self, blobs: FileBlobs, job: str, ref: BlobRef, cancelled: IsCancelled) -> None:
        """Download a blob of a job, unless it is there. Raises `ShoalError`."""
        for damaged in range(1, DAMAGED_MAX + 1):
            if blobs.size(ref.digest) == ref.nbytes:
                break
            try:
                self._fetch(job, blobs, ref, cancelled)
            except InvalidPayload:
                if damaged == DAMAGED_MAX:
                    raise
            except NotAllowed as error:
                raise _unless_revoked(error, "something on the way forbids it: look at the proxy") from error

    def _fetch(self, job: str, blobs: FileBlobs, ref: BlobRef, cancelled: IsCancelled) -> None:
        """Download the missing bytes of a blob; bytes before a broken connection are kept."""
        with blobs.partials.incoming(_OWNER, ref, blobs.partials.offset(_OWNER, ref.digest)) as incoming:
            if incoming.offset < ref.nbytes:
                with self.client.blobs.download(job, ref, incoming.offset) as (begins, pieces):
                    if begins != incoming.offset:
                        incoming.restart()
                    for piece in pieces:
                        if cancelled():
                            raise Cancelled("this blob is not needed any more")
                        incoming.write(piece)
            if incoming.offset < ref.nbytes:
                raise Unreachable(f"the body ended after {incoming.offset} of {ref.nbytes} bytes", code="blob.short")
            incoming.finish()

    def mark_resumed(self, job: str, task: TaskId) -> None:
        """Note that an earlier process may have delivered this task's report."""
        self._tried[job] = task

    def report(self, job: str, report: Report, blob: ByteSource | None, cancelled: IsCancelled) -> Ack:
        if blob is None or report.blob is None:
            return self.client.report(job, report)
        if len(blob) <= codec.INLINE_BYTES_MAX:
            return self.client.report(job, report, bytes(blob[0 : len(blob)]))
        again = self._tried.get(job) == report.task
        self._tried[job] = report.task
        # Perhaps only the answer was lost, and the blob is already folded and deleted: ask before sending it again.
        answer = self._submit_report(job, report) if again else None
        if answer is not None:
            return answer
        try:
            self._upload(job, report.blob, blob, again, cancelled)
        except Refused as error:
            if error.code != "task.none":
                raise
        answer = self._submit_report(job, report)
        if answer is None:
            raise Unreachable("the coordinator has lost the body that it was sent", code="blob.missing")
        return answer

    def _submit_report(self, job: str, report: Report) -> Ack | None:
        """Submit a report whose blob the coordinator should have; None if it lacks the blob."""
        try:
            return self.client.report(job, report)
        except Refused as error:
            if error.code != "blob.missing":
                raise
        return None

    def _upload(self, job: str, ref: BlobRef, blob: ByteSource, again: bool, cancelled: IsCancelled) -> None:
        start = self.client.blobs.uploaded_bytes(job, ref) if again else 0
        if start == ref.nbytes:
            return
        try:
            self.client.blobs.upload(job, ref, blob, start, cancelled)
        except Refused as error:
            if not start or error.code not in _OFFSETS:
                raise
            self.client.blobs.upload(job, ref, blob, 0, cancelled)

    def fail(self, job: str, failure: TaskFailed) -> Ack:
        return self.client.fail(job, failure)

    def status(self, job: str, status: TaskStatus) -> None:
        self.client.status(job, status)

    def leave(self) -> None:
        self.client.leave(self.leave_s)

    def ping(self, job: str, term: int) -> CoordinatorAlive:
        return self.client.ping(job, term)

    def join(self, job: str, gossip_rounds: TaskId | None) -> Message:
        """Tell the coordinator that this node is back; return its answer."""
        return self.decode_frame(self.client.join(job, gossip_rounds))[1]


@dataclass
class HttpTransport(TaskTransport):
    """The node protocol over HTTP. `polls`: the client that is aborted to end an open poll."""

    client: NodeClient
    polls: NodeClient
    wait_s: float
    jobs: tuple[str, ...] = ()
    leases: tuple[JobLease, ...] = ()
    """The leases that the last poll returned, of jobs that nodes may continue."""
    pause_s: float = 0.0
    """Seconds that the coordinator asked to wait before the next poll."""

    def poll(self, held: Mapping[str, HeldTask]) -> tuple[str, Message] | None:
        polled = self.polls.poll_work(self.wait_s, held, self.jobs)
        self.leases, self.pause_s = polled.leases, polled.pause_s
        if polled.frame is None:
            return None
        job, message = self.decode_frame(polled.frame)
        if isinstance(message, Task):
            term = next((lease.term for lease in polled.leases if lease.job == job), 0)
            message = replace(message, issued_in_term=term)
            tracing.current.remember_parent((job, message.id), polled.traceparent)
        return job, message

    def job(self, job: str) -> dict[str, Any]:
        """Return the job's description; `spec` is its job file."""
        with_hint = "the coordinator must let nodes read the jobs that they take part in"
        try:
            return self.client.job(job)
        except NotAllowed as error:
            raise _unless_revoked(error, with_hint) from error

    def heartbeat(self, job: str, task: TaskId, fraction: float) -> None:
        self.client.heartbeat(job, task, fraction)

    def trust_documents(self, job: str, held: int) -> JobDocuments | None:
        """Return a job's trust documents if they are newer than version `held`."""
        return self.client.trust_documents(job, held)

    def manifest(self, job: str, held: int) -> bytes | None:
        """Return the signed manifest of the newest version if it is newer than `held`."""
        return self.client.manifest(job, held)

    def report_peer_status(self, job: str, values: Mapping[str, Any]) -> None:
        """Report this node's state as a peer."""
        self.client.report_peer_status(job, values)


def _unless_revoked(error: NotAllowed, hint: str) -> NotAllowed | Refused:
    """Return `Refused` for a forbidden request; an unknown credential stays `NotAllowed`, which ends the node."""
    return Refused(error.message, code=error.code, hint=hint) if error.code == "auth.forbidden" else error
