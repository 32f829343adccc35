"""Tables for boosted trees, and the training of one program that holds all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.boosting.ensemble import Ensemble
from shoal.core.boosting.splits import SplitRule, split_level
from shoal.core.model.tree import Array, Tree
from shoal.learn.trees import TreesLearner
from tests.algorithms.softmax import digits

FORM: dict[str, Any] = {"trees": 4, "depth": 3, "bins": 32}
ROUNDS = 1 + FORM["trees"] * FORM["depth"]


def mixed(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Rows like those of a census: skewed and few-valued columns, a third of some missing, and that tells, too."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    x[:, 0] = rng.integers(17, 91, rows)
    x[:, 1] = np.exp(3 * x[:, 1])
    x[:, 2] = rng.integers(0, 4, rows)
    x[:, 3] = np.where(rng.random(rows) < 0.9, 0.0, 1e4 * rng.random(rows))
    x[rng.random(x.shape) < [0, 0.1, 0, 0, 0.3, 0, 0, 0.3]] = np.nan
    signal = (
        (x[:, 0] - 50) / 15 + 0.4 * np.log(np.nan_to_num(x[:, 1], nan=1.0)) + (x[:, 2] == 1) * np.nan_to_num(x[:, 4])
    )
    signal += 1.5 * np.isnan(x[:, 7]) + np.abs(x[:, 5]) - 2 * (x[:, 3] > 0)
    return x.astype(np.float32), (signal + rng.logistic(size=rows) > 1).astype(np.int64)


def unequal(x: Array, y: Array, *, count: int = 4, test: Any = None, **form: Any) -> list[TreesLearner]:
    """Nodes with parts of very different sizes, each of other rows: those of the first column from small to large."""
    edges = [0, *(len(y) * np.cumsum(2.0 ** np.arange(count)) / (2**count - 1)).astype(int)]
    order = np.argsort(x[:, 0], kind="stable")
    parts = [order[edges[place] : edges[place + 1]] for place in range(count)]
    return [TreesLearner((x[part], y[part]), test, **(FORM | form)) for part in parts]


def halves(tested: bool = False) -> list[TreesLearner]:
    """Three nodes that tell small digits from great ones."""
    x, y = digits()
    labels = (y > 4).astype(np.int64)
    test = (x[1437:], labels[1437:]) if tested else None
    return unequal(x[:1437], labels[:1437], count=3, test=test)


def job(**fields: Any) -> dict[str, Any]:
    """A job of boosted trees for such nodes."""
    return {"name": "trees", "rounds": ROUNDS, "algorithm": {"name": "boosted_trees"}, **fields}


def central(x: Array, y: Array, begun: Tree, rule: SplitRule | None = None, **form: Any) -> Ensemble:
    """The ensemble that one program grows that holds all rows, with the bins and base score of `begun`."""
    learner = TreesLearner((x, y), **(FORM | form))
    empty, known = Ensemble.of(learner.model()), Ensemble.of(begun)
    made = replace(empty, edges=known.edges, base_score=known.base_score, scale=known.scale)
    made = replace(made, progress=np.array([1, 0, 0], np.int32))
    while not made.is_complete:
        learner.load(made.to_model())
        made = split_level(made, learner.histogram()[1], rule or SplitRule())
    return made
