"""Stages of a growing network: each has a model of its own, and ends after a number of rounds or at a plateau."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors.phrases import counted
from shoal.core.job.early_stop import EarlyStop

PLATEAU = EarlyStop("eval/loss")


@dataclass(frozen=True)
class Stage:
    """The end of a stage: what comes first. The last stage of a job has none."""

    rounds: int = 0
    """Rounds after which it ends; 0: any number."""
    plateau: EarlyStop = PLATEAU
    """The rule by which its metric no longer improves."""

    @property
    def ends(self) -> bool:
        """Return whether the stage can end before the job."""
        return self.rounds > 0 or self.plateau.is_used

    def reason(self, made: int) -> str:
        """Return why a stage ends after `made` rounds; "" if it goes on."""
        return counted(made, "round") if 0 < self.rounds <= made else ""
