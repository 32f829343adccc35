"""The pump of a level of a cascade: it computes in threads, and asks the level above."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import structlog

from shoal.core.errors import ShoalError
from shoal.core.exits.cascade_level import (
    Answered,
    CascadeAnswer,
    CascadeEffect,
    CascadeEvent,
    CascadeLevel,
    CascadeRequest,
    ComputeFailed,
    ComputeScores,
    Escalate,
    EscalationAnswered,
    EscalationFailed,
    RequestRefused,
    Scored,
)
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.core.protocol.machine import Timer, Wake
from shoal.runtime.threads import in_thread
from shoal.serving.served_level import ServedLevel
from shoal.serving.served_model import ServedVersion

AskAbove = Callable[[PackedFeatures, str], CascadeAnswer]
"""Blocks until the level above has answered features of a model (SHA-256). Raises `ShoalError`."""


@dataclass
class _Asked:
    """A request that waits for its answer. `model`: SHA-256 of the model that computed its inputs, then its part."""

    answer: asyncio.Future[CascadeAnswer]
    model: str
    version: ServedVersion | None = None


class CascadePump:
    """A level whose requests are coroutines of one event loop. `above`: None at the last level."""

    def __init__(self, machine: CascadeLevel, level: ServedLevel, above: AskAbove | None = None) -> None:
        self.machine, self.level, self._above = machine, level, above
        self._asked: dict[str, _Asked] = {}
        self._names = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._failure = ""
        self._log: Any = structlog.get_logger("serve")

    async def ask(self, inputs: Any, model: str = "") -> tuple[CascadeAnswer, ServedVersion]:
        """Return the answer to a user's inputs, or to features that `model` computed, and this level's version.

        Raises `ShoalError`.
        """
        name = str(next(self._names))
        asked = self._asked[name] = _Asked(asyncio.get_running_loop().create_future(), model)
        try:
            self._feed(CascadeRequest(name, inputs))
            answer = await asked.answer
        finally:
            del self._asked[name]
        assert asked.version is not None
        return answer, asked.version

    def _feed(self, event: CascadeEvent) -> None:
        for effect in self.machine.on(event, time.monotonic()):
            self._act(effect)

    def _act(self, effect: CascadeEffect) -> None:
        if isinstance(effect, Wake):
            self._set_alarm(effect.at)
            return
        asked = self._asked.get(effect.request)
        if asked is None or asked.answer.done():  # the sender has gone; the time limit ends the request
            return
        match effect:
            case ComputeScores(name, inputs):
                self._spawn(self._compute(name, inputs, asked))
            case Escalate(name, features):
                self._spawn(self._escalate(name, features, asked.model))
            case Answered(_, answer):
                asked.answer.set_result(answer)
            case RequestRefused(_, error):
                asked.answer.set_exception(error)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        delay_s = max(0.0, at - time.monotonic())
        self._alarm = asyncio.get_running_loop().call_later(delay_s, self._feed, Timer())

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compute(self, name: str, inputs: Any, asked: _Asked) -> None:
        try:
            output, asked.model, asked.version = await in_thread(partial(self.level.compute, inputs, asked.model))
        except ShoalError as error:
            self._feed(ComputeFailed(name, error))
        else:
            self._feed(Scored(name, output.scores.astype(np.float64), output.features))

    async def _escalate(self, name: str, features: PackedFeatures, model: str) -> None:
        assert self._above is not None
        try:
            answer = await in_thread(partial(self._above, features, model))
        except ShoalError as error:
            if error.message != self._failure:
                self._log.warning("the level above does not answer", why=error.message, hint=error.hint)
            self._failure = error.message
            self._feed(EscalationFailed(name))
        else:
            self._failure = ""
            self._feed(EscalationAnswered(name, answer))
