"""Learners with a callback, as `shoal peer --learner` names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from torch import nn

from shoal.core.algorithm.learner import Learner, TrainConfig, Trained
from shoal.learn import LearnerCallback, TorchConfig, TorchLearner
from shoal.learn.lightning import LightningLearner
from tests.learn.lightning_modules import Module
from tests.loop.loops import network, parts


class Noting(LearnerCallback, Callback):
    """A callback of either learner, which writes down the start and the end of each task; one may fail at the second
    start."""

    def __init__(self, notes: str, fails: bool) -> None:
        self._notes, self._fails = Path(notes), fails

    def task_started(self, module: nn.Module, config: TrainConfig) -> None:
        self._start()

    def task_ended(self, module: nn.Module, config: TrainConfig, trained: Trained) -> None:
        self._note("ended")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._start()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._note("ended")

    def _start(self) -> None:
        self._note("started")
        if self._fails and self._notes.read_text().split().count("started") == 2:
            raise ValueError("the lamp is out")

    def _note(self, what: str) -> None:
        with self._notes.open("a") as file:
            file.write(f"{what}\n")


def torch_learner(part: int, notes: str, fails: bool = False) -> Learner:
    config = TorchConfig(callbacks=[Noting(notes, fails)])
    return TorchLearner(network, parts()[part], device="cpu", config=config)


def lightning_learner(part: int, notes: str, fails: bool = False) -> Learner:
    return LightningLearner(Module, parts()[part], device="cpu", callbacks=[Noting(notes, fails)])
