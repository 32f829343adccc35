"""The pump of a peer's machine, with or without a coordinator.

    a message of a peer   reviewed, then fed; the messages to its sender are the answer
    other events          fed one after the other, in a thread: models are read and written

    Tell                  an answer if the sender of the event is addressed, else a batch
    Wake                  sets the alarm
    all other effects     carried out by the host (`Apply`)

Membership messages do not come here: `PeerGroup` answers them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.core.gossip.gossip import GossipPeer, PeerEffect
from shoal.core.protocol.machine import Tell, Timer, Wake
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import PeerMessage, RelayRequest
from shoal.peering.host.model_acceptance import ModelAcceptance, ReceivedMessage
from shoal.peering.http.peer_link import OutgoingMessage
from shoal.peering.state.peer_blobs import PeerBlobs
from shoal.runtime.event_pump import EventPump, feed_in_thread
from shoal.wire.payload import ByteSource
from shoal.wire.peer_codec import blob_of

SWEEP_EVENTS = 16
"""Events between two sweeps of blobs that nothing needs."""

Post = Callable[[str, Sequence[OutgoingMessage]], None]
"""Sends messages to a peer in the background."""


class PeerMachine(Protocol):
    """A peer's machine with its durable state: what differs with and without a coordinator."""

    @property
    def gossip(self) -> GossipPeer | None:
        """Return the gossiping peer; None while a coordinator leads the job."""
        ...

    def feed(self, event: Any) -> Sequence[PeerEffect]:
        """Feed one event (None: the start) and save what must last; return the other effects. Runs in a thread."""
        ...

    def sweep(self) -> None:
        """Remove blobs that nothing needs. Runs in a thread, between two events."""
        ...


Apply = Callable[[Sequence[PeerEffect]], bool]
"""Carries out effects other than batches and alarms; returns whether anything has changed."""


@dataclass(frozen=True)
class FedEvent:
    """The effects of an event, all of it saved, and the models that messages carry."""

    effects: Sequence[PeerEffect]
    sources: dict[BlobRef, ByteSource]


@dataclass(frozen=True)
class PeerAnswer:
    """The answer to an event: messages to its sender, and whether it changed anything."""

    messages: list[OutgoingMessage] = field(default_factory=list)
    changed: bool = False


class GossipPump:
    """The pump of one job. `events.run(None)` runs it until `events.close()`."""

    def __init__(
        self,
        machine: PeerMachine,
        apply: Apply,
        blobs: PeerBlobs,
        acceptance: ModelAcceptance,
        post: Post,
        clock: Callable[[], float],
    ) -> None:
        self._machine, self._carry_out, self._blobs = machine, apply, blobs
        self._acceptance, self._post, self._clock = acceptance, post, clock
        self.events: EventPump[Any, FedEvent, PeerAnswer] = EventPump(
            feed_in_thread(self._feed), self._apply, alarm_event=Timer(), answer_at_end=PeerAnswer(), clock=clock
        )
        self._fed_count = 0
        self._settled = asyncio.Event()

    async def handle_messages(self, messages: Sequence[PeerMessage]) -> list[OutgoingMessage]:
        """Feed the messages of one batch; return the answers."""
        received = await self._acceptance.review(messages)
        answers = await asyncio.gather(*(self.events.submit(one) for one in received))
        return [message for answer in answers for message in answer.messages]

    async def wait_settled(self, patience_s: float, *, while_moving: bool = False) -> bool:
        """Wait until no exchange is open; return False if some still are.

        `while_moving`: wait longer than `patience_s` seconds while models are being transferred.
        """
        end = self._clock() + patience_s
        while not self._settled.is_set():
            try:
                async with asyncio.timeout(end - self._clock()):
                    await self._settled.wait()
            except TimeoutError:
                gossip = self._machine.gossip
                end = gossip.mixer.moving_until if while_moving and gossip is not None else end
                if end <= self._clock():
                    return False
        return True

    def _feed(self, event: Any) -> FedEvent:
        effects = self._machine.feed(event.event if isinstance(event, ReceivedMessage) else event)
        refs = {blob_of(effect.message) for effect in effects if isinstance(effect, Tell)}
        sources = {ref: self._blobs.source(ref) for ref in refs if ref is not None}
        self._fed_count += 1
        if self._fed_count % SWEEP_EVENTS == 0:
            self._machine.sweep()
        return FedEvent(effects, sources)

    def _apply(self, event: Any, fed: FedEvent) -> PeerAnswer:
        batches: dict[str, list[OutgoingMessage]] = {}
        rest: list[PeerEffect] = []
        for effect in fed.effects:
            if isinstance(effect, Tell) and not isinstance(effect.message, RelayRequest):
                ref = blob_of(effect.message)
                batches.setdefault(effect.to, []).append(
                    (effect.message, fed.sources[ref] if ref is not None else None)
                )
            elif isinstance(effect, Wake):
                self.events.set_alarm(effect.at)
            else:
                rest.append(effect)
        answer = batches.pop(event.message.node, []) if isinstance(event, ReceivedMessage) else []
        changed = self._carry_out(rest)
        for to, messages in batches.items():
            self._post(to, messages)
        gossip = self._machine.gossip
        if gossip is not None and gossip.mixer.is_busy:
            self._settled.clear()
        else:
            self._settled.set()
        return PeerAnswer(answer, changed or bool(answer or batches))
