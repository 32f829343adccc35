"""By examples: the more a node trains on, the more often it is asked.

Li, Huang, Yang, Wang, Zhang: "On the Convergence of FedAvg on Non-IID Data", ICLR 2020, section 3.3: a draw with
the probabilities p_k = n_k / n (scheme I; there with replacement, here without, so that nobody is asked twice at once).
In that scheme the drawn models are averaged with *equal* weights, for the draw has weighed them already: an algorithm
that weighs reports by their examples counts large nodes twice. FedProx with `plain` weighs them equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from shoal.core.selection import Candidate, Picked, Selection, draw, listed


@dataclass(frozen=True)
class ByExamples(Selection):
    """Draw in proportion to the examples of a node's last update (who has sent none: the mean of the others)."""

    name: ClassVar[str] = "examples"
    title: ClassVar[str] = "By number of examples (Li et al. 2020)"
    chooses: ClassVar[bool] = True

    def pick(self, candidates: Sequence[Candidate], count: int, rng: Random) -> Picked:
        """A weighted draw without replacement."""
        if count >= len(candidates):
            return super().pick(candidates, count, rng)
        drawn = sorted(draw(candidates, count, rng), key=lambda one: one.node)
        told = [f"{one.node} {one.examples:g}" if one.examples else f"{one.node} unknown" for one in drawn]
        return Picked(tuple(one.node for one in drawn), f"drawn by examples ({listed(told)})")
