"""Pace steering: how many nodes are spread over time, by asking each to stay away before it comes again.

Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019, section 2.3.

rate    accepted arrivals per second; less, down to a tenth, as the load goes from BUSY to 1
window  nodes / rate, at most WINDOW_S_MAX: seconds over which all of them come once; below WINDOW_S_MIN: 0
pause   uniform(0, window) + max(0, window - held)

`held` is how long the answer was held back: a node that waited in an open poll was not a burden. The pause's width is
the window whatever went before, so nodes that come all at once, as after an outage, come `rate` a second the next time;
no turn of waiting and pausing is shorter than a window, so two turns never add up to more. Few nodes are not paused at
all: they hear of tasks at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

BUSY = 0.7
"""The load from which on fewer arrivals are taken on."""

SHARE_MIN = 0.1
"""Accepted share of arrivals at full load."""

WINDOW_S_MIN = 1.0
WINDOW_S_MAX = 150.0
"""Nodes obey a pause of 300 s, and none longer: that is twice as much."""


@dataclass(frozen=True)
class LoadEstimate:
    """Present load of a coordinator."""

    nodes: int
    """That come again and again."""
    load: float
    """Used share of its capacity, 0 to 1."""
    checkins_per_s_max: float
    """Check-ins per second that it accepts."""

    @property
    def rate(self) -> float:
        """Arrivals a second that it wants now."""
        spare = (1.0 - min(max(self.load, BUSY), 1.0)) / (1.0 - BUSY)
        return self.checkins_per_s_max * max(spare, SHARE_MIN)

    @property
    def window_s(self) -> float:
        """Seconds over which nodes spread their polls; 0: no spreading."""
        window = min(self.nodes / self.rate, WINDOW_S_MAX)
        return window if window >= WINDOW_S_MIN else 0.0

    @property
    def pause_s_max(self) -> float:
        """The longest that it asks for now."""
        return 2.0 * self.window_s

    def pause_s(self, held_s: float, rng: Random) -> float:
        """Return the seconds for which a node stays away whose request was answered after this time."""
        window = self.window_s
        return rng.uniform(0.0, window) + max(0.0, window - held_s) if window else 0.0
