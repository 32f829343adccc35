"""Bytes that an answer costs on the links between levels, and the devices that take part.

Teerapittayanon et al. 2017, Eq. 1: a device sends  4 |C| + (1 - l) f o / 8  bytes per example: its class scores as
float32, and where the local exit (a fraction l of the examples) does not answer, f filters of o outputs in one bit
each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.core.errors import InvalidJob


@dataclass(frozen=True)
class Hop:
    """The links from one level to the next."""

    senders: int = 1
    """Machines of the lower level that take part."""
    scores: int = 0
    """Bytes that each sends for every example that reaches the level; 0 if the exit is on the machine itself."""
    features: int = 0
    """Bytes that each sends for an example that the level's exit does not answer."""


def score_bytes(classes: int) -> int:
    """Return the bytes of class scores as float32."""
    return 4 * classes


def packed_bytes(values: int) -> int:
    """Return the bytes of values of one bit."""
    return -(-values // 8)


def link_bytes(hops: Sequence[Hop], reached: Sequence[int]) -> list[int]:
    """Return the bytes on the links above each level but the last. `reached`: examples that came to each level."""
    return [
        hop.senders * (here * hop.scores + above * hop.features)
        for hop, here, above in zip(hops, reached[:-1], reached[1:], strict=True)
    ]


def bytes_per_answer(hops: Sequence[Hop], answered: Sequence[int]) -> float:
    """Return the mean bytes per answer, of all machines together, for the examples that each exit answers."""
    return sum(link_bytes(hops, [sum(answered[number:]) for number in range(len(answered))])) / sum(answered)


def present_devices(devices: int, left_out: Iterable[int] = ()) -> tuple[bool, ...]:
    """Return which devices take part. Raises `InvalidJob` for an unknown device, and if none remains."""
    absent = set(left_out)
    if unknown := sorted(absent - set(range(devices))):
        hint = f"devices are numbered from 0 to {devices - 1}"
        raise InvalidJob(f"there is no device {unknown[0]}", code="exits.devices", hint=hint)
    if len(absent) == devices:
        raise InvalidJob("all devices are left out", code="exits.devices", hint="an answer needs one of them")
    return tuple(number not in absent for number in range(devices))
