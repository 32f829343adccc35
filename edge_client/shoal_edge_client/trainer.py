"""Doing an order with the user's learner, wherever that is (`workshop`). Whatever it raises stays in here.

A failure becomes one line for the coordinator; the whole traceback goes to the log and into the state folder.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from shoal import wire
from shoal.core.algorithm import Local
from shoal.core.errors import Cancelled, InvalidJob, InvalidPayload, LearnerFailed, ShoalError, StorageFailed
from shoal.core.machine import Result
from shoal.core.message import Metrics, Order, Ref, Report, Status
from shoal.core.tree import Slots
from shoal.heads import check
from shoal.learn.blame import blamed
from shoal.runtime.pump import Hand, Watch, shown
from shoal.runtime.store import CrashPoint, no_crash
from shoal.runtime.training.remote import Given
from shoal_edge_client.spool import Spool
from shoal_edge_client.workshop import Begin, Work


@dataclass(frozen=True)
class Trainer:
    """One job's work. `note_error(name, text)` keeps a traceback for people."""

    job: str
    begin: Begin
    spool: Spool
    note_error: Callable[[str, str], Path]
    at: CrashPoint = no_crash

    def __call__(self, order: Order, slots: Slots, base: Slots, memory: Ref | None, watch: Watch) -> InHand:
        """`shoal.runtime.pump.Begin`."""
        self.at("work.begun")
        bodies = self.spool.bodies
        private = bodies.get(memory) if memory is not None else {}
        work = self.begin(Given(order, slots, base, private, memory, bodies, watch.tick))
        return InHand(self, work, watch)


@dataclass
class InHand:
    """An order in hand."""

    trainer: Trainer
    work: Work
    watch: Watch
    seconds: float = 0.0

    def may_go_on(self, order: Order) -> bool:
        return self.work.may_go_on(order)

    def piece(self, order: Order) -> Result | Status | None:
        """The next piece. What the user's code raises becomes `LearnerFailed`, and is noted whole."""
        log: Any = structlog.get_logger("edge_client.trainer").bind(job=self.trainer.job, order=shown(order.id))
        started = time.monotonic()
        try:
            with self._blamed(order):
                made = self._made(order)
        except Cancelled:
            log.info("work given up", seconds=round(self.seconds + time.monotonic() - started, 3))
            raise
        except ShoalError as error:
            if isinstance(error, LearnerFailed) or error.__cause__ is not None:
                self._keep_traceback(log, order, error)
            raise
        self.seconds += time.monotonic() - started
        if isinstance(made, Result):
            self.trainer.at("work.done")
            log.info("work done", kind=order.kind, seconds=round(self.seconds, 3), **_told(made.metrics))
        return made

    @contextmanager
    def _blamed(self, order: Order) -> Any:
        """The user's errors, told as such; a learner that calls `sys.exit` must not end this process."""
        try:
            with blamed(f"the learner's {order.kind}"):
                yield
        except SystemExit as error:
            raise LearnerFailed(f"the learner called sys.exit({error.code!r})") from error

    def _keep_traceback(self, log: Any, order: Order, error: ShoalError) -> None:
        name = f"{self.trainer.job}-{shown(order.id)}"
        try:
            file = str(self.trainer.note_error(name, "".join(traceback.format_exception(error))))
        except StorageFailed as failure:
            file = failure.message
        log.error("the learner failed", why=error.message, hint=error.hint, file=file, exc_info=error)

    def _made(self, order: Order) -> Result | Status | None:
        first = not self.work.begun
        made = self.work.piece(order)
        spool = self.trainer.spool
        if first and self.work.base:
            spool.hold(self.work.base)
        if made is None or isinstance(made, Status):
            return made
        self.watch.tick(1.0)
        if isinstance(made, Local):
            wire.measure(made.slots)
        update = made.slots if isinstance(made, Local) else made.body
        body = spool.put(update) if update else None
        after = spool.remember(made.memory) if made.memory is not None else None
        return self._checked(order, Result(float(made.weight), body, numbers(made.metrics), after))

    def _checked(self, order: Order, result: Result) -> Result:
        """Say here what the coordinator would refuse: an unknown kind of metric, a weight that is none."""
        report = Report("self", order.id, order.version, result.weight, result.body, result.metrics)
        try:
            check(report)
        except InvalidPayload as error:
            raise LearnerFailed(f"its report cannot be sent: {error.message}", code=error.code) from error
        return result


@dataclass(frozen=True)
class Unable:
    """Does no order, and says why."""

    error: InvalidJob

    def __call__(self, order: Order, slots: Slots, base: Slots, memory: Ref | None, watch: Watch) -> Hand:
        raise self.error


def numbers(metrics: Metrics) -> Metrics:
    """Metrics as plain numbers: learners give numpy's and torch's too."""
    return {str(name): float(value) for name, value in metrics.items()}


def _told(metrics: Metrics) -> dict[str, float]:
    """The metrics that people look at, for the log."""
    wanted = ("train/loss", "eval/loss", "eval/accuracy")
    return {name.replace("/", "_"): round(metrics[name], 4) for name in wanted if name in metrics}
