"""The rule by which a job ends before its last round: a metric has reached its target, or no longer improves."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

LOWER_IS_BETTER = ("loss", "error")
"""End the names of metrics that are better when they are smaller."""


@dataclass(frozen=True)
class EarlyStop:
    """The metric that is watched. `rounds` 0 and no `target`: the job makes all its versions."""

    metric: str = "eval/accuracy"
    rounds: int = 0
    min_change: float = 0.0
    target: float | None = None

    @property
    def is_used(self) -> bool:
        """Return whether the job may end early."""
        return self.rounds > 0 or self.target is not None

    @property
    def _sign(self) -> float:
        return -1.0 if self.metric.endswith(LOWER_IS_BETTER) else 1.0

    def improves(self, value: float, best: float | None) -> bool:
        """Return whether a value is better than the best one so far by more than `min_change`."""
        return isfinite(value) and (best is None or self._sign * (value - best) > self.min_change)

    def reason(self, value: float, version: int, best: float | None, best_version: int) -> str:
        """Return why the job ends, after a version with this value; "" if it goes on."""
        if self.target is not None and self._sign * (value - self.target) >= 0:
            return f"{self.metric} of version {version} is {value:.4g}, and the target is {self.target:.4g}"
        if self.rounds and version - best_version >= self.rounds:
            shown = "no number" if best is None else f"{best:.4g}"
            text = f"{self.metric} has not improved for {self.rounds} rounds"
            return f"{text}: the best was {shown}, of version {best_version}"
        return ""
