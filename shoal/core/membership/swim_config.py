"""Settings of membership. All peers of a job use the same."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from shoal.core.errors import InvalidJob


@dataclass(frozen=True)
class SwimConfig:
    """Settings of membership. The defaults suit peers on the internet."""

    period_s: float = 1.0
    """Seconds between two probes."""
    timeout_s: float = 0.4
    """Seconds until a missing ack causes indirect probes. An alarm later than this counts as a delay of the process."""
    helpers: int = 3
    """Peers that are asked for indirect probes."""
    health_max: int = 8
    """Greatest slowdown, in periods and timeouts, of a peer that doubts its own health; 0: never slower."""
    suspicion: float = 2.0
    """Periods of a fully confirmed suspicion, times log10 of the peers."""
    slack: float = 6.0
    """Factor by which an unconfirmed suspicion lasts longer; 1: confirmations change nothing."""
    buddy: bool = True
    """True if a suspect is told first (Lifeguard's buddy system); false in benchmarks."""
    reprobe: float = 0.5
    """Probability that a dead peer is pinged in a period."""
    retransmit_factor: float = 4.0
    """Number of times that an update is sent, times log10 of the peers."""
    piggyback_max: int = 64
    """Updates on one message. Mostly there are none; many after a start or the end of a partition."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.period_s < inf:
            raise InvalidJob(f"pace: timeout_s ({self.timeout_s}) must lie between 0 and period_s ({self.period_s})")
        if not (0 < self.suspicion < inf and 1 <= self.slack < inf and 0 < self.retransmit_factor < inf):
            raise InvalidJob("pace: suspicion and retransmit_factor must be above 0, slack at least 1")
        if not (0 <= self.reprobe <= 1 and min(self.helpers, self.health_max) >= 0):
            raise InvalidJob("pace: reprobe must be a probability, helpers and health_max must not be negative")
        if self.piggyback_max < 1:
            raise InvalidJob(f"pace: piggyback_max is {self.piggyback_max}, but must be at least 1")
