"""An ensemble of decision trees as arrays of fixed shapes, so that it is a model like any other.

Each decision tree has room for all nodes of its depth, in heap order: the children of node i are 2 i + 1 and 2 i + 2.
The objective stands in the name of a tensor: nodes with another objective, depth or number of features, bins or
decision trees have another layout, and are refused as such.

edges          F32[features, bins - 1]   a value x lies in the bin whose number is that of the edges <= x
feature        I32[trees, nodes]         that a node is split by; -1: it is a leaf
bin            I16[trees, nodes]         the last bin that goes left
missing_left   BOOL[trees, nodes]        True if rows without that value go left
value          F32[trees, nodes]         of a leaf: what it adds to the margin, learning rate included
base_score.…   F32[1]                    the mean label, at first 1/2; the part after the point is the objective
scale          F32[1]                    a power of two, at least as great as any label's magnitude: see `on_grid`
progress       I32[3]                    1 if the edges are known; complete trees; levels of the tree in progress
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Tree

Wide = npt.NDArray[np.float64]
Whole = npt.NDArray[np.intp]
Narrow = npt.NDArray[Any]

LEAF = -1
BASE_SCORE = "base_score."
UNUSED_EDGE = 2.0**53
"""The edges of a feature that has fewer than there is room for; data must be below it."""
GRID = 2.0**-30
"""The grain of gradients and Hessians, relative to their scale."""


def on_grid(values: Wide, scale: float = 1.0) -> Wide:
    """Round to multiples of a power of two. Sums of up to 2^23 such values up to `scale` are exact in float64, so they
    are the same bits in any order and however the rows are divided over nodes."""
    step = GRID * scale
    return np.rint(values / step) * step


@dataclass(frozen=True)
class Ensemble:
    """The arrays of the module's docstring, by name. Treated as immutable."""

    objective: str
    edges: Narrow
    feature: Narrow
    bin: Narrow
    missing_left: Narrow
    value: Narrow
    base_score: Narrow
    scale: Narrow
    progress: Narrow

    @classmethod
    def empty(cls, objective: str, features: int, bins: int, trees: int, depth: int) -> Ensemble:
        """Return an ensemble without edges and without decision trees."""
        nodes = (trees, 2 ** (depth + 1) - 1)
        return cls(
            objective,
            np.full((features, bins - 1), UNUSED_EDGE, np.float32),
            np.full(nodes, LEAF, np.int32),
            np.zeros(nodes, np.int16),
            np.zeros(nodes, np.bool_),
            np.zeros(nodes, np.float32),
            np.full(1, 0.5, np.float32),
            np.ones(1, np.float32),
            np.zeros(3, np.int32),
        )

    @classmethod
    def of(cls, model: Tree) -> Ensemble:
        """Return the ensemble of a model. Raises `InvalidPayload` for another model."""
        arrays = {name: model[name] for name in model}
        named = [name for name in arrays if name.startswith(BASE_SCORE)]
        if len(named) == 1:
            arrays["base_score"] = arrays.pop(named[0])
        if len(named) != 1 or arrays.keys() != cls.__annotations__.keys() - {"objective"}:
            raise InvalidPayload(
                "the model is not an ensemble of decision trees", hint="start with a model of boosted_trees, or none"
            )
        return cls(named[0].removeprefix(BASE_SCORE), **arrays)

    def to_model(self) -> Tree:
        arrays = {name: getattr(self, name) for name in self.__annotations__ if name not in ("objective", "base_score")}
        return Tree.of({**arrays, BASE_SCORE + self.objective: self.base_score})

    @property
    def features(self) -> int:
        return len(self.edges)

    @property
    def bins(self) -> int:
        return int(self.edges.shape[1]) + 1

    @property
    def trees(self) -> int:
        """The number of decision trees that it has room for."""
        return len(self.feature)

    @cached_property
    def depth(self) -> int:
        return int(self.feature.shape[1] + 1).bit_length() - 2

    @property
    def has_edges(self) -> bool:
        return bool(self.progress[0])

    @property
    def grown(self) -> int:
        """The number of complete decision trees."""
        return int(self.progress[1])

    @property
    def level(self) -> int:
        """The level of the decision tree in progress whose nodes are split next."""
        return int(self.progress[2])

    @property
    def is_complete(self) -> bool:
        return self.grown >= self.trees

    def with_edges(self, edges: Narrow, base_score: float, scale: float) -> Ensemble:
        """Return it with edges, a base score and a scale; it is ready for the first decision tree."""
        return replace(
            self,
            edges=edges,
            base_score=np.array([base_score], np.float32),
            scale=np.array([scale], np.float32),
            progress=np.array([1, 0, 0], np.int32),
        )

    def binned(self, x: Narrow) -> Narrow:
        """Return the bins of rows `x: float32[rows, features]`, as `[features, rows]`; NaN: the number of bins."""
        found = np.empty(x.shape[::-1], np.uint8 if self.bins < 256 else np.uint16)
        for feature, edges in enumerate(self.edges):
            column = x[:, feature]
            found[feature] = np.where(np.isnan(column), self.bins, np.searchsorted(edges, column, side="right"))
        return found

    def places(self, binned: Narrow, tree: int) -> Whole:
        """Return the node of a decision tree that each row falls into, as far as the tree has grown."""
        place = np.zeros(binned.shape[1], np.intp)
        rows = np.arange(binned.shape[1])
        for _ in range(self.level if tree == self.grown else self.depth):
            feature = self.feature[tree, place]
            bins = binned[feature, rows]  # of a leaf: of the last feature, which is not used
            left = np.where(bins == self.bins, self.missing_left[tree, place], bins <= self.bin[tree, place])
            place = np.where(feature == LEAF, place, 2 * place + 2 - left)
        return place

    def outputs(self, binned: Narrow, tree: int) -> Wide:
        """Return what a decision tree adds to the margin of each row."""
        return np.asarray(self.value[tree, self.places(binned, tree)], np.float64)

    @property
    def planted(self) -> int:
        """The number of decision trees with a node that is split or has a value: those that a prediction adds up."""
        return min(self.trees, self.grown + (self.level > 0))
