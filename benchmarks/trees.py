"""Boosted trees on 4 unequal nodes beside XGBoost on all rows: bytes, time and AUC; simulated, with one thread.

OPENBLAS_NUM_THREADS=1 python benchmarks/trees.py

20,000 rows by 30 columns, of which 5 % are missing; 50 decision trees of depth 6; AUC on 5,000 other rows. Seconds are
those of the processor, the least of three runs that alternate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import xgboost

import shoal
from shoal.learn.trees import TreesLearner, predict
from shoal.learn.trees.objective import auc

EDGES, ALL, TREES, DEPTH, RUNS = (0, 2_000, 5_000, 10_000, 20_000), 25_000, 50, 6, 3
CYCLIC = {"name": "rounds", "cohort": 1}
JOBS = {
    "boosted_trees, 64 bins": (64, "boosted_trees", 1 + TREES * DEPTH),
    "boosted_trees, 256 bins": (256, "boosted_trees", 1 + TREES * DEPTH),
    "bagged_trees, 64 bins": (64, "bagged_trees", 1 + ceil(TREES / 4)),
    "bagged_trees, one by one": (64, "bagged_trees", 1 + TREES),
}
"""Bins, algorithm, rounds."""


def rows(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ALL, 30)).astype(np.float32)
    weights = rng.normal(size=30) * (np.arange(30) < 12)
    signal = x @ weights * 0.6 + np.sin(3 * x[:, 0]) * 2 + x[:, 1] * x[:, 2]
    y = (signal + rng.logistic(size=ALL) > 0).astype(int)
    x[rng.random(x.shape) < 0.05] = np.nan
    return x, y


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    made = do()
    return time.process_time() - begun, made


def federated(name: str, x: Any, y: Any) -> Any:
    bins, algorithm, rounds = JOBS[name]
    form = {"trees": TREES, "depth": DEPTH, "bins": bins}
    learners = [TreesLearner((x[a:b], y[a:b]), **form) for a, b in pairwise(EDGES)]
    schedule = CYCLIC if name.endswith("one by one") else {"name": "rounds"}
    job = {"name": "trees", "rounds": rounds, "algorithm": {"name": algorithm}, "schedule": schedule}
    return shoal.simulate(job, learners, progress=False)


def trained(x: Any, y: Any, bins: int) -> xgboost.Booster:
    given = {"objective": "binary:logistic", "max_depth": DEPTH, "max_bin": bins, "eta": 0.3, "nthread": 1}
    return xgboost.train({**given, "tree_method": "hist"}, xgboost.DMatrix(x, y), TREES)


def main() -> None:
    x, y = rows()
    train, test, known = slice(0, EDGES[-1]), slice(EDGES[-1], ALL), xgboost.DMatrix(x[EDGES[-1] :])
    seconds: dict[str, list[float]] = {}
    lines: dict[str, str] = {}
    for _ in range(RUNS):
        for name in JOBS:
            took, result = timed(lambda name=name: federated(name, x, y))
            seconds.setdefault(name, []).append(took)
            nodes, rounds = len(EDGES) - 1, len(result.versions) - 1
            up, down = (sum(count.values()) / nodes / 1e6 for count in (result.up_bytes, result.down_bytes))
            lines[name] = f"{rounds:4} rounds  {up:7.2f} MB up, {down:6.2f} MB down a node  AUC "
            lines[name] += f"{auc(predict(result.model, x[test]), y[test]):.3f}"
        for name, part, bins in (
            ("xgboost, 64 bins", train, 64),
            ("xgboost, 256 bins", train, 256),
            ("xgboost, largest node", slice(*EDGES[-2:]), 64),
        ):
            took, booster = timed(lambda part=part, bins=bins: trained(x[part], y[part], bins))
            seconds.setdefault(name, []).append(took)
            lines[name] = f"AUC {auc(booster.predict(known), y[test]):.3f}"
    for name, line in lines.items():
        print(f"{name:26} {min(seconds[name]):6.2f} s  {line}")


if __name__ == "__main__":
    main()
