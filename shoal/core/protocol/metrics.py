"""Weighted means of what nodes measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, nan

from shoal.core.protocol.message import Metrics

EVAL_WEIGHT = "eval/examples"
EVAL_NODES = "eval/nodes"
"""Number of nodes that measured the "eval/…" of a version: those of one node say little about the others."""
EVAL_ASKED = "eval/asked"
"""Number of nodes at work when the mean over each node's last report was taken: fewer `EVAL_NODES` is a part."""
ACCURACY, LOSS = "eval/accuracy", "eval/loss"

TRAIN_LOSS = "train/loss"
"""The mean over the steps of the training."""

PROBE = "probe"
"""Among a task's numbers: a node that measures is to tell the loss of its training data, for a choice among nodes."""

PIECES = "train/pieces"
"""Number of checks that a node has made since its task came."""

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
        """Return the means so far, and the examples and nodes on which "eval/…" rests."""
        means = {name: total / of for name, (total, of) in sorted(self._sums.items()) if of}
        rests = {EVAL_WEIGHT: self._examples, EVAL_NODES: float(len(self._nodes))}
        return means | {name: count for name, count in rests.items() if count}


HUGE = 2.0**400
"""A value beyond this counts as one that is not finite."""

UNIT = 2.0**60
"""Sums over last reports count in these parts: whole numbers, so that a sum forgets exactly what it was given."""


class LatestMeans:
    """The mean of each "eval/…" over the last report of each node, weighted by "eval/examples".

    For schedules whose versions are made of a few nodes' reports each: the mean over those few depends on which nodes
    they are. The models that were measured may be a few versions older than the newest.
    """

    def __init__(self) -> None:
        self._said: dict[str, Metrics] = {}
        self._sums: dict[str, tuple[int, int, int]] = {}
        """By name: the weighted sum and the sum of weights, in parts, and how many values are not finite."""

    def put(self, node: str, metrics: Metrics) -> None:
        """Replace what the node reported before; a report without "eval/…" leaves that as it was."""
        said = {name: value for name, value in metrics.items() if name.startswith("eval/")}
        if said and 0 < said.get(EVAL_WEIGHT, 1.0) < HUGE:
            self.drop(node)
            self._said[node] = said
            self._add(said, 1)

    def drop(self, node: str) -> None:
        """Forget a node that takes no part any more."""
        said = self._said.pop(node, None)
        if said is not None:
            self._add(said, -1)

    def _add(self, said: Metrics, sign: int) -> None:
        examples = said.get(EVAL_WEIGHT, 1.0)
        for name, value in said.items():
            total, of, odd = self._sums.get(name, (0, 0, 0))
            if abs(value) < HUGE:  # not so of NaN
                share = 1.0 if name == EVAL_WEIGHT else examples
                total, of = total + sign * _parts(share) * _parts(value), of + sign * _parts(share)
            else:
                odd += sign
            self._sums[name] = total, of, odd

    def values(self) -> Metrics:
        """Return the means, and the examples and nodes that they rest on; NaN where a node's value is not finite."""
        means = {
            name: nan if odd else total / of / UNIT
            for name, (total, of, odd) in sorted(self._sums.items())
            if name != EVAL_WEIGHT and (odd or of)
        }
        examples = self._sums.get(EVAL_WEIGHT, (0, 0, 0))[0] / UNIT / UNIT
        counts = {EVAL_WEIGHT: examples, EVAL_NODES: float(len(self._said))}
        return means | {name: count for name, count in counts.items() if count}

    def state(self) -> dict[str, dict[str, float | None]]:
        """Return what must be kept, as JSON values: None where a value is not finite."""
        return {
            node: {name: value if isfinite(value) else None for name, value in said.items()}
            for node, said in self._said.items()
        }

    @classmethod
    def restore(cls, state: Mapping[str, Mapping[str, float | None]]) -> LatestMeans:
        """Return the means that had that state."""
        made = cls()
        for node, said in state.items():
            made.put(node, {name: nan if value is None else value for name, value in said.items()})
        return made


def _parts(value: float) -> int:
    return int(value * UNIT)
