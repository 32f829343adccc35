"""Models in transit between two peers, as their shells see them."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.protocol.peer_message import ExchangeId, MixingMessage, ModelOffer, PeerMessage, RingChunk


@dataclass(frozen=True)
class Transfer:
    """An event: `nbytes` of the model of message `id` have crossed so far.

    `leaving`: to that peer; else from there. The message itself arrives when all of it has crossed.
    """

    node: str
    id: ExchangeId
    nbytes: int
    leaving: bool


def transfer_id(message: PeerMessage) -> ExchangeId | None:
    """Return the id under which a message's model travels, see `ExchangeId`; None: it never carries one."""
    if isinstance(message, ModelOffer | RingChunk):
        return (message.node, message.round, message.step if isinstance(message, RingChunk) else 0)
    return message.id if isinstance(message, MixingMessage) else None
