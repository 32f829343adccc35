"""The held-out evaluation of a job whose network grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.jobs.spec import parse_job
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from shoal_coordinator.models.evaluator import HeldOutEvaluator, StoredVersion


def staged(stages: int = 3) -> ToyLearner:
    return ToyLearner(1, stages)


def job(**options: int) -> dict[str, Any]:
    held_out = {"learner": "tests.coordinator.test_held_out_stages:staged", "options": options}
    return {"name": "growing", "stages": [{"rounds": 1}, {}], "held_out": held_out}


def test_a_version_is_measured_in_its_stage() -> None:
    told: list[tuple[int, float]] = []

    async def tell(_job: str, number: int, metrics: dict[str, Any]) -> None:
        told.append((number, metrics["held_out/loss"]))
        measured.set()

    async def measure_all() -> None:
        for number, stage in ((2, 1), (1, 0)):
            model = blobs.put({"model": toy_tree((float(number), 0.0, 0.0), 0, stage)})
            measured.clear()
            evaluator.add(spec, StoredVersion(number, model, stage), blobs)
            await asyncio.wait_for(measured.wait(), 60)

    evaluator, blobs, spec, measured = HeldOutEvaluator(tell), MemoryBlobs(), parse_job(job()), asyncio.Event()
    evaluator.check(spec)
    asyncio.run(measure_all())
    assert told == [(2, 2.0), (1, 1.0)]


def test_a_learner_with_fewer_stages_is_refused_before_the_job_begins() -> None:
    async def ignore(*_: Any) -> None: ...

    with pytest.raises(InvalidJob, match="the job has 2 stages, and ToyLearner has 1 stage"):
        HeldOutEvaluator(ignore).check(parse_job(job(stages=1)))
