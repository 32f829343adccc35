"""Progress of a model's transfer, reported to the machine so that it does not send or ask again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from shoal.core.gossip.transfer import Transfer, transfer_id
from shoal.core.protocol.peer_message import PeerMessage
from shoal.wire.payload import ByteSource

TELL_S = 1.0
"""Shortest time in seconds between two reports."""

PIECE_BYTES, PIECE_BYTES_MAX = 64 * 1024, 256 * 1024
"""Models are handed over in pieces of this size, so that even on a slow link bytes move every few seconds. A piece is
twice as long as one that was handed over within `QUICK_S`."""
QUICK_S = 0.01

OnTransfer = Callable[[Transfer], None]
"""In any thread."""


def ignore_transfer(_: Transfer) -> None:
    """Ignore the transfer."""


def pieces_of(source: ByteSource) -> Iterator[Any]:
    """Yield the bytes of a model in pieces, longer ones while they are taken quickly."""
    start, nbytes = 0, PIECE_BYTES
    while start < len(source):
        begun = time.monotonic()
        yield source[start : start + nbytes]
        start += nbytes
        nbytes = min(2 * nbytes, PIECE_BYTES_MAX) if time.monotonic() - begun < QUICK_S else PIECE_BYTES


class TransferProgress:
    """The model of one message, to or from `node`."""

    def __init__(self, tell: OnTransfer, node: str, message: PeerMessage, *, leaving: bool) -> None:
        self._tell, self._node, self._leaving = tell, node, leaving
        self._id, self._nbytes, self._told_at = transfer_id(message), 0, 0.0

    def add(self, nbytes: int) -> None:
        """Add transferred bytes; 0: the model waits for its turn."""
        self._nbytes += nbytes
        now = time.monotonic()
        if self._id is not None and now >= self._told_at + TELL_S:
            self._told_at = now
            self._tell(Transfer(self._node, self._id, self._nbytes, self._leaving))
