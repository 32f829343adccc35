"""A LightningModule as a learner: the bits of `TorchLearner` where the loop is the same, and Lightning's own ways."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, InvalidJob, LearnerFailed
from shoal.core.model.tree import Tree, digest
from shoal.learn import TorchLearner
from shoal.learn.lightning import LightningLearner
from tests.conventions.sources import ROOT
from tests.learn.lightning_modules import Module, unwrapped
from tests.loop.loops import network, parts

TASK = TrainConfig(epochs=2, batch_size=16, lr=0.1, seed=5)
TRAIN, TEST = parts()[0], parts()[2]


class Scheduled(Module):
    """The same with a rate that falls to a tenth after each epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]


class TwoOptimizers(Module):
    """The same, which steps two optimizers by itself."""

    automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        optimizers: Any = self.optimizers()
        loss = super().training_step(batch, index)
        for one in optimizers:
            one.zero_grad()
        self.manual_backward(loss)
        for one in optimizers:
            one.step()
        return loss

    def configure_optimizers(self) -> Any:
        parameters = list(self.parameters())
        return [torch.optim.SGD(some, lr=self.lr) for some in (parameters[:2], parameters[2:])]


# Lightning warns of few workers and of changes to come.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def learner(model: Any = Module, train: Any = TRAIN, test: Any = None, **more: Any) -> LightningLearner:
    return LightningLearner(model, train, test, device="cpu", **more)


def torch_learner(**more: Any) -> TorchLearner:
    return TorchLearner(network, TRAIN, TEST, device="cpu", **more)


def pulled(start: Tree) -> Correction:
    return Correction(pull=0.5, anchor=start, averages=True)


@pytest.mark.parametrize("is_corrected", [False, True], ids=["plain", "corrected"])
@pytest.mark.parametrize(
    "config",
    [
        TASK,
        TrainConfig(steps=7, batch_size=16, lr=0.1, seed=6),
        TrainConfig(steps=2, batch_size=16, lr=0.1, seed=6),
        TrainConfig(epochs=1.5, batch_size=16, lr=0.1, seed=7),
        TrainConfig(epochs=1, batch_size=0, lr=0.1),
        TrainConfig(steps=6, batch_size=16, lr=0.1, seed=7, batch_index=3, sequence_seed=11),
    ],
    ids=["passes", "steps", "few steps", "part of a pass", "all at once", "from a position"],
)
def test_plain_sgd_gives_the_bits_of_a_torch_learner(config: TrainConfig, is_corrected: bool) -> None:
    ours, theirs = learner(), torch_learner()
    start, other = ours.init(3), theirs.init(3)
    here = ours.train(config, correct=pulled(start) if is_corrected else None)
    there = theirs.train(config, correct=pulled(other) if is_corrected else None)
    assert digest(unwrapped(ours.model(), theirs.model())) == digest(theirs.model())
    assert here.weight == there.weight
    assert here.metrics["train/loss"] == pytest.approx(there.metrics["train/loss"])


def test_a_job_gives_the_model_of_torch_learners() -> None:
    job = {"name": "lit", "rounds": 2, "seed": 5, "algorithm": {"name": "fedprox", "epochs": 2, "batch_size": 16}}
    ours = shoal.simulate(job, [learner(train=part, test=TEST) for part in parts()])
    theirs = shoal.simulate(job, [TorchLearner(network, part, TEST, device="cpu") for part in parts()])
    assert digest(unwrapped(ours.model, theirs.model)) == digest(theirs.model)
    assert ours.metrics["eval/accuracy"] == pytest.approx(theirs.metrics["eval/accuracy"])
    assert ours.metrics["eval/loss"] == pytest.approx(theirs.metrics["eval/loss"])
    assert ours.versions[0].metrics["train/own"] > 0.0


def test_a_task_gives_the_same_whatever_came_before() -> None:
    one = learner(lambda: Module(momentum=0.9))
    start, found = one.init(3), list[str]()
    for _ in range(2):
        one.load(start)
        one.train(TASK)
        found.append(digest(one.model()))
    assert found[0] == found[1]


class Counting(Callback):
    """A callback that counts epochs and tasks."""

    def __init__(self) -> None:
        self.epochs, self.tasks = 0, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.tasks += 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs += 1


def test_callbacks_are_told_of_epochs_and_begin_each_task_anew() -> None:
    """Lightning's early stopping would end every task after the first one at once."""
    counting, stopping = Counting(), EarlyStopping("val_loss", patience=1, min_delta=10.0)
    one = learner(test=TEST, callbacks=[counting, stopping])
    one.init(3)
    for _ in range(2):
        one.train(TrainConfig(epochs=5, batch_size=16, lr=0.1))
    assert (counting.tasks, counting.epochs) == (2, 4)


def test_schedulers_of_the_module_step_by_epoch() -> None:
    ours, start = learner(Scheduled), learner(Scheduled).init(3)
    ours.load(start)
    ours.train(TASK)
    by_hand = learner()
    by_hand.load(start)
    by_hand.train(TASK)
    assert digest(ours.model()) != digest(by_hand.model())
    with pytest.raises(LearnerFailed, match="begin again with each piece"):
        ours.train(TrainConfig(steps=2, batch_size=16, lr=0.1, batch_index=0))


def test_a_loader_keeps_its_batches(caplog: pytest.LogCaptureFixture) -> None:
    sizes: list[int] = []

    class Sizes(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            sizes.append(len(batch[1]))

    one = learner(train=DataLoader(TensorDataset(*TRAIN), batch_size=20, shuffle=True), callbacks=Sizes())
    one.init(0)
    assert one.train(TrainConfig(batch_size=32, lr=0.1)).weight == len(TRAIN[0]) == 50
    assert sizes == [20, 20, 10]
    assert "batch_size = 32 has no effect" in caplog.text


def test_a_cancelled_task_ends_at_a_batch() -> None:
    seen: list[float] = []

    def progress(fraction: float) -> None:
        seen.append(fraction)
        if fraction > 0.5:
            raise Cancelled("withdrawn")

    one = learner()
    one.init(0)
    with pytest.raises(Cancelled):
        one.train(TASK, progress=progress)
    assert seen[-1] == pytest.approx(4 / 6)


def test_only_trained_tensors_travel() -> None:
    def frozen() -> Module:
        module = Module()
        module.net[0].requires_grad_(False)
        module.net[1].requires_grad_(False)
        return module

    one = learner(frozen)
    one.init(0)
    before = [one.module.state_dict()[name].clone() for name in ("net.1.running_mean", "net.0.weight")]
    one.train(TASK)
    assert list(one.model()) == ["net.4.bias", "net.4.weight"]
    after = [one.module.state_dict()[name] for name in ("net.1.running_mean", "net.0.weight")]
    assert all(map(torch.equal, before, after))


def test_the_jobs_rate_reaches_hyperparameters_and_is_missed_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    class Saved(Module):
        def __init__(self, learning_rate: float = 9.0) -> None:
            super().__init__()
            del self.lr
            self.save_hyperparameters()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)

    class Fixed(Module):
        def __init__(self) -> None:
            super().__init__()
            del self.lr

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    one, other = learner(Saved), learner()
    for made in (one, other):
        made.init(3)
        made.train(TASK)
    assert digest(one.model()) == digest(other.model())
    assert not caplog.records
    learner(Fixed)
    assert "Fixed has neither lr nor learning_rate: the job's lr has no effect" in caplog.text


def test_the_documents_learner_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/lightning.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    job = {"name": "docs", "rounds": 3, "algorithm": {"name": "fedavg", "epochs": 5, "lr": 0.05}}
    result = shoal.simulate(job, [names["learner"](part) for part in range(2)])
    assert result.accuracy > 0.85


class Raising(Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise ValueError("no more")


def test_several_optimizers_are_refused_under_corrections_alone() -> None:
    """A correction would be added once for each optimizer."""
    several, one = learner(TwoOptimizers), learner()
    for each in (several, one):
        each.init(3)
        each.train(TASK)
    assert digest(several.model()) == digest(one.model())
    with pytest.raises(LearnerFailed, match="corrects the gradients of one optimizer, and there are 2"):
        several.train(TASK, correct=pulled(one.model()))


def test_an_error_of_a_callback_is_named_and_the_next_task_works() -> None:
    one = learner(callbacks=[Raising()])
    one.init(3)
    with pytest.raises(LearnerFailed, match=r"test_lightning_learner.py, line \d+: ValueError: no more"):
        one.train(TASK)
    one._callbacks.clear()
    one._saved.clear()
    start = one.init(3)
    one.train(TASK)
    assert not np.array_equal(one.model()["net.0.weight"], start["net.0.weight"])


class Unvalidated(Module):
    validation_step = LightningModule.validation_step


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: learner(network), "gave Sequential, not a LightningModule"),
        (lambda: learner(max_epochs=3), "max_epochs of Lightning's Trainer has no place in a task"),
        (lambda: learner(Unvalidated, test=TEST), "Unvalidated has no validation_step"),
    ],
)
def test_refusals_name_what_is_wrong(make: Any, text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        make()


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        ("fedsgd", learner, "declares that it gives none"),
        ("scaffold", lambda: learner(lambda: Module(momentum=0.9)), r"of LightningLearner is SGD\(momentum=0.9"),
        ("scaffold", lambda: learner(gradient_clip_val=1.0), "of LightningLearner is SGD with clipped gradients"),
        ("scaffold", lambda: learner(Scheduled), "of LightningLearner is one with a scheduler, or several"),
        ("scaffold", lambda: learner(TwoOptimizers), "is one with a scheduler, or several"),
    ],
)
def test_algorithms_that_need_more_are_refused_by_name(name: str, make: Any, text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        shoal.simulate({"name": "no", "algorithm": name}, [make()])
