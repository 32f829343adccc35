"""One job's pump: takes events, journals them, feeds the hub, carries out what follows.

    tell(event) ─ queue ─ batch ─ append + commit ─ feed in a thread ─ answer ─ project (versions, notes, snapshot)

Events that arrive while one batch is on the disk form the next: that is the group commit. The order of the journal is
the order of feeding. Nothing is answered before its event is durable, and nothing is fed that is not; so a crash at any
point is repaired by `start`, which feeds the journal to the last snapshot again.

What the hub says counts only while it rests (`rests`, `settled`): an event that breaks it half-way will not have
happened, and a hub that is being restored knows nobody. Whoever answers a node must look only then.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import Refused, StorageFailed, message_of
from shoal.core.hub import Hub
from shoal.core.hub_state import state_refs
from shoal.core.machine import Boot, Effect, Event, NoteKind, Save, Send, Timer, Version, Wake
from shoal.core.message import Ack, Kind, Order, Ref, Report
from shoal.core.tree import Slots
from shoal.runtime import tracing
from shoal.runtime.store import FileBodies
from shoal.spec import JobSpec
from shoal.wire import payload_layout
from shoal_coordinator import failures, journal
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.journal import Entry, Fed
from shoal_coordinator.reports import counted
from shoal_coordinator.services import Services
from shoal_coordinator.start import Start
from shoal_coordinator.stopwatch import Stopwatches
from shoal_coordinator.stream import Item
from shoal_coordinator.uploads import Form, Uploads
from shoal_coordinator.waiting import Line, Waiting

log = structlog.get_logger()

BATCH_MAX = 256
"""Events that share one commit."""

NAP_S_MAX = 3600.0
"""Longest wait for an alarm in one piece: event loops cannot wait for ever, and jobs may say so."""

RETRY_S = 2.0
"""Pause before a write that failed (a full disk) is tried again."""

SETTLE_S = 5.0
"""How long an answer waits for a hub that is being restored. (One that is merely busy is waited for to the end.)"""

ENDED = ("done", "stopped")


class Driver:
    """The only one that touches a job's hub. Others may read it from the event loop while it rests."""

    def __init__(self, spec: JobSpec, start: Start, bodies: FileBodies, services: Services) -> None:
        self.spec, self.name, self.bodies, self._services = spec, spec.name, bodies, services
        self._plan = spec.plan(start.model, start.version, start.term)
        self._algorithm, self._schedule = spec.build_algorithm(), spec.build_schedule()
        self._sides = ThreadPoolExecutor(min(spec.shards, os.cpu_count() or 1), f"shards of {spec.name}")
        self.hub = self._new_hub(None)
        self.uploads, self.watches = Uploads(bodies, services.settings), Stopwatches(self.now)
        self.uploads.limit_nodes(services.node_bytes, self.discard)
        self._seq = 0
        self._clock_base, self._clock_zero = 0.0, time.monotonic()
        self._alarm: float | None = None
        self._line = Line()
        self._pins: defaultdict[str, int] = defaultdict(int)
        self._unprojected: list[Fed] = []
        self._projected = asyncio.Event()  # set each time that there is nothing of that
        self._durable: set[str] = set()  # bodies that the snapshot on the disk needs
        self._needed: dict[int, str] = {}  # bodies of reports that a replay would fold, by their event
        self._task: asyncio.Task[None] | None = None
        self._begun, self._stopping = asyncio.Event(), asyncio.Event()
        self._resting = asyncio.Event()  # set while the hub is what the journal says, and no event is half-way through
        self._turned = asyncio.Event()  # set while no event is half-way through: it rests, or is being restored
        self._asking: set[str] = set()  # nodes whose polls found it busy
        self.restoring = True
        self.ended, self.term, self.life = False, 0, 0  # as the hub said when it rested last
        self._forms: dict[Kind, Form] = {}  # fixed from version 0 on
        self.mode_since: float | None = None  # wall clock: when the job's mode changed last
        self._along: tuple[Ref | None, bytes] = None, b""  # the body that went along with the last order
        self.trouble = ""
        self.closed: list[Version] = []  # closed and projected since somebody last looked (evaluation, retention)

    def _new_hub(self, state: dict[str, Any] | None) -> Hub:
        parts = (self._plan, self._algorithm, self._schedule, self.bodies)
        hub = Hub(*parts) if state is None else Hub.restore(*parts, state)
        hub.each = self._sides.map
        return hub

    # Outside

    def now(self) -> float:
        """Seconds on the job's clock: it runs while the coordinator does, and never jumps."""
        return self._clock_base + time.monotonic() - self._clock_zero

    async def start(self) -> None:
        """Restore the hub from the journal, say `Boot`, and go on. Returns when that is done, or is in trouble."""
        self._task = asyncio.create_task(self._serve(), name=f"job {self.name}")
        await self._begun.wait()

    async def stop(self) -> None:
        """Finish the batch in hand and let go. Nothing has to be saved: the journal is."""
        self._stopping.set()
        self._line.end()
        if self._task is not None:
            await self._task
        self._sides.shutdown()

    async def tell(self, event: Event, body: bytes | None = None) -> Sequence[Effect]:
        """Journal an event, feed it, and return what followed. Raises `StorageFailed` when it could not be kept."""
        if self.restoring:
            await self.settled()
        return await self._put(event, body)

    def leave_word(self, event: Event) -> None:
        """Like `tell`, but nobody waits: a job that is being restored takes it up afterwards."""
        self._put(event)

    def _put(self, event: Event, body: bytes | None = None) -> asyncio.Future[Sequence[Effect]]:
        waiting = Waiting(event, body)
        if self._task is not None and self._task.done():
            waiting.fail(StorageFailed(f"job {self.name} is not led here any more", hint="send again in a moment"))
        self._line.put(waiting)
        return waiting.future

    async def answer(self, event: Event, node: str, body: bytes | None = None) -> Ack:
        """Like `tell`, for an event that is acknowledged to its node."""
        for effect in await self.tell(event, body):
            if isinstance(effect, Send) and effect.to == node and isinstance(effect.body, Ack):
                return effect.body
        raise Refused("the hub gave no answer", code="order.none", hint="poll again")

    def expected(self, kind: Kind) -> Form | None:
        """The form of a body that answers an order of that kind; None where any model will do."""
        if kind not in ("train", "gossip"):
            return None
        if kind not in self._forms:
            filtered = kind == "train" and self._plan.filters
            self._forms[kind] = Form(payload_layout(self.hub.expects(kind)), self._opened if filtered else None)
        return self._forms[kind]

    def _opened(self, slots: Slots) -> Slots:
        return self.hub.opened(slots, "train")

    def check_gossip(self) -> None:
        """Raise `Refused` unless the job's nodes may carry it on by themselves."""
        if not self.spec.gossip.allowed:
            raise Refused(
                f"job {self.name} does not allow that its nodes carry it on by themselves",
                code="gossip.not-allowed",
                hint="say allowed = true under [gossip] in its file, and begin it as a new job",
            )

    async def settled(self) -> None:
        """Wait until the hub rests. Raises `StorageFailed` when the job is being restored for longer than that."""
        while not self._resting.is_set():
            await (self._restored() if self.restoring else self._turned.wait())

    async def _restored(self) -> None:
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._resting.wait()
        except TimeoutError:
            if self.restoring:
                raise self._not_now() from None

    def rests(self, node: str) -> bool:
        """Whether the hub's word counts now; if not, the node's bell rings when it does."""
        if not self._resting.is_set():
            self._asking.add(node)
        return self._resting.is_set()

    def _not_now(self) -> StorageFailed:
        return StorageFailed(f"job {self.name} is being restored: {self.trouble}", hint="send again in a moment")

    @property
    def owns(self) -> bool:
        """Whether nobody else can lead this job: else nothing may be removed that another may need."""
        return self._services.database.owns and not self._stopping.is_set()

    @property
    def behind(self) -> bool:
        """Whether something that happened could not be written down for people yet."""
        return bool(self._unprojected)

    async def written(self) -> None:
        """Wait until all that has happened is written down for people. Raises `StorageFailed` when that takes long."""
        await self.settled()
        if self.behind:
            self._projected.clear()
            try:
                await asyncio.wait_for(self._projected.wait(), SETTLE_S)
            except TimeoutError:
                raise StorageFailed(f"job {self.name} is behind: {self.trouble}", hint="ask again soon") from None

    def order_of(self, node: str) -> Order | None:
        """The order that stands for a node."""
        member = self.hub.roster.get(node)
        return member.order if member is not None else None

    def along(self, ref: Ref) -> bytes:
        """A small body that goes along with an order; read once, since all nodes get the same."""
        if self._along[0] != ref:
            self._along = ref, self.bodies.open(ref)[:]
        return self._along[1]

    def discard(self, digest: str) -> None:
        """Remove a body that has just come and was refused, unless something else needs the same."""
        if digest not in self.in_use() and self.owns:
            self.bodies.delete(digest)

    @contextmanager
    def pinned(self, digest: str) -> Iterator[None]:
        """While open, the body of that digest is not cleared away."""
        self._pins[digest] += 1
        try:
            yield
        finally:
            self._pins[digest] -= 1
            if not self._pins[digest]:
                del self._pins[digest]

    def in_use(self) -> set[str]:
        """Digests of bodies that a replay, the hub's orders or a request in hand still need."""
        hub = self.hub
        digests = set(self._needed.values()) | set(self._pins)
        return digests | self._durable | {ref.digest for ref in hub.refs()}

    # The loop

    async def _serve(self) -> None:
        await self._rebuild()
        if not self.restoring:
            await self._take([Waiting(Boot(time.time(), life=secrets.randbits(52) + 1))])
        self._begun.set()
        while not self.restoring:  # it still is only when the end came meanwhile: that hub must not take anything
            batch, ends = await self._gather()
            if batch:
                await self._take(batch)
            if ends:
                await self._project()
                break
        self._line.tell(StorageFailed("the job is not led here any more", hint="send again in a moment"))

    async def _gather(self) -> tuple[list[Waiting], bool]:
        """All that waits, or a Timer when the alarm is due; and whether this is the end."""
        delay = None if self._alarm is None else min(max(0.0, self._alarm - self.now()), NAP_S_MAX)
        try:
            async with asyncio.timeout(delay):
                await self._line.come()
        except TimeoutError:
            if self._alarm is not None and self._alarm > self.now():
                return [], False
            self._alarm = None
            return [Waiting(Timer())], False
        batch = self._line.take(BATCH_MAX)
        return batch, self._line.ends and not self._line

    async def _take(self, batch: list[Waiting]) -> None:
        """One batch from the queue to the answers."""
        now, at = self.now(), time.time()
        entries = [Entry(self._seq + i, now, at, one.event, one.body) for i, one in enumerate(batch, start=1)]
        try:
            await self._services.database.write(lambda c: journal.append(c, self.name, entries))
        except StorageFailed as error:
            self._not_kept(batch, error)
            return
        self._seq += len(batch)
        self._note_needs(entries)
        if not self.behind:  # else it is not over until that is written too
            self.trouble = ""
        crashpoint("driver.journaled")
        self._resting.clear()
        self._turned.clear()
        try:
            fed = await asyncio.to_thread(self._feed, entries)
        except Exception as error:  # noqa: BLE001 - whatever it is, the hub's state is in doubt
            await self._recover(batch, error)
            return
        crashpoint("driver.fed")
        self._carry(fed)
        for waiting, one in zip(batch, fed, strict=True):
            waiting.succeed(one.effects)
        self._time(fed)
        self._unprojected += fed
        if not self._line or len(self._unprojected) >= BATCH_MAX or any(one.state is not None for one in fed):
            await self._project()  # else with what waits already: answers come first, and one write does for both

    def _note_needs(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry.event, Report) and entry.event.body is not None and entry.body is None:
                self._needed[entry.seq] = entry.event.body.digest

    def _not_kept(self, batch: list[Waiting], error: StorageFailed) -> None:
        """Nothing was journaled, so nothing has happened: say so. A timer makes up for what nobody else tells again."""
        self._trouble(error.message)
        for waiting in batch:
            waiting.fail(error)
        if any(isinstance(waiting.event, Timer | Boot) for waiting in batch):
            self._ring_soon()

    def _ring_soon(self) -> None:
        """Feed a timer in a moment. One too many does no harm: the hub looks at the time, and a batch is projected."""
        soon = self.now() + RETRY_S
        self._alarm = soon if self._alarm is None else min(self._alarm, soon)

    def _feed(self, entries: Sequence[Entry]) -> list[Fed]:
        """In a thread: large reports are folded here."""
        metrics, fed = self._services.metrics, partial(self._feed_one, self.hub)
        return [
            metrics.fold(self.name, fed, entry) if isinstance(entry.event, Report) else fed(entry) for entry in entries
        ]

    def _feed_one(self, hub: Hub, entry: Entry) -> Fed:
        ended, order, report = hub.phase in ENDED, failures.in_hand(hub, entry.event), counted(hub, entry.event)
        with self.bodies.lent(entry.inline()):
            effects = hub.on(entry.event, entry.now)
        keep = any(isinstance(e, Save) for e in effects) or (hub.phase in ENDED and not ended)
        failure = failures.found(hub, order, entry.event, effects) if order is not None else None
        report = report if report is not None and report.is_in(effects) else None
        return Fed(entry, effects, hub.state() if keep else None, failure, report)

    def _time(self, fed: Sequence[Fed]) -> None:
        """Add how long the orders of reports that counted took. A replay leaves what was written before."""
        for report in (one.report for one in fed if one.report is not None):
            report.phases, report.at_s = self.watches.finish(report.node, report.order), self.now()

    def _carry(self, fed: Sequence[Fed]) -> None:
        """The hub rests again: ring the bells, set the alarm."""
        self.ended, self.term, self.life = self.hub.phase in ENDED, self.hub.boot, self.hub.life
        self.mode_since = max((one.entry.at for one in fed if one.moves), default=self.mode_since)
        self._resting.set()
        self._turned.set()
        for node in self._asking:
            self._services.bells[node].set()
        self._asking.clear()
        for one in fed:
            for effect in one.effects:
                if isinstance(effect, Send) and not isinstance(effect.body, Ack):  # that is an answer, and no news
                    self._services.bells[effect.to].set()
                    if isinstance(effect.body, Order):
                        self.watches.given(effect.to, effect.body.id)
                elif isinstance(effect, Wake):
                    self._alarm = effect.at
        if self.ended:
            self._alarm = None

    async def _project(self) -> None:
        """Write down what people read. If the disk refuses, it is written with the next batch."""
        mine, began_ns = list(self._unprojected), tracing.now_ns()
        try:
            items = await self._services.database.write(lambda c: journal.project(c, self.name, mine))
        except StorageFailed as error:
            self._trouble(error.message)
            self._ring_soon()
            return
        crashpoint("driver.projected")
        self._unprojected.clear()
        self._projected.set()
        self.trouble = ""
        durable = max((one.entry.seq for one in mine if one.state is not None), default=0)
        self._needed = {seq: digest for seq, digest in self._needed.items() if seq > durable}
        states = [one.state for one in mine if one.state is not None]
        if states:
            self._durable = {ref.digest for ref in state_refs(states[-1])}
        self.closed += self._services.metrics.closed(self.name, [v for one in mine for v in one.versions], began_ns)
        self._broadcast(items)
        if any(one.state is not None or one.notes for one in mine):
            self._services.broadcast.tell(Item("job", self.name, {}))

    # Repair

    async def _recover(self, batch: list[Waiting], error: Exception) -> None:
        """Feeding failed half-way, so the hub's state cannot be trusted: rebuild it from the journal.

        The events are in the journal, and count if they can be fed then; so nobody is told yea or nay.
        """
        log.error("an event broke the hub; rebuilding", job=self.name, error=repr(error), exc_info=error)
        self.restoring = True
        self._turned.set()
        self._trouble(message_of(error))
        for waiting in batch:
            waiting.fail(error if isinstance(error, StorageFailed) else self._not_now())
        asyncio.get_running_loop().call_later(SETTLE_S, self._send_away)
        await self._rebuild()
        if not self.ended:
            self._ring_soon()  # the event that broke it may have been the timer

    def _send_away(self) -> None:
        """Nobody waits for longer than that; whether their events happen, they learn when they come again."""
        if self.restoring and not self._stopping.is_set():
            self._line.tell(self._not_now())
            asyncio.get_running_loop().call_later(SETTLE_S, self._send_away)

    async def _rebuild(self) -> None:
        """Restore the hub, however long that takes. Ends without having done it only when the coordinator stops."""
        while not self._stopping.is_set():
            try:
                await self._restore()
                return
            except StorageFailed as failure:  # a full disk, a body that is missing: wait for help
                self._trouble(failure.message)
            except Exception as failure:  # noqa: BLE001 - a bug met by one event must not end the job
                if await self._set_aside_poison(failure):
                    continue
                self._trouble(f"cannot be restored: {failure!r}")
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._stopping.wait()

    async def _restore(self) -> None:
        """Rebuild the hub: last snapshot, then the events since; their effects are projected, but not sent."""
        state, now, entries, seq = await self._services.database.write(lambda c: journal.load(c, self.name))
        hub = self._new_hub(state)
        fed = await asyncio.to_thread(lambda: [self._feed_one(hub, entry) for entry in entries])
        if self.bodies.far:  # what goes along with orders is read where nobody may wait
            await asyncio.to_thread(self.bodies.fetch, hub.refs())
        self.hub, self._seq = hub, seq
        self.mode_since = await self._services.database.write(lambda c: journal.moved_at(c, self.name))
        self._durable = {ref.digest for ref in state_refs(state)} if state is not None else set()
        self._clock_base, self._clock_zero = now, time.monotonic()
        self._needed.clear()
        self._note_needs(entries)
        self._unprojected = fed
        self.trouble, self.restoring = "", False
        self._carry(fed)
        if fed:
            log.info("replayed", job=self.name, events=len(fed), version=hub.version)
            await self._project()

    async def _set_aside_poison(self, failure: Exception) -> bool:
        """Find the first event that breaks the hub, and take it out of the history; False when none could be."""
        write = self._services.database.write
        try:
            state, _, entries, _ = await write(lambda c: journal.load(c, self.name))
            hub = self._new_hub(state)
            for entry in entries:
                try:
                    await asyncio.to_thread(self._feed_one, hub, entry)
                except StorageFailed:  # no fault of the event's
                    raise
                except Exception as error:  # noqa: BLE001 - this is the one
                    log.error("event set aside", job=self.name, seq=entry.seq, error=repr(error))
                    kind, node = type(entry.event).__name__, getattr(entry.event, "node", "")
                    text = f"event {entry.seq} ({kind} {node}) breaks the hub and was set aside: {message_of(error)}"
                    note = journal.note("warning", text, hub.version, node)
                    items = await write(partial(journal.set_aside, job=self.name, seq=entry.seq, why=note))
                    self._broadcast(items)
                    return True
        except Exception as error:  # noqa: BLE001 - a snapshot that cannot be read, or the disk
            log.error("the search for the event failed", job=self.name, error=repr(error), after=repr(failure))
        return False

    def _trouble(self, text: str) -> None:
        """Let people see what is wrong; a start does not wait for it to be over."""
        if text != self.trouble:
            log.error("job in trouble", job=self.name, error=text)
        self.trouble = text
        self._begun.set()

    # What people are told

    async def remark(self, kind: NoteKind, text: str, node: str = "") -> None:
        """A note that follows from no event."""
        await self.publish("note", journal.note(kind, text, self.hub.version, node))

    async def publish(self, topic: str, data: dict[str, Any]) -> None:
        """Put something into the feed, and tell the browsers."""
        self._broadcast(await self._services.database.write(lambda c: journal.tell_aside(c, self.name, topic, data)))

    def _broadcast(self, items: Sequence[Item]) -> None:
        for item in items:
            self._services.broadcast.tell(item)
