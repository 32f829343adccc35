"""How far a model has come on its way: told to the machine now and then, so that it does not send or ask again."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.core.peer_message import PeerMessage
from shoal.core.transfer import Transfer, transfer_id

TELL_S = 1.0
"""How often, at most."""

PIECE_BYTES = 64 * 1024
"""Models are handed over in pieces of so many bytes, so that also on a slow link something moves every few seconds."""

Tell = Callable[[Transfer], None]
"""In any thread."""


def nobody(_: Transfer) -> None:
    """Nobody wants to know."""


class Progress:
    """The model of one message, to or from `node`."""

    def __init__(self, tell: Tell, node: str, message: PeerMessage, *, leaving: bool) -> None:
        self._tell, self._node, self._leaving = tell, node, leaving
        self._id, self._nbytes, self._told_at = transfer_id(message), 0, 0.0

    def add(self, nbytes: int) -> None:
        """So many more bytes have crossed; 0: it waits for its turn."""
        self._nbytes += nbytes
        now = time.monotonic()
        if self._id is not None and now >= self._told_at + TELL_S:
            self._told_at = now
            self._tell(Transfer(self._node, self._id, self._nbytes, self._leaving))
