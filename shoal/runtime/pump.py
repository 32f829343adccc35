"""The pump of a `Worker` in the real world: feeds it one event after the other, and carries out what it wants.

    Save Memory       kept durably, first of all
    a new answer      kept durably before it is sent; forgotten only when the worker has forgotten it
    Send Report/Fail  a delivery: one at a time, tried again until the hub has answered or nobody wants it any more
    Work              the body is fetched, then the work waits for its turn in the lane; its end comes back as `Done`
    Amend             the work sees the order's new form before its next piece
    Cancel            the flag that the work looks at is raised; what it still brings is thrown away
    Send Status       sent once; the worker says it again at its alarm
    Wake              the one alarm is set anew

`Join`, `Poll` and `Leave` are not sent from here: hello, the open poll and the farewell speak for all jobs of a node at
once, and its agent says them. One machine is fed by one task, in order; whatever takes time runs beside it and puts its
outcome into the same queue. Nothing here knows HTTP or files: see `Transport` and `Keep`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import structlog

from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed
from shoal.core.machine import (
    Amend,
    Cancel,
    Done,
    Effect,
    Event,
    Memory,
    Note,
    Progress,
    Rejected,
    Result,
    Save,
    Send,
    Timer,
    Wake,
    Work,
)
from shoal.core.message import Ack, Fail, Leave, Message, Order, OrderId, Phase, Ref, Report, Status
from shoal.core.tree import Slots
from shoal.core.worker import Worker
from shoal.runtime import tracing
from shoal.runtime.backoff import Backoff, patiently
from shoal.runtime.store import CrashPoint, no_crash
from shoal.runtime.threads import Lane, in_thread
from shoal.runtime.tracebacks import whence
from shoal.wire import ByteSource

ERROR_CHARACTERS_MAX = 400
DOWNLOAD: Phase = "download"
BEAT_S = 2.0

Held = tuple[int, ...]
"""An order in hand, as a poll says it: (boot, n), or (boot, n, rev) once it was amended."""

ANSWERED = 2**31
"""The `rev` of an order that is being answered: no amendment matters any more."""

Wanted = Callable[[], bool]
"""Whether what a call does has become vain: it should end soon with `Cancelled`."""


class Transport(Protocol):
    """The way to a hub, for all jobs of a node. Every call but `at_hand` blocks. It may be made from any thread, and
    raises the tree's errors; one that carries `retry_after_s`, and every `Unreachable`, means: try again."""

    def poll(self, held: Mapping[str, Held]) -> tuple[str, Message] | None:
        """What stands, with its job, when it differs from what is held; None when nothing came in time."""
        ...

    def at_hand(self, job: str, ref: Ref) -> Slots | None:
        """The body of an order that brought it along; None when it must be fetched."""
        ...

    def body(self, job: str, ref: Ref, cancelled: Wanted) -> Slots:
        """Fetch the body of an order."""
        ...

    def report(self, job: str, said: Report, body: ByteSource | None, cancelled: Wanted) -> Ack:
        """Deliver a report with its body."""
        ...

    def fail(self, job: str, said: Fail) -> Ack: ...

    def status(self, job: str, said: Status) -> None: ...

    def beat(self, job: str, order: OrderId, fraction: float) -> None: ...

    def leave(self) -> None: ...


class Keep(Protocol):
    """What a node must not forget. On return it is durable. Every call blocks, and raises `StorageFailed`."""

    def said(self, said: Report | None, pending: Ref | None) -> None:
        """Keep the report that is to be delivered, and the private memory that it would commit; None: forget it."""
        ...

    def memory(self, ref: Ref) -> None:
        """This private memory is committed."""
        ...

    def payload(self, ref: Ref) -> ByteSource:
        """The body of the report that is kept."""
        ...


class Watch:
    """What the work tells while it runs, and how it is told to stop. Shared between threads."""

    def __init__(self) -> None:
        self.fraction = 0.0
        self.amended = asyncio.Event()
        self._cancelled = threading.Event()

    def tick(self, fraction: float) -> None:
        """The work's `Tick`: note how far it is. Raises `Cancelled` when nobody wants the result any more."""
        self.fraction = min(max(float(fraction), 0.0), 1.0)
        if self._cancelled.is_set():
            raise Cancelled("the order was withdrawn")

    def cancel(self) -> None:
        self._cancelled.set()

    def cancelled(self) -> bool:
        return self._cancelled.is_set()


class Hand(Protocol):
    """An order in hand. `piece` runs in the lane; whatever it raises but `Cancelled` becomes a failure of the order."""

    def piece(self, order: Order) -> Result | Status | None:
        """Do the next piece of the order as it reads now: a result, or something to tell, or nothing yet."""
        ...

    def may_go_on(self, order: Order) -> bool:
        """Whether the next piece may be done without waiting for word from the hub."""
        ...


Begin = Callable[[Order, Slots, Slots, Ref | None, Watch], Hand]
"""Begin an order: `(order, its opened body, its opened base, private memory, watch)`. Runs in the lane."""


@dataclass(frozen=True)
class Ports:
    """What a pump leans on. `at` is called at named crash points; `clock` in seconds, never jumping."""

    transport: Transport
    keep: Keep
    begin: Begin
    lane: Lane
    clock: Callable[[], float]
    backoff: Backoff = field(default_factory=Backoff)
    beat_s: float = BEAT_S
    at: CrashPoint = no_crash
    tracebacks: bool = True
    """Whether the hub is told where in whose code an order failed."""


@dataclass
class _Running:
    """Something that runs beside the machine, and what it is for."""

    of: Order | Report | Fail | Status
    task: asyncio.Task[None]
    watch: Watch

    def stop(self) -> None:
        self.watch.cancel()
        self.task.cancel()


class Pump:
    """One job of one node. `run` ends when the worker has stopped, and raises what makes going on senseless."""

    def __init__(self, job: str, worker: Worker, ports: Ports) -> None:
        self.job, self.worker, self.ports = job, worker, ports
        self.log: Any = structlog.get_logger("shoal.pump").bind(job=job)
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future[bool] | None]] = asyncio.Queue()
        self._kept = worker.said if isinstance(worker.said, Report) else None
        self._working: _Running | None = None
        self._delivery: _Running | None = None
        self._telling: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._ended = False

    # Seen from the agent

    @property
    def held(self) -> OrderId | None:
        """The order that the worker works on or answers."""
        order, said = self.worker.order, self.worker.said  # another thread may be asking: look once
        if order is not None:
            return order.id
        return said.order if said is not None else None

    @property
    def rev(self) -> int:
        """Which form of it."""
        order, said = self.worker.order, self.worker.said
        return ANSWERED if said is not None or order is None else order.rev

    @property
    def stopped(self) -> str:
        """Why the worker takes no more; empty while it does."""
        return self.worker.stopped

    async def take(self, event: Any) -> bool:
        """Feed an event and wait until it has been carried out; False when it changed nothing."""
        if self._ended:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((event, done))
        return await done

    async def leave(self, *, work_s: float, answer_s: float) -> None:
        """End in good order: give work in hand that long to be done, an answer that long to be heard; take no more."""
        patience_s = answer_s + (work_s if self.worker.working else 0.0)
        if self.worker.said is not None or (self.worker.working and work_s > 0):
            try:
                await asyncio.wait_for(self._settled.wait(), patience_s)
            except TimeoutError:
                self.log.info("leaving before the order is done", order=shown(self.held))
        await self.take(Leave(self.worker.node))

    async def run(self) -> str:
        """Pump until the worker stops; say why it did."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._carry_out(await self._begin())
                while not self.worker.stopped:
                    event, done = await self._queue.get()
                    effects = await self._feed(event)
                    await self._carry_out(effects)
                    if done is not None and not done.done():
                        done.set_result(bool(effects or self.worker.stopped))
                self._stop_all()
        finally:
            self._stop_all()
        return self.worker.stopped

    async def _begin(self) -> Sequence[Effect]:
        """Let the machine begin."""
        return self.worker.start(self.ports.clock())

    async def _feed(self, event: Any) -> Sequence[Effect]:
        """Let the machine take one event."""
        return self.worker.on(event, self.ports.clock())

    def _stop_all(self) -> None:
        self._ended = True
        for running in (self._working, self._delivery):
            if running is not None:
                running.stop()
        if self._alarm is not None:
            self._alarm.cancel()
        while not self._queue.empty():
            _, done = self._queue.get_nowait()
            if done is not None and not done.done():
                done.set_result(False)

    def _put(self, event: Any) -> None:
        self._queue.put_nowait((event, None))

    # Effects

    async def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, Memory):
                await in_thread(partial(self.ports.keep.memory, effect.what.body))
        kept = await self._keep_said()
        if self._delivery is not None and self.worker.said is not self._delivery.of:
            self._delivery.stop()
            self._delivery = None
        for effect in effects:
            self._carry(effect, kept)
        if self.held is None:
            self._settled.set()
        else:
            self._settled.clear()

    def _carry(self, effect: Effect, kept: bool) -> None:
        """`kept`: whether the worker's answer is on the disk, so that it may be sent."""
        match effect:
            case Work():
                self._start(effect)
            case Amend():
                self._amend(effect.order)
            case Cancel():
                self._cancel()
            case Send(body=Status() as said):
                self._tell(said)
            case Send(body=Report() as said) if kept:
                self._deliver(said)
            case Send(body=Fail() as said):
                self._deliver(said)
            case Wake():
                self._wake(effect.at)
            case Note():
                self.log.info(effect.text)

    async def _keep_said(self) -> bool:
        """Make the spool what the worker holds; False when that failed, and the report must not be sent."""
        said = self.worker.said if isinstance(self.worker.said, Report) else None
        if said is self._kept:
            return True
        try:
            await in_thread(partial(self.ports.keep.said, said, self.worker.pending))
        except StorageFailed as error:
            self.log.error("cannot keep the report", why=error.message, hint=error.hint)
            if said is not None:
                self._put(Rejected(said.order, f"this node cannot keep it: {error.message}"))
                return False
        self._kept = said
        return True

    def _wake(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        after_s = max(0.0, at - self.ports.clock())
        self._alarm = asyncio.get_running_loop().call_later(after_s, self._put, Timer())

    def _amend(self, order: Order) -> None:
        if self._working is not None:
            self._working.of = order
            self._working.watch.amended.set()

    def _cancel(self) -> None:
        if self._working is not None:
            self.log.info("order withdrawn", order=shown(self.held))
            self._working.stop()
            self._working = None

    # Deliveries

    def _tell(self, said: Status) -> None:
        """Send a status once; one that is still on its way is let go, for this one says more."""
        if self._telling is not None:
            self._telling.cancel()
        self._telling = self._group.create_task(self._telling_once(said))

    async def _telling_once(self, said: Status) -> None:
        try:
            await in_thread(partial(self.ports.transport.status, self.job, said))
        except NotAllowed:
            raise
        except ShoalError as error:
            self.log.debug("status lost", why=error.message)

    def _deliver(self, said: Report | Fail) -> None:
        """Start to deliver, unless that is under way, or has been answered a moment ago: the answer waits its turn."""
        if self._delivery is not None and self._delivery.of is said:
            return
        watch = Watch()
        self._delivery = _Running(said, self._group.create_task(self._delivering(said, watch)), watch)

    async def _delivering(self, said: Report | Fail, watch: Watch) -> None:
        structlog.contextvars.bind_contextvars(round=said.version if isinstance(said, Report) else None)
        try:
            self.ports.at("report.sending")
            ack = await patiently(self.ports.backoff, partial(self._say, said, watch))
            self.ports.at("report.answered")
            self.log.info("counted" if ack.counted else f"not counted: {ack.why}", order=shown(said.order))
            answer: Event = ack
        except Cancelled:
            return
        except NotAllowed:
            raise
        except (Refused, InvalidPayload, StorageFailed) as error:
            answer = self._refused(said, error)
        self._put(answer)

    def _say(self, said: Report | Fail, watch: Watch) -> Ack:
        """In a thread: one try."""
        transport, keep = self.ports.transport, self.ports.keep
        if isinstance(said, Fail):
            return transport.fail(self.job, said)
        body = keep.payload(said.body) if said.body is not None else None
        with tracing.current.span("send", self._traced(said.order), **{"shoal.job": self.job, "shoal.node": said.node}):
            return transport.report(self.job, said, body, watch.cancelled)

    def _traced(self, order: OrderId) -> str:
        return tracing.current.noted((self.job, order), keep=True)

    def _refused(self, said: Report | Fail, error: ShoalError) -> Event:
        """The hub will not take it, now or later; or what was to be sent is gone from this disk."""
        self.log.warning("refused", order=shown(said.order), code=error.code, why=error.message, hint=error.hint)
        if isinstance(said, Fail) or error.code == "order.foreign":
            return Ack(said.order, False, error.message)
        return Rejected(said.order, error.message)

    # Work

    def _start(self, work: Work) -> None:
        watch = Watch()
        self._working = _Running(work.order, self._group.create_task(self._do(work, watch)), watch)

    async def _do(self, work: Work, watch: Watch) -> None:
        """Fetch, work, and feed what came of it; meanwhile say how far it is."""
        order, phase = work.order, DOWNLOAD
        structlog.contextvars.bind_contextvars(round=order.version)
        self.log.info("order taken", kind=order.kind, order=shown(order.id))
        beats = self._group.create_task(self._beat(order, watch))
        about: dict[str, tracing.Value] = {"shoal.job": self.job, "shoal.node": order.node}
        parent, about = self._traced(order.id), about | {"shoal.version": order.version}
        try:
            with tracing.current.span("receive", parent, **about):
                slots, base = await self._fetch(order.body, watch), await self._fetch(order.base, watch)
                await self._fetched(order, slots, base)
            phase = order.kind
            begin = partial(self.ports.begin, order, slots, base, work.memory, watch)
            with tracing.current.span("evaluate" if phase == "evaluate" else "train", parent, **about):
                done = Done(order.id, await self._pieces(begin, watch))
        except (Cancelled, asyncio.CancelledError):
            return
        except NotAllowed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the hub must hear of it
            told = whence(error) if self.ports.tracebacks else ""
            done = Done(order.id, error=one_line(error), phase=phase, traceback=told)
            self.log.warning("order failed", order=shown(order.id), why=done.error)
        finally:
            beats.cancel()
        self._put(done)

    async def _fetch(self, ref: Ref | None, watch: Watch) -> Slots:
        if ref is None:
            return {}
        transport = self.ports.transport
        slots = transport.at_hand(self.job, ref)
        if slots is None:
            slots = await patiently(self.ports.backoff, partial(transport.body, self.job, ref, watch.cancelled))
        return slots

    async def _fetched(self, order: Order, slots: Slots, base: Slots) -> None:
        """The bodies of an order have come."""

    async def _pieces(self, begin: Callable[[], Hand], watch: Watch) -> Result:
        """One piece after the other, each in its turn in the lane, until there is a result."""
        hand, made = await self.ports.lane.run(partial(self._first, begin, watch))
        while not isinstance(made, Result):
            if made is not None:
                self._put(Progress(made))
            while not hand.may_go_on(self._order_of(watch)):
                watch.amended.clear()
                await watch.amended.wait()
            made = await self.ports.lane.run(partial(hand.piece, self._order_of(watch)))
        return made

    def _first(self, begin: Callable[[], Hand], watch: Watch) -> tuple[Hand, Result | Status | None]:
        """In the lane: begin the order, and do its first piece in the same turn."""
        hand = begin()
        return hand, hand.piece(self._order_of(watch))

    def _order_of(self, watch: Watch) -> Order:
        """The order that is being worked on, as it reads now."""
        running = self._working
        if running is None or running.watch is not watch or not isinstance(running.of, Order):
            raise Cancelled("the order was withdrawn")
        return running.of

    async def _beat(self, order: Order, watch: Watch) -> None:
        """Say every now and then how far the work is; it's no matter when one of these is lost."""
        while True:
            await asyncio.sleep(self.ports.beat_s)
            try:
                await in_thread(partial(self.ports.transport.beat, self.job, order.id, watch.fraction))
            except NotAllowed:
                raise
            except ShoalError as error:
                self.log.debug("beat lost", why=error.message)


def shown(order: OrderId | None) -> str:
    """An order's id as it stands in addresses and logs."""
    return f"{order[0]}.{order[1]}" if order is not None else "none"


def one_line(error: BaseException) -> str:
    """An error as one line for people, without control characters."""
    if isinstance(error, ShoalError):
        text = f"{error.message} ({error.hint})" if error.hint else error.message
    else:
        text = f"{type(error).__name__}: {error}"
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:ERROR_CHARACTERS_MAX] or "unknown error"
