"""The pump of a machine of split learning, of either side: it feeds events and carries out their effects.

    FOLDER/state.json      the machine's state, and the values about the job
    FOLDER/blobs/DIGEST    the blobs that it refers to

All calls are made in one thread, which computes too. A state is on the disk before a later effect is seen. After a
failure of the disk the machine is restored from there, so that it never runs ahead of it.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from shoal.core.errors import InvalidPayload, Refused, ShoalError, StorageFailed
from shoal.core.protocol.machine import JobEvent, MachineState, Save, Timer, Wake
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.snapshot import to_state
from shoal.core.protocol.split_message import SplitMessage
from shoal.core.split.part_state import Compute, Computed, Masked, MaskIds, SplitEffect, SplitSend, SplitVersion
from shoal.core.split.split_coordinator import SplitCoordinator
from shoal.core.split.split_node import SplitNode
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint, make_folder, no_crash, read_json, write_file

log = structlog.get_logger()

Told = dict[str, SplitMessage]
"""The last message to each receiver."""
Machine = TypeVar("Machine", bound=SplitCoordinator | VerticalCoordinator | SplitNode)
ComputeLeg = Callable[[Any], Computed | Masked]
"""A function that does a `Compute`, and a `MaskIds` at a party."""


class SplitPump(Generic[Machine]):
    """A machine, its blobs and its state. `about`: values about the job, stored with each state.

    `tell` is called with each closed version, before the state that contains it is stored, and with each event.
    """

    machine: Machine
    _make: Callable[[], Machine]
    _prepare: Callable[[], ComputeLeg]
    _compute: ComputeLeg

    def __init__(self, folder: Path, at: CrashPoint = no_crash) -> None:
        self.folder, self._at = folder, at
        make_folder(folder)
        self.blobs = FileBlobs(folder / "blobs", at)
        self.blobs.sweep()
        self.about, _ = self._read()
        self.tell: Callable[[SplitVersion | JobEvent], None] = _ignore
        self.wake_at = 0.0
        self._due: list[SplitEffect] = []  # of a start that were not carried out yet
        self._is_ahead = False  # the machine may be ahead of what is stored
        self.failure: ShoalError | None = None
        """The last error of the computation."""

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the stored values about the job, and the state; empty without a file."""
        found = read_json(self._path, dict, f"remove {self.folder}: the job begins again") or {}
        return found, found.pop("machine", {})

    @property
    def _path(self) -> Path:
        return self.folder / "state.json"

    def start(self, make: Callable[[], Machine], prepare: Callable[[], ComputeLeg], about: dict[str, Any]) -> Told:
        """Start from the stored state, or from none if that has other values of `about`. Return the first messages.

        `make` makes the machine, `prepare` the function that computes its legs.
        """
        self._make, self._prepare = make, prepare
        if any(self.about.get(name) != value for name, value in about.items()):
            self.about = dict(about)
            self._save(to_state(make().state))
        self._due = self._restore()
        return self._carried_out(())

    def _restore(self) -> list[SplitEffect]:
        """Take up the stored state; return the effects of the start."""
        self.about, state = self._read()
        self.machine, self._compute = self._make(), self._prepare()
        self.machine.restore(state)
        self._is_ahead = False
        return self.machine.start(time.monotonic())

    def feed(self, event: SplitMessage | Timer, payload: bytes = b"") -> Told:
        """Store the event's blob, feed it, and do all work that follows. Return the messages.

        Raises `Refused` or `InvalidPayload` for an event that the machine does not take, `StorageFailed`; the state is
        as before, or as stored since.
        """
        if self._is_ahead:
            self._due = self._restore()
        ref = getattr(event, "blob", None)
        if isinstance(ref, BlobRef):
            self.blobs.keep(ref, payload)
        on: Callable[[Any, float], list[SplitEffect]] = self.machine.on
        try:
            effects = on(event, time.monotonic())
        except (Refused, InvalidPayload):
            self._sweep()
            raise
        told = self._carried_out(effects)
        self._sweep()
        return told

    def _sweep(self) -> None:
        self.blobs.keep_only({one.digest for one in self.machine.refs()})

    def _carried_out(self, effects: Sequence[SplitEffect]) -> Told:
        told, due = Told(), deque([*self._due, *effects])
        on: Callable[[Any, float], list[SplitEffect]] = self.machine.on
        self._due = []
        try:
            while due:
                match effect := due.popleft():
                    case Save(what=MachineState(state=values)):
                        self._save(values)
                    case SplitSend(to=to, message=message):
                        told[to] = message
                    case Compute() | MaskIds():
                        due += on(self._computed(effect), time.monotonic())
                    case Wake(at=at):
                        self.wake_at = at
                    case SplitVersion() | JobEvent():
                        self.tell(effect)
        except BaseException:
            self._is_ahead = True
            raise
        return told

    def _computed(self, work: Compute | MaskIds) -> Computed | Masked:
        """Do a leg. An error of the user's code ends the turn, one of the disk does not."""
        try:
            return self._compute(work)
        except StorageFailed:
            raise
        except ShoalError as error:
            log.error("the computation failed", why=error.message, hint=error.hint, exc_info=error)
            self.failure, self._compute = error, self._prepare()
            if isinstance(work, MaskIds):
                return Masked(work.number, work.leg, error=error.message)
            return Computed(work.turn, work.state.next_batch, work.leg, error=error.message)

    def _save(self, values: dict[str, Any]) -> None:
        write_file(self._path, json.dumps({**self.about, "machine": values}).encode(), "split", self._at)

    def payload(self, message: SplitMessage) -> bytes:
        """Return the bytes of a message's blob; empty if it has none."""
        ref = getattr(message, "blob", None)
        return bytes(self.blobs.open(ref)[0 : ref.nbytes]) if isinstance(ref, BlobRef) else b""


def _ignore(_told: SplitVersion | JobEvent) -> None:
    """Do nothing: a node sees no versions."""
