"""Models on their way between two peers, as their shells see them."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.peer_message import ExchangeId, MixingMessage, Offer, Part, PeerMessage


@dataclass(frozen=True)
class Transfer:
    """An event: a model that belongs to a message of `id` is on its way and has moved; `nbytes` of it have crossed.

    `leaving`: to that peer; else it comes from there. The message itself is heard when all of it has come.
    """

    node: str
    id: ExchangeId
    nbytes: int
    leaving: bool


def transfer_id(message: PeerMessage) -> ExchangeId | None:
    """By which a message that may carry a model is known, see `ExchangeId`; None: it never carries one."""
    if isinstance(message, Offer | Part):
        return (message.node, message.round, message.step if isinstance(message, Part) else 0)
    return message.id if isinstance(message, MixingMessage) else None
