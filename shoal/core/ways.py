"""Who can speak to whom: not everybody can be called."""

from __future__ import annotations

from dataclasses import dataclass

COLLECT = 8
"""So many others are called in each period by a peer that nobody can call."""


@dataclass(frozen=True)
class Ways:
    """How one peer reaches the others. Whoever is not named here can simply be called."""

    callers: frozenset[str] = frozenset()
    """They call this peer, and get what it has to say in the answer: later, or never."""
    hidden: frozenset[str] = frozenset()
    """Neither can call the other. What others say of them is believed."""
    collect: int = 0
    """How many others to call in each period to get what they have to say; 0: they can call this peer."""

    @property
    def uncallable(self) -> frozenset[str]:
        """Whom this peer cannot call."""
        return self.callers | self.hidden
