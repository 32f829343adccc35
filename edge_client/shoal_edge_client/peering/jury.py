"""What a node of a coordinator declines while it mixes: models of far too great a loss, and all that is of somebody in
quarantine.

The rules are those of `peer.jury`. Models are measured beside the machine, before it hears of them; messages without
one wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from shoal.core.gossip import Decline
from shoal.core.message import Metrics, Ref
from shoal.core.peer_message import MixingMessage, PeerMessage
from shoal.runtime.threads import in_thread
from shoal_edge_client.peering.part import Part
from shoal_edge_client.workshop import Judge
from shoal_peer.company import Company
from shoal_peer.jury import QUARANTINE, Gate
from shoal_peer.link import Told

LATE = "its loss could not be measured in time"
"""Where the learner has no second process, a local round comes first. That is nobody's fault, and is not counted."""


@dataclass
class Heard:
    """A peer's message, and what its sender is answered. `why` it must not be mixed; empty: it may."""

    message: PeerMessage
    why: str = ""
    told: list[Told] = field(default_factory=list)

    @property
    def event(self) -> PeerMessage | Decline:
        """For the machine."""
        message = self.message
        return Decline(message, self.why) if self.why and isinstance(message, MixingMessage) else message


class Jury:
    """Of one job. `judge`: None where the job has no loss gate."""

    def __init__(self, part: Part, judge: Judge | None) -> None:
        self._part, self._judge = part, judge
        self._gate = Gate(self._theirs, self._own, part.spec.gossip.loss_gate)

    async def heard(self, messages: Sequence[PeerMessage], company: Company | None) -> list[Heard]:
        """Messages of one peer, as events: those that must not be mixed are declined."""
        return [Heard(message, await self._fault(message, company)) for message in messages]

    async def _fault(self, message: PeerMessage, company: Company | None) -> str:
        gossip = self._part.peer.gossip
        if company is not None and message.node in company.quarantine.nodes:
            return QUARANTINE
        if company is None or gossip is None or self._judge is None:
            return ""
        try:
            async with asyncio.timeout(self._part.spec.gossip.patience_s):
                why = await self._gate.fault(message, (self._part.peer.term, gossip.me.round))
        except TimeoutError:
            return LATE
        if why:
            company.refuse("peer.loss", why, message.node)
        return why

    async def _own(self) -> Metrics:
        gossip = self._part.peer.gossip
        return await self._judge(gossip.me.model) if gossip is not None and self._judge is not None else {}

    async def _theirs(self, shown: Ref) -> Metrics:
        gossip = self._part.peer.gossip
        if gossip is None or self._judge is None:
            return {}
        return await self._judge(await in_thread(partial(gossip.me.opened, shown)))
