"""An edge client in this process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

from shoal.runtime.blob_files import CrashPoint, no_crash
from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from tests.support.waiting import PATIENCE_S


class EdgeNode:
    """An edge client in a thread of its own. `outcome` gets what its `run` has returned or raised."""

    def __init__(self, learner: Any, /, *, at: CrashPoint = no_crash, **settings: Any) -> None:
        self.learner = learner
        self.agent = Agent(EdgeSettings.model_validate({"retry_pause_max_s": 0.1, **settings}), learner, at=at)
        self.outcome: list[Any] = []
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    def _work(self) -> None:
        try:
            self.outcome.append(self.loop.run_until_complete(self.agent.run()))
        except BaseException as error:
            self.outcome.append(error)
        finally:
            self.loop.close()

    def leave(self) -> None:
        """Begin to end in good order."""
        if not self.outcome:
            self.loop.call_soon_threadsafe(self.agent.leave)

    def end(self, patience_s: float = PATIENCE_S) -> Any:
        """Wait for its end; return what came of it."""
        self._thread.join(patience_s)
        assert not self._thread.is_alive(), "it goes on and on"
        return self.outcome[0]

    def finish(self, patience_s: float = 4 * PATIENCE_S) -> None:
        """Wait until all its jobs have ended."""
        found = self.end(patience_s)
        if isinstance(found, BaseException):
            raise AssertionError(f"{self.agent.session.settings.node} ended with {found!r}") from found
        assert found is True
