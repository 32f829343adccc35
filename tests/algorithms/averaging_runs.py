"""Ten learners on streams of digits that write down what they were and how good they were, under any averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import shoal
from shoal.core.algorithm.learner import Learner, TrainConfig, Trained
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.schedule import Schedule
from shoal.jobs.spec import parse_job
from shoal.learn import digits, models
from shoal.learn.data.stream import Permute, Stream
from shoal.learn.training.torch_learner import TorchLearner
from shoal.simulation import SimulatedJob

NODES = 10
TEST = 360
BYTES_8 = [{"name": "quantize", "bits": 8}]

torch.set_num_threads(1)


class Probe:
    """A learner that remembers its checks. `every`: mini-batches between two measurements; `keep`: the models too."""

    def __init__(self, learner: Learner, every: int, keep: bool) -> None:
        self._learner, self._every, self._keep = learner, every, keep
        self.accuracies: list[float] = []
        self.begun: list[int] = []
        """Mini-batches trained on when each order began."""
        self.before: dict[int, np.ndarray] = {}
        """By the number of mini-batches trained on: the weights that training went on from."""
        self.after: dict[int, np.ndarray] = {}
        """The same: the weights that it came to."""
        self.position = 0
        self.start: Tree | None = None
        """The model that a job begins with, where it is not a new one."""

    def init(self, seed: int) -> Tree:
        return self.start if self.start is not None else self._learner.init(seed)

    def load(self, model: Tree) -> None:
        self._learner.load(model)

    def model(self) -> Tree:
        return self._learner.model()

    def evaluate(self) -> Metrics:
        self.begun.append(self.position)
        return self._learner.evaluate()

    def gradient(self, config: TrainConfig, **rest: Any) -> tuple[Trained, Tree]:
        return self._learner.gradient(config, **rest)

    def train(self, config: TrainConfig, **rest: Any) -> Trained:
        if self._keep:
            self.before[config.batch_index] = flat(self._learner.model())
        trained = self._learner.train(config, **rest)
        self.position = config.batch_index + config.steps
        if self._keep:
            self.after[self.position] = flat(self._learner.model())
        if self.position % self._every == 0:
            self.accuracies.append(self._learner.evaluate()["eval/accuracy"])
        return trained


def flat(model: Tree) -> np.ndarray:
    """All weights, `float64[d]`."""
    return np.concatenate([model[name].ravel() for name in model]).astype(np.float64)


def probes(drift_at: int = 0, seed: int = 0, *, every: int = 50, keep: bool = False) -> list[Probe]:
    """Ten nodes with 143 digits each, drawn alike; their names change places with mini-batch `drift_at`, if any."""
    x, y = digits.digits()
    order = np.random.default_rng(seed).permutation(len(y))
    test, rest = order[:TEST], order[TEST : TEST + NODES * 143]  # all have as many: all weigh as much
    drifts = (Permute(drift_at),) if drift_at else ()
    return [
        Probe(
            TorchLearner(
                models.named(models.DIGITS, "mlp"), Stream((x[own], y[own]), drifts, seed=seed), (x[test], y[test])
            ),
            every,
            keep,
        )
        for own in (rest[part::NODES] for part in range(NODES))
    ]


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    result: shoal.Result
    probes: list[Probe]

    @property
    def local(self) -> float:
        """The mean accuracy of the nodes' own models, at the end."""
        return float(np.mean([probe.accuracies[-1] for probe in self.probes]))

    @property
    def anytime(self) -> float:
        """The same, over the whole run."""
        return float(np.mean([np.mean(probe.accuracies) for probe in self.probes]))

    @property
    def nbytes(self) -> int:
        """Bytes of all heads and bodies, both directions."""
        return sum(self.result.up_bytes.values()) + sum(self.result.down_bytes.values())

    @property
    def syncs(self) -> int:
        """Versions that were made."""
        return len(self.result.versions) - 1


def job(
    algorithm: dict[str, Any],
    schedule: dict[str, Any],
    checks: int,
    filters: Sequence[dict[str, Any]] = (),
    seed: int = 1,
) -> shoal.JobSpec:
    """Ten mini-batches of ten between two checks."""
    ours = {"steps": 10, "batch_size": 10, "lr": 0.1} | algorithm
    return parse_job(
        {
            "name": "averaging",
            "seed": seed,
            "algorithm": ours | {"local_steps": ours["steps"] * checks},
            "schedule": {"min_nodes": NODES} | schedule,
            "filters": list(filters),
        }
    )


def run(what: SimulatedJob, drift_at: int = 0, *, start: Tree | None = None, **how: Any) -> Run:
    """Simulate it."""
    found = probes(drift_at, **how)
    for probe in found:
        probe.start = start
    return Run(shoal.simulate(what, found), found)


@dataclass(frozen=True)
class With:
    """A job under a schedule that no file can name."""

    base: shoal.JobSpec
    schedule: Schedule
    name: str = "averaging"

    def plan(self) -> JobPlan:
        return self.base.plan()

    def build_algorithm(self) -> Any:
        return self.base.build_algorithm()

    def build_schedule(self) -> Schedule:
        return self.schedule


def periodic(checks: int, share: float = 1.0, **rest: Any) -> shoal.JobSpec:
    """Averaging of a share of the nodes at every check."""
    return job({"name": "periodic"}, {"name": "periodic", "fraction": share}, checks, **rest)


def dynamic(
    checks: int, delta: float | str = 1.0, *, filters: Sequence[dict[str, Any]] = (), **schedule: Any
) -> shoal.JobSpec:
    """Dynamic averaging."""
    return job({"name": "dynamic"}, {"name": "divergence", "delta": delta, **schedule}, checks, filters)
