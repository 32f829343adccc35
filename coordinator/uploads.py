"""Bodies coming in: streamed to a file, checked on the way, and only then given their name.

The order of things: room on the disk; length and header, byte for byte, before anything is made of the rest; SHA-256;
fsync, rename, fsync of the folder. After that the body exists, and a report may name it. What breaks off stays as a
partial file under the node's name, and the next attempt goes on from there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

from coordinator.crash import crashpoint
from coordinator.settings import Settings
from shoal import wire
from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.message import Ref, Report
from shoal.core.tree import Layout
from shoal.runtime.store import FileBodies, Incoming
from shoal.spec import Limits

MEASURED_KEPT = 1024


class Uploads:
    """The bodies of one job (or of no job yet) that are coming in."""

    def __init__(self, bodies: FileBodies, settings: Settings) -> None:
        self._bodies, self._settings = bodies, settings
        self._measured: OrderedDict[str, float] = OrderedDict()

    def room_for(self, nbytes: int) -> None:
        """Raise `StorageFailed` (507) unless the disk has room and keeps its reserve."""
        free = self._bodies.free_bytes()
        if free - nbytes < self._settings.disk_reserve_bytes:
            raise StorageFailed(
                f"{free // 2**20} MiB free on the coordinator's disk, "
                f"of which {self._settings.disk_reserve_bytes // 2**20} are kept in reserve",
                code="storage.full",
                hint="free disk space on the coordinator; nodes send again by themselves",
            )

    async def take(
        self, owner: str, ref: Ref, start: int, expected: Layout | None, pieces: AsyncIterator[bytes]
    ) -> None:
        """Receive the bytes from `start` on. Raises `InvalidPayload`, `Refused` (offset) or `StorageFailed`."""
        check = wire.BodyCheck(ref.nbytes, expected, nbytes_max=self._settings.body_bytes_max)
        self.room_for(ref.nbytes - start)
        incoming = await asyncio.to_thread(self._bodies.incoming, owner, ref, start)
        with incoming:
            async for piece in pieces:
                if piece and not start:
                    check.feed(piece)
                if piece:
                    incoming.write(piece)
            if not start:
                check.finish()
            crashpoint("upload.received")
            await asyncio.to_thread(self._finish, incoming, expected)

    def _finish(self, incoming: Incoming, expected: Layout | None) -> None:
        """Give a body its name, and look at it as a whole; what is wrong is not kept."""
        incoming.finish()
        try:
            self._examine(incoming.ref, expected)
        except InvalidPayload:
            self._bodies.delete(incoming.ref.digest)
            raise

    def _examine(self, ref: Ref, expected: Layout | None) -> float:
        """The norm of a stored body. Raises `InvalidPayload` for another model's, and for one that is not finite."""
        slots = self._bodies.get(ref)
        if expected is not None and wire.payload_layout(wire.layouts_of(slots)) != expected:
            raise _foreign()
        norm = self._measured.get(ref.digest)
        if norm is None:
            norm = self._measured[ref.digest] = wire.measure(slots)
            if len(self._measured) > MEASURED_KEPT:
                self._measured.popitem(last=False)
        return norm

    async def take_whole(self, owner: str, ref: Ref, expected: Layout | None, payload: bytes) -> None:
        """Receive a body that came in one piece with its report."""
        if len(payload) != ref.nbytes:
            raise InvalidPayload(f"{len(payload)} bytes came, {ref.nbytes} were announced", code="payload.length")

        async def once() -> AsyncIterator[bytes]:
            yield payload

        await self.take(owner, ref, 0, expected, once())

    async def admit(self, report: Report, expected: Layout | None, limits: Limits | None) -> float:
        """Check a report's stored body against the layout and the job's limits; returns its norm. Changes nothing."""
        if report.body is None:
            return 0.0
        if not self._bodies.has(report.body.digest):
            raise Refused(
                "the body of this report is not here", code="body.missing", hint="upload it again, then send the report"
            )
        if self._bodies.size(report.body.digest) != report.body.nbytes:
            raise InvalidPayload(f"the body of that digest has not {report.body.nbytes} bytes", code="payload.length")
        norm = await asyncio.to_thread(self._examine, report.body, expected)
        if limits is not None:
            _check_limits(limits, report, norm)
        return norm


def _check_limits(limits: Limits, report: Report, norm: float) -> None:
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
