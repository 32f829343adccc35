"""Conservation of mass while peers mix: no update is lost, and none counts twice.

The conserved quantity is the sum over all peers of mass times model, as their disks hold it, with what is in transit
between them. Only a local round may change it, by exactly its update. Each conserving mixer has a `MassReader`, which
returns a peer's mass and what is in transit; the other mixers may move the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from shoal.core.algorithm.filter import Filters, unpack
from shoal.core.gossip.mixer import Mixer
from shoal.core.mixing.pairwise_mixer import PairwiseMixer
from shoal.core.model.joined_trees import join_trees
from shoal.core.model.tree import Array, Layout, Slots, Tree
from shoal.core.protocol.message import BlobRef
from shoal.mixing.push_sum import PushSumMixer
from shoal.sim.network.blobs import MemoryBlobs

Opened = Callable[[BlobRef], Array]
"""Returns the floats of the model in that blob."""


class ConservationViolation(AssertionError):
    """The conserved sum has changed."""


def floats(tree: Tree) -> Array:
    """Return all weights of a tree, in double precision."""
    weights = [tree[leaf.name] for leaf in tree.layout.leaves if tree.layout.is_weight(leaf)]
    return np.concatenate([one.astype(np.float64).reshape(-1) for one in weights])


class MassReader(Protocol):
    """Reader of the state of one conserving mixer class."""

    kind: ClassVar[type[Any]]

    def mass(self, mixer: Any, weight: float) -> float:
        """Return the mass of a peer."""
        ...

    def owed(self, mixers: Mapping[str, Any], opened: Opened) -> tuple[float, Array | float]:
        """Return (mass, mass times model) in transit, which will be added to a peer."""
        ...


class PairwiseMassReader:
    """Masses move in final averaging. In transit: steps that partners have taken, and initiators have not."""

    kind: ClassVar[type[Any]] = PairwiseMixer

    def mass(self, mixer: PairwiseMixer, weight: float) -> float:
        return weight if mixer.averaging.mass is None else mixer.averaging.mass

    def owed(self, mixers: Mapping[str, PairwiseMixer], opened: Opened) -> tuple[float, Array | float]:
        mass: float = 0.0
        total: Array | float = 0.0
        for mixer in mixers.values():
            for xid, doubt in mixer.exchanges.in_doubt.items():
                other = mixers.get(doubt.partner)
                answer = other.exchanges.prepared.get(xid) if other is not None else None
                if answer is None:
                    continue
                share = answer.step_fraction * answer.weight / (doubt.weight + answer.weight)
                mine, theirs = opened(doubt.shown), opened(answer.shown)
                if doubt.kept_part is not None and answer.step_fraction == 1.0:
                    after = doubt.kept_part * (doubt.mass + answer.weight)
                    mass += after - doubt.mass
                    total = total + after * (mine + share * (theirs - mine)) - doubt.mass * mine
                else:
                    total = total + doubt.weight * share * (theirs - mine)
        return mass, total


class PushSumMassReader:
    """In transit: pushes that their receivers have not added."""

    kind: ClassVar[type[Any]] = PushSumMixer

    def mass(self, mixer: PushSumMixer, weight: float) -> float:
        return mixer.mass or weight

    def owed(self, mixers: Mapping[str, PushSumMixer], opened: Opened) -> tuple[float, Array | float]:
        mass: float = 0.0
        total: Array | float = 0.0
        for mixer in mixers.values():
            for xid, one in mixer.pending.items():
                receiver = mixers.get(one.partner)
                last = receiver.last.get(xid[0]) if receiver is not None else None
                if last is None or (last.process_number, last.number) < xid[1:] or not last.taken:
                    mass, total = mass + one.mass, total + one.mass * opened(one.shown)
        return mass, total


MASS_READERS: tuple[MassReader, ...] = (PairwiseMassReader(), PushSumMassReader())


class MassConservation:
    """The models on all peers' disks, with all that is mixed with them, and their conserved sum.

    `filters`: of published models.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        start: Slots,
        blobs: MemoryBlobs,
        mixing: Callable[[], Mixer],
        filters: Filters = (),
    ) -> None:
        self._weights, self._blobs, self._mixing = weights, blobs, mixing
        self._filters = filters
        self._layouts: dict[str, Layout | None] = {
            name: value.layout for name, value in start.items() if isinstance(value, Tree)
        }
        self._held = {name: floats(join_trees(start)) for name in weights}
        self._unmixed = dict(self._held)  # the models without any mixing
        self._mixers = {name: mixing() for name in weights}
        kinds = type(mixing())
        self._mass_reader = next((one for one in MASS_READERS if one.kind is kinds), None)
        self.touched = False
        self.learned = sum(weight * self._held[name] for name, weight in weights.items())
        self.scale = float(np.abs(self.learned).max())

    @property
    def conserving(self) -> bool:
        """Return whether this mixer conserves the sum."""
        return self._mass_reader is not None

    def record_state(self, node: str, state: dict[str, Any], learned: bool) -> None:
        """Record the state on a peer's disk."""
        now = floats(join_trees(self._blobs.get(BlobRef(*state["slots"]))))
        if learned:
            self.learned = self.learned + self._mass(node) * (now - self._held[node])
            self.scale = max(self.scale, float(np.abs(self.learned).max()))
            self._unmixed[node] = self._unmixed[node] + now - self._held[node]
        self._held[node], self.touched = now, True
        self._mixers[node] = self._mixing()
        self._mixers[node].restore(state["mixer"])

    def _mass(self, node: str) -> float:
        weight = self._weights[node]
        return self._mass_reader.mass(self._mixers[node], weight) if self._mass_reader is not None else weight

    def _opened(self, ref: BlobRef) -> Array:
        return floats(join_trees(unpack(self._filters, self._blobs.get(ref), self._layouts)))

    def drift(self) -> float:
        """Return the relative error of the conserved sum."""
        mass, under_way = (
            (0.0, 0.0) if self._mass_reader is None else self._mass_reader.owed(self._mixers, self._opened)
        )
        total = sum(self._mass(node) * held for node, held in self._held.items()) + under_way
        mass += sum(self._mass(node) for node in self._held)
        whole = sum(self._weights.values())
        return max(float(np.abs(total - self.learned).max()) / self.scale, abs(mass - whole) / whole)

    def variance(self) -> float:
        """Return the weighted variance of the models: the squared consensus distance."""
        return self._weighted_variance(self._held)

    def unmixed_variance(self) -> float:
        """Return the variance that the models would have without mixing."""
        return self._weighted_variance(self._unmixed)

    def _weighted_variance(self, models: Mapping[str, Array]) -> float:
        whole = sum(self._weights.values())
        mean = sum(self._weights[node] * model for node, model in models.items()) / whole
        return float(sum(self._weights[node] * np.sum((model - mean) ** 2) for node, model in models.items()) / whole)
