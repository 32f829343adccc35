"""A node of a coordinator's jobs whose training is a loop of the user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.loop.node import LoopNode, MakeLoopLearner
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal_edge_client.process import EdgeProcess
from shoal_edge_client.settings import EdgeSettings


class JoinedNode(LoopNode):
    """An edge client in a thread: it polls, stores and delivers reports while the user's thread trains.

    It takes part in the jobs that the settings name, or else in all that it is asked to, and ends when they have ended.
    """

    def __init__(self, settings: EdgeSettings, *, at: CrashPoint = no_crash) -> None:
        super().__init__()
        self._settings, self._at = settings, at
        self._process: EdgeProcess | None = None

    def _runner(self, make: MakeLoopLearner) -> Callable[[], object]:
        learner = make(self._settings.node, 0)
        process = self._process = EdgeProcess(self._settings, learner, self._at, ends_with_jobs=True)
        return lambda: asyncio.run(process.main(signals=False))

    def _leave(self, *, unfinished: bool) -> None:
        assert self._process is not None
        self._process.leave(train_s=0.0 if unfinished else self._settings.shutdown_train_s)
