"""`HFLearner`: a `transformers.Trainer` with its model and data.

    HFLearner(model, TrainingArguments(…), train_dataset, eval_dataset, data_collator=…, compute_metrics=…)

Each task gets a new trainer around the same module: its own optimizer, schedule and state. All randomness follows from
the task's seed, and the order of the examples is that of `TorchLearner`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import find_batch_size

from shoal.core.algorithm.learner import ExtraLoss, Progress, TrainConfig, Trained
from shoal.core.protocol.message import Metrics
from shoal.core.protocol.metrics import EVAL_WEIGHT
from shoal.learn.hf.checks import check_arguments, check_data, check_device, check_task, check_vocabulary
from shoal.learn.hf.task_batches import TaskBatches
from shoal.learn.hf.task_trainer import TaskTrainer, TrainerInput
from shoal.learn.seeds import CPU, seeded
from shoal.learn.training.corrections import Corrector
from shoal.learn.training.descent import other_than_plain
from shoal.learn.training.devices import resolve
from shoal.learn.training.measures import Mean
from shoal.learn.training.module_learner import Losses, ModuleLearner
from shoal.learn.training.tensor_roles import Travels
from shoal.learn.training.torch_learner import Precision
from shoal.learn.user_errors import user_code

COSTS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
"""Names in an evaluation's result that measure the machine, not the model."""


class HFLearner(ModuleLearner):
    """A `Learner` around a `transformers.Trainer`.

    model           a function that returns a new module
    args            the trainer's arguments; epochs or steps, batch size, learning rate and seed are the job's
    train_dataset   a Dataset of torch or of `datasets`, a list of examples, or an IterableDataset
    eval_dataset    held-out examples with a length; None: this node does not evaluate
    trainer         the trainer's class
    travels         the tensors that nodes exchange, as in `TorchConfig`
    keep_optimizer  keep the optimizer's state across tasks
    arguments       the trainer's other ones: data_collator, compute_metrics, processing_class, callbacks, …

    Raises `InvalidJob` for what cannot be trained here, and `LearnerFailed` for errors in the user's code.
    """

    def __init__(
        self,
        model: Callable[[], nn.Module],
        args: TrainingArguments,
        train_dataset: Any,
        eval_dataset: Any = None,
        *,
        trainer: type[Trainer] = Trainer,
        travels: Travels | None = None,
        keep_optimizer: bool = False,
        **arguments: Any,
    ) -> None:
        check_arguments(args, arguments)
        check_data(train_dataset, eval_dataset)
        super().__init__(model, "cpu" if args.use_cpu else "auto", travels)
        check_vocabulary(self.module, arguments.get("processing_class"))
        self.args, self._precision, self._kept.lasts = args, _precision(args), keep_optimizer
        self._train_dataset, self._eval_dataset, self._arguments = train_dataset, eval_dataset, arguments
        self._trainer_class = type(f"{trainer.__name__}OfTask", (TaskTrainer, trainer), {})
        on_cpu = {"use_cpu": True, "fp16": False, "bf16": False}
        with (
            user_code("making the Trainer"),
            seeded(0, CPU),
            self._trainer(TrainConfig(steps=1), self._task(CPU), **on_cpu),
        ):
            pass

    @property
    def examples(self) -> int | None:
        """The number of training examples; None if only iteration tells."""
        return len(self._train_dataset) if isinstance(self._train_dataset, Sized) else None

    @cached_property
    def other_optimizer(self) -> str:
        """The optimizer in words, if it is another than plain SGD (see `shoal.core.algorithm.capability`)."""
        device = self.place()
        with (
            user_code("making the optimizer"),
            seeded(0, device),
            self._trainer(TrainConfig(steps=1), self._task(device)) as trainer,
        ):
            return other_than_plain(trainer.create_optimizer())

    def use(self, *, device: str | None = None, precision: Precision | None = None) -> None:
        """Set device and precision, which overrides the arguments: the operator of a node decides."""
        if device is not None:
            check_device(resolve(device))
            self._device, self._placed = device, None
        if precision is not None:
            self._precision = precision

    # ----------------------------------------------------------------------------------------------------- the trainer
    @contextmanager
    def _trainer(self, config: TrainConfig, task: TrainerInput, **more: Any) -> Iterator[TaskTrainer]:
        """Make a trainer for one training, with a temporary folder for what it writes."""
        batches = task.batches
        parts = self.args.gradient_accumulation_steps if batches is None else batches.parts
        size = config.batch_size or self.examples or 1
        with TemporaryDirectory(prefix="shoal-trainer-") as folder:
            args = {
                "max_steps": config.steps or -1 if batches is None else batches.steps,
                "num_train_epochs": config.epochs,
                "per_device_train_batch_size": -(-size // parts),
                "gradient_accumulation_steps": parts,
                "learning_rate": config.lr,
                "seed": config.seed % 2**32,
                "use_cpu": self.device.type == "cpu",
                "bf16": self._precision == "bf16",
                "fp16": self._precision == "fp16",
                "output_dir": folder,
                "save_strategy": "no",
                "disable_tqdm": True,
                "logging_nan_inf_filter": False,  # a loss that is not a number must be seen
            }
            trainer = self._trainer_class(
                task,
                # A copy, because mixed precision replaces the forward of the module that a trainer is given.
                model=copy.copy(self.module),
                args=replace(self.args, **{**args, **more}),
                train_dataset=self._train_dataset,
                eval_dataset=self._eval_dataset,
                **_with_rate(self._arguments, config.lr),
            )
            check_device(trainer.args.device, trainer.args.n_gpu)
            try:
                yield trainer
            finally:
                if (hook := getattr(trainer, "neftune_hook_handle", None)) is not None:
                    hook.remove()  # a training that was cancelled has left it

    def _task(self, device: torch.device, **more: Any) -> TrainerInput:
        return TrainerInput(self.weights, Mean(device), **more)

    def _batches(self, config: TrainConfig, shuffle: torch.Generator) -> TaskBatches | None:
        """Return the examples of one training; None where only the trainer's own loader can choose them."""
        if isinstance(self._train_dataset, IterableDataset) or self.args.train_sampling_strategy != "random":
            return None
        parts, merge_small = self.args.gradient_accumulation_steps, self.own_module.has_norms
        return TaskBatches(len(self._train_dataset), config, shuffle, parts, merge_small=merge_small)

    # -------------------------------------------------------------------------------------------------------- training
    def _train(
        self,
        config: TrainConfig,
        corrector: Corrector | None,
        extra_loss: ExtraLoss | None,
        shuffle: torch.Generator,
        progress: Progress,
    ) -> Trained:
        batches = self._batches(config, shuffle)
        check_task(self.args, config, own_loader=batches is None, extra_loss=extra_loss)
        task = self._task(
            self.device, lr=config.lr, batches=batches, kept=self._kept, corrector=corrector, progress=progress
        )
        if config.steps or config.epochs:
            with self._trainer(config, task) as trainer:
                trainer.train()
        return self._trained(config, task.mean)

    def _losses(self, config: TrainConfig, shuffle: torch.Generator, progress: Progress) -> Losses:
        batches = self._batches(config, shuffle)
        check_task(self.args, config, own_loader=batches is None)
        with self._trainer(config, self._task(self.device, batches=batches)) as trainer:
            model: Any = trainer.model
            if self._precision != "fp16":
                model = trainer.accelerator.prepare_model(model)
            self.weights.enter_training_mode()
            parts = config.steps * self.args.gradient_accumulation_steps
            whole = parts if batches is None else len(batches)
            for number, inputs in enumerate(islice(trainer.get_train_dataloader(), whole or None), 1):
                size = find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]
                with trainer.compute_loss_context_manager():
                    loss = trainer.compute_loss(model, inputs)
                yield loss, size, number / whole if whole else 0.0

    # ------------------------------------------------------------------------------------------------------ evaluation
    def evaluate(self) -> Metrics:
        """Return "eval/examples", "eval/loss" and each metric as "eval/NAME", as the trainer evaluates; {} without
        held-out data."""
        device = self.place()
        if self._eval_dataset is None or len(self._eval_dataset) == 0:
            return {}
        with user_code("evaluating"), seeded(0, device):
            with self._trainer(TrainConfig(), self._task(device)) as trainer:
                found = trainer.evaluate()
            named = {name.removeprefix("eval_"): value for name, value in found.items() if name.startswith("eval_")}
            values = {f"eval/{name}": float(value) for name, value in named.items() if name not in COSTS}
        return {EVAL_WEIGHT: float(len(self._eval_dataset)), **values}


def _precision(args: TrainingArguments) -> Precision:
    return "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"


def _with_rate(arguments: dict[str, Any], lr: float) -> dict[str, Any]:
    """Return the trainer's arguments with the job's learning rate for an optimizer of the user's."""
    if arguments.get("optimizer_cls_and_kwargs") is None:
        return arguments
    kind, options = arguments["optimizer_cls_and_kwargs"]
    return {**arguments, "optimizer_cls_and_kwargs": (kind, {**options, "lr": lr})}
