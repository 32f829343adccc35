"""The units between two layers of a growing network: which unit of the smaller network each one replicates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Units:
    """The outputs of a layer: features, or channels.

    Unit j of the larger network has the value of unit `source[j]` of the smaller one. The next layer takes it with the
    share `share[j]` of that unit's weights, so that the shares of all replicas of a unit sum to 1.
    """

    source: Tensor
    share: Tensor
    count: int
    """Number of units of the smaller network."""
    is_nonnegative: bool = False
    """True if no unit can be below 0, as after a ReLU."""

    @property
    def is_same(self) -> bool:
        """Return True if there are no replicas."""
        return len(self.source) == self.count

    def spread(self, places: int) -> Units:
        """Return the features that `nn.Flatten` makes of units with `places` places each: all of unit 0 come first."""
        source = (self.source[:, None] * places + torch.arange(places)).flatten()
        share = self.share.repeat_interleave(places)
        return replace(self, source=source, share=share, count=self.count * places)


def same_units(count: int) -> Units:
    """Return units of which none is replicated."""
    return Units(torch.arange(count), torch.ones(count, dtype=torch.float64), count)


def replicated(count: int, wanted: int, generator: torch.Generator) -> Units:
    """Return `wanted` units: all `count` old ones, then replicas of units drawn at random.

    The shares of replicas differ, so that their gradients do, too; with equal ones (Chen et al. add noise to these)
    replicas would stay alike for ever.
    """
    source = torch.cat([torch.arange(count), torch.randint(count, (wanted - count,), generator=generator)])
    drawn = 0.5 + torch.rand(wanted, dtype=torch.float64, generator=generator)
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, source, drawn)
    return Units(source, drawn / sums[source], count)
