"""A job that is simulated without journal, disks and processes is the same job."""

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import digest
from shoal.core.protocol.message import NodeInfo
from shoal.jobs.spec import parse_job
from shoal.plugins import algorithms, filters, schedules, selections
from shoal.sim.network.blobs import LeanBlobs
from shoal.sim.tasks import simulated_tasks
from tests.algorithms.softmax import Softmax, digits, unbalanced
from tests.algorithms.test_conformance import in_rounds, three
from tests.sim.drawn_jobs import CHECKPOINT_EVERY, MODELS, DrawnJob, drawn
from tests.sim.one_process import OneProcess
from tests.support.sampling import extended

ROUNDS = {"name": "rounds", "min_nodes": 3, "quorum": 3}
BUFFER = {"name": "buffer", "size": 2, "min_nodes": 3, "deadline_s": 20.0}
JOBS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": {"name": name}, "schedule": ROUNDS} for name in in_rounds()},
    "buffer": {"algorithm": {"name": "fedbuff"}, "schedule": BUFFER},
    "dynamic preset": {"preset": "dynamic", "algorithm": {"batch_size": 32}},
    "periodic preset": {"preset": "periodic", "algorithm": {"batch_size": 32}},
    "fda preset": {"preset": "fda", "algorithm": {"batch_size": 32}},
    "top_k": {"filters": [{"name": "top_k", "fraction": 0.05}, {"name": "quantize"}]},
    "delta": {"filters": [{"name": "delta"}, {"name": "half"}]},
    "dynamic, 8 bits": {"preset": "dynamic", "algorithm": {"batch_size": 32}, "filters": [{"name": "quantize"}]},
    "cohorts": {"schedule": {"name": "rounds", "cohort": 2}, "selection": {"name": "power_of_choice"}},
}

DRAWS, FEW_DRAWS = range(240), range(6, 30)
ROUNDING = 1e-5
"""Greatest difference between numbers of models that were trained at once and one by one."""
FLIPS_MAX = 0.01
"""Fraction of numbers that a filter may round the other way, or not choose, for a difference of a last bit."""
METRIC, METRIC_AFTER_FLIPS = 1e-4, 1 / 50 + ROUNDING
"""Greatest difference between their metrics, without such filters and with them: one test example of 50."""
DIGITS = 16
"""Digits of a metric in a report's head, which has fewer bytes where the last ones are zeros."""

SAMPLE = ("fedavg", "scaffold", "boosted_trees", "buffer", "dynamic, 8 bits", "top_k", "delta", "cohorts")


def job(**fields: Any) -> shoal.JobSpec:
    return parse_job({"name": "fidelity", "rounds": 4, "seed": 5, **fields})


def both(given: shoal.JobSpec, learners: Any = lambda: unbalanced(tested=True), **more: Any) -> list[shoal.Result]:
    return [shoal.simulate(given, learners(), fidelity=how, **more) for how in ("lean", "wire")]


@pytest.mark.parametrize("name", extended(JOBS, but=SAMPLE))
def test_model_versions_events_and_bytes_are_the_same(name: str) -> None:
    lean, wire = both(job(**JOBS[name]), lambda: three(name if name in in_rounds() else "fedavg", tested=True))
    assert (lean.fidelity, wire.fidelity) == ("lean", "wire")
    assert len(lean.versions) > 1
    assert [vars(lean)[name] for name in ("versions", "events", "up_bytes", "down_bytes")] == [
        vars(wire)[name] for name in ("versions", "events", "up_bytes", "down_bytes")
    ]
    assert digest(lean.model) == digest(wire.model)
    assert (lean.metrics, lean.state, lean.uncounted) == (wire.metrics, wire.state, wire.uncounted)


def test_the_draws_have_each_algorithm_schedule_selection_and_filter() -> None:
    draws = [drawn(number) for number in FEW_DRAWS]
    for known, name in ((algorithms(), "algorithm"), (schedules(), "schedule"), (selections(), "selection")):
        assert {getattr(one.spec, name)["name"] for one in draws} == set(known)
    assert {one["name"] for draw in draws for one in draw.spec.filters} == set(filters())
    assert {draw.model for draw in draws} >= {"softmax", *MODELS}


@pytest.mark.parametrize("number", extended(DRAWS, but=FEW_DRAWS))
def test_a_drawn_job_has_one_result(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated lean, on the wire, and by two workers."""
    monkeypatch.setattr(simulated_tasks, "WorkerPool", OneProcess)
    draw = drawn(number)
    lean, wire, shared = draw.simulate(), draw.simulate(fidelity="wire"), draw.simulate(workers=2)
    assert_same(lean, shared)
    assert shared.training.startswith(lean.training)
    if "at once" in lean.training:
        assert_close(lean, wire, draw)
    else:
        assert_same(lean, wire)


def assert_same(one: shoal.Result, two: shoal.Result) -> None:
    assert digest(one.model) == digest(two.model)
    assert (one.versions, one.events, one.metrics) == (two.versions, two.events, two.metrics)
    assert (one.up_bytes, one.down_bytes) == (two.up_bytes, two.down_bytes)
    assert_checkpoints(one)
    assert [digest(model) for model in one.checkpoints.values()] == [
        digest(model) for model in two.checkpoints.values()
    ]


def assert_checkpoints(one: shoal.Result) -> None:
    """Assert that every second version is a checkpoint, and the last one the model if it is one."""
    made = [version.number for version in one.versions]
    assert list(one.checkpoints) == [number for number in made if number and number % CHECKPOINT_EVERY == 0]
    if made[-1] in one.checkpoints:
        assert digest(one.checkpoints[made[-1]]) == digest(one.model)


def assert_close(one: shoal.Result, two: shoal.Result, draw: DrawnJob) -> None:
    """Assert that results agree to rounding: models, metrics, and the digits of these in reports."""
    differences = np.concatenate([np.abs(np.float64(one.model[name]) - two.model[name]).ravel() for name in two.model])
    assert np.mean(differences > ROUNDING) <= (FLIPS_MAX if draw.rounds_updates else 0)
    most = METRIC_AFTER_FLIPS if draw.rounds_updates else METRIC
    assert (one.events, one.down_bytes) == (two.events, two.down_bytes)
    for each in (one, two):
        assert_checkpoints(each)
    for mine, theirs in zip(one.versions, two.versions, strict=True):
        assert (mine.closed_s, mine.reports, mine.down_bytes) == (theirs.closed_s, theirs.reports, theirs.down_bytes)
        assert mine.metrics == pytest.approx(theirs.metrics, rel=most, abs=most)
        assert abs(mine.up_bytes - theirs.up_bytes) <= DIGITS * len(mine.metrics) * mine.reports


def test_slow_and_particular_nodes_are_the_same() -> None:
    given = job(schedule={"name": "rounds", "deadline_s": 5.0}, selection={"name": "uniform", "tags": ["phone"]})
    node_info = {f"node-{i}": NodeInfo(("phone",)) for i in range(3)}
    lean, wire = both(given, slow={"node-1": 30.0}, node_info=node_info)
    assert lean.versions == wire.versions
    assert lean.events == wire.events
    assert lean.down_bytes == wire.down_bytes
    assert max(version.closed_s for version in lean.versions) > 15


class Failing(Softmax):
    """A learner that fails now and then, and once sends what is not a number."""

    calls, always = 0, False

    def train(self, *given, **more):
        self.calls += 1
        if self.calls % 3 == 1 or self.always:
            raise RuntimeError("no data today")
        done = super().train(*given, **more)
        if self.calls == 2:
            self.weights = self.weights * np.float32(np.nan)
        return done


def test_failures_are_the_same(monkeypatch) -> None:
    def learners() -> list[Softmax]:
        one, two, three = unbalanced()
        return [one, two, Failing(three.x, three.y)]

    lean, wire = both(job(schedule={"name": "rounds", "deadline_s": 9.0}), learners)
    assert lean.events == wire.events
    assert any("no data today" in event.text for event in lean.events)
    assert digest(lean.model) == digest(wire.model)
    monkeypatch.setattr(Failing, "always", True)
    with pytest.raises(LearnerFailed, match="no data today"):
        shoal.simulate(job(), [Failing(one.x, one.y) for one in unbalanced()], fidelity="lean")


def test_faults_need_the_wire() -> None:
    assert shoal.simulate(job(rounds=1), unbalanced(), faults=shoal.Faults(message_loss=0.1)).fidelity == "wire"
    assert shoal.simulate(job(rounds=1), unbalanced()).fidelity == "lean"
    with pytest.raises(InvalidJob, match="no disks"):
        shoal.simulate(job(), unbalanced(), faults=shoal.Faults(), fidelity="lean")
    with pytest.raises(InvalidJob, match="'full'"):
        shoal.simulate(job(), unbalanced(), fidelity="full")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_memory_does_not_grow_with_the_number_of_learners(name: str, monkeypatch) -> None:
    """Bodies that are held at a time, with forty learners: the private memories that nodes keep, and few more."""
    held = []
    add = LeanBlobs.add

    def counted(self, slots):
        held.append(len(self))
        return add(self, slots)

    monkeypatch.setattr(LeanBlobs, "add", counted)
    x, y = digits()
    result = shoal.simulate(
        job(algorithm={"name": name}), [Softmax(x[i::40], y[i::40]) for i in range(40)], fidelity="lean"
    )
    assert [version.reports for version in result.versions] == [0, 40, 40, 40, 40]
    assert max(held) <= (44 if name == "scaffold" else 4)
