"""Checks of a batch's claimed numbers of examples against the roster: a weight, or a share of all weights."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.peer_message import (
    ExchangeAccept,
    ExchangeOffer,
    ModelOffer,
    PeerMessage,
    PushShare,
    RingChunk,
)
from shoal.trust.documents import RosterEntry
from shoal.wire.peer_codec import MessageBatch


def check_claims(batch: MessageBatch, sender: str, members: Sequence[RosterEntry]) -> None:
    """Raise `InvalidPayload` (`peer.weight`) for more examples than the roster allows.

    `ExchangeOffer`, `ExchangeAccept` and `ModelOffer` claim the sender's own; `Push` and `RingChunk` a share of all
    weights. In the final averaging (`shoal.core.mixing.final_averaging`) a mass is the mean of several peers' examples,
    or the sum of two. If the roster has no limit (0), any number is allowed.
    """
    allowed = {peer.node: peer.examples for peer in members}
    known = all(allowed.values())
    for message in batch.messages:
        claimed, most = _claim(message), allowed.get(sender, 0)
        if isinstance(message, PushShare | RingChunk):
            most = sum(allowed.values()) if known else 0
        elif isinstance(message, ExchangeOffer | ExchangeAccept) and message.step:
            most = 2 * max(allowed.values()) if known else 0
        if most and claimed > most:
            raise InvalidPayload(
                f"{sender} claims a weight of {claimed:g}; the roster allows {most}",
                code="peer.weight",
                hint="have the operator admit the node with more examples",
            )


def _claim(message: PeerMessage) -> float:
    """Return the examples that a message claims its blob to speak for."""
    match message:
        case ExchangeOffer() | ExchangeAccept() | ModelOffer() | RingChunk():
            return message.weight
        case PushShare():
            return message.mass
    return 0.0
