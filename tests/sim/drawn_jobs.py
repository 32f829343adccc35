"""Jobs drawn from a seed, algorithm × schedule × selection × filters, with the learners of their nodes.

Draw number n has the algorithm n modulo their number, and its schedules in turn; all else is drawn. Learners are
numpy's, trees, or modules of torch, which a lean simulation may train at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from torch import nn

import shoal
from shoal.jobs.spec import check_job, parse_job
from shoal.learn import TorchLearner, models
from shoal.learn.digits import digits as tensors
from shoal.learn.trees import TreesLearner
from shoal.plugins import algorithms, schedules
from tests.algorithms.softmax import Adapted, Softmax, digits
from tests.algorithms.tables import FORM

ROUNDS, CHECKPOINT_EVERY = 3, 2
PRECISIONS: tuple[list[dict[str, Any]], ...] = (
    [],
    [],
    [{"name": "half", "form": "bf16"}],
    [{"name": "half", "form": "fp16"}],
    [{"name": "quantize", "bits": 8, "bucket": 64}],
    [{"name": "quantize", "bits": 4}],
)
"""Filters that round numbers; none is as likely as each kind."""
SELECTIONS: tuple[dict[str, Any], ...] = (
    {"name": "uniform"},
    {"name": "examples"},
    {"name": "power_of_choice"},
    {"name": "power_of_choice", "measure": True},
)


def normalized() -> nn.Module:
    """Return a network with BatchNorm. No bias is before it: its gradient would be a rounding error, of which Adagrad
    makes whole steps."""
    return nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def dropping() -> nn.Module:
    """Return a small network with dropout."""
    return nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": models.mlp, "bn": normalized, "dropout": dropping}
TREES, LOCAL_STEPS = ("bagged_trees", "boosted_trees"), ("diloco", "dynamic", "fda")
QUICK: dict[str, dict[str, Any]] = {"admm": {"epochs": 1}} | {name: {"local_steps": 20} for name in LOCAL_STEPS}


@dataclass(frozen=True)
class DrawnJob:
    """A job and its nodes: the model that they train, the number of examples of each, and how slow some are."""

    spec: shoal.JobSpec
    model: str
    lengths: tuple[int, ...]
    slow: Mapping[str, float] = field(default_factory=dict)

    @property
    def rounds_updates(self) -> bool:
        """Return whether a filter rounds numbers or chooses among them, where a last bit can make a difference."""
        return any(one["name"] != "delta" for one in self.spec.filters)

    def learner(self, number: int) -> Any:
        """Make the learner of the node with this number."""
        stop = sum(self.lengths[: number + 1])
        return made(self.model, slice(stop - self.lengths[number], stop))

    def simulate(self, **more: Any) -> shoal.Result:
        """Simulate with learners that are made once, or, for several `workers`, for each task."""
        if "workers" in more:
            return shoal.simulate(self.spec, self.learner, nodes=len(self.lengths), slow=self.slow, **more)
        learners = [self.learner(number) for number in range(len(self.lengths))]
        return shoal.simulate(self.spec, learners, slow=self.slow, **more)


def made(model: str, own: slice) -> Any:
    """Return a learner of these digits, which evaluates on a few others."""
    x, y = digits()
    if model == "trees":
        return TreesLearner((x[own], (y[own] > 4).astype(np.int64)), (x[-50:], (y[-50:] > 4).astype(np.int64)), **FORM)
    if model in MODELS:
        inputs, classes = tensors()
        return TorchLearner(MODELS[model], (inputs[own], classes[own]), (inputs[-50:], classes[-50:]), device="cpu")
    kind = Adapted if model == "adapted" else Softmax
    return kind(x[own], y[own], (x[-50:], y[-50:]))


def drawn(number: int) -> DrawnJob:
    """Return the draw with a number: of its seed, the first whose parts fit each other."""
    rng, names = Random(number), sorted(algorithms())
    name = names[number % len(names)]
    model = _model(name, rng)
    nodes = rng.randint(9, 14) if model in MODELS else rng.randint(3, 6)
    lengths = tuple(rng.choice([16, rng.randint(9, 30)]) for _ in range(nodes))
    slow = {f"node-{rng.randrange(nodes)}": 3.0} if rng.random() < 0.3 else {}
    fitting = [each for each, kind in sorted(schedules().items()) if kind.family in algorithms()[name].schedules]
    schedule = fitting[number // len(names) % len(fitting)]
    while check_job(fields := _fields(name, schedule, nodes, rng)):
        pass
    return DrawnJob(parse_job(fields), model, lengths, slow)


def _model(name: str, rng: Random) -> str:
    if name in TREES:
        return "trees"
    if name == "flexlora":
        return "adapted"
    of_torch = ("mlp",) if name == "lbfgs" else MODELS  # it refuses BatchNorm's counter, which has no gradient
    return rng.choice(("softmax", "mlp", *of_torch))


def _fields(name: str, schedule: str, nodes: int, rng: Random) -> dict[str, Any]:
    algorithm = {"name": name} | ({} if name in TREES else {"batch_size": rng.choice([8, 8, 16])}) | QUICK.get(name, {})
    fields = {"name": "drawn", "seed": rng.randrange(1000), "algorithm": algorithm}
    if name not in LOCAL_STEPS:
        fields["rounds"] = ROUNDS
    filters = [{"name": "delta"}] if rng.random() < 0.3 else []
    filters += [{"name": "top_k", "fraction": 0.1}] if rng.random() < 0.3 else []
    filters += rng.choice(PRECISIONS)
    more = {"selection": rng.choice(SELECTIONS), "aggregation_precision": rng.choice(["float64", "fixed"])}
    return {
        **fields,
        **more,
        "schedule": _schedule(schedule, nodes, rng),
        "filters": filters,
        "checkpoint_every": CHECKPOINT_EVERY,
    }


def _schedule(name: str, nodes: int, rng: Random) -> dict[str, Any]:
    waiting = {"name": name, "min_nodes": nodes}
    if name == "rounds":
        return {**waiting, "cohort": rng.choice([0, 0, nodes - 1, nodes // 2]), "over_select": rng.choice([0, 1])}
    if name == "buffer":
        return {**waiting, "size": rng.randint(1, nodes), "deadline_s": 20.0}
    if name == "divergence":
        return {**waiting, "balancing": rng.choice(["all", "double", "hedged"]), "in_step": rng.random() < 0.5}
    return waiting
