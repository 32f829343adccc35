"""Lightning and `transformers` trainers in a training loop."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import shoal
import shoal.lightning
import shoal.transformers
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.model.tree import Tree, digest
from shoal.extras import install_hint
from shoal.loop.module_model import ModuleModel
from shoal.loop.rendezvous import LoopCall
from shoal.loop.task import LoopTask
from tests.conventions.sources import ROOT
from tests.loop.loops import NODES, learners, network, parts
from tests.loop.test_simulated import job

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Module(lightning.LightningModule):
    """The network of a `TorchLearner`, and what that does with it."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.net, self.lr = network(), lr

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Wrapped(nn.Module):
    """The same as a model of a `transformers` Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.net(x)
        return {"loss": nn.functional.cross_entropy(output, labels), "logits": output}


def task(model: nn.Module, **config: Any) -> tuple[LoopTask, LoopCall]:
    form = ModuleModel(model)
    call = LoopCall("a", 0, form.initial(), TrainConfig(**config))
    return LoopTask(call, form), call


def trainer_of(task: LoopTask, folder: Path, model: nn.Module, **more: Any) -> Trainer:
    """A Trainer that takes the batches of the task in their order."""
    x, y = parts()[0]
    data = [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]
    given: dict[str, Any] = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, **more}
    args = TrainingArguments(str(folder), learning_rate=task.lr, **given)
    return Trainer(model, args, train_dataset=data, callbacks=[shoal.transformers.TaskCallback(task)])


def loader(batches: list[Any]) -> DataLoader[Any]:
    """These batches; its own generator leaves the default one to dropout."""
    return DataLoader(batches, batch_size=None, generator=torch.Generator())


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Libraries warn of what is slow or to come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_lightning_gives_the_model_of_a_torch_learner() -> None:
    foreseen = shoal.simulate(job(), learners())
    model = Module(0.1)
    with shoal.simulated(job(), nodes=NODES) as node:
        for one in node.tasks(model):
            trainer = lightning.Trainer(max_epochs=one.epochs, callbacks=[shoal.lightning.Callback(one)], **QUIET)
            data = parts()[one.index]
            trainer.fit(model, loader(list(one.batches(data))))
            one.report(model, examples=len(data[0]), metrics=trainer.callback_metrics)
    arrays = {name.removeprefix("net."): value for name, value in node.result.model.items()}
    unwrapped = Tree.of(arrays, statistics=foreseen.model.layout.statistics)
    assert digest(unwrapped) == digest(foreseen.model)
    assert node.result.versions[0].metrics["train/loss"] > 0.0


def test_lightning_says_how_far_it_is_and_stops_when_cancelled() -> None:
    model = Module(0.1)
    one, call = task(model, epochs=4)
    seen: list[float] = []

    class Watching(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            seen.append(call.fraction)
            if len(seen) == 6:
                call.cancel()

    callbacks = [shoal.lightning.Callback(one), Watching()]
    trainer = lightning.Trainer(max_epochs=one.epochs, callbacks=callbacks, **QUIET)
    x, y = parts()[0]
    trainer.fit(model, loader(list(zip(x.split(10), y.split(10), strict=True))))
    steps = 4 * len(x.split(10))
    assert seen[:6] == pytest.approx([(n + 1) / steps for n in range(6)])
    assert len(seen) < steps / 2


def test_a_transformers_trainer_takes_part(tmp_path: Path) -> None:
    """Twice the same job gives the same model: the Trainer trains as long as the job says, seeded by the task."""
    found, seeds = [], list[int]()
    for _ in range(2):
        model = Wrapped()
        with shoal.simulated(job(rounds=3), nodes=2) as node:
            for one in node.tasks(model):
                trainer = trainer_of(one, tmp_path, model)
                seeds.append(trainer.args.seed)
                trainer.train()
                assert (trainer.state.num_train_epochs, trainer.state.max_steps) == (1, 7)
                one.report(model, examples=50)
        assert node.result.versions[-1].reports == 2
        found.append(digest(node.result.model))
    assert found[0] == found[1]
    assert len(set(seeds)) == len(seeds) / 2 == 6


def test_a_transformers_trainer_counts_steps(tmp_path: Path) -> None:
    model = Wrapped()
    one, _ = task(model, steps=3)
    trainer = trainer_of(one, tmp_path, model)
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_transformers_trainer_says_how_far_it_is_and_stops_when_cancelled(tmp_path: Path) -> None:
    model = Wrapped()
    one, call = task(model, epochs=4)
    seen: list[float] = []

    class Watching(shoal.transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.append(call.fraction)
            if len(seen) == 3:
                call.cancel()

    trainer = trainer_of(one, tmp_path, model, per_device_train_batch_size=10)
    trainer.add_callback(Watching())
    trainer.train()
    steps = 4 * len(parts()[0][0].split(10))
    assert seen == pytest.approx([(n + 1) / steps for n in range(4)])


MISSING = """
import sys
sys.modules[sys.argv[1]] = None
from shoal.core.errors import ShoalError
try:
    __import__("shoal." + sys.argv[1])
except ShoalError as error:
    print(error.message, error.hint, sep=" | ")
"""


@pytest.mark.parametrize(("name", "extra"), [("lightning", "lightning"), ("transformers", "hf")])
def test_without_the_library_it_is_said_how_to_get_it(name: str, extra: str) -> None:
    done = subprocess.run([sys.executable, "-c", MISSING, name], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"shoal.{name} needs {name}, which is not installed | {install_hint(extra)}\n"
