"""The edge client as a state machine.

    state       it holds                       it sends at each alarm     it leaves when
    idle        nothing                        Poll                       an order comes
    working     an order, in the background    its last Status, or Poll   Done comes, or the order is superseded
                                               (a sign of life)
    answering   a report or a failure          the answer again           it is acknowledged, or a newer order comes
                (a report that the hub refuses becomes a failure)

A newer order supersedes an older one; an older one is ignored, also when it is over already. The node's private memory
after an order is *pending* until the report was acknowledged as counted; a report that came too late leaves the memory
as it was. While memory is pending no order is begun, for nobody knows yet which memory it would start from: the
acknowledgement comes first, and the poll that follows it brings the order again.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.core.machine import (
    HUB,
    Amend,
    Cancel,
    Done,
    Effect,
    Event,
    Memory,
    Progress,
    Rejected,
    Result,
    Save,
    Send,
    Timer,
    Wake,
    Work,
)
from shoal.core.message import (
    Ack,
    Amendment,
    Fail,
    Idle,
    Join,
    Leave,
    Metrics,
    Order,
    OrderId,
    Poll,
    Ref,
    Report,
    Status,
    Stop,
)
from shoal.core.roster import amendment
from shoal.core.settings_change import sent


class Worker:
    """One node's part in one job. `memory` is its committed private memory, `said` an answer not yet acknowledged."""

    def __init__(self, node: str, *, beat_s: float = 5.0, memory: Ref | None = None) -> None:
        self.node, self.beat_s, self.memory = node, beat_s, memory
        self.order: Order | None = None
        self.status: Status | None = None
        self.said: Report | Fail | None = None
        self.pending: Ref | None = None
        self.over: OrderId = (-1, -1)  # the newest order that has been dealt with
        self.settings: Metrics = {}
        """Settings that the last order gave other values, by their keys."""
        self.welcomed = False
        self.stopped = ""

    def start(self, now: float) -> list[Effect]:
        """Say hello. After a restart with a spooled answer, call `resume` first."""
        return [Send(HUB, Join(self.node)), *([Send(HUB, self.said)] if self.said else []), Wake(now + self.beat_s)]

    def resume(self, said: Report | Fail, pending: Ref | None) -> None:
        """Take up an answer that an earlier process could not deliver."""
        self.said, self.pending = said, pending

    def on(self, event: Event, now: float) -> list[Effect]:  # noqa: PLR0911 - one line for each event
        """Take one event and say what follows from it."""
        if self.stopped:
            return []
        match event:
            case Order():
                self.welcomed = True
                return self._take(event)
            case Amendment():
                return self._amend(event)
            case Idle():
                self.welcomed = True
                return self._idle(event)
            case Ack():
                return self._acknowledged(event)
            case Progress():
                return self._progress(event)
            case Done():
                return self._done(event)
            case Rejected():
                return self._rejected(event)
            case Timer():
                return [Send(HUB, self.said or self.status or self._hello()), Wake(now + self.beat_s)]
            case Stop():
                return self._stop(event)
            case Leave():
                return self._leave()
        return []

    @property
    def working(self) -> bool:
        return self.order is not None and self.said is None

    def _hello(self) -> Join | Poll:
        """A sign of life; until the hub has answered one, the news that this process is a new one."""
        return Poll(self.node) if self.welcomed else Join(self.node)

    def _take(self, order: Order) -> list[Effect]:
        if self.order is not None and order.id == self.order.id:
            return self._amend(amendment(order))
        if order.id <= self._current() or self.pending is not None:
            return []
        cancel = [Cancel(self.order.id)] if self.order is not None and self.working else []
        self.order, self.status, self.said, self.pending = order, None, None, None
        if order.kind in ("train", "gossip"):
            self.settings = sent(order.numbers)
        return [*cancel, Work(order, self.memory)]

    def _amend(self, amended: Amendment) -> list[Effect]:
        """Go on with the order as it reads now. One that is not held will come whole at the next poll."""
        order = self.order
        if order is None or amended.order != order.id or amended.rev <= order.rev or not self.working:
            return []
        self.order = replace(order, rev=amended.rev, recall=amended.recall, until=amended.until)
        return [Amend(self.order)]

    def _current(self) -> OrderId:
        if self.order is not None:
            return self.order.id
        return self.said.order if self.said is not None else self.over

    def _idle(self, idle: Idle) -> list[Effect]:
        """Nothing stands: work for an order that the hub has long withdrawn is in vain."""
        if self.order is None or not self.working or self.order.id > idle.after:
            return []
        self.over, self.order, self.status = self.order.id, None, None
        return [Cancel(self.over)]

    def _progress(self, progress: Progress) -> list[Effect]:
        """Tell how far the work is; it is told again at each alarm, until the work is done."""
        if self.order is None or progress.status.order != self.order.id or not self.working:
            return []
        self.status = progress.status
        return [Send(HUB, self.status)]

    def _done(self, done: Done) -> list[Effect]:
        if self.order is None or done.order != self.order.id or self.said is not None:
            return []
        if done.result is None:
            self.said = Fail(self.node, done.order, done.error, done.phase, done.traceback)
        else:
            self.said = self._report(self.order, done.result)
            self.pending = done.result.memory
        self.status = None
        return [Send(HUB, self.said)]

    def _rejected(self, event: Rejected) -> list[Effect]:
        """The report can never count: say that the order failed, so that nobody waits for it."""
        if not isinstance(self.said, Report) or self.said.order != event.order:
            return []
        self.said, self.pending = Fail(self.node, event.order, f"report refused: {event.why}", "upload"), None
        return [Send(HUB, self.said)]

    def _report(self, order: Order, result: Result) -> Report:
        return Report(self.node, order.id, order.version, result.weight, result.body, result.metrics)

    def _acknowledged(self, ack: Ack) -> list[Effect]:
        if self.said is None or ack.order != self.said.order:
            return []
        commit = self.pending if ack.counted and isinstance(self.said, Report) else None
        self.over, self.order, self.said, self.pending = ack.order, None, None, None
        effects: list[Effect] = [Send(HUB, self._hello())]
        if commit is not None:
            self.memory = commit
            effects.insert(0, Save(Memory(commit)))
        return effects

    def _stop(self, stop: Stop) -> list[Effect]:
        cancel: list[Effect] = [Cancel(self.order.id)] if self.order is not None and self.working else []
        self.stopped, self.order, self.said, self.pending = stop.why or "stopped", None, None, None
        return cancel

    def forget(self, before: OrderId) -> None:
        """Drop what is in hand and what was said, and obey no order up to that one."""
        self.order, self.status, self.said, self.pending = None, None, None, None
        self.over = max(self.over, before)

    def _leave(self) -> list[Effect]:
        """The process ends: hand the order back. An answer that is ready is sent first, and stays in the spool."""
        cancel: list[Effect] = [Cancel(self.order.id)] if self.order is not None and self.working else []
        last: list[Effect] = [Send(HUB, self.said)] if self.said is not None else []
        self.stopped = "left"
        return [*cancel, *last, Send(HUB, Leave(self.node))]
