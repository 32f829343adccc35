"""A learner for tests: a vector that training moves by the seed, and that can be told to hold, fail or diverge.

`hold`: training waits at its ticks while a file of that name exists. `says`: a file that each training adds a line to.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from shoal.core.learner import Budget, Trained
from shoal.core.tree import Layout, Tree, zeros


class VectorLearner:
    """`size` numbers. One step adds 1 / 2^k to all of them, k from the seed."""

    def __init__(self, size: int = 8, *, hold: Path | None = None, says: Path | None = None, fault: str = "") -> None:
        self.layout = Layout.of([("w", "F32", (size,))])
        self.tree = zeros(self.layout)
        self.hold, self.says, self.fault = hold, says, fault
        self.trained = 0

    def init(self, seed: int) -> Tree:
        self.tree = Tree.of({"w": np.full(self.layout.elements, seed, np.float32)})
        return self.tree

    def load(self, model: Tree) -> None:
        self.tree = Tree(model.layout, model.buffer.copy())

    def model(self) -> Tree:
        return Tree(self.tree.layout, self.tree.buffer.copy())

    def train(self, budget: Budget, *, correct=None, extra_loss=None, tick=lambda fraction: None) -> Trained:
        self.trained += 1
        if self.says is not None:
            with self.says.open("a") as file:
                file.write(f"{budget.seed}\n")
        self._misbehave()
        tick(0.25)
        while self.hold is not None and self.hold.exists():
            tick(0.5)
            time.sleep(0.005)
        step = np.float32(2.0 ** -(budget.seed % 8))
        gradient = Tree.of({"w": np.full_like(self.tree["w"], -step)})
        self.tree = Tree.of({"w": self.tree["w"] - (correct(self.tree, gradient) if correct else gradient)["w"]})
        if self.fault == "nan":
            self.tree = Tree.of({"w": self.tree["w"] * np.float32("nan")})
        return Trained(3.0, {"Bad Name" if self.fault == "metric" else "train/loss": np.float32(0.5)})

    def _misbehave(self) -> None:
        if self.fault == "raise":
            raise ValueError("the data\nare gone")
        if self.fault == "text":
            raise ValueError("no file caf\udce9\0")
        if self.fault == "exit":
            sys.exit(7)
        if self.fault == "die":
            sys.stderr.write("out of luck\n")
            os._exit(7)
        while self.fault == "deaf":
            time.sleep(0.01)

    def gradient(self, budget: Budget, *, tick=lambda fraction: None) -> tuple[Trained, Tree]:
        return Trained(3.0), self.model()

    def evaluate(self) -> dict[str, float]:
        return {"eval/examples": 2.0, "eval/accuracy": float(np.tanh(self.tree["w"][0]))}


def learner(size: int = 8, hold: str = "", says: str = "", fault: str = "") -> VectorLearner:
    """For `--learner learners.py:learner`."""
    return VectorLearner(size, hold=Path(hold) if hold else None, says=Path(says) if says else None, fault=fault)


def told(device: str = "", precision: str = "", threads: int = 0) -> VectorLearner:
    """Takes the wishes of whoever runs the node, and says what has come of them."""
    made = VectorLearner()
    made.device = f"{device} {precision} {os.environ.get('OMP_NUM_THREADS')}"  # type: ignore[attr-defined]
    return made


def talkative() -> VectorLearner:
    """Says something, in all ways."""

    class Talkative(VectorLearner):
        def train(self, budget: Budget, **more) -> Trained:  # type: ignore[no-untyped-def,override]
            sys.stdout.write("printed\n")
            sys.stderr.write("10 %\r20 %\r")
            logging.getLogger("mine").warning("logged, sht_1234567890")
            return super().train(budget, **more)

    return Talkative()


def parent() -> VectorLearner:
    """Begins a process of its own, and names it."""

    class Parent(VectorLearner):
        def train(self, budget: Budget, **more) -> Trained:  # type: ignore[no-untyped-def,override]
            with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
                Path("pids.tmp").write_text(f"{os.getpid()} {child.pid}")
                Path("pids.tmp").rename("pids")
            return super().train(budget, **more)

    return Parent()
