"""A torch module, data and a loss as a `Learner`.

    learner = TorchLearner(model=lambda: nn.Linear(64, 10), train=(x, y), test=(x_test, y_test))

`shoal.learn.training.weights` converts weights, `shoal.learn.data.batches` reads data. All randomness comes from the
seed of each call, so on a CPU the same task gives the same bits. Local state (of an optimizer with `keep_optimizer`, of
BatchNorm with `batch_norm="local"`) lives as long as the learner object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from shoal.core.algorithm.capability import Restriction
from shoal.core.algorithm.learner import ExtraLoss, Progress, TrainConfig, Trained
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics
from shoal.learn.data.batches import (
    Batch,
    BatchOptions,
    Data,
    SourceFactory,
    source_of,
    split,
)
from shoal.learn.data.divided import rows_source
from shoal.learn.data.kinds import is_empty
from shoal.learn.data.passes import BatchSource, seed_of, training_batches
from shoal.learn.seeds import seeded
from shoal.learn.site.divided_module import Site
from shoal.learn.site.ranks import SharedProgress, progress_here
from shoal.learn.training.corrections import Corrector
from shoal.learn.training.descent import Descent, OptimizerOf, other_than_plain
from shoal.learn.training.devices import arithmetic, resident_limit, resolve
from shoal.learn.training.distill import taught_by
from shoal.learn.training.learner_callback import LearnerCallback
from shoal.learn.training.measures import (
    Evaluation,
    Loss,
    Mean,
    Measure,
    check_without_parameters,
    checked_metrics,
    default_metrics,
)
from shoal.learn.training.module_learner import Losses, ModuleLearner
from shoal.learn.training.passes import ModelSite, Parallel, Passes, WholePasses, output_and_loss, own_part
from shoal.learn.training.tensor_roles import Travels
from shoal.learn.training.weights import Weights, saved_tensors
from shoal.learn.user_errors import user_code

Precision = Literal["float32", "bf16", "fp16"]

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TorchConfig:
    """Settings of a `TorchLearner`: precision, exchanged tensors and data loading."""

    precision: Precision = "float32"
    """"bf16" and "fp16" run the model under autocast; weights keep their type. "fp16" scales the loss."""
    keep_optimizer: bool = False
    """Keep the optimizer's state (momentum, moments) across tasks."""
    batch_norm: Literal["average", "local"] = "average"
    """"average": average BatchNorm's parameters and statistics. "local": they stay (FedBN, Li et al., ICLR 2021)."""
    travels: Travels | None = None
    """Tensors that nodes exchange: "trainable" (the default for a model with frozen parameters), "all", or a function
    of name and tensor. The frozen others are the base model, which every node must hold alike."""
    eval_batch_size: int = 1024
    """Examples per batch in evaluations."""
    workers: int = 0
    """Processes that load examples of a `Dataset`; 0: the training thread loads them."""
    examples: Callable[[Any], int] | None = None
    """The number of examples in a batch of a `DataLoader` with batch_size=None, which cannot be counted otherwise."""
    resident_bytes_max: int | None = None
    """Bytes up to which the data stay on the device; larger data are copied batch by batch. None: half of a card's
    free memory, elsewhere 1 GiB."""
    clip_norm: float | None = None
    """The greatest Euclidean norm of a step's gradient; None: not clipped."""
    accumulate: int = 1
    """Batches whose gradients make one step, so that it follows that many times the job's batch size in the memory of
    one batch. Their mean losses are weighted by their examples, as the mean over all of these would be. The config
    counts batches, not steps; those that remain at the end of a pass or a task make a step of their own."""
    deterministic: bool = False
    """Use only deterministic operations: the same task gives the same bits on a GPU too, which may be slower."""
    tf32: bool | None = None
    """True if products of float32 may round their inputs to 10 bits, on NVIDIA GPUs since Ampere; None: as torch is
    set."""
    compile: bool | str = False
    """Run the model through `torch.compile`; a text names its backend."""
    channels_last: bool = False
    """Keep the weights of 2-d convolutions with the channels last, in which cards compute them faster."""
    ids: Sequence[str | bytes] = ()
    """Ids of the rows of the training data, by which a party of a vertical job aligns them."""
    callbacks: Sequence[LearnerCallback] = ()
    """Objects of `shoal.learn.LearnerCallback`: they see the start and the end of each task, and each batch's loss."""
    parallel: Parallel | None = None
    """The division of the model among the processes of a node. None: each has all of it, and its rows of a batch."""

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InvalidJob(f"clip_norm is {self.clip_norm}", hint="use a number above 0, or None")
        if self.parallel is not None and (self.precision == "fp16" or self.compile):
            what, hint = "fp16" if self.precision == "fp16" else "compile", "use bf16 or float32, and compile=False"
            raise InvalidJob(f"{what} with parallel={type(self.parallel).__name__}", code="learner.parallel", hint=hint)
        if self.accumulate < 1:
            raise InvalidJob(f"accumulate is {self.accumulate}", hint="use 1 or more batches")
        for name, allowed in (("precision", get_args(Precision)), ("batch_norm", ("average", "local"))):
            if getattr(self, name) not in allowed:
                raise InvalidJob(f"{name} is {getattr(self, name)!r}", hint=f"use {' or '.join(allowed)}")


class TorchLearner(ModuleLearner):
    """A `Learner` for a torch module.

    model       a function that returns a new module
    train       tensors (x, y) of shapes [examples, …], a Dataset, an IterableDataset, a DataLoader or a Stream
    test        data of the same kind for evaluation; None: this node does not evaluate. Beside a drifting stream the
                test data drift too, up to the position last trained on
    loss        (output, target) -> scalar, the mean over the batch
    metrics     name -> (output, target) -> scalar, the mean over the batch; default: "accuracy" for cross entropy
    optimizer   (parameters, lr) -> torch.optim.Optimizer; the job sets lr
    device      auto, cpu, cuda, cuda:1 or mps

    Raises `InvalidJob` for unusable data, devices or modules, and `LearnerFailed` for errors in the user's code.
    Methods run in one thread at a time. The trained weights are the parameters and persistent buffers of
    `Module.state_dict`; nodes compute updates relative to the model that they received (McMahan et al. 2017).
    """

    restriction: Restriction | None = None
    """Set by `use`: what the learner cannot do with a part of the model (see `shoal.core.algorithm.capability`)."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        train: Data,
        test: Data | None = None,
        *,
        loss: Loss = nn.functional.cross_entropy,
        metrics: Mapping[str, Measure] | None = None,
        optimizer: OptimizerOf = torch.optim.SGD,
        device: str = "auto",
        config: TorchConfig = TorchConfig(),
    ) -> None:
        super().__init__(model, device, config.travels, local_norms=config.batch_norm == "local")
        self.loss, self.config, self.optimizer = loss, config, optimizer
        self._kept.lasts = config.keep_optimizer
        if config.compile:
            self.module.compile(backend="inductor" if config.compile is True else config.compile)
        self.metrics = default_metrics(loss) if metrics is None else checked_metrics(metrics)
        if isinstance(train, SourceFactory) and test is not None and not isinstance(test, SourceFactory):
            test = train.alongside(test)
        check_without_parameters({"loss": self.loss, **self.metrics})
        self._asked = BatchOptions(torch.device("cpu"))
        self._data: tuple[Data, Data | None, BatchOptions | None] = train, test, None  # with the options of their use
        self._position = -1  # of the last mini-batch trained on
        with user_code("reading the data"):
            self._place_data(torch.device("cpu"))

    # -------------------------------------------------------------------------------------------------- where it lives
    @property
    def examples(self) -> int | None:
        self.place()
        return self.train_data.examples

    @cached_property
    def other_optimizer(self) -> str:
        """The optimizer in words, if it is another than plain SGD (see `shoal.core.algorithm.capability`)."""
        if self.config.clip_norm is not None:
            return f"SGD with gradients clipped to {self.config.clip_norm:g}"
        with user_code("making the optimizer"):
            return other_than_plain(self.optimizer(list(self.weights.trainable().values()), TrainConfig.lr))

    def use(
        self,
        *,
        device: str | None = None,
        precision: Precision | None = None,
        paced: bool | None = None,
        site: Site | None = None,
    ) -> None:
        """Set device and precision, which overrides the constructor: the operator of a node decides.

        `paced=False`: the batches of a stream with a pace are there at once, as under a virtual clock they must be.
        `site`: train with other processes, each on its rows of a batch or on its part of the model
        (`TorchConfig.parallel`). Raises `InvalidJob` for parts that cannot be.
        """
        if device is not None:
            resolve(device)
            self._device, self._placed = device, None
        if precision is not None:
            self.config = replace(self.config, precision=precision)
        if paced is not None:
            self._asked, self._placed = self._asked._replace(paced=paced), None
        if site is not None and self.config.parallel is not None:
            site = self.config.parallel.site(
                self.module, self.weights.roles, self.device, partial(_autocast, self.config)
            )
            self._device = "cpu"  # between tasks the model stays there
        if site is not None:
            self._asked, self._placed = self._asked._replace(site=site), None
            parts = site if isinstance(site, ModelSite) else None
            self.own_module.site, self.restriction = parts, None if parts is None else parts.restriction

    def _place_data(self, device: torch.device) -> None:
        config, site = self.config, self._asked.site
        if isinstance(self.loss, nn.Module):
            self.loss.to(site.device if isinstance(site, ModelSite) else device)
        if isinstance(site, ModelSite):
            device = site.data_device
        if config.channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        options = self._asked._replace(
            device=device,
            resident_bytes_max=resident_limit(device)
            if config.resident_bytes_max is None
            else config.resident_bytes_max,
            workers=config.workers,
            merge_small=self.own_module.has_norms,
            examples_in=config.examples,
        )
        train, test, used = self._data
        if options == used:
            return
        self._data = train, test, options
        self.train_data: BatchSource = rows_source(train, options)
        whole = options._replace(site=None)
        self.test_data: BatchSource | None = None if test is None or is_empty(test) else source_of(test, whole)

    # -------------------------------------------------------------------------------------------------------- training
    def _train(
        self,
        config: TrainConfig,
        corrector: Corrector | None,
        extra_loss: ExtraLoss | None,
        shuffle: torch.Generator,
        progress: Progress,
    ) -> Trained:
        site, descent = self._asked.site, partial(self._descent, config.lr, corrector)
        self.weights.enter_training_mode()  # first: a module in shards is a copy, also of the mode
        if not isinstance(site, ModelSite):
            passes: Passes = WholePasses(
                self.module,
                self.loss,
                descent(self.weights),
                self.device,
                partial(_autocast, self.config),
                extra_loss=extra_loss,
                site=site,
                seed=seed_of(config.seed, site.rank) if site is not None else 0,
            )
        else:
            if corrector is not None:
                site.require("corrections")
            if extra_loss is not None:
                site.require("teaching")
            passes = site.passes(descent, self.loss, config.seed)
        mean = Mean(passes.device)
        progress = progress if site is None else SharedProgress(site, progress)
        if config.lr:  # else nothing is learned, only weighed
            self.train_data.note_batch_size(config.batch_size)
        for callback in self.config.callbacks:
            callback.task_started(self.module, config)
        watchers = [
            one for one in self.config.callbacks if type(one).batch_trained is not LearnerCallback.batch_trained
        ]
        for batch, fraction in training_batches(self.train_data, config, shuffle, progress_here(progress), passes.step):
            loss, part = passes.train(batch, is_shared=bool(watchers))
            for watcher in watchers:
                watcher.batch_trained(mean.added, float(loss.detach()))
            mean.add(part, batch.examples)
            progress(fraction)
        passes.step()
        passes.finish()
        check_without_parameters(
            {"loss": self.loss, **self.metrics}
        )  # again: a module may make parameters when it is first called
        trained = self._trained(config, mean)
        for callback in self.config.callbacks:
            callback.task_ended(self.module, config, trained)
        return trained

    def _trained(self, config: TrainConfig, mean: Mean) -> Trained:
        if self._asked.site is not None:
            self._asked.site.add_up([mean.total])
        if config.batch_index >= 0:
            self._position = config.batch_index + mean.added - 1
        return super()._trained(config, mean)

    def _arithmetic(self) -> AbstractContextManager[None]:
        return arithmetic(deterministic=self.config.deterministic, tf32=self.config.tf32)

    def _descent(self, lr: float, corrector: Corrector | None, weights: Weights) -> Descent:
        """Return the descent of all weights, or of those that this process has."""
        scaler = torch.amp.GradScaler(self.device.type) if self.config.precision == "fp16" else None
        optimizer, config, site = None, self.config, self._asked.site
        if self.optimizer is not torch.optim.SGD or scaler is not None:
            optimizer = self._kept.take(self.optimizer, weights.trainable(), lr)
        return Descent(
            weights,
            lr,
            optimizer=optimizer,
            scaler=scaler,
            corrector=corrector,
            clip_norm=config.clip_norm,
            accumulate=config.accumulate,
            combine=None if site is None or isinstance(site, ModelSite) else site.combine,
        )

    def optimizer_state(self) -> Tree:
        """Return the optimizer's state after the last training; empty for plain SGD."""
        return self._kept.save()

    def load_optimizer_state(self, state: Tree | None) -> None:
        """Begin the next training with this state of the optimizer; None: with a new one."""
        if isinstance(self._asked.site, ModelSite):
            self._asked.site.require("optimizer_state")
        self.place()
        self._kept.load(state)

    def teach(self, teacher: Tree, weight: float) -> ExtraLoss:
        """Return the additional loss by another model: see `shoal.learn.training.distill`."""
        device = self.place()
        roles = self.weights.roles
        base = [tensor for name, tensor in saved_tensors(self.module).items() if name in roles.base]
        module = copy.deepcopy(self.module, {id(tensor): tensor for tensor in base})  # they are not copied
        Weights(module, roles).load(teacher)
        return taught_by(module.to(device), weight)

    def _losses(self, config: TrainConfig, shuffle: torch.Generator, progress: Progress) -> Losses:
        if config.steps:  # the mean over all of the data is the same, whatever the batches
            self.train_data.note_batch_size(config.batch_size)
        self.weights.enter_training_mode()
        for batch, fraction in training_batches(self.train_data, config, shuffle, progress_here(progress)):
            with nullcontext() if self.config.precision == "fp16" else _autocast(self.config, self.device):
                output, loss = output_and_loss(self.module, self.loss, batch.data)
            yield own_part(self._asked.site, self.loss, loss, output, batch), batch.examples, fraction

    def _gradient(
        self, config: TrainConfig, shuffle: torch.Generator, progress: Progress
    ) -> tuple[Trained, dict[str, Tensor]]:
        site = self._asked.site
        if isinstance(site, ModelSite):
            site.require("gradients")
        if site is None:
            return super()._gradient(config, shuffle, progress)
        trained, means = super()._gradient(config, shuffle, SharedProgress(site, progress))
        site.add_up(list(means.values()))
        site.copy_first(list(self.module.buffers()))
        return trained, means

    # ------------------------------------------------------------------------------------------------------ evaluation
    def evaluate(self) -> Metrics:
        """Return "eval/examples", "eval/loss" and each metric as "eval/NAME", on the test data; {} without test data,
        and at the ranks of a site that do not report.

        Beside a stream that drifts, the test data are those of the position last trained on by this object.
        """
        device = self.place()
        test_data = None if self.test_data is None else self.test_data.as_of(self._position)
        site = self._asked.site
        if test_data is None or test_data.examples == 0:
            return {}
        if isinstance(site, ModelSite):
            device = site.device
        elif site is not None and site.rank:
            return {}
        found = Evaluation(self.loss, self.metrics, device)
        try:
            with user_code("evaluating"), seeded(0, device), self._arithmetic(), torch.no_grad():
                self.module.eval()
                batches = test_data.epoch(self.config.eval_batch_size, None)
                if isinstance(site, ModelSite):
                    return site.evaluated(batches, found, self.loss)
                _evaluate(self, batches, found)
            return found.named()
        finally:
            self.own_module.free(device)


def _evaluate(learner: TorchLearner, batches: Iterable[Batch], found: Evaluation) -> None:
    """Add batches to an evaluation. The outputs are gone when this ends, so that their memory can be given back."""
    for batch in batches:
        with _autocast(learner.config, learner.device):
            output, loss = output_and_loss(learner.module, learner.loss, batch.data)
        found.add(output, split(batch.data)[1], loss, batch.examples)


def _autocast(config: TorchConfig, device: torch.device) -> AbstractContextManager[Any]:
    dtype = AUTOCAST.get(config.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
