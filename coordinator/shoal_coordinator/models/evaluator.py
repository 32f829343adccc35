"""The held-out evaluation: every version, on data that no node has, if the job asks for it.

It runs in one thread beside everything else and decides nothing. When it falls behind, versions in between are skipped;
the newest is always measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import structlog

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import Learner, check_stages, enter_stage
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.jobs.spec import JobSpec
from shoal.wire import codec

log = structlog.get_logger()

Tell = Callable[[str, int, dict[str, Any]], Awaitable[None]]


class StoredVersion(NamedTuple):
    """A version to measure: its number, its model and its stage."""

    number: int
    model: BlobRef
    stage: int


class HeldOutEvaluator:
    """`tell(job, number, metrics)` is called on the event loop with names "held_out/…"."""

    def __init__(self, tell: Tell) -> None:
        self._on_measured = tell
        self._learners: dict[str, Learner] = {}
        self._next: dict[str, tuple[JobSpec, StoredVersion, Blobs]] = {}
        self._running = ""
        self._task: asyncio.Task[None] | None = None

    def check(self, spec: JobSpec) -> None:
        """Load the job's learner now. Raises `InvalidJob` or `LearnerFailed` before the job begins."""
        check_stages(self._learner(spec), len(spec.stages))

    def _learner(self, spec: JobSpec) -> Learner:
        if spec.name not in self._learners:
            assert spec.held_out is not None
            if ".py:" in spec.held_out.learner:
                raise InvalidJob(
                    "held_out.learner must be package.module:name",
                    hint="code never travels: install it with the coordinator and name its module",
                )
            from shoal.learn.loading import load_learner  # brings torch, which most coordinators never need

            options = {name: str(value) for name, value in spec.held_out.options.items()}
            try:
                self._learners[spec.name] = load_learner(spec.held_out.learner, options)
            except ShoalError as error:
                if error.code != "usage.extra":
                    raise
                text = f"the coordinator cannot measure on held-out data: {error.message}"
                hint = f"on the coordinator's machine: {error.hint}; or leave [held_out] out"
                raise InvalidJob(text, code=error.code, hint=hint) from error
        return self._learners[spec.name]

    def add(self, spec: JobSpec, version: StoredVersion, blobs: Blobs) -> None:
        """Measure that version soon."""
        if spec.held_out is None:
            return
        self._next[spec.name] = (spec, version, blobs)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="held-out evaluation")

    def is_busy(self, job: str) -> bool:
        """Return True if an evaluation of that job is still to come."""
        return job in self._next or job == self._running

    async def _work(self) -> None:
        while self._next:
            name = next(iter(self._next))
            spec, version, blobs = self._next.pop(name)
            self._running = name
            try:
                metrics = await asyncio.to_thread(self._measure, spec, version, blobs)
                await self._on_measured(name, version.number, metrics)
            except Exception as error:  # people's code; the job goes on without
                log.error(
                    "held-out evaluation failed", job=name, version=version.number, error=repr(error), exc_info=error
                )
            finally:
                self._running = ""

    def _measure(self, spec: JobSpec, version: StoredVersion, blobs: Blobs) -> dict[str, Any]:
        learner = self._learner(spec)
        enter_stage(learner, version.stage)
        learner.load(tree_slot(blobs.get(version.model), "model"))
        found = learner.evaluate()
        metrics: dict[str, Any] = codec.plain({n.replace("eval/", "held_out/", 1): v for n, v in found.items()})
        return metrics

    def stop(self) -> None:
        self._next.clear()
        if self._task is not None:
            self._task.cancel()
