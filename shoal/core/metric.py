"""Weighted means of what nodes measured."""

from __future__ import annotations

from math import inf

from shoal.core.message import Metrics

EVAL_WEIGHT = "eval/examples"
EVAL_NODES = "eval/nodes"
"""How many nodes measured the "eval/…" of a version: those of one node say little about the others."""
ACCURACY, LOSS = "eval/accuracy", "eval/loss"

TRAIN_LOSS = "train/loss"
"""The mean over the steps of the training."""

PROBE = "probe"
"""Among an order's numbers: a node that measures is to tell the loss of its training data, for a choice among nodes."""

PIECES = "train/pieces"
"""How many checks a node has made since its order came."""

FINISHED = "train/finished"
"""1 in a report of a node that has trained as much as it should."""


class Means:
    """The mean of each metric over all reports: "eval/…" weighted by "eval/examples", the rest by the report's weight.

    NaN and infinity stay what they are: a diverged model must be seen.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._examples = 0.0
        self._nodes: set[str] = set()

    def add(self, metrics: Metrics, weight: float, node: str) -> None:
        examples = metrics.get(EVAL_WEIGHT, 1.0)
        if not 0 <= examples < inf:
            examples = 0.0  # nonsense has no say
        if EVAL_WEIGHT in metrics:
            self._examples += examples
        if examples and any(name.startswith("eval/") for name in metrics):
            self._nodes.add(node)
        for name, value in metrics.items():
            share = examples if name.startswith("eval/") else weight
            if name == EVAL_WEIGHT or not share:  # nothing times NaN would be NaN
                continue
            total, of = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (total + share * value, of + share)

    def values(self) -> Metrics:
        """The means so far, and the examples and nodes that "eval/…" rests on."""
        means = {name: total / of for name, (total, of) in sorted(self._sums.items()) if of}
        rests = {EVAL_WEIGHT: self._examples, EVAL_NODES: float(len(self._nodes))}
        return means | {name: count for name, count in rests.items() if count}
