"""How often and how patiently peers look after one another. All peers of a job keep the same pace."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from shoal.core.errors import InvalidJob


@dataclass(frozen=True)
class Pace:
    """The settings of membership. The defaults suit peers on the internet."""

    period_s: float = 1.0
    """Seconds between two turns."""
    timeout_s: float = 0.4
    """Seconds until a missing Pong makes others be asked; an alarm that is later than this was held up."""
    helpers: int = 3
    """Peers that are asked to probe one that did not answer."""
    health_most: int = 8
    """How much slower, in periods and timeouts, a peer that doubts its own health becomes; 0: never slower."""
    suspicion: float = 2.0
    """Periods of a suspicion that enough peers confirm, times log10 of the peers."""
    slack: float = 6.0
    """How many times longer a suspicion lasts that nobody confirms; 1: confirmations change nothing."""
    buddy: bool = True
    """Whether a suspect is told so first of all; turned off to measure what that gives."""
    reprobe: float = 0.5
    """The chance that one of the dead is pinged in a period."""
    retell: float = 4.0
    """How often a rumour is told, times log10 of the peers."""
    news_most: int = 64
    """Rumours that travel on one message. Mostly there are none; after a start or the end of a split there are many."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.period_s < inf:
            raise InvalidJob(f"pace: timeout_s ({self.timeout_s}) must lie between 0 and period_s ({self.period_s})")
        if not (0 < self.suspicion < inf and 1 <= self.slack < inf and 0 < self.retell < inf):
            raise InvalidJob("pace: suspicion and retell must be above 0, slack at least 1")
        if not (0 <= self.reprobe <= 1 and min(self.helpers, self.health_most) >= 0):
            raise InvalidJob("pace: reprobe is a chance, helpers and health_most are not negative")
        if self.news_most < 1:
            raise InvalidJob(f"pace: news_most is {self.news_most}, but without news there is no membership")
