"""What waits here for peers that cannot be called: they get it with the answer to their next letter.

Bounded for each of them, in messages and in bytes of models; the oldest go first, and nothing waits for longer than its
sender would. A message may be lost, and the machines live with that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal_peer.link import Told

MESSAGES_MAX = 64


@dataclass(frozen=True)
class Waiting:
    """A message, and until when somebody wants it (seconds)."""

    told: Told
    until: float

    @property
    def nbytes(self) -> int:
        """Of the model that goes with it."""
        source = self.told[1]
        return len(source) if source is not None else 0


class Mailbox:
    """Messages wait for `kept_s` seconds, and models of `bytes_max()` bytes for each peer."""

    def __init__(
        self, kept_s: float, bytes_max: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept_s, self._bytes_max, self._clock = kept_s, bytes_max, clock
        self._boxes: dict[str, deque[Waiting]] = {}
        self.dropped = 0
        """Messages that nobody came for in time, or that there was no room for."""

    def put(self, to: str, told: Sequence[Told]) -> None:
        """Let these wait."""
        box = self._boxes.setdefault(to, deque())
        box.extend(Waiting(one, self._clock() + self._kept_s) for one in told)
        self._tidy(box)

    def take(self, to: str) -> list[Told]:
        """All that waits for that peer, in its order."""
        box = self._boxes.pop(to, deque())
        self._tidy(box)
        return [one.told for one in box]

    def waiting(self) -> dict[str, int]:
        """How many messages wait for whom."""
        for box in self._boxes.values():
            self._tidy(box)
        return {to: len(box) for to, box in sorted(self._boxes.items()) if box}

    def _tidy(self, box: deque[Waiting]) -> None:
        now, nbytes = self._clock(), sum(one.nbytes for one in box)
        while box and (box[0].until <= now or len(box) > MESSAGES_MAX or nbytes > self._bytes_max()):
            nbytes -= box.popleft().nbytes
            self.dropped += 1
