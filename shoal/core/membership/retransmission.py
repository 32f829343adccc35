"""What is sent again, less and less often, until something makes it needless."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", str, int, tuple[str, int, int])

PAUSE_MAX_S = 60.0

STILL_S = 5.0
"""A model on its way that has not moved for so long may be lost. Shells tell every second or so that it moves."""


class Repeats(Generic[K]):
    """Keys of messages that may have been lost. The first repetition comes after `first_s`, each pause is doubled."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._due: dict[K, tuple[float, float]] = {}
        self.moving_until = -inf
        """Until when something is believed to be on its way."""

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def keys(self) -> set[K]:
        """What is still sent."""
        return set(self._due)

    @property
    def alarm(self) -> float:
        """When the next one is due."""
        return min((at for at, _ in self._due.values()), default=inf)

    def add(self, key: K, now: float) -> None:
        """It has been sent just now."""
        self._due[key] = now + self._first_s, 2 * self._first_s

    def postpone(self, key: K, now: float) -> None:
        """It is on its way."""
        if key in self._due:
            at, pause = self._due[key]
            self._due[key] = max(at, now + STILL_S), pause
            self.moving_until = now + STILL_S

    def add_due(self, keys: Iterable[K]) -> None:
        """An earlier process may have sent these: they are due at once."""
        self._due |= dict.fromkeys(keys, (0.0, self._first_s))

    def drop(self, key: K) -> None:
        """It need not be sent any more."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Nothing need be sent any more."""
        self._due.clear()

    def take_due(self, now: float) -> list[K]:
        """Those to be sent now, in order."""
        due = sorted(key for key, (at, _) in self._due.items() if now >= at)
        for key in due:
            pause = self._due[key][1]
            self._due[key] = now + pause, min(PAUSE_MAX_S, 2 * pause)
        return due
