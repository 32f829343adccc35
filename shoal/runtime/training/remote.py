"""An order in hand that is done by a training process: `shoal.core.piecework.Piecework`, over there.

When the process dies in the middle, another one begins the order anew, which loses the pieces and nothing else: seeds
are in the order, so that it comes to the same result. After a few deaths the order fails instead.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from shoal import wire
from shoal.core.errors import LearnerFailed
from shoal.core.learner import Tick, no_tick
from shoal.core.message import Metrics, Order, Ref, Status
from shoal.core.tree import Slots
from shoal.runtime.store import FileBodies, FileBody, storing, write_all
from shoal.runtime.training.process import Ended, Training
from shoal.runtime.training.words import ref_read

RESTARTS_MAX = 3
"""So often an order is begun anew because the process died of it."""
PAUSE_S, PAUSE_S_MAX = 0.5, 8.0
"""Before the first of these, doubling; and the longest."""
LOOK_S = 0.1

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Made:
    """What an order has led to: `shoal.core.algorithm.Local`, with its trees in files. They are finite."""

    weight: float
    body: FileBody | None
    metrics: Metrics
    memory: FileBody | None


@dataclass(frozen=True)
class Given:
    """An order, and the opened bodies that it and the node's state name. `bodies`: where they may lie as files."""

    order: Order
    slots: Slots
    base: Slots
    memory: Slots
    memory_ref: Ref | None
    bodies: FileBodies
    tick: Tick = no_tick


class Remote:
    """`job`: as JSON values. What was given is kept until the work is done, for another process."""

    def __init__(self, training: Training, job: Mapping[str, Any], given: Given) -> None:
        self._training, self._job, self._given = training, job, given
        self.base: Slots | FileBody = given.base
        """After the first piece: what the node holds from now on, if the job has a base at all."""
        self.check = 0
        self._hand = next(_numbers)
        self._of = 0  # the process that has begun it, by its number; 0: none has
        self._deaths = 0
        self.log: Any = structlog.get_logger("shoal.training")
        weakref.finalize(self, training.dropped.append, self._hand)

    @property
    def begun(self) -> bool:
        """Whether a piece was asked for."""
        return self._of > 0

    def may_go_on(self, order: Order) -> bool:
        """Whether the next piece may be done without waiting for word from the hub."""
        return order.recall or not order.until or self.check < order.until

    def piece(self, order: Order) -> Made | Status | None:
        """Do the next piece of the order, as it reads now. Blocks. Raises as `Training.ask` does."""
        while True:
            try:
                return self._piece(order)
            except Ended as error:
                self._deaths += 1
                if self._deaths > RESTARTS_MAX:
                    text = f"{error.message}, {self._deaths} times at this order"
                    raise LearnerFailed(text, code=error.code, hint=error.hint) from error
                self.log.warning("training is begun anew", why=error.message, hint=error.hint, order=list(order.id))
                self._pause(min(PAUSE_S * 2.0 ** (self._deaths - 1), PAUSE_S_MAX))

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._given.tick(0.0)
            time.sleep(LOOK_S)

    def _piece(self, order: Order) -> Made | Status | None:
        training = self._training
        training.about = {"order": f"{order.id[0]}.{order.id[1]}"}
        training.open()
        if self._of != training.starts:
            self._begin()
        said = training.ask({"do": "piece", "hand": self._hand, "order": wire.to_json(order)}, self._given.tick)
        self.check = int(said["check"])
        self.base = self._file(said["base"]) or self.base
        if "local" not in said:
            status = said["status"]
            return wire.from_json(status) if status is not None else None
        made = said["local"]
        body, memory = self._file(made["body"]), self._file(made["memory"])
        return Made(float(made["weight"]), body, dict(made["metrics"]), memory)

    def _begin(self) -> None:
        training, given = self._training, self._given
        training.bodies.keep_only(())  # whatever is still there, nobody has wanted
        order = given.order
        wanted = {
            "slots": (given.slots, order.body),
            "base": (given.base, order.base),
            "memory": (given.memory, given.memory_ref),
        }
        paths = {name: self._laid(slots, ref) for name, (slots, ref) in wanted.items() if slots}
        try:
            training.ask(
                {
                    "do": "begin",
                    "hand": self._hand,
                    "job": self._job,
                    **{name: str(paths[name].absolute()) if name in paths else "" for name in wanted},
                },
                given.tick,
            )
        finally:
            for path in paths.values():
                path.unlink(missing_ok=True)
        self._of = training.starts

    def _laid(self, slots: Slots, ref: Ref | None) -> Path:
        """A body as a file of its own: another name for one that is there, or else a copy."""
        path = self._training.bodies.temporary()
        if ref is not None and self._given.bodies.size(ref.digest) == ref.nbytes:
            try:
                os.link(self._given.bodies.path(ref.digest), path)
            except OSError as error:
                self.log.debug("no second name for a body: it is copied", why=str(error))
            else:
                return path
        with storing(path):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                for piece in wire.payload_pieces(slots):
                    write_all(descriptor, piece)
            finally:
                os.close(descriptor)
        return path

    def _file(self, said: Any) -> FileBody | None:
        ref = ref_read(said)
        return FileBody(self._training.bodies.path(ref.digest), ref) if ref is not None else None
