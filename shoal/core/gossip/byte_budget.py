"""A token bucket: the bytes that a peer may still send and receive.

Turner: "New Directions in Communications (or Which Way to the Information Age?)", IEEE Communications Magazine 24,
1986. The bucket holds ten minutes' worth, or one exchange where that is more. Over any time t

    bytes  <=  capacity + t * rate + one message

because an exchange begins only when the balance covers it, and a repetition is sent while the balance is positive. All
bytes count, but membership and the way back to a coordinator never wait for the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import Any

HOUR_S, SAVED_S = 3600.0, 600.0
"""Seconds of income that the bucket holds."""

PAUSE_S = 1.0
"""Shortest wait in seconds, also where few bytes are missing: asking costs bytes, too."""

STEPS = 64
"""The stored balance is rounded down to this many steps of a full bucket, so that not every byte causes a write."""


def _zero() -> int:
    return 0


HEAD_BYTES = 4096
"""Upper estimate of a message's bytes beside its model: HTTP heads, signatures, version vectors."""


def exchange_bytes(model_bytes: int) -> int:
    """Return the bytes of an exchange: a model in each direction."""
    return 2 * (model_bytes + HEAD_BYTES)


class ByteBudget:
    """A balance that falls with bytes and rises with time. `bytes_per_hour`: 0 for no limit.

    `crossed` returns the bytes sent and received so far, as the shell counts them. A new process goes on with the
    stored balance, and earns nothing for the time between.
    """

    def __init__(self, bytes_per_hour: float = 0.0, crossed: Callable[[], int] = _zero) -> None:
        self.bytes_per_hour = bytes_per_hour
        self.crossed = crossed
        self._rate = bytes_per_hour / HOUR_S
        self.capacity = self._rate * SAVED_S if bytes_per_hour else inf
        """Most bytes that can be saved up."""
        self.balance = self.capacity
        self._at: float | None = None
        self._new = True  # nothing is left of an earlier process
        self._counted = crossed()
        self._ahead = 0  # bytes announced and not yet counted by `crossed`

    def ensure_capacity(self, nbytes: int) -> None:
        """Raise the capacity so that `nbytes` can be saved up."""
        if self.capacity < nbytes:
            self.balance += nbytes - self.capacity if self._new else 0.0
            self.capacity = float(nbytes)

    def refresh(self, now: float) -> None:
        """Add the income since the last call, and subtract the bytes that have crossed."""
        if not self.bytes_per_hour:
            return
        passed = now - self._at if self._at is not None else 0.0
        self._at = now
        self.balance = min(self.capacity, self.balance + self._rate * passed)
        total = self.crossed()
        crossed, self._counted = max(0, total - self._counted), total
        known = min(crossed, self._ahead)
        self._ahead -= known
        self.balance -= crossed - known

    def charge(self, nbytes: int) -> None:
        """Subtract bytes that are about to be sent; they do not count again when they cross."""
        if self.bytes_per_hour:
            self._ahead += nbytes
            self.balance -= nbytes

    def affords(self, nbytes: int) -> bool:
        """Return whether something new of this size may begin."""
        return self.balance >= nbytes

    @property
    def is_positive(self) -> bool:
        """Return whether a repetition of any size may be sent."""
        return self.balance >= 0

    def wait_s(self, nbytes: int) -> float:
        """Return the seconds until something of this size may begin; 0: now. `nbytes` is at most the capacity."""
        return 0.0 if self.affords(nbytes) else max(PAUSE_S, (nbytes - self.balance) / self._rate)

    def seconds_to_earn(self, nbytes: int) -> float:
        """Return the seconds in which `nbytes` are earned."""
        return nbytes / self._rate if self.bytes_per_hour else 0.0

    # Stored state

    def state(self) -> float | None:
        """Return the rounded balance as a JSON value; None without a limit."""
        if not self.bytes_per_hour:
            return None
        step = max(1, ceil(self.capacity / STEPS))
        return self.balance // step * step

    def restore(self, kept: float | None) -> None:
        """Continue with the balance of an earlier process."""
        if kept is not None:
            self._new, self.balance = False, min(self.capacity, kept)

    def status(self, nbytes: int) -> dict[str, Any] | None:
        """Return JSON values for people, None without a limit. `nbytes`: size of the next exchange."""
        if not self.bytes_per_hour:
            return None
        return {
            "bytes_per_hour": self.bytes_per_hour,
            "left": round(self.balance),
            "wait_s": round(self.wait_s(nbytes), 1),
        }
