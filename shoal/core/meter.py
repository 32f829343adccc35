"""How many bytes a peer may still send and receive: a token bucket.

Turner: "New Directions in Communications (or Which Way to the Information Age?)", IEEE Communications Magazine 24,
1986. What has been saved up is at most ten minutes' worth, or one exchange where that is more. Over any time t

    bytes  <=  saved up + t * rate + one message

because nothing new is begun that is not saved up for, and what must be said again is said while anything is left.
Everything that crosses is counted, but neither who is there nor the way back to a server ever waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import Any

HOUR_S, SAVED_S = 3600.0, 600.0
"""So many seconds' worth can be saved up."""

PAUSE_S = 1.0
"""Who is short of a few bytes waits for so long all the same: asking costs some, too."""

STEPS = 64
"""What is left is kept rounded down to so many steps of a full bucket: a disk need not be written for every byte."""


def _nothing() -> int:
    return 0


HEAD_BYTES = 4096
"""What a message takes beside its model, generously: heads of requests, signatures, who has learned how much."""


def exchange_bytes(model_bytes: int) -> int:
    """What an exchange takes: a model there and one back."""
    return 2 * (model_bytes + HEAD_BYTES)


class Meter:
    """Counts down while bytes cross, and up with time. `bytes_per_hour`: 0 for no limit.

    `crossed` says how many bytes have crossed by now, over all: what a shell has counted. A process that starts again
    goes on with what was left, and gets nothing for the time between.
    """

    def __init__(self, bytes_per_hour: float = 0.0, crossed: Callable[[], int] = _nothing) -> None:
        self.bytes_per_hour = bytes_per_hour
        self.crossed = crossed
        self._rate = bytes_per_hour / HOUR_S
        self.most = self._rate * SAVED_S if bytes_per_hour else inf
        """Bytes that can be saved up."""
        self.left = self.most
        self._at: float | None = None
        self._new = True  # nothing is left of an earlier process
        self._counted = crossed()
        self._ahead = 0  # of what was told, and has not been seen to cross

    def fit(self, nbytes: int) -> None:
        """So much is needed at once: it can be saved up."""
        if self.most < nbytes:
            self.left += nbytes - self.most if self._new else 0.0
            self.most = float(nbytes)

    def see(self, now: float) -> None:
        """Time has gone by, and bytes have crossed."""
        if not self.bytes_per_hour:
            return
        passed = now - self._at if self._at is not None else 0.0
        self._at = now
        self.left = min(self.most, self.left + self._rate * passed)
        total = self.crossed()
        crossed, self._counted = max(0, total - self._counted), total
        known = min(crossed, self._ahead)
        self._ahead -= known
        self.left -= crossed - known

    def told(self, nbytes: int) -> None:
        """So much is about to be sent: it counts from now on, and not again when it crosses."""
        if self.bytes_per_hour:
            self._ahead += nbytes
            self.left -= nbytes

    def affords(self, nbytes: int) -> bool:
        """Whether something new of this size may be begun."""
        return self.left >= nbytes

    @property
    def open(self) -> bool:
        """Whether something may be said again, whatever its size: anything is left."""
        return self.left >= 0

    def wait_s(self, nbytes: int) -> float:
        """Seconds until it may be begun; 0: now. `nbytes` was said to `fit`, or is less."""
        return 0.0 if self.affords(nbytes) else max(PAUSE_S, (nbytes - self.left) / self._rate)

    def worth_s(self, nbytes: int) -> float:
        """Seconds in which so much comes together."""
        return nbytes / self._rate if self.bytes_per_hour else 0.0

    # What survives

    def state(self) -> float | None:
        """What is left, as a JSON value; None without a limit."""
        if not self.bytes_per_hour:
            return None
        step = max(1, ceil(self.most / STEPS))
        return self.left // step * step

    def restore(self, kept: float | None) -> None:
        """Go on with what an earlier process had left."""
        if kept is not None:
            self._new, self.left = False, min(self.most, kept)

    def shown(self, nbytes: int) -> dict[str, Any] | None:
        """For people, as JSON values; None without a limit. `nbytes`: of what would be begun."""
        if not self.bytes_per_hour:
            return None
        return {
            "bytes_per_hour": self.bytes_per_hour,
            "left": round(self.left),
            "wait_s": round(self.wait_s(nbytes), 1),
        }
