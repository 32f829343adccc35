"""Schedules of the local learning rate across rounds. Tasks of a version carry its rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

LrScheduleKind = Literal["constant", "cosine", "linear", "step"]


@dataclass(frozen=True)
class LrSchedule:
    """The local learning rate of each round, as a fraction of the algorithm's `lr`."""

    kind: LrScheduleKind = "constant"
    warmup_rounds: int = 0
    final_fraction: float = 0.0
    step_rounds: int = 10
    step_factor: float = 0.5

    @property
    def is_constant(self) -> bool:
        """Return whether every round has the algorithm's own rate."""
        return self.kind == "constant" and not self.warmup_rounds

    def fraction(self, version: int, rounds: int) -> float:
        """Return the fraction of `lr` for tasks of a version, in a job of that number of rounds.

        The first `warmup_rounds` rise linearly to 1. `cosine` (Loshchilov, Hutter 2017, equation 5, without restarts)
        and `linear` then fall towards `final_fraction`, `step` is multiplied by `step_factor` every `step_rounds`.
        """
        if version < self.warmup_rounds:
            return (version + 1) / (self.warmup_rounds + 1)
        after = version - self.warmup_rounds
        done = min(1.0, after / max(1, rounds - self.warmup_rounds))
        if self.kind == "constant":
            return 1.0
        if self.kind == "step":
            return float(self.step_factor ** (after // self.step_rounds))
        left = (1 + math.cos(math.pi * done)) / 2 if self.kind == "cosine" else 1 - done
        return self.final_fraction + (1 - self.final_fraction) * left
