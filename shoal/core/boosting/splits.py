"""Histograms of gradients, and the splits that they make best.

Chen, Guestrin: "XGBoost: A Scalable Tree Boosting System", KDD 2016. With G and H the sums of gradients and Hessians of
the rows in a node, and those of its parts left and right:

    value of a leaf     w = -G / (H + lambda)                                                       Eq. 5
    gain of a split     G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda)        Eq. 7

without the factor 1/2 and at least gamma, as in XGBoost's code. Rows without a value go to the side that gains more
(Algorithm 3). Where gains are equal the first wins, in XGBoost's order: by feature; missing values right before left;
from the least edge up, and with missing values left from the greatest down.

A histogram is `float64[nodes of the level, features, bins + 1, 2]`: G and H of each bin, and of missing values last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.boosting.ensemble import Ensemble, Narrow, Whole, Wide
from shoal.core.errors import InvalidPayload
from shoal.core.model.tree import Layout, Tree

GAIN_MIN = 1e-6
"""A split that gains no more is none, as in XGBoost."""
SUM_LIMIT = 2.0**80
"""Sums and values of leaves are below it, so that no float32 becomes infinite."""


@dataclass(frozen=True)
class SplitRule:
    """The settings of splits and leaves."""

    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0

    def weigh(self, sums: Wide) -> Wide:
        """Return the value of leaves with these sums; 0 of one that is too light."""
        gradient, hessian = sums[..., 0], sums[..., 1]
        heavy = (hessian >= self.min_child_weight) & (hessian > 0)
        found: Wide = np.divide(0.0 - gradient, hessian + self.reg_lambda, out=np.zeros_like(gradient), where=heavy)
        return self.learning_rate * found

    def score(self, sums: Wide) -> Wide:
        """Return G^2 / (H + lambda); minus infinity for a part that is too light."""
        gradient, hessian = sums[..., 0], sums[..., 1]
        heavy = (hessian >= self.min_child_weight) & (hessian > 0)
        return np.divide(gradient**2, hessian + self.reg_lambda, out=np.full_like(gradient, -np.inf), where=heavy)


@dataclass(frozen=True)
class Split:
    """A node's best split."""

    feature: int
    bin: int
    missing_left: bool
    left: Wide
    right: Wide


def histogram_layout(ensemble: Ensemble) -> Layout:
    """Return the layout of the histogram that is needed next."""
    return Layout.of([("sums", "F64", (2**ensemble.level, ensemble.features, ensemble.bins + 1, 2))])


def make_histogram(ensemble: Ensemble, binned: Narrow, places: Whole, gradients: tuple[Wide, Wide]) -> Tree:
    """Return the sums of the rows in the nodes of the next level to split."""
    first = 2**ensemble.level - 1
    inside = places >= first  # the others have come to a leaf further up
    cells = (places[inside] - first) * (ensemble.bins + 1)
    chosen = [part[inside] for part in gradients]
    sums = np.empty((first + 1, ensemble.features, ensemble.bins + 1, 2))
    for feature in range(ensemble.features):
        cell = cells + binned[feature, inside]
        for kind, part in enumerate(chosen):
            found = np.bincount(cell, part, (first + 1) * (ensemble.bins + 1))
            sums[:, feature, :, kind] = found.reshape(first + 1, -1)
    return Tree.of({"sums": sums})


def check_histogram(histogram: Tree) -> None:
    """Raise `InvalidPayload` for sums that no rows can have."""
    sums = histogram["sums"]
    if not bool((np.abs(sums) < SUM_LIMIT).all()):
        why = "a sum that is not finite"
    elif bool((sums[..., 1] < 0).any()):
        why = "a negative Hessian"
    elif bool((sums.sum(2) != sums[:, :1].sum(2)).any()):
        why = "features whose sums differ, though each has all rows"
    else:
        return
    raise InvalidPayload(f"a histogram with {why}", code="payload.histogram")


def best_split(sums: Wide, rule: SplitRule) -> Split | None:
    """Return the best split of a node with the sums `float64[features, bins + 1, 2]`; None if none gains enough."""
    total, missing = sums[0].sum(0), sums[:, -1:]
    lefts = np.cumsum(sums[:, :-1], 1)
    lefts = np.stack([lefts, (lefts + missing)[:, ::-1]], 1)  # missing right, and left: feature, way, bin, sum
    rights = total - lefts
    gains = rule.score(lefts) + rule.score(rights)
    best = int(np.argmax(gains))
    gain = gains.flat[best] - float(total[0]) ** 2 / max(float(total[1]) + rule.reg_lambda, np.finfo(float).tiny)
    if not (gain > GAIN_MIN and gain >= rule.gamma):
        return None
    feature, way, place = (int(index) for index in np.unravel_index(best, gains.shape))
    last = gains.shape[2] - 1 - place if way else place
    return Split(feature, last, bool(way), lefts[feature, way, place], rights[feature, way, place])


def split_level(ensemble: Ensemble, histogram: Tree, rule: SplitRule) -> Ensemble:
    """Return the ensemble with the next level of its decision tree in progress."""
    sums, tree, first = histogram["sums"], ensemble.grown, 2**ensemble.level - 1
    grown = replace(
        ensemble,
        feature=ensemble.feature.copy(),
        bin=ensemble.bin.copy(),
        missing_left=ensemble.missing_left.copy(),
        value=ensemble.value.copy(),
    )
    if first == 0:
        grown.value[tree, 0] = rule.weigh(sums[0, 0].sum(0))
    splits = {first + place: best_split(one, rule) for place, one in enumerate(sums)}
    found = {node: split for node, split in splits.items() if split is not None}
    for node, split in found.items():
        grown.feature[tree, node], grown.bin[tree, node] = split.feature, split.bin
        grown.missing_left[tree, node], grown.value[tree, node] = split.missing_left, 0.0
        grown.value[tree, 2 * node + 1 : 2 * node + 3] = rule.weigh(np.stack([split.left, split.right]))
    done = not found or ensemble.level + 1 == ensemble.depth
    after = [1, tree + 1, 0] if done else [1, tree, ensemble.level + 1]
    return replace(grown, progress=np.array(after, np.int32))
