"""The membership of one job in the event loop: its messages, its alarm, and the live peers that follow from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf

from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.membership.membership import Membership
from shoal.core.protocol.machine import Effect, JobEvent, Tell, Timer
from shoal.core.protocol.peer_message import MembershipMessage
from shoal.peering.host.message_router import MessageRouter
from shoal.peering.host.quarantine import Refusals
from shoal.peering.http.peer_link import OutgoingMessage


class MembershipRunner:
    """The runner of a `Membership`. `on_event` receives its events, `on_live_peers` each change of the live peers."""

    def __init__(
        self,
        membership: Membership,
        router: MessageRouter,
        refusals: Refusals,
        on_event: Callable[[JobEvent], None],
        on_live_peers: Callable[[LivePeers], None],
    ) -> None:
        self._membership, self._router, self._refusals = membership, router, refusals
        self._on_event, self._on_live_peers = on_event, on_live_peers
        self.live = LivePeers(frozenset())
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def roster(self) -> frozenset[str]:
        """Return the names of all admitted peers."""
        return frozenset({self._membership.node, *(held.node for held in self._membership.members())})

    def start(self) -> None:
        """Announce this peer."""
        self._apply(self._membership.start(time.monotonic()))

    def handle(self, message: MembershipMessage) -> list[OutgoingMessage]:
        """Handle a message; return the answers to its sender."""
        return self._apply(self._membership.on(message, time.monotonic()), message.node)

    def update_live(self) -> None:
        """Report the live peers if they have changed, and set the alarm."""
        quarantined, membership = self._refusals.quarantined, self._membership
        live = (membership.reachable() & self._router.reachable) - quarantined
        peers = LivePeers(live, membership.dead(), membership.live() - live - quarantined, self.roster)
        if peers != self.live:
            self.live = peers
            self._on_live_peers(peers)
        self._stop_alarm()
        if membership.alarm < inf and not self._router.is_closed:
            after_s = max(0.0, membership.alarm - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(after_s, self._on_alarm)

    async def leave(self) -> None:
        """Tell peers that this one leaves."""
        effects = self._membership.leave()
        tells = [(effect.to, effect.message) for effect in effects if isinstance(effect, Tell)]
        await asyncio.gather(*(self._router.send(to, [(body, None)]) for to, body in tells))

    def close(self) -> None:
        """Stop the alarm."""
        self._stop_alarm()

    def _apply(self, effects: Sequence[Effect], sender: str = "") -> list[OutgoingMessage]:
        """Apply effects; return the answers to `sender`."""
        answer: list[OutgoingMessage] = []
        for effect in effects:
            if isinstance(effect, Tell) and effect.to == sender:
                answer.append((effect.message, None))
            elif isinstance(effect, Tell):
                self._router.post(effect.to, [(effect.message, None)])
        for effect in effects:
            if isinstance(effect, JobEvent):
                self._on_event(effect)
        self.update_live()
        return answer

    def _on_alarm(self) -> None:
        self._apply(self._membership.on(Timer(), time.monotonic()))

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
