"""Callbacks of a `TorchLearner`, and a `LightningLearner`, at a real coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch import nn

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import Learner, TrainConfig, Trained
from shoal.core.model.tree import Tree, digest
from shoal.learn import LearnerCallback, TorchConfig, TorchLearner
from shoal.learn.lightning import LightningLearner
from shoal.wire.payload import open_payload
from tests.learn.lightning_modules import Module, unwrapped
from tests.loop.loops import network, parts
from tests.support.coordinator import inside
from tests.support.edge_node import EdgeNode

# Lightning warns of few workers and of changes to come.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
JOB = {
    "name": "j",
    "rounds": 3,
    "seed": 5,
    "aggregation_precision": "fixed",
    "algorithm": {"name": "fedprox", "epochs": 2, "batch_size": 16},
    "schedule": {"name": "rounds", "min_nodes": 2, "quorum": 2},
}


class Failing(LearnerCallback, Callback):
    """A callback of either learner, whose second task fails in its first batch."""

    def __init__(self) -> None:
        self.started, self.ended = 0, 0

    def task_started(self, module: nn.Module, config: TrainConfig) -> None:
        self.started += 1

    def batch_trained(self, number: int, loss: float) -> None:
        self._fail_once()

    def task_ended(self, module: nn.Module, config: TrainConfig, trained: Trained) -> None:
        self.ended += 1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.started += 1

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._fail_once()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.ended += 1

    def _fail_once(self) -> None:
        if self.started == 2:
            raise ValueError("the lamp is out")


def torch_learner(part: int, *callbacks: LearnerCallback) -> Learner:
    return TorchLearner(network, parts()[part], device="cpu", config=TorchConfig(callbacks=callbacks))


def lightning_learner(part: int, *callbacks: Callback) -> Learner:
    return LightningLearner(Module, parts()[part], device="cpu", callbacks=callbacks)


def trained(folder: Path, learners: Mapping[str, Learner]) -> tuple[Tree, list[str]]:
    """Return the last model of the job at a coordinator with these nodes, and its events."""
    with inside(folder / "data") as running:
        running.post("/jobs", {"spec": JOB})
        given = {"url": running.url, "jobs": ["j"]}
        nodes = [
            EdgeNode(one, **given, token=running.token(), name=name, state_dir=folder / name).start()
            for name, one in learners.items()
        ]
        for node in nodes:
            node.finish()
        body = running.request("GET", "/api/v1/jobs/j/models/3").content
        return tree_slot(open_payload(body), "model"), [event["text"] for event in running.events("j")]


def foreseen() -> Tree:
    return shoal.simulate(JOB, {f"n{part}": torch_learner(part) for part in (0, 1)}).model


@pytest.mark.parametrize("make", [torch_learner, lightning_learner])
def test_a_failed_callback_is_named_and_the_model_is_that_of_torch_learners(
    make: Callable[..., Learner], tmp_path: Path
) -> None:
    """The failed task is trained again, so that nothing is lost."""
    failing, like = Failing(), foreseen()
    model, texts = trained(tmp_path, {"n0": make(0), "n1": make(1, failing)})
    assert digest(unwrapped(model, like)) == digest(like)
    (told,) = [text for text in texts if "the lamp is out" in text]
    assert "n1" in told
    assert "test_user_training.py, line" in told
    assert (failing.started, failing.ended) == (4, 3)
