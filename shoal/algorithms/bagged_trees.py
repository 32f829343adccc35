"""Gradient-boosted decision trees that each node grows alone: the cheap alternative to `boosted_trees`.

Breiman: "Bagging Predictors", Machine Learning 24 (1996), among the nodes of a round; from round to round Chen,
Guestrin: "XGBoost: A Scalable Tree Boosting System", KDD 2016:

    node k      grows a decision tree on its own rows, to the gradients of the present ensemble
    hub         adds the decision trees of the K nodes that reported, each with the factor 1 / K

A round adds K decision trees, the last one no more than there is room for. With `cohort = 1` of the schedule `rounds`
nodes boost one after the other. Bins and base score are those of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithm.algorithm import LocalTask
from shoal.core.algorithm.learner import GrowsTrees, Trained
from shoal.core.boosting.ensemble import LEAF, Ensemble
from shoal.core.boosting.splits import SUM_LIMIT, split_level
from shoal.core.boosting.tree_algorithm import TreeAlgorithm
from shoal.core.errors import InvalidPayload
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Layout, Slots, Tree

GROWN = "grown"
ARRAYS = ("feature", "bin", "missing_left", "value")


@dataclass(frozen=True)
class BaggedTrees(TreeAlgorithm):
    """Decision trees of single nodes, averaged in each round. Learners are `TreesLearner`s."""

    name: ClassVar[str] = "bagged_trees"
    title: ClassVar[str] = "Boosted trees of single nodes (Breiman 1996)"

    def growth_layout(self, ensemble: Ensemble) -> dict[str, Layout | None]:
        """Return the layout of one decision tree."""
        return {GROWN: _cut(ensemble, 0).layout}

    def grow(self, learner: GrowsTrees, ensemble: Ensemble, task: LocalTask) -> tuple[Trained, Slots]:
        """Grow a decision tree on the node's rows."""
        known, histogram = learner.histogram()
        made = split_level(ensemble, histogram, self.rule)
        while made.grown == ensemble.grown:
            task.progress(made.level / made.depth)
            learner.load(made.to_model())
            made = split_level(made, learner.histogram()[1], self.rule)
        return known, {GROWN: _cut(made, ensemble.grown)}

    def slot_of(self, name: str, node: str) -> str:
        """Return a slot of the node's own: decision trees are not summed."""
        return f"{name}.{node}"

    def check_growth(self, name: str, value: Tree) -> None:
        """Check that each split is one of the ensemble's features and bins, and has room for its children."""
        feature, last, (features, bins) = value["feature"], value["bin"], value["form"].shape[1:]
        inner = (feature[0] + 1).nonzero()[0]
        good = (feature >= LEAF).all() and (feature < features).all() and (last >= 0).all() and (last < bins).all()
        if not (good and (2 * inner + 2 < feature.size).all() and (np.abs(value["value"]) < SUM_LIMIT).all()):
            raise InvalidPayload("a decision tree with an impossible node", code="payload.tree")

    def grown(self, ensemble: Ensemble, totals: Totals) -> Ensemble:
        """Add the decision trees, in the order of the nodes' names."""
        first, names = ensemble.grown, sorted(name for name in totals.trees if name.startswith(f"{GROWN}."))
        kept = [totals.mean(name) for name in names[: ensemble.trees - first]]
        arrays = {name: getattr(ensemble, name).copy() for name in ARRAYS}
        for place, one in enumerate(kept, first):
            for name, array in arrays.items():
                array[place] = one[name][0] / len(kept) if name == "value" else one[name][0]
        return replace(ensemble, **arrays, progress=np.array([1, first + len(kept), 0], np.int32))


def _cut(ensemble: Ensemble, tree: int) -> Tree:
    """Return one decision tree. An empty tensor tells by its shape the numbers of features and bins."""
    arrays = {name: getattr(ensemble, name)[tree : tree + 1] for name in ARRAYS}
    return Tree.of({**arrays, "form": np.empty((0, ensemble.features, ensemble.bins), np.float32)})
