"""Messages that are repeated with growing pauses until they are acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", str, int, tuple[str, int, int])

PAUSE_MAX_S = 60.0

STILL_S = 5.0
"""Seconds without progress after which a model in transit may be lost. Shells report progress every second."""


class Retransmissions(Generic[K]):
    """Keys of unacknowledged messages. The first repetition comes after `first_s`; each pause is doubled."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._due: dict[K, tuple[float, float]] = {}
        self.moving_until = -inf
        """Until when a message is assumed to be in transit."""

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def keys(self) -> set[K]:
        """Return all unacknowledged keys."""
        return set(self._due)

    @property
    def alarm(self) -> float:
        """Return the time when the next repetition is due."""
        return min((at for at, _ in self._due.values()), default=inf)

    def add(self, key: K, now: float) -> None:
        """Add a message that was just sent."""
        self._due[key] = now + self._first_s, 2 * self._first_s

    def postpone(self, key: K, now: float) -> None:
        """Postpone the repetition of a message in transit."""
        if key in self._due:
            at, pause = self._due[key]
            self._due[key] = max(at, now + STILL_S), pause
            self.moving_until = now + STILL_S

    def add_due(self, keys: Iterable[K]) -> None:
        """Add messages of an earlier process, due at once."""
        self._due |= dict.fromkeys(keys, (0.0, self._first_s))

    def drop(self, key: K) -> None:
        """Drop an acknowledged message."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Drop all."""
        self._due.clear()

    def take_due(self, now: float) -> list[K]:
        """Return the keys to repeat now, sorted, and schedule their next repetition."""
        due = sorted(key for key, (at, _) in self._due.items() if now >= at)
        for key in due:
            pause = self._due[key][1]
            self._due[key] = now + pause, min(PAUSE_MAX_S, 2 * pause)
        return due
