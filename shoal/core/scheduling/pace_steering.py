"""How many nodes are spread over time: how long each is asked to stay away before it comes again ("pace steering";
Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019, section 2.3).

    rate    arrivals a second that are taken on; less, down to a tenth, as the load goes from BUSY to 1
    window  nodes / rate, at most WINDOW_S_MAX: seconds over which all of them are to come once; below WINDOW_S_MIN: 0
    pause   uniform(0, window) + max(0, window - held)

`held` is how long the answer was held back: a node that waited in an open poll was no burden. The pause's width is
the window whatever went before, so nodes that come all at once, as after an outage, come `rate` a second the next time;
no turn of waiting and pausing is shorter than a window, so that two turns never add up to more. Few nodes are not
paused at all: they hear of orders at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

BUSY = 0.7
"""The load from which on fewer arrivals are taken on."""

SHARE_MIN = 0.1
"""What is still taken on at full load."""

WINDOW_S_MIN = 1.0
WINDOW_S_MAX = 150.0
"""Nodes obey a pause of 300 s, and none longer: that is twice as much."""


@dataclass(frozen=True)
class Burden:
    """What a coordinator has to bear at this moment."""

    nodes: int
    """That come again and again."""
    load: float
    """How much of what it can do it does, 0 to 1."""
    arrivals_per_s: float
    """What it is willing to take on."""

    @property
    def rate(self) -> float:
        """Arrivals a second that it wants now."""
        spare = (1.0 - min(max(self.load, BUSY), 1.0)) / (1.0 - BUSY)
        return self.arrivals_per_s * max(spare, SHARE_MIN)

    @property
    def window_s(self) -> float:
        """Seconds over which the nodes are to be spread; 0: they need not be."""
        window = min(self.nodes / self.rate, WINDOW_S_MAX)
        return window if window >= WINDOW_S_MIN else 0.0

    @property
    def pause_s_max(self) -> float:
        """The longest that it asks for now."""
        return 2.0 * self.window_s

    def pause_s(self, held_s: float, rng: Random) -> float:
        """How long a node is to stay away whose request was answered after so long."""
        window = self.window_s
        return rng.uniform(0.0, window) + max(0.0, window - held_s) if window else 0.0
