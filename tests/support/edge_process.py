"""A node's process that ends itself with SIGKILL at a named point (see `tests.forked`).

With `SINCE` in the environment, a point counts from when there is a file of that name.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from shoal.settings import load
from shoal_edge_client.running import run
from shoal_edge_client.settings import EdgeSettings
from tests.edge_client.remembering import installed


def main(point: str, nth: int) -> int:
    """Run a node until it ends, or comes to that point for the nth time. Every point that it passes is noted."""
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

    with installed():
        return run(load(EdgeSettings, "edge"), at=at)
