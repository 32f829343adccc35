"""Selection with probabilities proportional to the nodes' numbers of examples.

Li, Huang, Yang, Wang, Zhang: "On the Convergence of FedAvg on Non-IID Data", ICLR 2020, section 3.3: a draw with
the probabilities p_k = n_k / n (scheme I; there with replacement, here without, so no node is asked twice at once).
In that scheme the models are averaged with *equal* weights, because the sampling has weighted them already: an
algorithm that weights updates by examples counts large nodes twice. FedProx with `uniform_weights` avoids that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from shoal.core.scheduling.selection import Candidate, Picked, Selection, draw_by_examples, join_names


@dataclass(frozen=True)
class ByExamples(Selection):
    """Draw in proportion to the examples of a node's last update (who has sent none: the mean of the others)."""

    name: ClassVar[str] = "examples"
    title: ClassVar[str] = "By number of examples (Li et al. 2020)"
    uses_reports: ClassVar[bool] = True

    def pick(self, candidates: Sequence[Candidate], count: int, rng: Random) -> Picked:
        """Draw by weight, without replacement."""
        if count >= len(candidates):
            return super().pick(candidates, count, rng)
        drawn = sorted(draw_by_examples(candidates, count, rng), key=lambda one: one.node)
        counts = [f"{one.node} {one.examples:g}" if one.examples else f"{one.node} unknown" for one in drawn]
        return Picked(tuple(one.node for one in drawn), f"drawn by examples ({join_names(counts)})")
