"""Fixtures: a coordinator, and a node that takes part in its jobs in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from tests.edge_client.fake import PATIENCE_S, Coordinator, serving
from tests.edge_client.learners import VectorLearner

PLAN = {"rounds": 3, "schedule": {"name": "rounds", "min_nodes": 1, "deadline_s": 60.0}}
LARGE = 100_000
"""Numbers of a model that is too large for a frame."""


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    """Whatever a test makes of the log is gone after it."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@dataclass
class Place:
    """A coordinator and where it is."""

    coordinator: Coordinator
    url: str
    folder: Path

    def settings(self, **more: Any) -> EdgeSettings:
        given = {"token": "sht_one", "name": "a", "jobs": ["j"], "backoff_s": 0.1, "wait_s": 5.0, **more}
        return EdgeSettings.model_validate({"url": self.url, "state": self.folder / "state", **given})

    def join(self, learner: Any = None, **more: Any) -> bool:
        """Take part until the job has ended."""
        agent = Agent(self.settings(**more), learner or VectorLearner())
        return asyncio.run(asyncio.wait_for(agent.run(), PATIENCE_S))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """One job, `j`, of three rounds."""
    coordinator = Coordinator(tmp_path / "coordinator", {"j": PLAN})
    with serving(coordinator) as url:
        yield Place(coordinator, url, tmp_path)


class Running:
    """A node in a thread of its own."""

    def __init__(self, place: Place, learner: Any, /, **more: Any) -> None:
        self.agent = Agent(place.settings(**more), learner)
        self.outcome: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self.outcome.append(self._loop.run_until_complete(self.agent.run()))
        except BaseException as error:
            self.outcome.append(error)
        finally:
            self._loop.close()

    def leave(self, work_s: float = 0.0) -> None:
        self._loop.call_soon_threadsafe(lambda: self.agent.leave(work_s=work_s))

    def end(self) -> Any:
        """What came of it."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it goes on and on"
        return self.outcome[0]
