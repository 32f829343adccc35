"""Replies of a peer that reports to a coordinator, to peers that gossip: no exchange waits for it."""

from __future__ import annotations

from shoal.core.protocol.machine import Tell
from shoal.core.protocol.peer_message import (
    ExchangeAbort,
    ExchangeAccept,
    ExchangeCommit,
    ExchangeDeny,
    ExchangeOffer,
    ExchangeQuery,
    ExchangeRequest,
    MixingMessage,
    Received,
)


def deny_exchange(node: str, message: MixingMessage) -> list[Tell]:
    """Return the replies of `node`, which takes part in no exchange now."""
    if isinstance(message, ExchangeRequest):
        return [Tell(message.node, ExchangeDeny(node, message.id, "at the server"))]
    if isinstance(message, ExchangeOffer | ExchangeQuery):
        return [Tell(message.node, ExchangeAbort(node, message.id, "at the server"))]
    if isinstance(message, ExchangeAccept | Received):  # it handed back with nothing open; the commit was lost
        return [Tell(message.node, ExchangeCommit(node, message.id))]
    return []
