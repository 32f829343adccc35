"""Feeds the two machines of a peer, and carries out what they want.

    a mixing message, Live, Done, Halt    `Gossip`, one after the other, each in a thread: models are read and written
    a membership message                  `Membership`, at once: it keeps nothing, and a Pong must not wait for a model
    the one alarm                         both

    Save          written durably before anything else that the same event wants
    Tell          the sender of what is being answered gets it in the answer, everybody else in a letter
    Work          the trainer; its end comes back as `Done`
    Wake          the alarm
    Learned       the round's measurements, for people, and for the books

Who answers waits until his message has been acted on. Bodies that nobody names any more are removed in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol

import structlog

from shoal.core.errors import Cancelled, ShoalError
from shoal.core.gossip import Decline, Gossip, Halt, Learned, Live, PeerEffect, PeerEvent
from shoal.core.machine import Done, Effect, Note, Result, Save, Standing, Tell, Timer, Wake, Work
from shoal.core.membership import Membership
from shoal.core.message import Ref
from shoal.core.peer_message import MembershipMessage, MixingMessage, PeerMessage
from shoal.core.transfer import Transfer
from shoal.peer_wire import body_of
from shoal.runtime.store import FileSource
from shoal.runtime.threads import in_thread
from shoal_peer.folder import Desk
from shoal_peer.link import Told

SWEEP_EVENTS = 16
"""How often bodies are removed that nobody names."""

Send = Callable[[str, Sequence[Told]], Coroutine[Any, Any, None]]
"""`(to, what)`: a letter; it raises nothing."""

Perform = Callable[[Work], Awaitable[Result]]
"""Does an order elsewhere. Raises `ShoalError`; `Cancelled` when the process ends."""


class Watch(Protocol):
    """Who wants to know how it goes. Called in the event loop."""

    def learned(self, effect: Learned) -> None:
        """A local round has ended."""

    def noted(self, note: Note) -> None:
        """A machine says something for people."""


@dataclass(frozen=True)
class Ports:
    """What a pump leans on. `clock`: seconds, never jumping."""

    desk: Desk
    send: Send
    perform: Perform
    clock: Callable[[], float]
    watch: Watch


@dataclass
class _Asked:
    """An event for `Gossip`, and who waits for what follows from it."""

    event: PeerEvent
    sender: str = ""
    answer: asyncio.Future[list[Told]] | None = None


@dataclass
class _Outcome:
    """What an event led to, all of it on the disk."""

    effects: Sequence[PeerEffect]
    sources: dict[Ref, FileSource]


class Pump:
    """One job of one peer. `run` ends when `stop` was called, and raises what makes going on senseless."""

    def __init__(self, gossip: Gossip, membership: Membership, ports: Ports) -> None:
        self.gossip, self.membership, self.ports = gossip, membership, ports
        self.log: Any = structlog.get_logger("peer.pump")
        self._queue: asyncio.Queue[_Asked | None] = asyncio.Queue()
        self._alarm: asyncio.TimerHandle | None = None
        self._gossip_at = inf
        self._there = Live(frozenset())
        self.shunned: frozenset[str] = frozenset()
        """With whom nothing is begun."""
        self._fed = 0
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    # Seen from outside

    async def run(self) -> None:
        """Pump until told to stop."""
        async with asyncio.TaskGroup() as group:
            self._tasks = group
            try:
                self._members(self.membership.start(self.ports.clock()))
                await self._do(await in_thread(self._begin), _Asked(Timer()))
                while (asked := await self._queue.get()) is not None:
                    await self._do(await in_thread(partial(self._feed, asked.event)), asked)
            finally:
                self._end()

    def stop(self) -> None:
        """Let `run` end."""
        self._queue.put_nowait(None)

    async def hear(self, messages: Sequence[PeerMessage], decline: Mapping[int, str] | None = None) -> list[Told]:
        """Take what one peer says in one letter; what it is answered. All messages are of the same peer.

        `decline`: by their places, those whose models must not be mixed, and why.
        """
        said: list[Told] = []
        waits: list[asyncio.Future[list[Told]]] = []
        for place, message in enumerate(messages if self._tasks is not None else ()):
            if isinstance(message, MembershipMessage):
                said += self._members(self.membership.on(message, self.ports.clock()), message.node)
            elif isinstance(message, MixingMessage):
                why = (decline or {}).get(place, "")
                waits.append(self._ask(Decline(message, why) if why else message, message.node))
            else:
                self.log.warning("nobody here to act on this", message=type(message).__name__, peer=message.node)
        return [*said, *(told for answer in await asyncio.gather(*waits) for told in answer)]

    def moved(self, transfer: Transfer) -> None:
        """A model is on its way."""
        self._ask(transfer, "")

    def shun(self, node: str) -> None:
        """Begin nothing with that peer any more."""
        self.shunned |= {node}
        self._look()

    async def halt(self, why: str, patience_s: float) -> bool:
        """Begin nothing new, and wait until exchanges are settled, for so long at most; whether they are."""
        await self._ask(Halt(why), "")
        if self._working is not None:
            self._working.cancel()
        return await self._settle(patience_s)

    async def leave(self) -> None:
        """Tell some that this peer goes."""
        await asyncio.gather(*(self.ports.send(to, [(body, None)]) for to, body in _tells(self.membership.leave())))

    # Membership

    def _members(self, effects: Sequence[Effect], sender: str = "") -> list[Told]:
        """Carry its effects out; what `sender` is answered."""
        answer: list[Told] = []
        for to, body in _tells(effects):
            if to == sender:
                answer.append((body, None))
            else:
                self._spawn(self.ports.send(to, [(body, None)]))
        for effect in effects:
            if isinstance(effect, Note):
                self.ports.watch.noted(effect)
        self._look()
        self._set_alarm()
        return answer

    def _look(self) -> None:
        """Let `Gossip` know who is there, if that has changed."""
        within = self.membership.within_reach() - self.shunned
        roster = frozenset({self.gossip.me.node, *(held.node for held in self.membership.beliefs())})
        there = Live(within, self.membership.away(), self.membership.live() - within - self.shunned, roster)
        if there != self._there:
            self._there = there
            self._ask(there, "")

    # Gossip

    def _ask(self, event: PeerEvent, sender: str) -> asyncio.Future[list[Told]]:
        answer: asyncio.Future[list[Told]] = asyncio.get_running_loop().create_future()
        if self._tasks is None:
            answer.set_result([])
        else:
            self._queue.put_nowait(_Asked(event, sender, answer))
        return answer

    def _begin(self) -> _Outcome:
        return self._kept(self.gossip.start(self.ports.clock()))

    def _feed(self, event: PeerEvent) -> _Outcome:
        """In a thread: one event, and on the disk what must not be forgotten of it."""
        desk, before = self.ports.desk, self.gossip.me.model
        if isinstance(event, Done) and event.result is not None:
            desk.adopt(event.result)
        effects = self.gossip.on(event, self.ports.clock())
        if isinstance(event, Done):
            desk.book(before, self.gossip.me.model)
        return self._kept(effects)

    def _kept(self, effects: Sequence[PeerEffect]) -> _Outcome:
        desk = self.ports.desk
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, Standing):
                desk.keep(effect.what.state)
        self._fed += 1
        sources = {
            ref: desk.bodies.open(ref) for one in effects if isinstance(one, Tell) and (ref := body_of(one.body))
        }
        if self._fed % SWEEP_EVENTS == 0:
            desk.sweep(self.gossip.names())
        return _Outcome(effects, sources)

    async def _do(self, outcome: _Outcome, asked: _Asked) -> None:
        """Carry out what an event led to."""
        answer: list[Told] = []
        letters: dict[str, list[Told]] = {}
        for to, body in _tells(outcome.effects):
            ref = body_of(body)
            told = body, outcome.sources[ref] if ref is not None else None
            (answer if to == asked.sender else letters.setdefault(to, [])).append(told)
        for to, many in letters.items():
            self._spawn(self.ports.send(to, many))
        self._gossip_at = inf
        for effect in outcome.effects:
            self._carry(effect)
        self._set_alarm()
        if self.gossip.mixer.busy:
            self._settled.clear()
        else:
            self._settled.set()
        if asked.answer is not None and not asked.answer.done():
            asked.answer.set_result(answer)

    def _carry(self, effect: PeerEffect) -> None:
        match effect:
            case Work():
                self._working = self._spawn(self._work(effect))
            case Wake():
                self._gossip_at = effect.at
            case Learned():
                self.ports.watch.learned(effect)
            case Note():
                self.ports.watch.noted(effect)

    async def _work(self, work: Work) -> None:
        try:
            done = Done(work.order.id, await self.ports.perform(work))
        except Cancelled:
            return
        except ShoalError as error:
            self.log.warning("the round failed", code=error.code, why=error.message, hint=error.hint)
            done = Done(work.order.id, None, error.message)
        self._ask(done, "")

    async def _settle(self, patience_s: float) -> bool:
        """Wait until nothing is open with other peers, for so long or while models move; whether nothing is."""
        end = self.ports.clock() + patience_s
        while not self._settled.is_set():
            try:
                async with asyncio.timeout(end - self.ports.clock()):
                    await self._settled.wait()
            except TimeoutError:
                end = self.gossip.mixer.moving_until
                if end <= self.ports.clock():
                    return False
        return True

    # Around

    def _spawn(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        task = self._tasks.create_task(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _set_alarm(self) -> None:
        """One alarm for both machines."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at = min(self.membership.alarm, self._gossip_at)
        if at < inf and self._tasks is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(0.0, at - self.ports.clock()), self._ring)

    def _ring(self) -> None:
        now = self.ports.clock()
        if now >= self._gossip_at:
            self._gossip_at = inf  # until it says so anew
            self._ask(Timer(), "")
        self._members(self.membership.on(Timer(), now))

    def _end(self) -> None:
        """Nothing is waited for any more. Calls in threads are not broken off: they end, and nobody listens."""
        self._tasks = None
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._running:
            task.cancel()
        while not self._queue.empty():
            asked = self._queue.get_nowait()
            if asked is not None and asked.answer is not None and not asked.answer.done():
                asked.answer.set_result([])


def _tells(effects: Sequence[PeerEffect]) -> list[tuple[str, PeerMessage]]:
    return [(effect.to, effect.body) for effect in effects if isinstance(effect, Tell)]
