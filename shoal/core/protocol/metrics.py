"""Names of metrics, and weighted means of what nodes measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, nan

from shoal.core.protocol.message import Metrics

METRICS_MAX = 256
"""Metrics of a learner."""

REPORTED_MAX = 2 * METRICS_MAX + 8
"""Metrics of one report, with their counts and those of the training."""

NAME_MAX = 64
"""Characters of a metric's name, with "eval/" or "train/"."""

_NAME = re.compile(r"[A-Za-z0-9_](?:[ !#-\[\]-~]*[!#-\[\]-~])?")
"""Printable ASCII without quotation marks and backslashes."""

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

STAGE = "stage"
"""Among the numbers of a task and of a version: the number of its stage; left out in the first one, which is 0."""


def stage_of(numbers: Metrics) -> int:
    """Return the stage in the numbers of a task or a version."""
    return int(numbers.get(STAGE, 0))


REPORT_AFTER_CHECKS = "report_after_checks"
"""A number that a schedule keeps: the checks after which a node reports without being asked."""

THETA = "theta"
"""A number of the schedule `variance`: the variance of the models above which all nodes are asked."""

CHECKS_SINCE_TASK = "train/checks_since_task"
"""Number of checks that a node has made since its task came."""

FINISHED = "train/finished"
"""1 in a report of a node that has trained as much as it should."""


def metrics_fault(metrics: Metrics, most: int = REPORTED_MAX) -> str:
    """Return why these metrics cannot be reported; empty if they can."""
    if len(metrics) > most:
        return f"{len(metrics)} metrics; at most {most}"
    for name in metrics:
        if len(name) > NAME_MAX or not _NAME.fullmatch(name):
            return f"{name[: NAME_MAX + 6]!r} is not a metric name"
    return ""


METRIC_RULE = (
    f"a name has at most {NAME_MAX} printable ASCII characters and begins with a letter, a digit or an underscore; "
    "it has no quotation mark and no backslash"
)
"""The rule of `metrics_fault`, for hints."""


_OF_EXAMPLES = "/examples"


def own_count(name: str) -> str:
    """Return the name of the number of examples or labels over which a metric was taken, if it has its own."""
    return name + _OF_EXAMPLES


def own_nodes(name: str) -> str:
    """Return the name of the number of nodes that have a metric which is undefined on others."""
    return f"{name}/nodes"


def may_be_undefined(name: str) -> bool:
    """Return whether NaN of a metric means "undefined on these data", as an AUC is with one class.

    NaN as a loss means that the model has diverged.
    """
    return name.startswith("eval/") and name != LOSS


def _counts_of(metrics: Metrics) -> set[str]:
    """Return those of the metrics that are counts of others."""
    return {name for name in metrics if name.endswith(_OF_EXAMPLES) and name.removesuffix(_OF_EXAMPLES) in metrics}


class Means:
    """The mean of each metric over all reports: "eval/…" weighted by its examples, the rest by the report's weight.

    The examples of a metric are "eval/NAME/examples" where reported, else "eval/examples". A metric that is not finite
    on some nodes is averaged over the others, and "eval/NAME/nodes" says over how many. A loss stays what it is: a
    diverged model must be seen.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float, int]] = {}
        """By metric: the weighted sum, the sum of weights, and how many values."""
        self._own: set[str] = set()
        """Metrics whose own count some node has reported."""
        self._examples = 0.0
        self._nodes: set[str] = set()
        self._undefined: set[str] = set()
        """Metrics that were not finite on some node."""

    def add(self, metrics: Metrics, weight: float, node: str) -> None:
        examples = metrics.get(EVAL_WEIGHT, 1.0)
        if not 0 <= examples < inf:
            examples = 0.0  # nonsense has no say
        if EVAL_WEIGHT in metrics:
            self._examples += examples
        counts = _counts_of(metrics)
        for name, value in metrics.items():
            share = weight
            if name.startswith("eval/"):
                share = _share(name, metrics, examples)
                if examples:
                    self._nodes.add(node)
            if name == EVAL_WEIGHT or name in counts or not share:  # nothing times NaN would be NaN
                continue
            if not isfinite(value) and may_be_undefined(name):
                self._undefined.add(name)
                continue
            if counts and own_count(name) in counts:
                self._own.add(name)
            total, of, number = self._sums.get(name, (0.0, 0.0, 0))
            self._sums[name] = (total + share * value, of + share, number + 1)

    def values(self) -> Metrics:
        """Return the means so far, and the examples and nodes on which "eval/…" rests."""
        means = {name: total / of for name, (total, of, _) in sorted(self._sums.items()) if of}
        own = {own_count(name): self._sums[name][1] for name in sorted(self._own)}
        for name in sorted(self._undefined):
            means.setdefault(name, nan)
            own[own_nodes(name)] = float(self._sums.get(name, (0.0, 0.0, 0))[2])
        means |= own
        if self._examples:
            means[EVAL_WEIGHT] = self._examples
        if self._nodes:
            means[EVAL_NODES] = float(len(self._nodes))
        return means


def _share(name: str, metrics: Metrics, examples: float) -> float:
    """Return the weight of a metric of an evaluation on `examples`."""
    own = metrics.get(own_count(name), examples)
    return own if examples and 0 <= own < inf else 0.0


HUGE = 2.0**400
"""A value beyond this counts as one that is not finite."""

UNIT = 2.0**60
"""Sums over last reports count in these parts: whole numbers, so that a sum forgets exactly what it was given."""


@dataclass
class _Sum:
    """The sums of one metric over the last reports, in parts of `UNIT`."""

    total: int = 0
    of: int = 0
    odd: int = 0
    """Number of losses that are not finite."""
    own: int = 0
    """Number of values that came with a count of their own."""
    defined: int = 0
    undefined: int = 0


class LatestMeans:
    """The mean of each "eval/…" over the last report of each node, weighted as by `Means`.

    For schedules whose versions are made of a few nodes' reports each: the mean over those few depends on which nodes
    they are. The models that were measured may be a few versions older than the newest.
    """

    def __init__(self) -> None:
        self._said: dict[str, Metrics] = {}
        self._sums: dict[str, _Sum] = {}

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
        examples, counts = said.get(EVAL_WEIGHT, 1.0), _counts_of(said)
        for name, value in said.items():
            if name in counts:
                continue
            share = 1.0 if name == EVAL_WEIGHT else _share(name, said, examples)
            if not share:  # nothing times NaN would be NaN
                continue
            found = self._sums.setdefault(name, _Sum())
            if share < HUGE and abs(value) < HUGE:  # not so of NaN
                found.total += sign * _parts(share) * _parts(value)
                found.of += sign * _parts(share)
                found.own += sign if own_count(name) in counts else 0
                found.defined += sign
            elif may_be_undefined(name):
                found.undefined += sign
            else:
                found.odd += sign
            if found == _Sum():
                del self._sums[name]

    def values(self) -> Metrics:
        """Return the means, and the examples and nodes that they rest on; NaN where a node's loss is not finite."""
        means: dict[str, float] = {}
        for name, found in sorted(self._sums.items()):
            if name == EVAL_WEIGHT or not (found.odd or found.of or found.undefined):
                continue
            means[name] = nan if found.odd or not found.of else found.total / found.of / UNIT
            if found.own:
                means[own_count(name)] = found.of / UNIT
            if found.undefined:
                means[own_nodes(name)] = float(found.defined)
        examples = self._sums.get(EVAL_WEIGHT, _Sum()).total / UNIT / UNIT
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
