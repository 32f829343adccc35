"""A node's process that ends itself with SIGKILL at a named point (see `tests.support.forkserver`).

With `SINCE` in the environment, a point counts from when there is a file of that name.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from shoal.configuration import load
from shoal.runtime.durable_files import CrashPoint
from shoal_edge_client.joined_node import JoinedNode
from shoal_edge_client.process import run
from shoal_edge_client.settings import EdgeSettings
from tests.edge_client.counting_algorithm import installed


def main(point: str, nth: int) -> int:
    """Run a node until it ends, or comes to that point for the nth time. Every point that it passes is noted."""
    at = _killed_at(point, nth)
    with installed():
        return run(load(EdgeSettings, "edge"), at=at)


def loop_main(point: str, nth: int) -> int:
    """The same with a training loop of the user's own, which does what a `VectorLearner` does."""
    at = _killed_at(point, nth)
    settings = load(EdgeSettings, "edge")
    model = {"w": np.zeros(int(settings.options["size"]), np.float32)}
    with installed(), JoinedNode(settings, at=at) as node:
        for task in node.tasks(model, evaluate=lambda arrays: {"examples": 2.0, "accuracy": np.tanh(arrays["w"][0])}):
            at("loop.task")
            trained = {"w": task.arrays()["w"] + np.float32(2.0 ** -(task.seed % 8))}
            task.report(trained, examples=3, metrics={"loss": 0.5})
            at("loop.reported")
    return 0


def _killed_at(point: str, nth: int) -> CrashPoint:
    passed, seen, since = 0, Path(os.environ["POINTS"]), os.environ.get("SINCE", "")

    def at(name: str) -> None:
        nonlocal passed
        with seen.open("a") as file:
            file.write(f"{name}\n")
        if since and not Path(since).exists():
            return
        passed += name == point
        if name == point and passed == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    return at
