"""The jobs that the swarm of switches draws: each algorithm that gossips, the schedules it goes with, and filters."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.algorithms.fda import FunctionalDynamicAveraging
from shoal.algorithms.fedavg import FedAvg
from shoal.algorithms.fedprox import FedProx
from shoal.algorithms.fedsgd import FedSGD
from shoal.algorithms.periodic import PeriodicAveraging
from shoal.core.algorithm import Algorithm
from shoal.core.filter import Filter
from shoal.core.schedule import Schedule
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK
from shoal.schedules.buffer import Buffer
from shoal.schedules.drift import Drift
from shoal.schedules.periodic import Periodic
from shoal.schedules.rounds import Rounds
from shoal.schedules.variance import Variance

FILTERS: tuple[tuple[Filter, ...], ...] = (
    (),
    (),
    (Quantize(bits=8),),
    (Quantize(bits=4),),
    (Half(),),
    (Half("fp16"),),
    (TopK(0.3),),
    (TopK(0.3), Quantize(bits=8)),
    (TopK(0.3), Half()),
)
"""All but `delta`, with which nodes may not carry on."""

VERSIONS_ANCHORED = 1000
"""A job whose nodes train on by themselves ends when they have trained enough, not after so many versions."""


@dataclass(frozen=True)
class Job:
    """What of a job decides how reports become versions."""

    algorithm: Algorithm
    schedule: Schedule
    filters: tuple[Filter, ...]
    versions: int


def draw_job(rng: Random) -> Job:
    """A job that may go to its peers."""
    filters = rng.choice(FILTERS)
    kind = rng.choice(("rounds", "buffer", "drift", "drift", "periodic", "variance"))
    if kind in ("rounds", "buffer"):
        algorithm = rng.choice((FedAvg(), FedSGD(), FedProx(mu=0.1), *draw_continual(rng)))
        return Job(algorithm, draw_renewing(rng, kind), filters, rng.randint(5, 40))
    dynamic, periodic = draw_continual(rng)
    if kind == "drift":
        return Job(rng.choice((dynamic, dynamic, periodic)), draw_drift(rng), filters, VERSIONS_ANCHORED)
    if kind == "periodic":
        schedule = Periodic(share=rng.choice((1.0, 0.5, 0.3, 0.0)), deadline_s=rng.choice((5.0, 20.0)))
        return Job(rng.choice((dynamic, periodic, periodic)), schedule, filters, VERSIONS_ANCHORED)
    algorithm = FunctionalDynamicAveraging(
        steps=1, checks=rng.choice((10, 40, 120)), monitor=rng.choice(("linear", "sketch", "naive"))
    )
    return Job(algorithm, draw_variance(rng), filters, VERSIONS_ANCHORED)


def draw_continual(rng: Random) -> tuple[Algorithm, Algorithm]:
    """Algorithms whose nodes train on by themselves, as far as a run may go."""
    checks = rng.choice((10, 40, 120))
    return DynamicAveraging(steps=1, checks=checks), PeriodicAveraging(steps=1, checks=checks)


def draw_renewing(rng: Random, kind: str) -> Schedule:
    """Rounds, or a buffer."""
    deadline_s = rng.choice((8.0, 20.0))
    if kind == "rounds":
        return Rounds(fraction=rng.choice((1.0, 1.0, 0.5)), deadline_s=deadline_s)
    return Buffer(size=rng.choice((1, 2, 4)), staleness_max=rng.choice((0, 3, 100)), deadline_s=deadline_s)


def draw_drift(rng: Random) -> Schedule:
    """Every way of balancing, with thresholds that are often and seldom passed."""
    return Drift(
        delta=rng.choice(("auto", 3.0, 60.0, 200.0, 1000.0)),
        balancing=rng.choice(("all", "double", "hedged")),
        in_step=rng.random() < 0.5,
        deadline_s=rng.choice((5.0, 20.0)),
    )


def draw_variance(rng: Random) -> Schedule:
    """In step and out of it, with a threshold of its own and without."""
    return Variance(
        theta=rng.choice(("auto", 3.0, 60.0, 1000.0)),
        checks_max=rng.choice((3, 20)),
        in_step=rng.random() < 0.5,
        deadline_s=rng.choice((5.0, 20.0)),
    )
