"""Power-of-choice: of a few candidates, the nodes with the highest loss.

Cho, Wang, Joshi: "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
Strategies", 2020, section 4. The hub draws d candidates in proportion to their examples, and of these the m with the
highest loss train. With `measure` candidates first evaluate the newest model on all their training data (pow-d). The
cheap variant without it (rpow-d) uses a candidate's mean loss over the local steps of its last training; candidates
without one come first. d = m is a draw by examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import ClassVar

from shoal.core.errors.ranges import NonNegativeInt
from shoal.core.scheduling.selection import Candidate, Picked, Selection, draw_by_examples, join_names


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Draw candidates by examples, and ask those with the highest loss: as measured now, or when they trained last."""

    name: ClassVar[str] = "power_of_choice"
    title: ClassVar[str] = "Power-of-choice (Cho et al. 2020)"
    uses_reports: ClassVar[bool] = True

    candidates: NonNegativeInt = 0
    """d: number of candidates, of which the nodes with the highest loss are asked; 0: twice the number asked."""

    measure: bool = False
    """True: send the newest model to all candidates to measure its loss; False: use the last known losses."""

    @property
    def candidate_count(self) -> int:
        """d."""
        return self.candidates

    @property
    def needs_probe(self) -> bool:
        """pow-d."""
        return self.measure

    def draw_candidates(self, candidates: Sequence[Candidate], count: int, rng: Random) -> tuple[str, ...]:
        """Draw d candidates by examples."""
        drawn = draw_by_examples(candidates, self._d(count), rng) if self.measure else []
        return tuple(sorted(one.node for one in drawn))

    def _d(self, count: int) -> int:
        return max(count, self.candidates or 2 * count)

    def pick(self, candidates: Sequence[Candidate], count: int, rng: Random) -> Picked:
        """Draw, then take the highest losses; equal ones in the order of the draw, which is random."""
        if count >= len(candidates):
            return super().pick(candidates, count, rng)
        drawn = draw_by_examples(candidates, self._d(count), rng)
        chosen = sorted(drawn, key=lambda one: -(inf if one.loss is None else one.loss))[:count]
        losses = [f"{one.node} {one.loss:.4g}" if one.loss is not None else f"{one.node} none yet" for one in chosen]
        why = f"highest loss of {len(drawn)} candidates ({join_names(losses)})"
        return Picked(tuple(sorted(one.node for one in chosen)), why)
