"""A learner of which everything is known: each training adds one to every number and takes a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from shoal.core.learner import Budget, Trained
from shoal.core.tree import Tree


class Counting:
    """`hold`: training waits at its ticks while a file of that name exists, and says so with a file of its own."""

    def __init__(self, weight: float = 10.0, pause_s: float = 0.05, size: int = 8, hold: Path | None = None) -> None:
        self.weight, self.pause_s, self.size, self.hold = weight, pause_s, size, hold
        self.trained = 0
        self.tree = Tree.of({"w": np.zeros(size, np.float32)})

    @property
    def examples(self) -> int:
        return int(self.weight)

    def init(self, seed: int) -> Tree:
        self.tree = Tree.of({"w": np.full(self.size, 0.25, np.float32)})
        return self.tree

    def load(self, model: Tree) -> None:
        self.tree = Tree(model.layout, model.buffer.copy())

    def model(self) -> Tree:
        return Tree(self.tree.layout, self.tree.buffer.copy())

    def train(self, budget: Budget, *, correct=None, extra_loss=None, tick=lambda fraction: None) -> Trained:
        self.trained += 1
        end = time.monotonic() + self.pause_s
        while time.monotonic() < end or (self.hold is not None and self.hold.exists()):
            tick(0.5)
            if self.hold is not None and self.hold.exists():
                self.hold.with_name(f"held-by-{os.getpid()}").touch()
            time.sleep(0.005)
        self.tree = Tree.of({"w": self.tree["w"] + np.float32(1.0)})
        return Trained(self.weight, {"train/loss": 0.5})

    def gradient(self, budget: Budget, *, tick=lambda fraction: None) -> tuple[Trained, Tree]:
        raise AssertionError("no algorithm here asks for it")

    def evaluate(self) -> dict[str, float]:
        return {}


def learner(weight: float = 10.0, pause_s: float = 0.05, size: int = 8, hold: str = "") -> Counting:
    return Counting(weight, pause_s, size, Path(hold) if hold else None)
