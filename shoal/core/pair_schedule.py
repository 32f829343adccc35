"""Who meets whom at the end, so that all models become their exact mean in a few meetings: a hypercube, by names.

With n peers, in order of their names, of which p = 2^k are the greatest power of two that there is:

    fold      the other n - p each meet one of the p, and leave all that they speak for with it, but for a crumb
    halves    k times: who differs in one binary digit of the place meet, and each then speaks for half of both
    unfold    the n - p meet the same ones again

Two that meet both take the mean of their models, by what each speaks for (its mass). So the sum of mass times model
stays, whoever is missing afterwards, and after the last meeting all models are the mean of all.

Recursive doubling: Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004; masses: Kempe, Dobra,
Gehrke, FOCS 2003.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

CRUMB = 2.0**-20
"""What an extra peer keeps of what it and its partner speak for together: a mass must not be nothing."""


@dataclass(frozen=True)
class Step:
    """A meeting. `keeps`: the share of what both speak for together that this peer speaks for afterwards."""

    partner: str
    keeps: float = 0.5


def steps_of(members: Sequence[str], node: str) -> tuple[Step, ...]:
    """The meetings of one of these peers, in their order."""
    names = sorted(members)
    inner = 1 << (len(names).bit_length() - 1)
    place = names.index(node)
    if place >= inner:
        partner = names[place - inner]
        return (Step(partner, CRUMB), Step(partner))
    halves = [Step(names[place ^ (1 << digit)]) for digit in range(inner.bit_length() - 1)]
    if place + inner >= len(names):
        return tuple(halves)
    extra = names[place + inner]
    return (Step(extra, 1 - CRUMB), *halves, Step(extra))


def name_of(members: Sequence[str], attempt: int) -> str:
    """By which peers know that they mean the same meetings."""
    return f"{attempt}/{hashlib.sha256(chr(10).join(sorted(members)).encode()).hexdigest()[:16]}"
