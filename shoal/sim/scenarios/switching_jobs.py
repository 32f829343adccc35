"""Jobs for the runs that switch modes: each algorithm that supports gossip, its schedules, and filters."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from shoal.algorithms.diloco import DiLoCo
from shoal.algorithms.dynamic import DynamicAveraging
from shoal.algorithms.fda import FunctionalDynamicAveraging
from shoal.algorithms.fedavg import FedAvg
from shoal.algorithms.fedopt import FedAvgM
from shoal.algorithms.fedprox import FedProx
from shoal.algorithms.fedsgd import FedSGD
from shoal.algorithms.periodic import PeriodicAveraging
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filter
from shoal.core.scheduling.schedule import Schedule
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK
from shoal.schedules.buffer import Buffer
from shoal.schedules.divergence import Divergence
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
"""All but `delta`, which does not support gossip."""

VERSIONS_ANCHORED = 1000
"""Enough versions for continual jobs, which end when their nodes have trained enough."""


@dataclass(frozen=True)
class DrawnJob:
    """The part of a job that decides how reports become versions."""

    algorithm: Algorithm
    schedule: Schedule
    filters: tuple[Filter, ...]
    versions: int


def draw_job(rng: Random) -> DrawnJob:
    """Return a job that supports gossip."""
    filters = rng.choice(FILTERS)
    kind = rng.choice(("rounds", "buffer", "divergence", "divergence", "periodic", "variance"))
    checks = rng.choice((10, 40, 120)) if kind != "variance" else 0
    if kind in ("rounds", "buffer"):
        continual = DiLoCo(steps=1, local_steps=40) if checks == 40 else PeriodicAveraging(steps=1, local_steps=checks)
        fifth = continual if kind == "rounds" else FedAvgM()
        algorithm: Algorithm = rng.choice((FedAvg(), FedSGD(), FedProx(mu=0.1), FedProx(mu=0.01), fifth))
        return DrawnJob(algorithm, draw_renewing(rng, kind), filters, rng.randint(5, 40))
    if kind == "divergence":
        dynamic = DynamicAveraging(steps=rng.choice((1, 1, 2)), local_steps=checks)
        return DrawnJob(dynamic, draw_drift(rng), filters, VERSIONS_ANCHORED)
    if kind == "periodic":
        schedule = Periodic(fraction=rng.choice((1.0, 0.5, 0.3, 0.0)), deadline_s=rng.choice((5.0, 20.0)))
        periodic = PeriodicAveraging(steps=rng.choice((2, 1, 1)), local_steps=checks)
        return DrawnJob(periodic, schedule, filters, VERSIONS_ANCHORED)
    monitored = FunctionalDynamicAveraging(
        steps=1, local_steps=rng.choice((10, 40, 120)), monitor=rng.choice(("linear", "sketch", "naive"))
    )
    if monitored.monitor == "naive" and monitored.local_steps == 40:
        return DrawnJob(DiLoCo(steps=1, local_steps=40), draw_variance(rng), filters, VERSIONS_ANCHORED)
    return DrawnJob(monitored, draw_variance(rng), filters, VERSIONS_ANCHORED)


def draw_renewing(rng: Random, kind: str) -> Schedule:
    """Return rounds, or a buffer."""
    deadline_s = rng.choice((8.0, 20.0))
    if kind == "rounds":
        return Rounds(fraction=rng.choice((1.0, 1.0, 0.5)), deadline_s=deadline_s)
    return Buffer(size=rng.choice((1, 2, 4)), staleness_max=rng.choice((0, 3, 100)), deadline_s=deadline_s)


def draw_drift(rng: Random) -> Schedule:
    """Return every balancing, with thresholds that are passed often or seldom."""
    return Divergence(
        delta=rng.choice(("auto", 3.0, 60.0, 200.0, 1000.0)),
        balancing=rng.choice(("all", "double", "hedged")),
        in_step=rng.random() < 0.5,
        deadline_s=rng.choice((5.0, 20.0)),
    )


def draw_variance(rng: Random) -> Schedule:
    """Return synchronous and asynchronous schedules, with and without a threshold of their own."""
    return Variance(
        theta=rng.choice(("auto", 3.0, 60.0, 1000.0)),
        checks_max=rng.choice((3, 20)),
        in_step=rng.random() < 0.5,
        deadline_s=rng.choice((5.0, 20.0)),
    )
