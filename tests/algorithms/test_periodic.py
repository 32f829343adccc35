"""Periodic averaging, of all nodes, of a share, or of none, under the same clock as dynamic averaging."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.errors import InvalidJob
from shoal.schedules.periodic import Periodic
from tests.algorithms.averaging_runs import NODES, job, periodic, run


def test_all_have_the_mean_after_every_check() -> None:
    done = run(periodic(12), keep=True)
    assert done.syncs == 12
    for check in range(10, 120, 10):
        mean = np.mean([probe.after[check] for probe in done.probes], axis=0)
        for probe in done.probes:
            assert np.allclose(probe.before[check], mean, atol=1e-6)


def test_each_goes_on_in_its_own_sequence_until_it_has_enough() -> None:
    done = run(periodic(12), keep=True)
    for probe in done.probes:
        assert sorted(probe.before) == list(range(0, 120, 10))


def test_a_share_is_averaged_and_the_others_train_on() -> None:
    """Kamp et al.'s federated averaging: at each check three of ten get the mean of the three; the rest keep theirs."""
    done = run(periodic(30, share=0.3), keep=True)
    chosen: list[frozenset[int]] = []
    for check in range(10, 300, 10):
        moved = [
            place
            for place, probe in enumerate(done.probes)
            if not np.array_equal(probe.before[check], probe.after[check])
        ]
        assert len(moved) == 3
        chosen.append(frozenset(moved))
        mean = np.mean([done.probes[place].after[check] for place in moved], axis=0)
        assert all(np.allclose(done.probes[place].before[check], mean, atol=1e-6) for place in moved)
    assert len(set(chosen)) > 15, "the share is drawn anew each time"
    assert frozenset().union(*chosen) == frozenset(range(NODES))


def test_nobody_speaks_before_the_end() -> None:
    done = run(periodic(12, share=0.0), keep=True)
    assert done.syncs == 1
    for probe in done.probes:
        assert all(np.array_equal(probe.before[check], probe.after[check]) for check in range(10, 120, 10))
    mean = np.mean([probe.after[120] for probe in done.probes], axis=0)
    assert np.allclose(np.concatenate([done.result.model[name].ravel() for name in done.result.model]), mean, atol=1e-6)


def test_under_rounds_it_is_federated_averaging_by_steps() -> None:
    """The same models as under its own schedule, for nodes of equal weight; the job ends when all have enough."""
    own, rounds = run(periodic(6)), run(job({"name": "periodic"}, {"name": "rounds"}, 6))
    assert own.syncs == rounds.syncs == 6
    for name in own.result.model:
        assert np.allclose(own.result.model[name], rounds.result.model[name], atol=1e-5)
    part = run(job({"name": "periodic"}, {"name": "rounds", "fraction": 0.3}, 6))
    assert all(version.reports == 3 for version in part.result.versions[1:])


def test_continuous_averaging_is_one_model_on_all_data() -> None:
    """b = 1: with plain SGD the mean of models after one step each is one step of the mean gradient."""
    done = run(job({"name": "periodic", "steps": 1}, {"name": "periodic"}, 20), keep=True, every=1)
    assert done.syncs == 20
    starts = [[probe.before[step] for probe in done.probes] for step in range(20)]
    assert all(np.array_equal(one, models[0]) for models in starts for one in models)


@pytest.mark.parametrize(
    "fields", [{"fraction": -0.1}, {"fraction": 1.5}, {"fraction": float("nan")}, {"deadline_s": 0.0}]
)
def test_what_makes_no_sense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidJob):
        Periodic(**fields)
