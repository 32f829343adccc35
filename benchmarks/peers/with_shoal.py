"""Rounds of shoal: a coordinator with its defaults, and `shoal join` for each client, which is this file's learner."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # edge clients load this file by its path

import numpy as np
from cell import CLIENT, LAYERS, ROLE, SERVER, mark, read_cell, start, watch
from harness import coordinator, environment
from noop import NoOp

from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.model.tree import Tree

JOB = "peers"


class AddOne(NoOp):
    """A learner of ten random layers."""

    def __init__(self, numbers: int, marks: bool) -> None:
        super().__init__(1, metrics=False)
        draw = np.random.default_rng(0)
        self._marks = marks
        self._model = Tree.of({f"layer{n}": draw.standard_normal(numbers, np.float32) for n in range(LAYERS)})

    def train(self, config: TrainConfig, **options: object) -> Trained:  # type: ignore[override]
        if self._marks:
            mark()
        return super().train(config)


def learner(numbers: int, marks: bool = False) -> AddOne:
    """Return the learner of the edge client."""
    return AddOne(numbers, marks)


def main() -> None:
    """Start the coordinator and the clients, and watch."""
    cell = read_cell()
    os.environ[ROLE] = SERVER
    with coordinator() as served:
        schedule = {"name": "rounds", "min_nodes": cell.nodes}
        served.begin({"name": JOB, "rounds": cell.rounds_to_run, "schedule": schedule})
        token = served.tokens(cell.nodes)
        clients = []
        for number in range(cell.nodes):
            command = [sys.executable, "-m", "shoal", "join", served.url, "--learner", f"{__file__}:learner"]
            command += ["--token", token, "--name", f"node-{number}"]
            command += ["--state-dir", str(cell.folder / f"node-{number}")]
            command += [f"--option=numbers={cell.numbers}", f"--option=marks={str(number == 0).lower()}"]
            clients.append(start(cell, CLIENT, f"client-{number}", command, **environment(served.folder)))
        watch(cell, [served.process, *clients])


if __name__ == "__main__":
    main()
