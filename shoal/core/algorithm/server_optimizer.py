"""A server's optimizer: the mean displacement of the nodes is taken for a gradient (with the sign turned).

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2. With d the mean displacement, and no correction of the bias:

    m = beta1 m + (1 - beta1) d,   v = (each its own),   w = w + rate * m / (sqrt(v) + tau)

Each is a function of numbers, the same for every weight. Moments are float32 whatever the model is in, for d^2 must
not vanish; m begins at 0, v at `initial`, for which the paper demands at least tau^2. Statistics are not weights, and a
step beyond their mean could make a variance negative: they are averaged. Whole numbers take the greatest value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.model.tree import BLOCK_ELEMENTS, DTYPES, Layout, Leaf, Slots, Tree, from_float, to_float, zeros

Wide = npt.NDArray[np.float64]


class UpdateRule(Protocol):
    """One step on one block of numbers."""

    moments: ClassVar[tuple[str, ...]]
    """The names of the slots that it keeps."""

    def initial_moment(self, moment: str) -> float:
        """Return a moment's initial value."""
        ...

    def compute_step(self, d: Wide, *moments: Wide) -> tuple[Wide, ...]:
        """Return the change of the weights for a mean displacement `d`, and the moments after it."""
        ...


@dataclass(frozen=True)
class Momentum:
    """Hsu, Qi, Brown 2019 (FedAvgM), section 4.3: m = beta m + d, w = w + rate * m.

    With `nesterov`, w = w + rate * (d + beta m), as in `torch.optim.SGD` (Sutskever et al., ICML 2013).
    """

    moments: ClassVar[tuple[str, ...]] = ("m",)

    rate: float = 1.0
    beta: float = 0.9
    nesterov: bool = False

    def initial_moment(self, moment: str) -> float:
        """Return 0."""
        return 0.0

    def compute_step(self, d: Wide, *moments: Wide) -> tuple[Wide, ...]:
        """Return the change, and m."""
        m = self.beta * moments[0] + d
        return self.rate * (d + self.beta * m if self.nesterov else m), m


@dataclass(frozen=True)
class Adam:
    """v = beta2 v + (1 - beta2) d^2."""

    moments: ClassVar[tuple[str, ...]] = ("m", "v")

    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    initial: float = 0.0

    def initial_moment(self, moment: str) -> float:
        """Return v's, and 0 for m."""
        return self.initial if moment == "v" else 0.0

    def compute_step(self, d: Wide, *moments: Wide) -> tuple[Wide, ...]:
        """Return the change, m and v."""
        m, v = moments
        m, v = self.beta1 * m + (1 - self.beta1) * d, self.next_second_moment(v, d * d)
        return self.rate * m / (np.sqrt(v) + self.tau), m, v

    def next_second_moment(self, v: Wide, squared: Wide) -> Wide:
        """Return the next v."""
        return self.beta2 * v + (1 - self.beta2) * squared


@dataclass(frozen=True)
class Yogi(Adam):
    """v = v - (1 - beta2) d^2 sign(v - d^2): where d^2 is suddenly small, v goes down slowly."""

    def next_second_moment(self, v: Wide, squared: Wide) -> Wide:
        """Return the next v."""
        return v - (1 - self.beta2) * squared * np.sign(v - squared)


@dataclass(frozen=True)
class Adagrad(Adam):
    """v = v + d^2. It has no beta2."""

    def next_second_moment(self, v: Wide, squared: Wide) -> Wide:
        """Return the next v."""
        return v + squared


def optimizer_slots(rule: UpdateRule, model: Tree) -> Slots:
    """Return the hub's slots for an initial model: the model, and the moments before the first step."""
    stepped = [leaf for leaf in model.layout.leaves if model.layout.is_weight(leaf)]
    layout = Layout.of(((leaf.name, "F32", leaf.shape) for leaf in stepped), model.layout.base_model)
    return {"model": model, **{name: _filled(layout, rule.initial_moment(name)) for name in rule.moments}}


def _filled(layout: Layout, value: float) -> Tree:
    """Return a tree of float32 that all have this value."""
    return Tree(layout, np.full(layout.elements, value, "<f4").view(np.uint8)) if value else zeros(layout)


def take_step(rule: UpdateRule, slots: Slots, averaged: Tree) -> Slots:
    """Compute the next version's slots from the model in `slots` and the nodes' mean, `averaged`."""
    model, old = tree_slot(slots, "model"), [tree_slot(slots, name) for name in rule.moments]
    layout = old[0].layout
    moved, kept = np.array(averaged.buffer), [np.empty(layout.nbytes, np.uint8) for _ in old]
    for leaf in layout.leaves:
        own = model.layout.index[leaf.name]
        for place, here in zip(_pieces(own), _pieces(leaf), strict=True):
            before = to_float(model.block(place.start, place.stop), own.dtype)
            d = to_float(averaged.block(place.start, place.stop), own.dtype) - before
            by, *now = rule.compute_step(d, *(to_float(tree.block(here.start, here.stop), "F32") for tree in old))
            from_float(before + by, own.dtype, moved[place])
            for moment, value in zip(kept, now, strict=True):
                from_float(value, "F32", moment[here])
    after = {name: Tree(layout, moment) for name, moment in zip(rule.moments, kept, strict=True)}
    return {**slots, "model": Tree(model.layout, moved), **after}


def _pieces(leaf: Leaf) -> Iterator[slice]:
    """Yield the places of a tensor's bytes, in blocks that fit a cache."""
    step = BLOCK_ELEMENTS * DTYPES[leaf.dtype].itemsize
    for start in range(leaf.start, leaf.stop, step):
        yield slice(start, min(start + step, leaf.stop))
