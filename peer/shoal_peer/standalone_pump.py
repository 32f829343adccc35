"""The pump of a peer without a coordinator: its machine is a `GossipPeer` from the beginning.

Save             the state is replaced durably before anything is sent
Work             passed to the trainer; the end comes back as `TaskDone`
LocalRoundDone, JobEvent    passed to the observer
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import structlog

from shoal.core.errors import Cancelled, ShoalError
from shoal.core.gossip.gossip import GossipPeer, LocalRoundDone, PeerEffect, StopGossip
from shoal.core.protocol.machine import JobEvent, MachineState, Save, TaskDone, TaskResult, Work
from shoal.core.protocol.peer_message import MixingMessage, PeerMessage
from shoal.peering.host.gossip_pump import GossipPump, Post
from shoal.peering.host.model_acceptance import ModelAcceptance
from shoal.peering.state.peer_state import PeerState

Perform = Callable[[Work], Awaitable[TaskResult]]
"""Does a task elsewhere. Raises `ShoalError`; `Cancelled` when the process ends."""


class GossipObserver(Protocol):
    """A receiver of progress. Called in the event loop."""

    def on_round(self, effect: LocalRoundDone) -> None:
        """Handle the end of a local round."""

    def on_event(self, note: JobEvent) -> None:
        """Handle a job event of the machine."""


class StandalonePump:
    """The pump of one job (`PeerMachine`). `clock` returns monotonic seconds."""

    def __init__(
        self,
        gossip: GossipPeer,
        state: PeerState,
        perform: Perform,
        observer: GossipObserver,
        acceptance: ModelAcceptance,
        post: Post,
        clock: Callable[[], float],
    ) -> None:
        self.gossip, self._state, self._perform, self._observer, self._clock = gossip, state, perform, observer, clock
        self.pump = GossipPump(self, self._apply, state.blobs, acceptance, post, clock)
        self._round: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger("peer.pump")

    async def stop_gossip(self, why: str, patience_s: float) -> bool:
        """Begin nothing new and wait until exchanges are settled; return False if some are still open."""
        await self.pump.events.submit(StopGossip(why))
        if self._round is not None:
            self._round.cancel()
        return await self.pump.wait_settled(patience_s, while_moving=True)

    def feed(self, event: Any) -> Sequence[PeerEffect]:
        gossip, state, before = self.gossip, self._state, self.gossip.me.model
        if isinstance(event, PeerMessage) and not isinstance(event, MixingMessage):
            self.log.warning("message ignored", message=type(event).__name__, peer=event.node)
            return []
        if isinstance(event, TaskDone) and event.result is not None:
            state.adopt_result(event.result)
        effects = gossip.start(self._clock()) if event is None else gossip.on(event, self._clock())
        if isinstance(event, TaskDone):
            state.record_update(before, gossip.me.model)
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, MachineState):
                state.save(effect.what.state)
        return [effect for effect in effects if not isinstance(effect, Save)]

    def sweep(self) -> None:
        self._state.sweep(self.gossip.blob_refs())

    def _apply(self, effects: Sequence[PeerEffect]) -> bool:
        for effect in effects:
            match effect:
                case Work():
                    self._round = self.pump.events.spawn(self._run_round(effect))
                case LocalRoundDone():
                    self._observer.on_round(effect)
                case JobEvent():
                    self._observer.on_event(effect)
        return bool(effects)

    async def _run_round(self, work: Work) -> None:
        try:
            done = TaskDone(work.task.id, await self._perform(work))
        except Cancelled:
            return
        except ShoalError as error:
            self.log.warning("the round failed", code=error.code, why=error.message, hint=error.hint)
            done = TaskDone(work.task.id, None, error.message)
        self.pump.events.submit_nowait(done)
