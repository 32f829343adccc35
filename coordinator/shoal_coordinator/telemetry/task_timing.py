"""Duration of each task and its phases, by the coordinator's clock.

    given ── wait ── sent ── download ── have ── train ── begun ── upload ── came ── fold ── counted

A node's clock is not used: *train* is the time between the last byte of the model that it was sent and the first
byte of its answer, so it includes encoding and half a round trip at both ends. A task of an earlier process of the
coordinator has no *wait*, and no phase before the restart.

Each task has its own timer: when a report closes its round, the node's next task may be sent before the report has
been acknowledged.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.protocol.message import TaskId
from shoal.core.server.roster import GIVEN_KEPT


class Phases(NamedTuple):
    """Seconds; None where one of its ends is not known."""

    seconds: float | None = None
    """From the first known moment to the last."""
    wait_s: float | None = None
    download_s: float | None = None
    train_s: float | None = None
    upload_s: float | None = None
    fold_s: float | None = None


UNKNOWN = Phases()


@dataclass
class TaskTimer:
    """The moments of one task, on the job's clock."""

    given: float | None = None
    sent: float | None = None
    have: float | None = None
    begun: float | None = None
    came: float | None = None

    def phases(self, end: float) -> Phases:
        """Return the duration of each phase; `end` is when the report was counted, or now."""
        moments = (self.given, self.sent, self.have, self.begun, self.came)
        ends = (*moments[1:], end if self.came is not None else None)
        first = next((moment for moment in moments if moment is not None), None)
        return Phases(None if first is None else end - first, *map(_between, moments, ends))

    def so_far(self, now: float) -> Phases:
        """Return the phases of an unfinished task; its present phase lasts until now."""
        phases = self.phases(now)
        moments = (self.given, self.sent, self.have, self.begun, self.came)
        current = max((place for place, moment in enumerate(moments) if moment is not None), default=None)
        if current is None:
            return phases
        name, begun = Phases._fields[1 + current], moments[current]
        return phases._replace(**{name: _between(begun, now)})


def _between(begun: float | None, ended: float | None) -> float | None:
    return None if begun is None or ended is None else max(0.0, ended - begun)


class TaskTimers:
    """Those of one job. `now`: the job's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._timers: defaultdict[str, dict[TaskId, TaskTimer]] = defaultdict(dict)

    def _of(self, node: str, task: TaskId) -> TaskTimer:
        mine = self._timers[node]
        if task not in mine:
            mine[task] = TaskTimer()
            if len(mine) > GIVEN_KEPT:
                del mine[next(iter(mine))]
        return mine[task]

    def given(self, node: str, task: TaskId) -> None:
        """Record that a node was given the task."""
        timer = self._of(node, task)
        if timer.given is None and timer.sent is None:
            timer.given = self._now()

    def sent(self, node: str, task: TaskId) -> None:
        """Record that the task was sent; only the first time counts."""
        timer = self._of(node, task)
        if timer.sent is None:
            timer.sent = timer.have = self._now()

    def got(self, node: str, task: TaskId) -> None:
        """Record that a blob of the task was sent to the node."""
        timer = self._of(node, task)
        if timer.begun is None:
            timer.have = self._now()

    def begun(self, node: str, task: TaskId, since: float | None = None) -> None:
        """Record that the answer began; only the first time counts. `since`: its monotonic time."""
        timer = self._of(node, task)
        if timer.begun is None:
            timer.begun = self._now() - (0.0 if since is None else time.monotonic() - since)

    def came(self, node: str, task: TaskId) -> None:
        """Record that the report has arrived with its blob."""
        self._of(node, task).came = self._now()

    def finish(self, node: str, task: TaskId) -> Phases:
        """Record that the report was counted, and forget the task."""
        return self._timers[node].pop(task, TaskTimer()).phases(self._now())

    def so_far(self, node: str, task: TaskId) -> Phases:
        """Return the phases of a task that has not ended."""
        return self._timers[node].get(task, TaskTimer()).so_far(self._now())
