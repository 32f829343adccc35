"""What a peer asks of its training process (`shoal.runtime.training`), awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from shoal.core.errors import LearnerFailed
from shoal.core.learner import Tick
from shoal.core.machine import Result, Work
from shoal.core.message import Metrics, Order, Ref
from shoal.runtime.pump import Watch
from shoal.runtime.store import FileBodies, FileBody
from shoal.runtime.threads import Lane
from shoal.runtime.training.process import Setup, Training
from shoal.runtime.training.remote import Given, Made, Remote
from shoal.runtime.training.words import ref_read

T = TypeVar("T")


class Trainer:
    """One training process. `bodies`: what orders name; `made`: where results go; `job`: as JSON values."""

    def __init__(self, setup: Setup, job: Mapping[str, Any], bodies: FileBodies, made: FileBodies) -> None:
        self._job, self._bodies, self._made = job, bodies, made
        self._training, self._lane = Training(setup), Lane("shoal-training")

    @property
    def starts(self) -> int:
        """How often there was a new process."""
        return self._training.starts

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._training.pid

    async def init(self, seed: int) -> tuple[Ref, float]:
        """(the initial model, in the folder of what was made; how many examples this node speaks for)."""
        return await self._in_lane(lambda tick: self._init(seed))

    async def check(self) -> None:
        """Raise `InvalidJob` where the learner lacks what the job's algorithm needs."""
        await self._in_lane(lambda tick: self._training.ask({"do": "fit", "job": dict(self._job)}, tick))

    async def perform(self, work: Work) -> Result:
        """Do an order. Raises what the learner's failure is, also when the process dies of it again and again."""
        return await self._in_lane(partial(self._perform, work))

    async def evaluate(self, model: Ref) -> Metrics:
        """What the learner's own test data say about a model."""
        found = await self.perform(Work(Order((0, 0), "self", "evaluate", 0, 0, model)))
        return found.metrics

    def close(self) -> None:
        """End the process, whatever it does. It is not started again."""
        self._training.close()
        self._lane.close()

    async def end(self) -> None:
        """The same, and wait until nobody waits for it any more."""
        self._training.close()
        await self._lane.rest(1.0)
        self._lane.close()

    async def _in_lane(self, call: Callable[[Tick], T]) -> T:
        watch = Watch()
        try:
            return await self._lane.run(partial(call, watch.tick))
        except asyncio.CancelledError:
            watch.cancel()
            raise

    def _init(self, seed: int) -> tuple[Ref, float]:
        said = self._training.ask({"do": "init", "seed": seed})
        model = ref_read(said["model"])
        assert model is not None
        return self._taken(FileBody(self._training.bodies.path(model.digest), model)), float(said["examples"])

    def _perform(self, work: Work, tick: Tick) -> Result:
        order, bodies = work.order, self._bodies
        slots = bodies.get(order.body) if order.body is not None else {}
        memory = bodies.get(work.memory) if work.memory is not None else {}
        made = Remote(self._training, self._job, Given(order, slots, {}, memory, work.memory, bodies, tick)).piece(
            order
        )
        if not isinstance(made, Made):
            raise LearnerFailed("the algorithm goes on without an end, which gossip cannot use")
        body, after = (self._taken(one) if one is not None else None for one in (made.body, made.memory))
        return Result(made.weight, body, made.metrics, after)

    def _taken(self, body: FileBody) -> Ref:
        return self._made.take(body)
