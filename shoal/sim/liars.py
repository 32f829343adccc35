"""An admitted peer that lies about what it counts, and the wire that honest messages must still pass.

It takes its steps as it should, so the weighted sum of all models must stay where it is. But half of what it sends says
something else about who has learned how much and which round it is. An honest peer that took such a number over would
send what nobody can read: `Wire` counts that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from shoal import peer_wire
from shoal.core.errors import InvalidPayload
from shoal.core.peer_message import Offer, Part, PeerMessage, Seen
from shoal.peer_wire import Letter

GREATEST = 2**63 - 1
INVENTED = 3000
"""Names in one lie; two lies are more than a version vector may name."""


class Wire:
    """What the messages of a flock go through: `liar` speaks for itself, all others as their machines do."""

    def __init__(self, liar: str, names: Sequence[str], rng: Random) -> None:
        self._liar, self._rng = liar, rng
        self._honest = [name for name in names if name != liar]
        self.lies = 0
        """Messages of the liar that others could read."""
        self.unreadable: list[tuple[str, str]] = []
        """(sender, why) of messages that an honest peer has sent and nobody could read."""

    def __call__(self, source: str, message: PeerMessage) -> PeerMessage | None:
        """Return what arrives; None when it is refused before any machine sees it."""
        lies = source == self._liar and self._rng.random() < 0.5
        said = self._spoilt(message) if lies else message
        try:
            peer_wire.decode(peer_wire.encode(Letter("job", (said,)))[4:])
        except InvalidPayload as error:
            if source != self._liar:
                self.unreadable.append((source, error.message))
            return None
        self.lies += lies
        return said

    def _spoilt(self, message: PeerMessage) -> PeerMessage:
        found: Any = message
        if hasattr(message, "seen"):
            found = replace(found, seen=self._rng.choice(SEEN_LIES)(dict(found.seen), self._honest, self._rng))
        if isinstance(message, Offer | Part) and self._rng.random() < 0.5:
            found = replace(found, round=self._rng.choice((GREATEST, GREATEST - 1, 2**40)))
        told: PeerMessage = found
        return told


def _invented(_: Seen, honest: Sequence[str], rng: Random) -> Seen:
    first = rng.randrange(10) * INVENTED
    return {honest[0]: 1, **{f"x{number}": 1 for number in range(first, first + INVENTED)}}


def _greatest(seen: Seen, honest: Sequence[str], rng: Random) -> Seen:
    return {**seen, rng.choice(honest): rng.choice((GREATEST, GREATEST - 1))}


def _everybody(seen: Seen, honest: Sequence[str], rng: Random) -> Seen:
    return {**seen, **dict.fromkeys(honest, rng.randrange(2**20, 2**63))}


SEEN_LIES: tuple[Callable[[Seen, Sequence[str], Random], Seen], ...] = (_invented, _greatest, _everybody)
