"""A server's optimizer: the mean displacement of the nodes is taken for a gradient (with the sign turned).

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021,
Algorithm 2. With d the mean displacement, and no correction of the bias:

    m = beta1 m + (1 - beta1) d,   v = beta2 v + (1 - beta2) d^2,   w = w + rate * m / (sqrt(v) + tau)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.core.tree import FLOATS, Layout, Tree, from_float, to_float, zeros


@dataclass(frozen=True)
class Adam:
    """Its numbers, which the paper recommends."""

    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def begin(self, model: Tree) -> tuple[Tree, Tree]:
        """The moments (m, v) for a model: zero, in float32 whatever the model is in, for d^2 must not vanish."""
        leaves = [(leaf.name, "F32", leaf.shape) for leaf in model.layout.leaves if leaf.dtype in FLOATS]
        layout = Layout.of(leaves)
        return zeros(layout), zeros(layout)

    def step(self, model: Tree, averaged: Tree, m: Tree, v: Tree) -> tuple[Tree, Tree, Tree]:
        """(the next model, m, v), where the nodes' mean is `averaged` and they began with `model`.

        Whole numbers are taken from `averaged`.
        """
        parts = [np.array(tree.buffer) for tree in (averaged, m, v)]
        for leaf in m.layout.leaves:
            own = model.layout.index[leaf.name]
            before = to_float(model.block(own.start, own.stop), own.dtype)
            d = to_float(averaged.block(own.start, own.stop), own.dtype) - before
            first = self.beta1 * to_float(m.block(leaf.start, leaf.stop), "F32") + (1 - self.beta1) * d
            second = self.beta2 * to_float(v.block(leaf.start, leaf.stop), "F32") + (1 - self.beta2) * d * d
            moved = before + self.rate * first / (np.sqrt(second) + self.tau)
            from_float(moved, own.dtype, parts[0][own.start : own.stop])
            from_float(first, "F32", parts[1][leaf.start : leaf.stop])
            from_float(second, "F32", parts[2][leaf.start : leaf.stop])
        return Tree(model.layout, parts[0]), Tree(m.layout, parts[1]), Tree(v.layout, parts[2])
