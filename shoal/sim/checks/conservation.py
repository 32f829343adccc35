"""The books that must balance while peers mix: nothing may be lost, and nothing counted twice.

What is conserved is the sum over all peers of mass times model, as their disks hold it, with what is under way between
them. Only a local round may change it, and that by exactly what was learned. Each conserving way of mixing has an
`Account`, which says how much mass a peer's model has and what is under way; the others may move the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from shoal.core.algorithm import tree_slot
from shoal.core.filter import Filters, unpack_tree
from shoal.core.gossip import Mixer
from shoal.core.message import Ref
from shoal.core.pairwise_mixer import PairwiseMixer
from shoal.core.tree import FLOATS, Array, Tree
from shoal.mixing.push_sum import PushSumMixer
from shoal.sim.bodies import MemoryBodies

Opened = Callable[[Ref], Array]
"""The floats of the model of that name."""


class Unbalanced(AssertionError):
    """Something was lost, or counted twice."""


def floats(tree: Tree) -> Array:
    """All floating-point values of a tree, in double precision."""
    parts = [tree[leaf.name].astype(np.float64).reshape(-1) for leaf in tree.layout.leaves if leaf.dtype in FLOATS]
    return np.concatenate(parts)


class Account(Protocol):
    """How to read what the mixers of a conserving kind keep."""

    kind: ClassVar[type[Any]]

    def mass(self, mixer: Any, weight: float) -> float:
        """With what weight a peer's model counts now."""
        ...

    def owed(self, mixers: Mapping[str, Any], opened: Opened) -> tuple[float, Array | float]:
        """(mass, mass times model) of what is under way: it will be added to a peer."""
        ...


class PairwiseAccount:
    """Masses move in the last averaging. Owed: the steps that initiators have not taken yet, their partners have."""

    kind: ClassVar[type[Any]] = PairwiseMixer

    def mass(self, mixer: PairwiseMixer, weight: float) -> float:
        return weight if mixer.mass is None else mixer.mass

    def owed(self, mixers: Mapping[str, PairwiseMixer], opened: Opened) -> tuple[float, Array | float]:
        mass: float = 0.0
        total: Array | float = 0.0
        for mixer in mixers.values():
            for xid, doubt in mixer.doubts.items():
                other = mixers.get(doubt.partner)
                answer = other.answers.get(xid) if other is not None else None
                if answer is None:
                    continue
                share = answer.share * answer.weight / (doubt.weight + answer.weight)
                mine, theirs = opened(doubt.shown), opened(answer.shown)
                if doubt.keeps is not None and answer.share == 1.0:
                    after = doubt.keeps * (doubt.mass + answer.weight)
                    mass += after - doubt.mass
                    total = total + after * (mine + share * (theirs - mine)) - doubt.mass * mine
                else:
                    total = total + doubt.weight * share * (theirs - mine)
        return mass, total


class PushSumAccount:
    """Owed: the pushes that their receivers have not added."""

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
                if last is None or (last.boot, last.number) < xid[1:] or not last.taken:
                    mass, total = mass + one.mass, total + one.mass * opened(one.shown)
        return mass, total


ACCOUNTS: tuple[Account, ...] = (PairwiseAccount(), PushSumAccount())


class Books:
    """Follows what every peer's disk holds, and what it should add up to. `filters`: of models that are shown."""

    def __init__(
        self,
        weights: Mapping[str, float],
        start: Tree,
        bodies: MemoryBodies,
        mixing: Callable[[], Mixer],
        filters: Filters = (),
    ) -> None:
        self._weights, self._bodies, self._mixing = weights, bodies, mixing
        self._filters, self._layout = filters, start.layout
        self._held = {name: floats(start) for name in weights}
        self._alone = dict(self._held)  # where each would be, had nobody mixed
        self._mixers = {name: mixing() for name in weights}
        kinds = type(mixing())
        self._account = next((one for one in ACCOUNTS if one.kind is kinds), None)
        self.touched = False
        self.learned = sum(weight * floats(start) for weight in weights.values())
        self.scale = float(np.abs(self.learned).max())

    @property
    def conserving(self) -> bool:
        """Whether this way of mixing promises that the books balance."""
        return self._account is not None

    def keeps(self, node: str, state: dict[str, Any], learned: bool) -> None:
        """That peer's disk now holds this."""
        now = floats(tree_slot(self._bodies.get(Ref(*state["slots"])), "model"))
        if learned:
            self.learned = self.learned + self._mass(node) * (now - self._held[node])
            self.scale = max(self.scale, float(np.abs(self.learned).max()))
            self._alone[node] = self._alone[node] + now - self._held[node]
        self._held[node], self.touched = now, True
        self._mixers[node] = self._mixing()
        self._mixers[node].restore(state["mixer"])

    def _mass(self, node: str) -> float:
        weight = self._weights[node]
        return self._account.mass(self._mixers[node], weight) if self._account is not None else weight

    def _opened(self, ref: Ref) -> Array:
        return floats(unpack_tree(self._filters, tree_slot(self._bodies.get(ref), "model"), self._layout))

    def drift(self) -> float:
        """How far the books are from balancing, relative to what is in them."""
        mass, under_way = (0.0, 0.0) if self._account is None else self._account.owed(self._mixers, self._opened)
        total = sum(self._mass(node) * held for node, held in self._held.items()) + under_way
        mass += sum(self._mass(node) for node in self._held)
        whole = sum(self._weights.values())
        return max(float(np.abs(total - self.learned).max()) / self.scale, abs(mass - whole) / whole)

    def spread(self) -> float:
        """The weighted variance of the models around their mean: the squared consensus distance."""
        return self._variance(self._held)

    def apart(self) -> float:
        """The same, had each peer learned what it has learned and nobody mixed."""
        return self._variance(self._alone)

    def _variance(self, models: Mapping[str, Array]) -> float:
        whole = sum(self._weights.values())
        mean = sum(self._weights[node] * model for node, model in models.items()) / whole
        return float(sum(self._weights[node] * np.sum((model - mean) ** 2) for node, model in models.items()) / whole)
