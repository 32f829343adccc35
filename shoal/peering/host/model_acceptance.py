"""The models of other peers that are not mixed: those of quarantined peers, and those of a far greater loss.

A model is evaluated before the machine receives its message; other messages do not wait.

The loss filter rejects models whose loss on this peer's own data is far greater than its own model's. Rejecting is part
of the protocol: neither side mixes, and nothing is lost (`Mixer.decline`). It is possible until this peer takes its
step. The peer that started an exchange sees the other's model after that one's step and must take its own: the filter
protects peers that are asked, and clipping protects those that ask. That model is evaluated and counted all the same,
so that its sender is quarantined after three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import ShoalError
from shoal.core.gossip.gossip import GossipPeer, ModelRejected
from shoal.core.model.joined_trees import split_trees
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef, Metrics
from shoal.core.protocol.peer_message import (
    ExchangeAccept,
    ExchangeOffer,
    MixingMessage,
    ModelOffer,
    PeerMessage,
    PushShare,
)
from shoal.peering.host.peer_group import PeerGroup
from shoal.peering.host.quarantine import QUARANTINE
from shoal.runtime.threads import in_thread

LOSS = "eval/loss"
LOSS_FLOOR, LOSS_MARGIN = 0.3, 0.5
"""The least own loss that is compared with, and the excess that is always allowed."""

LATE = "its loss could not be measured in time"
"""The reason for a model whose evaluation had to wait for a local round. It is not counted as a refusal."""

Evaluator = Callable[[Tree], Awaitable[Metrics]]
"""Returns a model's metrics on this node's own held-out data. Raises `ShoalError`."""


@dataclass(frozen=True)
class ReceivedMessage:
    """A message of a peer. `rejection`: why its model must not be mixed; empty if it may."""

    message: PeerMessage
    rejection: str = ""

    @property
    def event(self) -> PeerMessage | ModelRejected:
        """Return the event for the machine."""
        message = self.message
        if self.rejection and isinstance(message, MixingMessage):
            return ModelRejected(message, self.rejection)
        return message


class LossFilter:
    """A filter that rejects models of more than `times` this peer's own loss. It evaluates one model at a time.

    `theirs` evaluates a received model, `own` this peer's, on this peer's data; they raise `ShoalError`.
    """

    def __init__(
        self, theirs: Callable[[BlobRef], Awaitable[Metrics]], own: Callable[[], Awaitable[Metrics]], times: float
    ) -> None:
        self._theirs, self._own, self._times = theirs, own, times
        self._turn = asyncio.Lock()
        self._when: Hashable = None
        self._own_loss: float | None = None

    async def rejection(self, message: PeerMessage, when: Hashable) -> str:
        """Return why this message's model must not be mixed; empty if it may, also if evaluation fails.

        `when`: this peer's round; its own model is measured once in each.
        """
        if not isinstance(message, ExchangeOffer | ExchangeAccept | PushShare | ModelOffer):
            return ""
        async with self._turn:
            try:
                if when != self._when:
                    self._own_loss, self._when = (await self._own()).get(LOSS), when
                theirs = (await self._theirs(message.blob)).get(LOSS)
            except ShoalError:
                return ""
        if theirs is None or self._own_loss is None or not isfinite(self._own_loss):
            return ""
        most = self._times * max(self._own_loss, LOSS_FLOOR) + LOSS_MARGIN
        return "" if theirs <= most else f"its loss here is {theirs:.4g}; at most {most:.4g}, by this peer's own"


class ModelAcceptance:
    """The loss filter and quarantine of one job. `gossip` and `group` return None while there is none.

    `evaluate`: None if the job has no loss filter. An evaluation that takes longer than `timeout_s` rejects the model.
    """

    def __init__(
        self,
        gossip: Callable[[], GossipPeer | None],
        group: Callable[[], PeerGroup | None],
        evaluate: Evaluator | None,
        loss_ratio_max: float,
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._gossip, self._group, self._evaluate, self._timeout_s = gossip, group, evaluate, timeout_s
        self._loss_filter = LossFilter(self._evaluate_shown, self._evaluate_own, loss_ratio_max)

    async def review(self, messages: Sequence[PeerMessage]) -> list[ReceivedMessage]:
        """Return the messages of one peer, with the reasons why models must not be mixed."""
        return [ReceivedMessage(message, await self._rejection(message)) for message in messages]

    async def _rejection(self, message: PeerMessage) -> str:
        gossip, group = self._gossip(), self._group()
        if group is not None and message.node in group.refusals.quarantined:
            return QUARANTINE
        if group is None or gossip is None or self._evaluate is None:
            return ""
        try:
            async with asyncio.timeout(self._timeout_s):
                why = await self._loss_filter.rejection(message, (gossip, gossip.me.local_rounds))
        except TimeoutError:
            return LATE
        if why:
            group.record_refusal("peer.loss", why, message.node)
        return why

    async def _evaluate_own(self) -> Metrics:
        gossip = self._gossip()
        return await self._evaluate(gossip.me.model) if gossip is not None and self._evaluate is not None else {}

    async def _evaluate_shown(self, shown: BlobRef) -> Metrics:
        gossip = self._gossip()
        if gossip is None or self._evaluate is None:
            return {}
        theirs = await in_thread(partial(gossip.me.open_model, shown))
        return await self._evaluate(tree_slot(split_trees(theirs, gossip.me.slots), "model"))
