"""Callbacks of a `TorchLearner`, and a `LightningLearner`, on nodes that go to gossip and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch import nn

from shoal.core.algorithm.learner import Learner, TrainConfig, Trained
from shoal.learn import LearnerCallback, TorchConfig, TorchLearner
from shoal.learn.lightning import LightningLearner
from tests.learn.lightning_modules import Module
from tests.loop.loops import network, parts
from tests.peering.scenario import JOB, LONG, Threaded, acquainted, begin, versions
from tests.support.coordinator import Server
from tests.support.waiting import until

# Lightning warns of few workers and of changes to come.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]


class Failing(LearnerCallback, Callback):
    """A callback of either learner, of which one task fails when `armed`."""

    def __init__(self) -> None:
        self.started, self.ended, self.failed, self.armed = 0, 0, 0, False

    def task_started(self, module: nn.Module, config: TrainConfig) -> None:
        self._start()

    def task_ended(self, module: nn.Module, config: TrainConfig, trained: Trained) -> None:
        self.ended += 1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._start()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.ended += 1

    def _start(self) -> None:
        self.started += 1
        if self.armed:
            self.armed, self.failed = False, self.failed + 1
            raise ValueError("the lamp is out")


def torch_learner(part: int, callback: LearnerCallback) -> Learner:
    return TorchLearner(network, parts()[part], device="cpu", config=TorchConfig(callbacks=[callback]))


def lightning_learner(part: int, callback: Callback) -> Learner:
    return LightningLearner(Module, parts()[part], device="cpu", callbacks=[callback])


@pytest.mark.parametrize("make", [torch_learner, lightning_learner])
def test_callbacks_are_called_among_peers_and_an_error_of_one_is_named(
    make: Callable[..., Learner], server: Server, threaded: Callable[..., Threaded], tmp_path: Path
) -> None:
    begin(server, 3, **LONG)
    seen = [Failing() for _ in range(3)]
    nodes = [threaded(name, make(part, seen[part])) for part, name in enumerate("abc")]
    acquainted(server, nodes)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before, ended = server.job(JOB)["version"], [one.ended for one in seen]
    until("rounds", lambda: all(one.ended >= past + 3 for one, past in zip(seen, ended, strict=True)))
    seen[1].armed = True
    until("the failure", lambda: seen[1].failed)
    past = seen[1].ended
    until("rounds after it", lambda: seen[1].ended >= past + 3)
    (told,) = tmp_path.glob("b/**/errors/*.txt")
    assert "test_user_training.py" in told.read_text()
    assert "the lamp is out" in told.read_text()
    assert not [*tmp_path.glob("[ac]/**/errors/*.txt")]
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 3)
    found = {version["number"]: version for version in versions(server)}
    assert found[before]["metrics"]["gossip/local_rounds"] >= 3.0
