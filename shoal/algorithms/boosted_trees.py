"""Gradient-boosted decision trees from histograms: the trees of XGBoost on the union of the data.

Chen, Guestrin: "XGBoost: A Scalable Tree Boosting System", KDD 2016, whose distributed form sums histograms, too. A
version is a level of a decision tree:

    node k        G_k, H_k [node of the level, feature, bin] = sums over its rows of the gradient and the Hessian
    hub           G = sum_k G_k, H = sum_k H_k over the nodes that reported; the best split of each node of the level

Gradients and Hessians are multiples of 2^-30 of their scale, so sums are exact: the decision trees are the same bits
whatever the order of reports, and as if one node held all rows. Rows of nodes that do not report in a round have no say
in the splits of that level; a node of a decision tree that none of the others' rows reach stays a leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import LocalTask
from shoal.core.algorithm.learner import GrowsTrees, Trained
from shoal.core.boosting.ensemble import Ensemble
from shoal.core.boosting.splits import check_histogram, histogram_layout, split_level
from shoal.core.boosting.tree_algorithm import TreeAlgorithm
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Layout, Slots, Tree


@dataclass(frozen=True)
class BoostedTrees(TreeAlgorithm):
    """One level of a decision tree per version. Learners are `TreesLearner`s, which say how many trees and how deep."""

    name: ClassVar[str] = "boosted_trees"
    title: ClassVar[str] = "Gradient-boosted trees from histograms (Chen and Guestrin 2016)"

    def growth_layout(self, ensemble: Ensemble) -> dict[str, Layout | None]:
        """Return the layout of the level's histogram."""
        return {"histogram": histogram_layout(ensemble)}

    def grow(self, learner: GrowsTrees, ensemble: Ensemble, task: LocalTask) -> tuple[Trained, Slots]:
        """Return the histogram of the node's rows."""
        known, histogram = learner.histogram(progress=task.progress)
        return known, {"histogram": histogram}

    def check_growth(self, name: str, value: Tree) -> None:
        """Check the sums."""
        check_histogram(value)

    def grown(self, ensemble: Ensemble, totals: Totals) -> Ensemble:
        """Split the level by the sum of the histograms."""
        total = totals.trees.pop("histogram")
        return split_level(ensemble, total.mean_onto(rate=float(total.weight)), self.rule)
