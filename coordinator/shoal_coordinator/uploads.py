"""Bodies coming in: streamed to a file, checked on the way, and only then given their name.

The order of things: room on the disk; length and header, byte for byte, before anything is made of the rest; SHA-256;
fsync, rename, fsync of the folder. After that the body exists, and a report may name it. What breaks off stays as a
partial file under the node's name, and the next attempt goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from shoal import wire
from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.message import Kind, OrderId, Ref, Report
from shoal.core.tree import Layout, Slots
from shoal.runtime.store import FileBodies, Incoming, digest_of, same_digest
from shoal.spec import Limits
from shoal_coordinator.blobs.bodies import StoredBodies, asked
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.meter import Meter
from shoal_coordinator.settings import Settings
from shoal_coordinator.unreported import NodeBytes, Unreported, Upload

JOURNALED_BYTES_MAX = 64 * 1024
"""Updates up to that length that came with their reports are kept in the journal, and have no files."""

SHORTAGE_S = 60.0
"""A body that the disk refused, though it says that it has room, is told of for so long."""

SEEN_KEPT = 1024
"""Bodies whose form and norm are remembered."""


@dataclass(frozen=True)
class Form:
    """What a body must look like; `opened` undoes the filters that it came through, if any."""

    layout: Layout
    opened: Callable[[Slots], Slots] | None = None


class Uploads:
    """The bodies of one job (or of no job yet) that are coming in. Where no form is expected, any model will do."""

    def __init__(self, bodies: FileBodies, settings: Settings) -> None:
        self._bodies, self._settings = bodies, settings
        self._collecting: dict[str, asyncio.Task[bool]] = {}
        self._unreported: Unreported | None = None
        self._wanted = 0  # by a body for which there was no room
        self._full_at, self._full = float("-inf"), ""  # what the disk has said last
        self._seen: OrderedDict[str, tuple[float, Form | None]] = OrderedDict()  # what a digest names never changes

    def limit_nodes(self, nodes: NodeBytes, discard: Callable[[str], None]) -> None:
        """From now on a node has one body here that no report has named. `discard`: see `Unreported`."""
        self._unreported = Unreported(self._bodies, nodes, discard)

    def room_for(self, nbytes: int) -> None:
        """Raise `StorageFailed` (507) unless the disk has room and keeps its reserve."""
        free = self._bodies.free_bytes()
        if free - nbytes < self._settings.disk_reserve_bytes:
            self._wanted = max(self._wanted, nbytes)
            raise StorageFailed(
                f"{free // 2**20} MiB free on the coordinator's disk, "
                f"of which {self._settings.disk_reserve_bytes // 2**20} are kept in reserve",
                code="storage.full",
                hint="free disk space on the coordinator; nodes send again by themselves",
            )

    def lacks_room(self, nbytes: int) -> str:
        """Return why a body of that size, or the last that was sent, finds no room; empty if it does."""
        wanted, self._wanted = max(nbytes, self._wanted), 0
        try:
            self.room_for(wanted)
        except StorageFailed as error:
            return error.message
        return self._full if time.monotonic() - self._full_at < SHORTAGE_S else ""

    async def take(
        self, owner: str, ref: Ref, start: int, expected: Form | None, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        """Receive the bytes from `start` on; in place of any other body of that owner that no report has named. Raises
        `InvalidPayload`, `Refused` (offset, superseded) or `StorageFailed`."""
        unreported = self._unreported
        if unreported is None:
            await self._take(Upload(owner, ref), start, expected, pieces)
            return
        self._check(ref, expected)
        upload, kept = await unreported.begin(owner, ref), True
        if upload is None:
            return
        try:
            await asyncio.to_thread(unreported.drop_partials_but, owner, ref.digest)
            await self._take(upload, start, expected, pieces)
            return
        except InvalidPayload:
            kept = False
            raise
        except Refused:
            if not upload.superseded:
                raise
        finally:
            unreported.end(upload, kept=kept)
        async for _ in pieces:
            pass
        if not await unreported.wait(upload):
            upload.check()

    async def _take(
        self, upload: Upload, start: int, expected: Form | None, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        self._check(upload.ref, expected)
        self.room_for(upload.ref.nbytes - start)
        try:
            await self._receive(upload, start, expected, pieces)
        except StorageFailed as error:
            if error.code == "storage.full":
                self._full_at, self._full = time.monotonic(), error.message
            raise
        self._full_at = float("-inf")

    async def _receive(
        self, upload: Upload, start: int, expected: Form | None, pieces: AsyncIterator[bytes | memoryview]
    ) -> None:
        ref = upload.ref
        check = self._check(ref, expected)
        incoming = await asyncio.to_thread(self._bodies.incoming, upload.node, ref, start)
        meter = Meter(expected.layout) if expected is not None and not start and expected.opened is None else None
        with incoming:
            upload.writes_to(incoming)
            async for piece in pieces:
                if piece and not start:
                    await _look(check, piece)
                upload.check()
                if piece:
                    incoming.write(piece)
                if meter is not None:
                    meter.feed(piece)
            if not start:
                check.finish()
            upload.check()
            upload.finishing = True
            await _received(self._finish, incoming, expected, meter.norm if meter is not None else None)

    async def collect(self, owner: str, ref: Ref, expected: Form | None) -> bool:
        """Take up what this owner has put into the store by an address of its own; whether that was needed.

        Raises `InvalidPayload`. Whoever asks while it is being done waits for the same.
        """
        bodies = self._bodies
        if not isinstance(bodies, StoredBodies) or await asyncio.to_thread(bodies.has, ref.digest):
            return False
        begun = self._collecting.get(ref.digest)
        if begun is None:
            begun = asyncio.create_task(self._collect(bodies, owner, ref, expected))
            self._collecting[ref.digest] = begun
            begun.add_done_callback(lambda _: self._collecting.pop(ref.digest, None))
        return await asyncio.shield(begun)

    async def _collect(self, bodies: StoredBodies, owner: str, ref: Ref, expected: Form | None) -> bool:
        store, key = bodies.store, bodies.incoming_key(owner, ref.digest)
        try:
            mark, pieces = await asyncio.to_thread(store.read, key)
        except StorageFailed as error:
            if error.code == "storage.missing":
                return False
            raise
        try:
            with bodies.comes_from(ref.digest, key, mark):
                await self._take(Upload(owner, ref), 0, expected, _in_thread(pieces))
        except (InvalidPayload, Refused) as error:
            await asyncio.to_thread(store.delete, key)
            if isinstance(error, InvalidPayload):
                raise
            raise InvalidPayload(error.message, code="payload.length") from error
        await asyncio.to_thread(store.delete, key)
        return True

    def _check(self, ref: Ref, expected: Form | None) -> wire.BodyCheck:
        layout = expected.layout if expected is not None else None
        return wire.BodyCheck(ref.nbytes, layout, nbytes_max=self._settings.body_bytes_max)

    def _finish(self, incoming: Incoming, expected: Form | None, norm: float | None) -> None:
        """Give a body its name; look at it as a whole unless that was done while it came. What is wrong is not kept."""
        incoming.finish()
        if expected is not None and norm is not None:
            self._remember(incoming.ref, norm, expected)
            return
        try:
            self._examine(incoming.ref, expected)
        except InvalidPayload:
            self._bodies.delete(incoming.ref.digest)
            raise

    def _remember(self, ref: Ref, norm: float, form: Form | None) -> float:
        self._seen[ref.digest] = norm, form
        if len(self._seen) > SEEN_KEPT:
            self._seen.popitem(last=False)
        return norm

    def _examine(self, ref: Ref, expected: Form | None) -> float:
        """The norm of a stored body. Raises `InvalidPayload` for another model's, and for one that is not finite."""
        slots = self._bodies.get(ref)
        if expected is not None and wire.payload_layout(wire.layouts_of(slots)) != expected.layout:
            raise _foreign()
        return self._remember(ref, _measured(slots, expected), expected)

    def journals(self, kind: Kind, payload: bytes) -> bool:
        """Whether what came with a report on such an order is kept in the journal: nobody needs it after its fold."""
        return kind == "train" and 0 < len(payload) <= JOURNALED_BYTES_MAX and not self._settings.keep_updates

    async def weigh(self, ref: Ref, expected: Form | None, payload: bytes) -> float:
        """The norm of a body that is to be kept in the journal. Raises `InvalidPayload`, `StorageFailed` (no room)."""
        self._whole(ref, expected, payload)
        same_digest(digest_of([payload]), ref)
        _has_come()
        slots = wire.open_payload(payload)
        if expected is not None and expected.opened is not None:
            return await asyncio.to_thread(_measured, slots, expected)
        return _measured(slots, expected)

    def _whole(self, ref: Ref, expected: Form | None, payload: bytes) -> None:
        """Check the form of a body that came in one piece, and that there is room for it."""
        if len(payload) != ref.nbytes:
            raise InvalidPayload(f"{len(payload)} bytes came, {ref.nbytes} were announced", code="payload.length")
        check = self._check(ref, expected)
        check.feed(payload)
        check.finish()
        self.room_for(ref.nbytes)

    async def take_whole(self, ref: Ref, expected: Form | None, payload: bytes) -> None:
        """Receive a body that came in one piece with its report; small, so that one thread does all of it at once."""
        await asyncio.to_thread(self._whole, ref, expected, payload)
        await _received(self._keep, ref, expected, payload)

    def _keep(self, ref: Ref, expected: Form | None, payload: bytes) -> None:
        slots = wire.open_payload(payload)
        norm = _measured(slots, expected)
        self._bodies.keep(ref, payload)
        self._remember(ref, norm, expected)

    def offer(self, node: str, order: OrderId, digest: str) -> list[str]:
        """See `Unreported.offer`."""
        return self._unreported.offer(node, order, digest) if self._unreported is not None else []

    def shares(self, node: str, ref: Ref) -> None:
        """See `Unreported.shares`."""
        if self._unreported is not None:
            self._unreported.shares(node, ref)

    def reported(self, node: str) -> None:
        """A report of that node has counted: the body that it named is the job's."""
        if self._unreported is not None:
            self._unreported.reported(node)

    async def admit(self, report: Report, expected: Form | None) -> float:
        """Check a report's stored body against the form; returns its norm. Changes nothing."""
        if report.body is None:
            return 0.0
        size = await asked(self._bodies, self._bodies.size, report.body.digest)
        if size is None:
            raise Refused(
                "the body of this report is not here", code="body.missing", hint="upload it again, then send the report"
            )
        if size != report.body.nbytes:
            raise InvalidPayload(f"the body of that digest has not {report.body.nbytes} bytes", code="payload.length")
        norm, form = self._seen.get(report.body.digest, (None, None))
        if norm is None or (expected is not None and form != expected):
            norm = await asyncio.to_thread(self._examine, report.body, expected)
        return norm


def _measured(slots: Slots, expected: Form | None) -> float:
    """The norm of what was sent, without its filters. Raises `InvalidPayload` for what is not finite."""
    return wire.measure(expected.opened(slots) if expected is not None and expected.opened is not None else slots)


async def _in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """What an iterator gives that may take its time."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


async def _look(check: wire.BodyCheck, piece: bytes | memoryview) -> None:
    """Check the next bytes; in a thread where a header may have to be parsed, so that nobody else waits for that."""
    if check.parses:
        await asyncio.to_thread(check.feed, piece)
    else:
        check.feed(piece)


async def _received(store: Callable[..., None], *arguments: object) -> None:
    """All of a body has come: store it, in a thread."""
    _has_come()
    await asyncio.to_thread(store, *arguments)


def _has_come() -> None:
    crashpoint("upload.received")


def check_limits(limits: Limits, report: Report, norm: float) -> None:
    """Raise `InvalidPayload` for a weight or a norm that the job does not take."""
    if not 0 < report.weight <= limits.weight_max:
        raise InvalidPayload(
            f"a weight of {report.weight:g}; more than 0, at most {limits.weight_max:g} in this job",
            code="update.weight",
            hint="the weight is the number of examples that were trained on",
        )
    if limits.update_norm_max and norm > limits.update_norm_max:
        raise InvalidPayload(
            f"an update of norm {norm:.6g}; at most {limits.update_norm_max:g} in this job",
            code="update.norm",
            hint="lower the learning rate, clip, or raise limits.update_norm_max",
        )


def _foreign() -> InvalidPayload:
    return InvalidPayload(
        "the body is not an update of this job's model",
        code="payload.layout",
        hint="send the model that the order carried, with the same names, types and shapes",
    )
