"""`LightningLearner`: a `LightningModule` with its data, trained by Lightning's Trainer.

    LightningLearner(Classifier, train, test, callbacks=[…], gradient_clip_val=1.0)

Each task gets a new Trainer around the same module: its own optimizers, schedulers and loops. All randomness follows
from the task's seed, and the order of the examples is that of `TorchLearner`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning import pytorch
from torch import nn
from torch.optim import Optimizer

from shoal.core.algorithm.learner import ExtraLoss, Progress, TrainConfig, Trained
from shoal.core.errors import InvalidJob
from shoal.core.protocol.message import Metrics
from shoal.core.protocol.metrics import EVAL_WEIGHT
from shoal.learn.data.batches import BatchOptions, Data, source_of
from shoal.learn.data.kinds import is_empty
from shoal.learn.lightning.task_hooks import LightningHooks
from shoal.learn.lightning.task_loader import StoredBatches, TaskLoader
from shoal.learn.seeds import CPU, seeded
from shoal.learn.training.corrections import Corrector
from shoal.learn.training.descent import other_than_plain
from shoal.learn.training.devices import resolve
from shoal.learn.training.measures import Mean
from shoal.learn.training.module_learner import Losses, ModuleLearner
from shoal.learn.training.tensor_roles import Travels
from shoal.learn.training.torch_learner import Precision
from shoal.learn.user_errors import user_code

REFUSED = {
    "max_epochs": "the job sets the epochs: epochs in [algorithm]",
    "max_steps": "the job sets the amount of training: epochs in [algorithm]",
    "devices": "a node trains on one device: pass device",
    "accelerator": "pass device",
    "strategy": "a node trains in one process",
    "num_nodes": "a node trains in one process",
}
"""Arguments of the Trainer that a task cannot honor, with what to do instead."""

RATES = ("lr", "learning_rate")
"""Attributes, and hyperparameters, of a module that the job's learning rate is written to."""

QUIET = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
"""Arguments that are off unless they are given."""

EVAL_BATCH_SIZE = 1024

PRECISIONS = {"float32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

log = logging.getLogger(__name__)


class LightningLearner(ModuleLearner):
    """A `Learner` around a `LightningModule`.

    model      a function that returns a new module; its class, if it needs no arguments. The job's learning rate is
               written to `lr` or `learning_rate` of the module, or of its `hparams`
    train      tensors (x, y), a Dataset, a list of examples, or a DataLoader, whose batches are kept
    test       held-out data of the same kind, for `validation_step`; None: this node does not evaluate
    device     auto, cpu, cuda, cuda:1 or mps
    travels    the tensors that nodes exchange, as in `TorchConfig`
    arguments  the Trainer's other ones: callbacks, precision, gradient_clip_val, accumulate_grad_batches, logger, …

    Callbacks see every task; each task begins with their first saved state (`state_dict`). Raises
    `InvalidJob` for what cannot be trained here, and `LearnerFailed` for errors in the user's code.
    """

    gives_gradients = False
    """A module's steps belong to the Trainer (see `shoal.core.algorithm.capability`)."""
    calls_training_step = True

    def __init__(
        self,
        model: Callable[[], nn.Module],
        train: Data,
        test: Data | None = None,
        *,
        device: str = "auto",
        travels: Travels | None = None,
        **arguments: Any,
    ) -> None:
        _check_arguments(arguments)
        super().__init__(model, device, travels)
        if not isinstance(self.module, pytorch.LightningModule):
            text = f"the model function gave {type(self.module).__name__}, not a LightningModule"
            raise InvalidJob(text, code="learner.model", hint="give the module itself to TorchLearner")
        self._callbacks = _listed(arguments.pop("callbacks", None))
        self._saved = [copy.deepcopy(one.state_dict()) for one in self._callbacks]
        self._arguments = arguments
        options = BatchOptions(CPU, merge_small=self.own_module.has_norms)
        with user_code("reading the data"):
            self._train_data = source_of(train, options)
            self._test_data = None if test is None or is_empty(test) else source_of(test, options)
        overrides = type(self.module).validation_step is not pytorch.LightningModule.validation_step
        if self._test_data is not None and not overrides:
            text = f"{type(self.module).__name__} has no validation_step for the test data"
            raise InvalidJob(text, code="learner.model", hint="add validation_step, or leave test out")
        if _rate_owner(self.module) is None:
            log.warning("%s has neither lr nor learning_rate: the job's lr has no effect", type(self.module).__name__)

    @property
    def examples(self) -> int | None:
        """The number of training examples; None if only iteration tells."""
        return self._train_data.examples

    @cached_property
    def other_optimizer(self) -> str:
        """The optimizer in words, if it is another than plain SGD (see `shoal.core.algorithm.capability`)."""
        if self._arguments.get("gradient_clip_val"):
            return "SGD with clipped gradients"
        with user_code("configure_optimizers"):
            module: Any = self.module
            found = module.configure_optimizers()
        return other_than_plain(found) if isinstance(found, Optimizer) else "one with a scheduler, or several"

    def use(self, *, device: str | None = None, precision: Precision | None = None) -> None:
        """Set device and precision, which overrides the arguments: the operator of a node decides."""
        if device is not None:
            resolve(device)
            self._device, self._placed = device, None
        if precision is not None:
            self._arguments["precision"] = PRECISIONS[precision]

    def place(self) -> torch.device:
        """Choose the device. Between tasks the module is on the CPU, where the Trainer leaves it."""
        self._placed = self.device
        return self._placed

    # ----------------------------------------------------------------------------------------------------- the trainer
    @contextmanager
    def _trainer(self, **more: Any) -> Iterator[pytorch.Trainer]:
        """Make a Trainer on the device, with a temporary folder for what it writes, that prints nothing."""
        device = self.device
        usual = dict.fromkeys(QUIET, False) | {"num_sanity_val_steps": 0, **self._arguments}
        place = {"accelerator": "gpu" if device.type == "cuda" else device.type, "devices": 1}
        if device.type == "cuda":
            place["devices"] = [device.index or 0]
        with TemporaryDirectory(prefix="shoal-lightning-") as folder, _silenced():
            yield pytorch.Trainer(**{"default_root_dir": folder, **usual, **place, **more})

    # -------------------------------------------------------------------------------------------------------- training
    def _train(
        self,
        config: TrainConfig,
        corrector: Corrector | None,
        extra_loss: ExtraLoss | None,
        shuffle: torch.Generator,
        progress: Progress,
    ) -> Trained:
        if extra_loss is not None:
            raise InvalidJob("a LightningLearner adds no other loss to the module's", code="learner.capability")
        self._train_data.note_batch_size(config.batch_size)
        loader, mean = TaskLoader(self._train_data, config, shuffle, progress), Mean(CPU)
        hooks = LightningHooks(self.weights, loader, mean, corrector, progress)
        _set_rate(self.module, config.lr)
        for callback, state in zip(self._callbacks, self._saved, strict=True):
            callback.load_state_dict(copy.deepcopy(state))
        logged: Metrics = {}
        if config.steps or config.epochs:
            self.module.train()
            with self._trainer(max_epochs=loader.passes, callbacks=[*self._callbacks, hooks]) as trainer:
                _fit(trainer, self.module, loader, self._validation())
                logged = {_under("train", name): float(value) for name, value in trainer.callback_metrics.items()}
        weight = None if config.batch_index >= 0 else self.examples
        return Trained(float(weight or hooks.examples), logged | mean.named("train/loss"))

    def _losses(self, config: TrainConfig, shuffle: torch.Generator, progress: Progress) -> Losses:
        raise InvalidJob("a LightningLearner gives no gradient", code="learner.capability", hint="use TorchLearner")

    # ------------------------------------------------------------------------------------------------------ evaluation
    def _validation(self) -> StoredBatches | None:
        return None if self._test_data is None else StoredBatches(self._test_data, EVAL_BATCH_SIZE)

    def evaluate(self) -> Metrics:
        """Return "eval/examples" and what `validation_step` logs: `val_accuracy`, `val/accuracy` and `accuracy` as
        "eval/accuracy". {} without test data."""
        device, batches = self.place(), self._validation()
        if batches is None:
            return {}
        module: Any = self.module
        with user_code("evaluating"), seeded(0, device), self._trainer(limit_val_batches=1.0) as trainer:
            (found,) = trainer.validate(module, batches, verbose=False)
        return {EVAL_WEIGHT: float(batches.examples), **{_under("eval", name): one for name, one in found.items()}}


def _check_arguments(arguments: dict[str, Any]) -> None:
    """Raise `InvalidJob` for arguments of the Trainer that are the job's or the node's."""
    for name, hint in REFUSED.items():
        if name in arguments:
            raise InvalidJob(f"{name} of Lightning's Trainer has no place in a task", code="learner.options", hint=hint)


def _listed(callbacks: Any) -> list[pytorch.Callback]:
    return [callbacks] if isinstance(callbacks, pytorch.Callback) else list(callbacks or ())


def _rate_owner(module: Any) -> tuple[Any, str] | None:
    """Return (object, name) of the attribute with the learning rate; None without one."""
    owners = (module, module.hparams)
    return next(((owner, name) for owner in owners for name in RATES if hasattr(owner, name)), None)


def _set_rate(module: Any, lr: float) -> None:
    if (found := _rate_owner(module)) is not None:
        owner, name = found
        setattr(owner, name, lr)


def _under(kind: str, name: str) -> str:
    """Return the name of a logged number among a node's metrics, such as "eval/accuracy" for "val_accuracy"."""
    plain = name if kind == "train" else name.removeprefix("val_").removeprefix("val/")
    return f"{kind}/{plain.removeprefix(f'{kind}/')}"


def _fit(trainer: pytorch.Trainer, module: Any, batches: TaskLoader, validation: StoredBatches | None) -> None:
    """Train; an interrupt stays one, which the Trainer makes the end of the process."""
    try:
        trainer.fit(module, batches, validation)
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep the Trainer from logging the machine's devices for each task."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
