"""Doing an order with the user's learner, in the training thread. Whatever that raises stays in here.

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

from edge_client.spool import Spool
from shoal import wire
from shoal.core.algorithm import Algorithm, Local, Task, perform
from shoal.core.errors import Cancelled, InvalidPayload, LearnerFailed, ShoalError, StorageFailed
from shoal.core.learner import Learner
from shoal.core.machine import Result
from shoal.core.message import Metrics, Order, Ref, Report
from shoal.core.tree import Slots
from shoal.learn.blame import blamed
from shoal.runtime.pump import Watch, shown
from shoal.runtime.store import CrashPoint, no_crash

AGAIN_S = 0.05
"""Pause before an algorithm that had nothing to say yet is asked again."""


@dataclass(frozen=True)
class Trainer:
    """One job's work. `note_error(name, text)` keeps a traceback for people."""

    job: str
    algorithm: Algorithm
    learner: Learner
    spool: Spool
    note_error: Callable[[str, str], Path]
    at: CrashPoint = no_crash

    def __call__(self, order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Result:
        """`shoal.runtime.pump.Do`."""
        log: Any = structlog.get_logger("edge_client.trainer").bind(job=self.job, order=shown(order.id))
        started = time.monotonic()
        self.at("work.begun")
        try:
            with self._blamed(order):
                result = self._result(order, slots, memory, watch)
        except Cancelled:
            log.info("work given up", seconds=round(time.monotonic() - started, 3))
            raise
        except ShoalError as error:
            if isinstance(error, LearnerFailed) or error.__cause__ is not None:
                self._keep_traceback(log, order, error)
            raise
        self.at("work.done")
        log.info("work done", kind=order.kind, seconds=round(time.monotonic() - started, 3), **_told(result.metrics))
        return result

    @contextmanager
    def _blamed(self, order: Order) -> Any:
        """The user's errors, told as such; a learner that calls `sys.exit` must not end this process."""
        try:
            with blamed(f"the learner's {order.kind}"):
                yield
        except SystemExit as error:
            raise LearnerFailed(f"the learner called sys.exit({error.code!r})") from error

    def _keep_traceback(self, log: Any, order: Order, error: ShoalError) -> None:
        name = f"{self.job}-{shown(order.id)}"
        try:
            file = str(self.note_error(name, "".join(traceback.format_exception(error))))
        except StorageFailed as failure:
            file = failure.message
        log.error("the learner failed", why=error.message, hint=error.hint, file=file, exc_info=error)

    def _result(self, order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Result:
        local = self._local(order, slots, memory, watch)
        wire.measure(local.slots)
        body = self.spool.put(local.slots) if local.slots else None
        after = self.spool.bodies.put(local.memory) if local.memory is not None else None
        return self._checked(order, Result(float(local.weight), body, numbers(local.metrics), after))

    def _local(self, order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Local:
        """The algorithm's part; again, as long as it has nothing to say yet."""
        private = self.spool.bodies.get(memory) if memory is not None else {}
        task = Task(order.id, order.kind, order.version, order.seed, slots, watch.tick)
        while (local := perform(self.algorithm, self.learner, task, private)) is None:
            watch.tick(0.0)
            time.sleep(AGAIN_S)
        watch.tick(1.0)
        return local

    def _checked(self, order: Order, result: Result) -> Result:
        """Say here what the coordinator would refuse: an unknown kind of metric, a weight that is none."""
        report = Report("self", order.id, order.version, result.weight, result.body, result.metrics)
        try:
            wire.decode(wire.encode_head(self.job, report))
        except InvalidPayload as error:
            raise LearnerFailed(f"its report cannot be sent: {error.message}", code=error.code) from error
        return result


def numbers(metrics: Metrics) -> Metrics:
    """Metrics as plain numbers: learners give numpy's and torch's too."""
    return {str(name): float(value) for name, value in metrics.items()}


def _told(metrics: Metrics) -> dict[str, float]:
    """The metrics that people look at, for the log."""
    wanted = ("train/loss", "eval/loss", "eval/accuracy")
    return {name.replace("/", "_"): round(metrics[name], 4) for name in wanted if name in metrics}
