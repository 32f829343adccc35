"""The use of a job's blobs: which of them may not be deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.core.protocol.message import BlobRef, Report
from shoal.core.server.hub_state import state_refs
from shoal.runtime.blob_files import FileBlobs
from shoal_coordinator.jobs.hub_gate import HubGate
from shoal_coordinator.jobs.journal import JournalEntry


class BlobUse:
    """The blobs that a snapshot, a replay, the hub or a request in progress needs.

    Args:
        may_delete: returns whether no other coordinator can run this job now: it may need blobs unknown here.
    """

    def __init__(self, job: str, blobs: FileBlobs, gate: HubGate, may_delete: Callable[[], bool]) -> None:
        self.job, self.blobs, self._gate, self.may_delete = job, blobs, gate, may_delete
        self._pins: defaultdict[str, int] = defaultdict(int)
        self._snapshot: set[str] = set()
        self._reports: dict[int, str] = {}  # of reports that a replay would fold, by sequence number
        self._inline: tuple[BlobRef | None, bytes] = None, b""  # the blob that was sent with the last task

    def restored(self, state: dict[str, Any] | None, entries: Sequence[JournalEntry]) -> None:
        """Start again with a snapshot, and the entries after it."""
        self._snapshot = {ref.digest for ref in state_refs(state)} if state is not None else set()
        self._reports.clear()
        self.journaled(entries)

    def journaled(self, entries: Sequence[JournalEntry]) -> None:
        """Note the blobs of reports in new entries."""
        for entry in entries:
            if isinstance(entry.event, Report) and entry.event.blob is not None and entry.payload is None:
                self._reports[entry.seq] = entry.event.blob.digest

    def snapshotted(self, seq: int, state: dict[str, Any]) -> None:
        """Note that a snapshot of this state at `seq` is durable: a replay begins after it."""
        self._reports = {at: digest for at, digest in self._reports.items() if at > seq}
        self._snapshot = {ref.digest for ref in state_refs(state)}

    @property
    def is_known(self) -> bool:
        """Return False while the hub is restored: it is not known yet which reports it will fold."""
        return not self._gate.is_restoring

    @contextmanager
    def pinned(self, digest: str) -> Iterator[None]:
        """Keep a blob while the context is open."""
        self._pins[digest] += 1
        try:
            yield
        finally:
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]

    def digests(self) -> set[str]:
        """Return the digests of all blobs in use."""
        hub = {ref.digest for ref in self._gate.hub.state.blob_refs()}
        return {*self._reports.values(), *self._pins} | self._snapshot | hub

    def discard(self, digest: str) -> None:
        """Delete a blob that was received and refused, unless it is in use."""
        if digest not in self.digests() and self.may_delete():
            self.blobs.delete(digest)

    def read_inline(self, ref: BlobRef) -> bytes:
        """Return a small blob to send with a task. All nodes get the same one, so it is read once."""
        if self._inline[0] != ref:
            self._inline = ref, self.blobs.open(ref)[:]
        return self._inline[1]
