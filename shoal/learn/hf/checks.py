"""Refusals, by name, of arguments, data and tasks that a trainer cannot do here as they are meant."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import SchedulerType, TrainingArguments

from shoal.core.algorithm.learner import ExtraLoss, TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed

REFUSED = {
    "auto_find_batch_size": "the job sets the batch size: use gradient_accumulation_steps to save memory",
    "load_best_model_at_end": "a task returns the weights that it ends with: the coordinator knows the best version",
    "push_to_hub": "export the job's model, and upload that",
    "deepspeed": "a node trains in one process",
    "fsdp": "a node trains in one process",
}
"""Arguments that a task cannot honor, with what to do instead."""

OF_TRAINER = {
    "model_init": "the model function is the first argument",
    "optimizers": "use optimizer_cls_and_kwargs=(torch.optim.SGD, {…}) or the argument optim: each task has its own",
}


def check_arguments(args: object, arguments: Mapping[str, Any]) -> None:
    """Raise `InvalidJob` for arguments of which a task could make nothing, or something else."""
    if not isinstance(args, TrainingArguments):
        text = f"args is {type(args).__name__}, not transformers.TrainingArguments"
        raise InvalidJob(text, code="learner.options", hint="HFLearner(model, args, train_dataset, eval_dataset)")
    for name, hint in REFUSED.items():
        if getattr(args, name):
            raise InvalidJob(f"{name} of TrainingArguments has no place in a task", code="learner.options", hint=hint)
    for name, hint in OF_TRAINER.items():
        if arguments.get(name) is not None:
            raise InvalidJob(f"{name} of Trainer has no place in a task", code="learner.options", hint=hint)


def check_data(train: object, test: object) -> None:
    """Raise `InvalidJob` for data that no trainer takes."""
    if isinstance(train, IterableDataset):
        return
    if not isinstance(train, Sized) or not hasattr(train, "__getitem__") or isinstance(train, Mapping):
        text, hint = f"{type(train).__name__} is not training data", "give a Dataset, or a list of examples"
        raise InvalidJob(text, code="learner.data", hint=hint)
    if not len(train):
        raise InvalidJob("the data hold no example", code="learner.data", hint="check how they were divided")
    if test is not None and (not isinstance(test, Sized) or isinstance(test, Mapping)):
        text, hint = f"eval_dataset is {type(test).__name__}", "give one Dataset that has a length"
        raise InvalidJob(text, code="learner.data", hint=hint)


def check_vocabulary(module: nn.Module, tokenizer: object) -> None:
    """Raise `InvalidJob` for a tokenizer with more tokens than the model has embeddings. Fewer are common: rows are
    padded to a round number."""
    embeddings = getattr(module, "get_input_embeddings", None)
    rows = getattr(embeddings() if callable(embeddings) else None, "num_embeddings", None)
    if isinstance(tokenizer, Sized) and rows is not None and len(tokenizer) > rows:
        raise InvalidJob(
            f"the tokenizer has {len(tokenizer):,} tokens, the model embeddings for {rows:,}",
            code="learner.vocabulary",
            hint="load both from one folder, or call resize_token_embeddings in the model function, on every node",
        )


def check_device(device: torch.device, gpus: int = 1) -> None:
    """Raise `InvalidJob` for a device that the trainer cannot be told, or for more than one."""
    if gpus > 1 or device.index:
        text = f"the Trainer would use all {gpus} GPUs" if gpus > 1 else f"the Trainer cannot be told to use {device}"
        raise InvalidJob(
            text, code="device.unknown", hint=f"start the node with CUDA_VISIBLE_DEVICES={device.index or 0}"
        )


def check_task(
    args: TrainingArguments, config: TrainConfig, *, own_loader: bool, extra_loss: ExtraLoss | None = None
) -> None:
    """Raise `LearnerFailed` for a task that this trainer would do in another way."""
    in_sequence = config.batch_index >= 0
    if extra_loss is not None:
        raise LearnerFailed("an HFLearner adds no other loss to the Trainer's", code="learner.capability")
    if in_sequence and own_loader:
        raise LearnerFailed(
            "the order names a position in a sequence of mini-batches, and here the Trainer chooses the examples",
            code="learner.data",
            hint='give a Dataset with __getitem__, and leave train_sampling_strategy at "random"',
        )
    kind = SchedulerType(args.lr_scheduler_type)
    if in_sequence and kind is not SchedulerType.CONSTANT:
        raise LearnerFailed(
            f"a schedule of the kind {kind.value} would begin again with each piece of the training",
            code="learner.schedule",
            hint='set lr_scheduler_type="constant"',
        )
