"""Power-of-choice: of a few candidates those that the model serves worst.

Cho, Wang, Joshi: "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
Strategies", 2020, section 4. The hub draws d candidates in proportion to their examples, and of these the m with the
highest loss train. With `measure` candidates are first sent the newest model, and tell its loss on all their training
data (pow-d). Without it is the cheap variant (rpow-d): a candidate's loss is the mean over the local steps when it
trained last, so that nothing is sent to find it out; who has told none yet comes first. d = m is a draw by examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import ClassVar

from shoal.core.errors import InvalidJob
from shoal.core.selection import Candidate, Picked, Selection, draw, listed


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Of candidates drawn by examples, ask those with the highest loss: as measured now, or when they trained last."""

    name: ClassVar[str] = "power_of_choice"
    title: ClassVar[str] = "Power-of-choice (Cho et al. 2020)"
    chooses: ClassVar[bool] = True

    candidates: int = 0
    """d: nodes of which the ones with the highest loss are asked; 0: twice as many as are asked."""

    measure: bool = False
    """Let candidates measure the newest model first, which is sent to all of them; else go by the last known losses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 0:
            raise InvalidJob(
                f"power_of_choice: candidates is {self.candidates}, but must not be negative",
                hint="0 takes twice as many candidates as are asked",
            )

    @property
    def pool(self) -> int:
        """d."""
        return self.candidates

    @property
    def measures(self) -> bool:
        """pow-d."""
        return self.measure

    def candidates_of(self, candidates: Sequence[Candidate], count: int, rng: Random) -> tuple[str, ...]:
        """d of them, drawn by examples."""
        drawn = draw(candidates, self._d(count), rng) if self.measure else []
        return tuple(sorted(one.node for one in drawn))

    def _d(self, count: int) -> int:
        return max(count, self.candidates or 2 * count)

    def pick(self, candidates: Sequence[Candidate], count: int, rng: Random) -> Picked:
        """The draw, then the highest losses; equal ones in the order of the draw, which is random."""
        if count >= len(candidates):
            return super().pick(candidates, count, rng)
        drawn = draw(candidates, self._d(count), rng)
        chosen = sorted(drawn, key=lambda one: -(inf if one.loss is None else one.loss))[:count]
        told = [f"{one.node} {one.loss:.4g}" if one.loss is not None else f"{one.node} none yet" for one in chosen]
        why = f"highest loss of {len(drawn)} candidates ({listed(told)})"
        return Picked(tuple(sorted(one.node for one in chosen)), why)
