"""Mailbox for peers that cannot be called: they get their messages with the answer to their next batch.

Bounded per peer, in messages and bytes of models; the oldest are dropped first, and each after its sender's
timeout. State machines tolerate lost messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.peering.http.peer_link import OutgoingMessage

MESSAGES_MAX = 64


@dataclass(frozen=True)
class QueuedMessage:
    """A message and the time at which it expires (seconds)."""

    message: OutgoingMessage
    until: float

    @property
    def nbytes(self) -> int:
        """Return the bytes of the model that accompanies the message."""
        source = self.message[1]
        return len(source) if source is not None else 0


class Mailbox:
    """Queues of messages for peers that call. They expire after `kept_s` seconds; each peer's models fit in
    `bytes_max()` bytes."""

    def __init__(
        self, kept_s: float, bytes_max: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept_s, self._bytes_max, self._clock = kept_s, bytes_max, clock
        self._boxes: dict[str, deque[QueuedMessage]] = {}
        self.dropped = 0
        """Number of messages that were not fetched in time, or did not fit."""

    def put(self, to: str, messages: Sequence[OutgoingMessage]) -> None:
        """Queue messages for a peer."""
        box = self._boxes.setdefault(to, deque())
        box.extend(QueuedMessage(one, self._clock() + self._kept_s) for one in messages)
        self._drop_expired(box)

    def take(self, to: str) -> list[OutgoingMessage]:
        """Remove and return the messages for a peer, in order."""
        box = self._boxes.pop(to, deque())
        self._drop_expired(box)
        return [one.message for one in box]

    def counts(self) -> dict[str, int]:
        """Return the number of queued messages by peer."""
        for box in self._boxes.values():
            self._drop_expired(box)
        return {to: len(box) for to, box in sorted(self._boxes.items()) if box}

    def _drop_expired(self, box: deque[QueuedMessage]) -> None:
        now, nbytes = self._clock(), sum(one.nbytes for one in box)
        while box and (box[0].until <= now or len(box) > MESSAGES_MAX or nbytes > self._bytes_max()):
            nbytes -= box.popleft().nbytes
            self.dropped += 1
