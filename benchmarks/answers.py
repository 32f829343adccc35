"""Latency of an edge client's answers to another node while torch trains, in a thread and in a process.

python benchmarks/answers.py

Two edge clients and a coordinator run on this machine as users start them; one client trains in a thread, the other
in
a process of its own. They train in turns of a few seconds. Meanwhile the one that trains is asked for its status
(`GET /p2p/JOB/status`) twenty times a second over a kept connection; between turns, the same while neither trains. So
both are measured under the same conditions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import HOST, ROOT, Served, arguments, coordinator, end, environment, free_port, show
from torch import nn

from shoal.core.algorithm.learner import Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import ShoalError
from shoal.learn.training.torch_learner import TorchLearner
from shoal.runtime.http.client import Link

JOB, EVERY_S, READY_S = "answers", 0.05, 120.0
WIDTHS = {"40 KB": (134,), "8 MB": (1400, 1360)}
SPEC = {
    "name": JOB,
    "rounds": 1,
    "algorithm": {"name": "fedavg", "epochs": 1e6, "lr": 1e-6},
    "schedule": {"name": "rounds", "min_nodes": 2, "cohort": 2, "deadline_s": 3600.0},
    "gossip": {"allowed": True, "coordinator_timeout_s": 3600.0},
}


class Held(TorchLearner):
    """It rests between two mini-batches while a file of that name exists."""

    hold: Path

    def train(self, config: TrainConfig, *, progress: Progress = no_progress, **more: Any) -> Trained:
        def held(fraction: float) -> None:
            progress(fraction)
            while self.hold.exists():
                progress(fraction)
                time.sleep(EVERY_S)

        return super().train(config, progress=held, **more)


def learner(size: str, hold: str) -> Held:
    """Return a learner on noise, with a model of that size."""
    widths, draw = (64, *WIDTHS[size], 10), torch.Generator().manual_seed(1)

    def model() -> nn.Module:
        layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        return nn.Sequential(*[one for pair in layers for one in pair][:-1])

    made = Held(model, (torch.randn(2048, 64, generator=draw), torch.randint(10, (2048,), generator=draw)))
    made.hold = Path(hold)
    return made


class Client:
    """An edge client that trains in that way, while it is let."""

    def __init__(self, served: Served, token: str, size: str, train_in: str) -> None:
        self.hold, self.port = served.folder / f"hold-{train_in}-{size.replace(' ', '')}", free_port()
        self.hold.touch()
        given = {
            "url": served.url,
            "token": token,
            "name": train_in,
            "state_dir": served.folder / f"{train_in}-{size.replace(' ', '')}",
            "learner": f"{Path(__file__).resolve()}:learner",
            "options": f'{{"size": "{size}", "hold": "{self.hold}"}}',
            "peer_listen": f"{HOST}:{self.port}",
            "trainer": train_in,
            "jobs": f'["{JOB}"]',
        }
        named = {f"SHOAL_EDGE__{key.upper()}": str(value) for key, value in given.items()}
        self.log = served.folder / f"{self.hold.name}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "shoal_edge_client"]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment(served.folder) | named, stdout=log, stderr=log
            )
        self.link = Link(f"http://{HOST}:{self.port}", read_s=30.0)

    def answers(self) -> bool:
        """Return True if the node knows the other one and answers."""
        try:
            found = self.link.json("GET", f"/p2p/{JOB}/status")
        except ShoalError:
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_text()[-4000:]) from None
            return False
        return any(peer["state"] == "alive" for peer in found["peers"].values())

    def ask(self, seconds: float) -> list[float]:
        """Ask for this many seconds in even steps, and return the milliseconds of each answer."""
        found, due = [], time.monotonic()
        until = due + seconds
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            started = time.perf_counter()
            self.link.json("GET", f"/p2p/{JOB}/status")
            found.append(1000.0 * (time.perf_counter() - started))
            due = max(due + EVERY_S, time.monotonic())
        return found


def measure(served: Served, size: str, passes: int, seconds: float) -> list[dict[str, Any]]:
    """Measure one model size: a row for each way, and one for an idle node."""
    served.begin(SPEC)
    token = served.tokens(2)
    clients = [Client(served, token, size, train_in) for train_in in ("thread", "process")]
    try:
        for client in clients:
            wait_for(client.answers)
        found: dict[str, list[float]] = {"at rest": [], "thread": [], "process": []}
        for _ in range(passes):
            for way, client in zip(("thread", "process"), clients, strict=True):
                found["at rest"] += client.ask(seconds / 2)
                client.hold.unlink()
                time.sleep(3 * EVERY_S)
                found[way] += client.ask(seconds)
                client.hold.touch()
        return [row(size, way, taken) for way, taken in found.items()]
    finally:
        end([client.process for client in clients])


def row(size: str, way: str, taken: list[float]) -> dict[str, Any]:
    """Return the percentiles, in milliseconds."""
    median, p99, greatest = (float(np.percentile(taken, point)) for point in (50, 99, 100))
    return {
        "model": size,
        "trains in": way,
        "asked": len(taken),
        "median ms": median,
        "p99 ms": p99,
        "greatest ms": greatest,
    }


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until it is so."""
    due = time.monotonic() + READY_S
    while not what():
        if time.monotonic() > due:
            raise TimeoutError("it has not come to that")
        time.sleep(0.1)


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--passes", type=int, default=5, help="turns of each")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for size in WIDTHS:
        with coordinator() as served:
            rows += measure(served, size, given.passes, given.seconds)
    load = os.getloadavg()[0]
    show(f"answers while it trains, load {load:.1f} at the end", rows, given.json)


if __name__ == "__main__":
    main()
