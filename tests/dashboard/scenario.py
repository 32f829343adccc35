"""A coordinator with nodes that hold parts of the digits: real processes, for pages to look at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.conftest import process
from tests.support.ports import free_port

PATIENCE_MS = 120_000


class Stage:
    """The coordinator at `address`, and the commands that talk to it."""

    def __init__(self, place: Path) -> None:
        self.place, self.address = place, f"http://127.0.0.1:{free_port()}"
        self._environment = {
            "HOME": str(place),
            "SHOAL_CLIENT__URL": self.address,
            "XDG_STATE_HOME": str(place / "state"),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object, **more: Any) -> subprocess.Popen[str]:
        self._started.append(process(*arguments, cwd=self.place, env=self._environment, **more))
        return self._started[-1]

    def asked(self, *arguments: object) -> dict[str, Any]:
        """Return a command's answer."""
        said, complaint = self.start(*arguments, "--json").communicate(timeout=120)
        found: dict[str, Any] = json.loads(said)
        assert found["status"] == "ok", (said, complaint)
        return dict(found["data"])

    def open(self, nodes: int, *options: str) -> None:
        """Start the coordinator and that many nodes, each with its part of the digits."""
        coordinator = self.start("coordinator", "--port", self.address.rpartition(":")[2])
        assert coordinator.stderr is not None
        next(line for line in coordinator.stderr if "ready" in line)
        token = self.asked("token", "create", "--uses", nodes)["token"]
        for part in range(nodes):
            given = [f"--option={option}" for option in (f"part={part}", f"parts={nodes}", *options)]
            name = ("--name", f"node-{part}", "--token", token, "--state-dir", f"state-{part}")
            learner = ("--learner", "shoal.learn.digits:learner", *given)
            self.start("join", self.address, *learner, *name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        for one in self._started:
            one.kill()
            one.communicate()


@contextmanager
def staged(place: Path, nodes: int, *options: str) -> Iterator[Stage]:
    """A stage that is cleared away afterwards."""
    stage = Stage(place)
    try:
        stage.open(nodes, *options)
        yield stage
    finally:
        stage.close()
