"""Learners for tests: vectors that training moves by the seed or by one, and that can be told to hold, fail or diverge.

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

from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.model.tree import Layout, Tree, zeros


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

    def train(self, config: TrainConfig, *, correct=None, extra_loss=None, progress=lambda fraction: None) -> Trained:
        self.trained += 1
        if self.says is not None:
            with self.says.open("a") as file:
                file.write(f"{config.seed}\n")
        self._misbehave()
        progress(0.25)
        while self.hold is not None and self.hold.exists():
            progress(0.5)
            time.sleep(0.005)
        step = np.float32(2.0 ** -(config.seed % 8))
        gradient = Tree.of({"w": np.full_like(self.tree["w"], -step)})
        self.tree = Tree.of({"w": self.tree["w"] - (correct(self.tree, gradient) if correct else gradient)["w"]})
        if self.fault == "nan":
            self.tree = Tree.of({"w": self.tree["w"] * np.float32("nan")})
        return Trained(3.0, {'"quoted"' if self.fault == "metric" else "train/loss": np.float32(0.5)})

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

    def gradient(self, config: TrainConfig, *, progress=lambda fraction: None) -> tuple[Trained, Tree]:
        return Trained(3.0), self.model()

    def evaluate(self) -> dict[str, float]:
        return {"eval/examples": 2.0, "eval/accuracy": float(np.tanh(self.tree["w"][0]))}


class CountingLearner(VectorLearner):
    """A learner of which everything is known: each training adds one to every number and takes a while.

    While `hold` keeps it waiting, it says so with a file of its own. `loss`: it measures the length of its numbers.
    """

    def __init__(
        self,
        weight: float = 10.0,
        pause_s: float = 0.05,
        size: int = 8,
        hold: Path | None = None,
        *,
        loss: bool = False,
    ) -> None:
        super().__init__(size, hold=hold)
        self.weight, self.pause_s, self.loss = weight, pause_s, loss

    @property
    def examples(self) -> int:
        return int(self.weight)

    def init(self, seed: int) -> Tree:
        self.tree = Tree.of({"w": np.full(self.layout.elements, 0.25, np.float32)})
        return self.tree

    def train(self, config: TrainConfig, *, correct=None, extra_loss=None, progress=lambda fraction: None) -> Trained:
        self.trained += 1
        end = time.monotonic() + self.pause_s
        while time.monotonic() < end or (self.hold is not None and self.hold.exists()):
            progress(0.5)
            if self.hold is not None and self.hold.exists():
                self.hold.with_name(f"held-by-{os.getpid()}").touch()
            time.sleep(0.005)
        self.tree = Tree.of({"w": self.tree["w"] + np.float32(1.0)})
        return Trained(self.weight, {"train/loss": 0.5})

    def gradient(self, config: TrainConfig, *, progress=lambda fraction: None) -> tuple[Trained, Tree]:
        raise AssertionError("no algorithm here asks for it")

    def evaluate(self) -> dict[str, float]:
        if not self.loss:
            return {}
        return {"eval/loss": float(np.linalg.norm(self.tree["w"])), "eval/examples": self.weight}


class EvaluatingLearner(VectorLearner):
    """A learner for evaluations at the coordinator: measures 0.5 of every model, and must not be trained."""

    device = "cpu"

    def init(self, seed: int) -> Tree:
        raise AssertionError("nobody asks an evaluation for a model")

    def model(self) -> Tree:
        raise AssertionError("nobody asks an evaluation for a model")

    def train(self, *_: object, **__: object) -> Trained:  # type: ignore[override]
        raise AssertionError("nobody trains an evaluation")

    gradient = train  # type: ignore[assignment]

    def evaluate(self) -> dict[str, float]:
        return {"eval/accuracy": 0.5, "eval/examples": 4.0}


def counting(weight: float = 10.0, pause_s: float = 0.05, size: int = 8, hold: str = "") -> CountingLearner:
    """For nodes that are processes of their own."""
    return CountingLearner(weight, pause_s, size, Path(hold) if hold else None)


def counting_with_loss() -> CountingLearner:
    """As `counting`; others can tell a good model from a bad one."""
    return CountingLearner(loss=True)


def evaluating() -> EvaluatingLearner:
    """For the held-out evaluation of a job file."""
    return EvaluatingLearner()


def learner(size: int = 8, hold: str = "", says: str = "", fault: str = "") -> VectorLearner:
    """For `--learner learners.py:learner`."""
    return VectorLearner(size, hold=Path(hold) if hold else None, says=Path(says) if says else None, fault=fault)


def told(device: str = "", precision: str = "", threads: int = 0) -> VectorLearner:
    """Takes the options of a node's owner, and reports their use."""
    made = VectorLearner()
    made.device = f"{device} {precision} {os.environ.get('OMP_NUM_THREADS')}"  # type: ignore[attr-defined]
    return made


def talkative() -> VectorLearner:
    """Says something, in all ways."""

    class Talkative(VectorLearner):
        def train(self, config: TrainConfig, **more) -> Trained:  # type: ignore[no-untyped-def,override]
            sys.stdout.write("printed\n")
            sys.stderr.write("10 %\r20 %\r")
            logging.getLogger("mine").warning("logged, sht_1234567890")
            return super().train(config, **more)

    return Talkative()


def parent() -> VectorLearner:
    """Begins a process of its own, and names it."""

    class Parent(VectorLearner):
        def train(self, config: TrainConfig, **more) -> Trained:  # type: ignore[no-untyped-def,override]
            with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
                Path("pids.tmp").write_text(f"{os.getpid()} {child.pid}")
                Path("pids.tmp").rename("pids")
            return super().train(config, **more)

    return Parent()
