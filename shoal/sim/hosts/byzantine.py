"""An admitted peer that reports false counters, and the codec that honest messages must still pass.

It takes its steps correctly, so the weighted sum of all models must be conserved. But half of its messages carry false
version vectors and round numbers. An honest peer that adopted such a number would send unreadable messages;
`ByzantineWire` counts these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.peer_message import ModelOffer, PeerMessage, RingChunk, VersionVector
from shoal.wire import peer_codec
from shoal.wire.peer_codec import MessageBatch

GREATEST = 2**63 - 1
INVENTED = 3000
"""Names in one false version vector; two of them are more than one message may hold."""


class ByzantineWire:
    """The codec for all messages of a `GossipWorld`, which falsifies those of the peer `byzantine`."""

    def __init__(self, byzantine: str, names: Sequence[str], rng: Random) -> None:
        self._byzantine, self._rng = byzantine, rng
        self._honest = [name for name in names if name != byzantine]
        self.falsified = 0
        """False messages that others could read."""
        self.unreadable: list[tuple[str, str]] = []
        """(sender, error) of honest peers' unreadable messages."""

    def __call__(self, source: str, message: PeerMessage) -> PeerMessage | None:
        """Return the received message; None when decoding rejects it."""
        falsified = source == self._byzantine and self._rng.random() < 0.5
        delivered = self._falsify(message) if falsified else message
        try:
            peer_codec.decode(peer_codec.encode(MessageBatch("job", (delivered,)))[4:])
        except InvalidPayload as error:
            if source != self._byzantine:
                self.unreadable.append((source, error.message))
            return None
        self.falsified += falsified
        return delivered

    def _falsify(self, message: PeerMessage) -> PeerMessage:
        found: Any = message
        if hasattr(message, "version_vector"):
            falsify = self._rng.choice(FALSE_VECTORS)
            vector = falsify(dict(found.version_vector), self._honest, self._rng)
            found = replace(found, version_vector=vector)
        if isinstance(message, ModelOffer | RingChunk) and self._rng.random() < 0.5:
            found = replace(found, round=self._rng.choice((GREATEST, GREATEST - 1, 2**40)))
        result: PeerMessage = found
        return result


def _invented_names(_: VersionVector, honest: Sequence[str], rng: Random) -> VersionVector:
    first = rng.randrange(10) * INVENTED
    return {honest[0]: 1, **{f"x{number}": 1 for number in range(first, first + INVENTED)}}


def _greatest_count(seen: VersionVector, honest: Sequence[str], rng: Random) -> VersionVector:
    return {**seen, rng.choice(honest): rng.choice((GREATEST, GREATEST - 1))}


def _all_counted(seen: VersionVector, honest: Sequence[str], rng: Random) -> VersionVector:
    return {**seen, **dict.fromkeys(honest, rng.randrange(2**20, 2**63))}


FALSE_VECTORS: tuple[Callable[[VersionVector, Sequence[str], Random], VersionVector], ...] = (
    _invented_names,
    _greatest_count,
    _all_counted,
)
