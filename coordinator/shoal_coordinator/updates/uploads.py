"""Uploads: blobs are streamed to a file, checked on the way, and only then given their name.

In order: room on the disk; length and header, byte for byte, before anything else is used; SHA-256; fsync, rename,
fsync of the folder. After that the blob exists, and a report may name it. An interrupted upload stays as a partial
file under the node's name, and the next attempt continues it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.model.tree import Layout, Slots
from shoal.core.protocol.message import BlobRef, Kind, Report, TaskId
from shoal.core.server.hub import Hub
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import digest_of, free_bytes, same_digest
from shoal.runtime.partial_blobs import IncomingBlob
from shoal.wire.payload import PayloadCheck, layouts_of, measure, open_payload, payload_layout
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.blobs.remote_blobs import RemoteBlobs, call_blobs
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.updates.pending_uploads import NodeByteLimit, PendingUploads, Upload
from shoal_coordinator.updates.streaming_norm import StreamingNorm

JOURNALED_BYTES_MAX = 64 * 1024
"""Updates up to that length that came with their reports are kept in the journal, and have no files."""

SHORTAGE_S = 60.0
"""Seconds for which a write error of the disk is reported as a shortage."""

NORMS_KEPT = 1024
"""Blobs whose norm and layout are remembered."""


@dataclass(frozen=True)
class ExpectedLayout:
    """Layout of a blob; `unfilter` undoes its filters, if any."""

    layout: Layout
    unfilter: Callable[[Slots], Slots] | None = None


class ReportLayouts:
    """The layouts of a job's reports, which may change from version to version. Most algorithms keep theirs."""

    def __init__(self, hub: Callable[[], Hub]) -> None:
        self._hub = hub
        self._version: dict[Kind, int] = {}
        self._known: dict[Kind, tuple[dict[str, Layout | None], ExpectedLayout]] = {}

    def expected(self, kind: Kind) -> ExpectedLayout | None:
        """Return the layout of a report on a task of that kind; None: any model will do."""
        if kind not in ("train", "gossip"):
            return None
        hub = self._hub()
        if self._version.get(kind) != hub.progress.version:
            self._version[kind], layouts = hub.progress.version, hub.reports.layouts(kind)
            if kind not in self._known or self._known[kind][0] != layouts:
                unfilter = self._unfilter if kind == "train" and hub.settings.plan.filters else None
                self._known[kind] = layouts, ExpectedLayout(payload_layout(layouts), unfilter)
        return self._known[kind][1]

    def _unfilter(self, slots: Slots) -> Slots:
        return self._hub().reports.unfilter(slots, "train")


class Uploads:
    """Receiver of uploads of one job, or of initial models. Without an expected layout any model is accepted."""

    def __init__(self, blobs: FileBlobs, settings: Settings) -> None:
        self._blobs, self._settings = blobs, settings
        self._collecting: dict[str, asyncio.Task[bool]] = {}
        self._pending: PendingUploads | None = None
        self._wanted = 0  # size of a blob for which there was no room
        self._disk_error_at, self._disk_error = float("-inf"), ""  # the last write error
        self._norms: OrderedDict[str, tuple[float, ExpectedLayout | None]] = (
            OrderedDict()
        )  # the content of a digest never changes

    def track_pending(self, nodes: NodeByteLimit, discard: Callable[[str], None]) -> None:
        """Keep at most one unreported blob per node. `discard`: see `PendingUploads`."""
        self._pending = PendingUploads(self._blobs, nodes, discard)

    def check_room(self, nbytes: int) -> None:
        """Raise `StorageFailed` (507) unless the disk has room and keeps its reserve."""
        free = free_bytes(self._blobs.folder)
        if free - nbytes < self._settings.disk_reserve_bytes:
            self._wanted = max(self._wanted, nbytes)
            raise StorageFailed(
                f"{free // 2**20} MiB free on the coordinator's disk, "
                f"of which {self._settings.disk_reserve_bytes // 2**20} are kept in reserve",
                code="storage.full",
                hint="free disk space on the coordinator; nodes send again by themselves",
            )

    def shortage(self, nbytes: int) -> str:
        """Return why a blob of that size, or the last that was sent, finds no room; empty if it does."""
        wanted, self._wanted = max(nbytes, self._wanted), 0
        try:
            self.check_room(wanted)
        except StorageFailed as error:
            return error.message
        return self._disk_error if time.monotonic() - self._disk_error_at < SHORTAGE_S else ""

    async def receive(
        self,
        owner: str,
        ref: BlobRef,
        start: int,
        expected: ExpectedLayout | None,
        pieces: AsyncIterator[bytes | memoryview],
    ) -> None:
        """Receive the bytes from `start` on. The upload replaces any other pending upload of the owner. Raises
        `InvalidPayload`, `Refused` (offset, superseded) or `StorageFailed`."""
        pending = self._pending
        if pending is None:
            await self._receive_checked(Upload(owner, ref), start, expected, pieces)
            return
        self._check(ref, expected)
        upload, kept = await pending.start(owner, ref), True
        if upload is None:
            return
        try:
            await asyncio.to_thread(self._blobs.partials.drop_others, owner, ref.digest)
            await self._receive_checked(upload, start, expected, pieces)
            return
        except InvalidPayload:
            kept = False
            raise
        except Refused:
            if not upload.is_superseded:
                raise
        finally:
            pending.finish(upload, kept=kept)
        async for _ in pieces:
            pass
        if not await pending.wait(upload):
            upload.check()

    async def _receive_checked(
        self, upload: Upload, start: int, expected: ExpectedLayout | None, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        self._check(upload.ref, expected)
        self.check_room(upload.ref.nbytes - start)
        try:
            await self._receive_pieces(upload, start, expected, pieces)
        except StorageFailed as error:
            if error.code == "storage.full":
                self._disk_error_at, self._disk_error = time.monotonic(), error.message
            raise
        self._disk_error_at = float("-inf")

    async def _receive_pieces(
        self, upload: Upload, start: int, expected: ExpectedLayout | None, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        ref = upload.ref
        check = self._check(ref, expected)
        incoming = await asyncio.to_thread(self._blobs.partials.incoming, upload.node, ref, start)
        norm_meter = (
            StreamingNorm(expected.layout) if expected is not None and not start and expected.unfilter is None else None
        )
        with incoming:
            upload.writes_to(incoming)
            async for piece in pieces:
                if piece and not start:
                    await _feed_check(check, piece)
                upload.check()
                if piece:
                    incoming.write(piece)
                if norm_meter is not None:
                    norm_meter.feed(piece)
            if not start:
                check.finish()
            upload.check()
            upload.is_finishing = True
            _mark_received()
            norm = norm_meter.norm if norm_meter is not None else None
            await asyncio.to_thread(self._finish, incoming, expected, norm)

    async def collect(self, owner: str, ref: BlobRef, expected: ExpectedLayout | None) -> bool:
        """Collect this owner's own upload to the store; return whether that was needed.

        Raises `InvalidPayload`. Concurrent callers wait for the same result.
        """
        blobs = self._blobs
        if not isinstance(blobs, RemoteBlobs) or await asyncio.to_thread(blobs.has, ref.digest):
            return False
        task = self._collecting.get(ref.digest)
        if task is None:
            task = asyncio.create_task(self._collect(blobs, owner, ref, expected))
            self._collecting[ref.digest] = task
            task.add_done_callback(lambda _: self._collecting.pop(ref.digest, None))
        return await asyncio.shield(task)

    async def _collect(self, blobs: RemoteBlobs, owner: str, ref: BlobRef, expected: ExpectedLayout | None) -> bool:
        store, key = blobs.store, blobs.partials.key(owner, ref.digest)
        try:
            mark, pieces = await asyncio.to_thread(store.read, key)
        except StorageFailed as error:
            if error.code == "storage.missing":
                return False
            raise
        try:
            with blobs.comes_from(ref.digest, key, mark):
                await self._receive_checked(Upload(owner, ref), 0, expected, _in_thread(pieces))
        except (InvalidPayload, Refused) as error:
            await asyncio.to_thread(store.delete, key)
            if isinstance(error, InvalidPayload):
                raise
            raise InvalidPayload(error.message, code="payload.length") from error
        await asyncio.to_thread(store.delete, key)
        return True

    def _check(self, ref: BlobRef, expected: ExpectedLayout | None) -> PayloadCheck:
        layout = expected.layout if expected is not None else None
        return PayloadCheck(ref.nbytes, layout, nbytes_max=self._settings.body_bytes_max)

    def _finish(self, incoming: IncomingBlob, expected: ExpectedLayout | None, norm: float | None) -> None:
        """Give a blob its name, after checking it as a whole unless that was done on the way. A bad blob is not
        kept."""
        incoming.finish()
        if expected is not None and norm is not None:
            self._remember(incoming.ref, norm, expected)
            return
        try:
            self._examine(incoming.ref, expected)
        except InvalidPayload:
            self._blobs.delete(incoming.ref.digest)
            raise

    def _remember(self, ref: BlobRef, norm: float, form: ExpectedLayout | None) -> float:
        self._norms[ref.digest] = norm, form
        if len(self._norms) > NORMS_KEPT:
            self._norms.popitem(last=False)
        return norm

    def _examine(self, ref: BlobRef, expected: ExpectedLayout | None) -> float:
        """Return the norm of a stored blob. Raises `InvalidPayload` for another model's, and for values that are not
        finite."""
        slots = self._blobs.get(ref)
        if expected is not None and payload_layout(layouts_of(slots)) != expected.layout:
            raise _wrong_layout()
        return self._remember(ref, _measured(slots, expected), expected)

    def is_journaled(self, kind: Kind, payload: bytes) -> bool:
        """Return True if the update of such a task is kept in the journal: it is not needed after its fold."""
        return kind == "train" and 0 < len(payload) <= JOURNALED_BYTES_MAX and not self._settings.keep_updates

    async def measure_inline(self, ref: BlobRef, expected: ExpectedLayout | None, payload: bytes) -> float:
        """Return the norm of an update for the journal. Raises `InvalidPayload`, `StorageFailed` (no room)."""
        self._check_inline(ref, expected, payload)
        same_digest(digest_of([payload]), ref)
        _mark_received()
        slots = open_payload(payload)
        if expected is not None and expected.unfilter is not None:
            return await asyncio.to_thread(_measured, slots, expected)
        return _measured(slots, expected)

    def _check_inline(self, ref: BlobRef, expected: ExpectedLayout | None, payload: bytes) -> None:
        """Check the form of a blob that came in one piece, and the free space for it."""
        if len(payload) != ref.nbytes:
            raise InvalidPayload(f"{len(payload)} bytes came, {ref.nbytes} were announced", code="payload.length")
        check = self._check(ref, expected)
        check.feed(payload)
        check.finish()
        self.check_room(ref.nbytes)

    async def store_inline(self, ref: BlobRef, expected: ExpectedLayout | None, payload: bytes) -> None:
        """Receive a blob that came in one piece with its report; small, so that one thread does all of it at once."""
        await asyncio.to_thread(self._store_inline, ref, expected, payload)

    def _store_inline(self, ref: BlobRef, expected: ExpectedLayout | None, payload: bytes) -> None:
        self._check_inline(ref, expected, payload)
        _mark_received()
        slots = open_payload(payload)
        norm = _measured(slots, expected)
        self._blobs.keep(ref, payload)
        self._remember(ref, norm, expected)

    def add_address(self, node: str, task: TaskId, digest: str) -> list[str]:
        """See `PendingUploads.add_address`."""
        return self._pending.add_address(node, task, digest) if self._pending is not None else []

    def share(self, node: str, ref: BlobRef) -> None:
        """See `PendingUploads.share`."""
        if self._pending is not None:
            self._pending.share(node, ref)

    def mark_reported(self, node: str) -> None:
        """Hand the blob of a counted report over to the job."""
        if self._pending is not None:
            self._pending.mark_reported(node)

    async def measure_stored(self, report: Report, expected: ExpectedLayout | None) -> float:
        """Check a report's stored blob against the form; returns its norm. Changes nothing."""
        if report.blob is None:
            return 0.0
        size = await call_blobs(self._blobs, self._blobs.size, report.blob.digest)
        if size is None:
            raise Refused(
                "the body of this report is not here", code="blob.missing", hint="upload it again, then send the report"
            )
        if size != report.blob.nbytes:
            raise InvalidPayload(f"the body of that digest has not {report.blob.nbytes} bytes", code="payload.length")
        norm, form = self._norms.get(report.blob.digest, (None, None))
        if norm is None or (expected is not None and form != expected):
            norm = await asyncio.to_thread(self._examine, report.blob, expected)
        return norm


def _measured(slots: Slots, expected: ExpectedLayout | None) -> float:
    """Return the norm of an update, without its filters. Raises `InvalidPayload` for values that are not finite."""
    return measure(expected.unfilter(slots) if expected is not None and expected.unfilter is not None else slots)


async def _in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield from a blocking iterator, in a thread."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


async def _feed_check(check: PayloadCheck, piece: bytes | memoryview) -> None:
    """Check the next bytes; in a thread if a header may have to be parsed, so that no other request waits for that."""
    if check.parses:
        await asyncio.to_thread(check.feed, piece)
    else:
        check.feed(piece)


def _mark_received() -> None:
    crashpoint("upload.received")


def _wrong_layout() -> InvalidPayload:
    return InvalidPayload(
        "the body is not an update of this job's model",
        code="payload.layout",
        hint="send the model that the task carried, with the same names, types and shapes",
    )
