"""Words of the sentences that people read."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number and what it counts: 1 node, 4 nodes."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
