"""Kamp et al., ECML-PKDD 2018, on streams of digits: what dynamic averaging promises, and what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from shoal.core.algorithm.filter import pack
from shoal.core.scheduling.schedule import Close, Decision, View
from shoal.filters.quantize import Quantize
from shoal.schedules.divergence import Divergence
from shoal.simulation import payload_bytes
from tests.algorithms.averaging_runs import BYTES_8, NODES, Run, With, dynamic, periodic, run
from tests.support.sampling import nightly

DELTA = 1.0


def spread(models: Sequence[np.ndarray]) -> float:
    """(1/m) sum_i ||w_i - mean||^2."""
    mean = np.mean(models, axis=0)
    return float(np.mean([np.sum((one - mean) ** 2) for one in models]))


@pytest.mark.parametrize("balancing", ["all", "double", "hedged"])
def test_models_stay_close_and_their_mean_is_kept(balancing: str) -> None:
    """A2a: after every check the divergence is at most Delta, and no balancing moves the mean of all models."""
    probes = run(dynamic(60, DELTA, balancing=balancing, in_step=True), keep=True).probes
    divergence, moved = [], []
    for check in range(10, 600, 10):
        divergence.append(spread([probe.before[check] for probe in probes]))
        before = np.mean([probe.after[check] for probe in probes], axis=0)
        after = np.mean([probe.before[check] for probe in probes], axis=0)
        moved.append(float(np.abs(after - before).max()))
    assert max(divergence) <= DELTA
    assert max(moved) < 1e-5
    assert max(divergence) > 0.1 * DELTA, "nothing was near the threshold: this has shown nothing"


@cache
def drifting(checks: int, seed: int = 0) -> Run:
    """A run in which labels change their names half-way."""
    return run(dynamic(checks, DELTA, in_step=True), 5 * checks, seed=seed)


@pytest.mark.parametrize("checks", nightly([140, 200], but=[140]))
def test_bytes_beside_periodic_averaging(checks: int) -> None:
    """A2b: labels change their names half-way; a fifth of the bytes of averaging at every check, at nearly its
    accuracy, where nodes that never speak fall behind."""
    every = run(periodic(checks), 5 * checks)
    alone = run(periodic(checks, share=0.0), 5 * checks)
    assert drifting(checks).nbytes <= every.nbytes / 5
    assert drifting(checks).local >= every.local - 0.015
    assert alone.local <= every.local - 0.03


@pytest.mark.parametrize(("checks", "seed"), nightly([(140, 0), (200, 0), (200, 1), (200, 2)], but=[(140, 0)]))
def test_more_is_said_after_a_drift(checks: int, seed: int) -> None:
    """A2c: 1.7 times as many synchronizations in the quarter after the drift as in the one before; then fewer again."""
    begun = drifting(checks, seed).probes[0].begun
    quarters = np.histogram(begun, bins=1 + np.arange(5) * checks * 10 / 4)[0]
    assert quarters[2] >= 1.7 * quarters[1]
    assert quarters[3] < quarters[2]


@dataclass(frozen=True)
class Stale(Divergence):
    """The mistake of never moving the reference."""

    def decide(self, view: View) -> list[Decision]:
        return [
            replace(one, rebase=False) if isinstance(one, Close) and not one.last else one
            for one in super().decide(view)
        ]


@pytest.mark.parametrize("checks", nightly([80, 150], but=[80]))
def test_the_reference_has_to_move(checks: int) -> None:
    """A2d: with one that never moves soon every check is a violation."""
    job = dynamic(checks, DELTA, in_step=True)
    stale = run(With(job, Stale(delta=DELTA, in_step=True, min_nodes=NODES)))
    assert stale.syncs >= 0.8 * checks
    moving = run(job)
    assert moving.syncs <= 0.25 * checks
    assert moving.nbytes <= 0.4 * stale.nbytes


def test_a_job_that_starts_from_a_trained_model_is_as_quiet() -> None:
    """Little happens in its first window; the threshold must not stay what that shows."""
    trained = run(periodic(60)).result.model
    fresh, further = (run(dynamic(80, "auto"), start=start) for start in (None, trained))
    assert further.syncs <= 1.5 * fresh.syncs
    assert further.result.accuracy >= fresh.result.accuracy - 0.005


@pytest.mark.parametrize("checks", nightly([60, 300], but=[60]))
def test_eight_bits_are_enough(checks: int) -> None:
    """A2e: differences to the reference in 8 bits: a quarter of the bytes, and the accuracy stays."""
    plain = run(dynamic(checks, DELTA, in_step=True))
    coded = run(dynamic(checks, DELTA, in_step=True, filters=BYTES_8))
    assert abs(plain.local - coded.local) <= 0.003
    assert abs(plain.syncs - coded.syncs) <= 2
    model = plain.result.model
    sent = pack([Quantize(bits=8)], {"model": model}, seed=0)
    assert payload_bytes({"model": model}) >= 3.6 * payload_bytes(sent)  # 4 less names and scales
    # What goes beside models (statuses, tasks, polls) is the same in both runs; the rest is bodies.
    saved = plain.syncs * 2 * NODES * (payload_bytes({"model": model}) - payload_bytes(sent))
    assert plain.nbytes - coded.nbytes == pytest.approx(saved, rel=0.1)
