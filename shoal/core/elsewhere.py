"""What a peer that is at the server answers to those that mix without it: nobody must wait for it."""

from __future__ import annotations

from shoal.core.machine import Tell
from shoal.core.peer_message import (
    Busy,
    MixingMessage,
    Never,
    Reserve,
    Resolve,
    Settle,
    Swap,
    Swapped,
    Taken,
)


def elsewhere(node: str, message: MixingMessage) -> list[Tell]:
    """The answer of `node`, which takes part in no exchange now."""
    if isinstance(message, Reserve):
        return [Tell(message.node, Busy(node, message.id, "at the server"))]
    if isinstance(message, Swap | Resolve):
        return [Tell(message.node, Never(node, message.id, "at the server"))]
    if isinstance(message, Swapped | Taken):  # it handed back with nothing open: that it was settled was not heard
        return [Tell(message.node, Settle(node, message.id))]
    return []
