"""Fixtures: a coordinator, and a node that takes part in its jobs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from tests.support.edge_coordinator import Coordinator, serving
from tests.support.edge_node import EdgeNode
from tests.support.learners import VectorLearner
from tests.support.waiting import PATIENCE_S

PLAN = {"rounds": 3, "schedule": {"name": "rounds", "min_nodes": 1, "deadline_s": 60.0}}
LARGE = 100_000
"""Numbers of a model that is too large for a frame."""


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    """Restore the logging after each test."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@dataclass
class Place:
    """A coordinator and where it is."""

    coordinator: Coordinator
    url: str
    folder: Path

    def given(self, **more: Any) -> dict[str, Any]:
        mine = {"url": self.url, "state_dir": self.folder / "state", "token": "sht_one", "name": "a", "jobs": ["j"]}
        return {**mine, "retry_pause_max_s": 0.1, "poll_wait_s": 5.0, **more}

    def settings(self, **more: Any) -> EdgeSettings:
        return EdgeSettings.model_validate(self.given(**more))

    def join(self, learner: Any = None, **more: Any) -> bool:
        """Take part until the job has ended."""
        agent = Agent(self.settings(**more), learner or VectorLearner())
        return asyncio.run(asyncio.wait_for(agent.run(), PATIENCE_S))

    def start(self, learner: Any, /, **more: Any) -> EdgeNode:
        """Begin to take part, in a thread."""
        return EdgeNode(learner, **self.given(**more)).start()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """One job, `j`, of three rounds."""
    coordinator = Coordinator(tmp_path / "coordinator", {"j": PLAN})
    with serving(coordinator) as url:
        yield Place(coordinator, url, tmp_path)
