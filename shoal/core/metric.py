"""Weighted means of what nodes measured."""

from __future__ import annotations

from math import inf

from shoal.core.message import Metrics

EVAL_WEIGHT = "eval/examples"
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

    def add(self, metrics: Metrics, weight: float) -> None:
        examples = metrics.get(EVAL_WEIGHT, 1.0)
        if not 0 <= examples < inf:
            examples = 0.0  # nonsense has no say
        if EVAL_WEIGHT in metrics:
            self._examples += examples
        for name, value in metrics.items():
            share = examples if name.startswith("eval/") else weight
            if name == EVAL_WEIGHT or not share:  # nothing times NaN would be NaN
                continue
            total, of = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (total + share * value, of + share)

    def values(self) -> Metrics:
        """The means so far, and the examples that "eval/…" rests on."""
        means = {name: total / of for name, (total, of) in sorted(self._sums.items()) if of}
        return means | ({EVAL_WEIGHT: self._examples} if self._examples else {})
