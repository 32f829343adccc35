"""Any torch module, data and loss as a `Learner`.

    learner = TorchLearner(model=lambda: nn.Linear(64, 10), train=(x, y), test=(x_test, y_test))

Weights travel as `shoal.learn.weights` says, data come as `shoal.learn.batches` says. All randomness comes from the
seed of each call, so the same order gives the same bits on a CPU. What is learned locally and stays here (the state of
an optimizer with `keep_optimizer`, BatchNorm with `batch_norm="local"`) lives as long as this object.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.core.learner import Budget, Correct, ExtraLoss, Tick, Trained, no_tick
from shoal.core.message import Metrics
from shoal.core.metric import EVAL_WEIGHT
from shoal.core.tree import Layout, Tree
from shoal.learn.batches import Data, Feed, Options, Source, check_batch, size_of, source_of, split, training_batches
from shoal.learn.blame import blamed
from shoal.learn.descent import Descent, KeptOptimizer, OptimizerOf, gradients_of
from shoal.learn.devices import resolve
from shoal.learn.distill import taught_by
from shoal.learn.measures import Loss, Mean, Measure, default_metrics
from shoal.learn.seeds import seeded
from shoal.learn.weights import Weights, built, norm_tensors, pack

Precision = Literal["float32", "bf16", "fp16"]

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TorchConfig:
    """How a `TorchLearner` computes."""

    precision: Precision = "float32"
    """"bf16" and "fp16" run the model under autocast; weights stay in their own type. "fp16" scales the loss."""
    keep_optimizer: bool = False
    """Keep the optimizer's state (momentum, moments) from one order to the next, instead of starting it anew."""
    batch_norm: Literal["average", "local"] = "average"
    """"average": BatchNorm's parameters and statistics travel. "local": they stay (FedBN, Li et al., ICLR 2021)."""
    eval_batch_size: int = 1024
    """Examples per batch of an evaluation."""
    workers: int = 0
    """Processes that load examples of a `Dataset`; 0: load in the training thread."""
    resident_bytes_max: int = 1 << 30
    """Tensors up to this size are kept on the device; larger ones are brought batch by batch."""

    def __post_init__(self) -> None:
        for name, allowed in (("precision", get_args(Precision)), ("batch_norm", ("average", "local"))):
            if getattr(self, name) not in allowed:
                raise InvalidJob(f"{name} is {getattr(self, name)!r}", hint=f"use {' or '.join(allowed)}")


class TorchLearner:
    """A `Learner` around a torch module.

    model       makes a new module each time it is called
    train       tensors (x, y), a Dataset, an IterableDataset, a DataLoader or a Stream
    test        the same, held out for evaluation; None: this node does not evaluate. What drifts in a training stream
                drifts in the test data too, as of the position last trained on
    loss        (output, target) -> mean over the batch
    metrics     name -> (output, target) -> mean over the batch; default: "accuracy" where the loss is cross entropy
    optimizer   (parameters, lr) -> torch.optim.Optimizer
    device      auto, cpu, cuda, cuda:1, mps
    """

    applies_corrections = True
    """What `shoal.core.capability` asks for: `train` passes every gradient through `correct`."""

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
        self.loss, self.config, self.module = loss, config, built_with(model, seed=0)
        self._factory, self._optimizer, self._kept = model, optimizer, KeptOptimizer()
        self._metrics = default_metrics(loss) if metrics is None else dict(metrics)
        if isinstance(train, Feed) and test is not None and not isinstance(test, Feed):
            test = train.alongside(test)
        self._data, self._device, self._paced = (train, test), device, True
        self._position = -1  # of the last mini-batch trained on
        self._placed: torch.device | None = None
        with blamed("reading the data"):
            self._take_data(torch.device("cpu"))
        self.weights = Weights(self.module, self._staying())
        if not self.weights.trainable():
            raise InvalidJob("the model has no parameter that can be trained", code="learner.model")

    # -------------------------------------------------------------------------------------------------- where it lives
    @property
    def device(self) -> torch.device:
        """Where the module computes. Raises `InvalidJob` when there is no such device."""
        return self._placed or resolve(self._device)

    @property
    def examples(self) -> int | None:
        """How many examples there are to train on; None where only walking through them tells."""
        self.place()
        return self.train_data.examples

    @property
    def is_plain(self) -> bool:
        """Whether training is plain SGD in float32."""
        return self._optimizer is torch.optim.SGD and self.config.precision == "float32"

    def use(self, *, device: str | None = None, precision: Precision | None = None, paced: bool | None = None) -> None:
        """Compute elsewhere, or in another precision, than the constructor was told: the operator of a node decides.

        `paced=False`: the batches of a stream with a pace are there at once, as under a virtual clock they must be.
        """
        if device is not None:
            resolve(device)
            self._device, self._placed = device, None
        if precision is not None:
            self.config = replace(self.config, precision=precision)
        if paced is not None:
            self._paced, self._placed = paced, None

    def place(self) -> torch.device:
        """Bring model and data to the device, if they are not there; every other method does so first."""
        if self._placed is not None:
            return self._placed
        device = resolve(self._device)
        with blamed(f"moving the model and the data to {device}"):
            self.module.to(device)
            if isinstance(self.loss, nn.Module):
                self.loss.to(device)
            self._take_data(device)
        self._kept.forget()
        self._placed = device
        return device

    def _take_data(self, device: torch.device) -> None:
        config = self.config
        options = Options(
            device,
            config.resident_bytes_max,
            config.workers,
            merge_small=bool(norm_tensors(self.module)),
            paced=self._paced,
        )
        train, test = self._data
        self.train_data: Source = source_of(train, options)
        self.test_data: Source | None = None if test is None else source_of(test, options)

    def _staying(self) -> frozenset[str]:
        return norm_tensors(self.module) if self.config.batch_norm == "local" else frozenset()

    # --------------------------------------------------------------------------------------------------------- weights
    def init(self, seed: int) -> Tree:
        """Fresh weights from the model function under this seed, loaded and returned."""
        self.place()
        module = built_with(self._factory, seed)
        if module is self.module:
            raise InvalidJob(
                "the model function gave the same module twice, so its weights are not fresh",
                code="learner.model",
                hint="make the module inside the function",
            )
        fresh = Weights(module, self._staying())
        tree = fresh.save()
        self.weights.load(tree)
        self.weights.restore_local(fresh.local())
        return tree

    def load(self, model: Tree) -> None:
        """Take these weights. Raises `InvalidPayload` when they do not fit the module."""
        self.place()
        self.weights.load(model)

    @property
    def layout(self) -> Layout:
        """Names, types and shapes of its weights."""
        return self.weights.layout

    def model(self) -> Tree:
        """A copy of the present weights."""
        self.place()
        return self.weights.save()

    # -------------------------------------------------------------------------------------------------------- training
    def train(
        self,
        budget: Budget,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        tick: Tick = no_tick,
    ) -> Trained:
        """Train from the present weights. After an error or `Cancelled` they are somewhere on the way: load again."""
        device = self.place()
        kept = self.weights.local()
        try:
            with blamed("training"), seeded(budget.seed, device, tick) as shuffle:
                return self._train(budget, self._descent(budget.lr, correct), extra_loss, shuffle, tick)
        except BaseException:
            self.weights.restore_local(kept)
            self._kept.forget()
            raise
        finally:
            self.module.zero_grad(set_to_none=True)

    def _train(
        self,
        budget: Budget,
        descent: Descent,
        extra_loss: ExtraLoss | None,
        shuffle: torch.Generator,
        tick: Tick,
    ) -> Trained:
        mean = Mean(self.device)
        if budget.lr:  # else nothing is learned, only weighed
            self.train_data.check_batch_size(budget.batch_size)
        self.module.train()
        for batch, fraction in training_batches(self.train_data, budget, shuffle, tick):
            with self._autocast():
                output, loss = self._forward(batch)
                goal = loss if extra_loss is None else loss + extra_loss(batch, output)
            descent.step(goal)
            mean.add(loss.detach(), size_of(batch))
            tick(fraction)
        return self._trained(budget, mean)

    def _trained(self, budget: Budget, mean: Mean) -> Trained:
        """What a budget that was used up comes to. Of a sequence, rates count: a faster stream weighs more."""
        in_sequence = budget.position >= 0
        if in_sequence:
            self._position = budget.position + mean.added - 1
        weight = None if in_sequence else self.train_data.examples
        return Trained(float(weight or mean.weight), mean.named("train/loss"))

    def _forward(self, batch: Any) -> tuple[Any, Tensor]:
        check_batch(batch)
        inputs, target = split(batch)
        output = self.module(*inputs)
        return output, self.loss(output, target)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.config.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def _descent(self, lr: float, correct: Correct | None) -> Descent:
        scaler = torch.amp.GradScaler(self.device.type) if self.config.precision == "fp16" else None
        if self._optimizer is torch.optim.SGD and scaler is None:
            return Descent(self.weights, lr, correct=correct)
        if not self.config.keep_optimizer:
            self._kept.forget()
        optimizer = self._kept.take(self._optimizer, list(self.weights.trainable().values()), lr)
        return Descent(self.weights, lr, optimizer=optimizer, scaler=scaler, correct=correct)

    def teach(self, teacher: Tree, weight: float) -> ExtraLoss:
        """A loss that another model's word adds: see `shoal.learn.distill`."""
        device = self.place()
        module = copy.deepcopy(self.module)
        Weights(module, self._staying()).load(teacher)
        return taught_by(module.to(device), weight)

    # -------------------------------------------------------------------------------------------------------- gradient
    def gradient(self, budget: Budget, *, tick: Tick = no_tick) -> tuple[Trained, Tree]:
        """The mean gradient over all training data, or over `steps` batches. Neither weights nor statistics move.

        A running statistic has no gradient, but must not stand still either: its entry is the step against which
        `-lr * entry` moves it as this pass would have. Whole-number buffers come as their value after the pass.
        Computed in float32 where the precision is fp16, because there is no scale to find out first.
        """
        if self.config.batch_norm == "local" and norm_tensors(self.module):
            raise InvalidJob(
                'batch_norm="local" needs an algorithm that trains locally',
                hint='use fedavg, or batch_norm="average"',
            )
        device = self.place()
        before = {name: tensor.clone() for name, tensor in self._statistics().items()}
        try:
            with blamed("computing the gradient"), seeded(budget.seed, device, tick) as shuffle:
                trained, entries = self._gradient(replace(budget, epochs=1.0), shuffle, tick)
            for name, tensor in self._statistics().items():
                entries[name] = _statistic_entry(before[name], tensor, budget.lr)
            return trained, pack(self.weights.layout, entries)
        finally:
            for name, tensor in self._statistics().items():
                tensor.copy_(before[name])

    def _statistics(self) -> dict[str, Tensor]:
        """The travelling tensors that are not parameters."""
        parameters = {name for name, _ in self.module.named_parameters()}
        return {name: tensor for name, tensor in self.weights.tensors().items() if name not in parameters}

    def _gradient(self, budget: Budget, shuffle: torch.Generator, tick: Tick) -> tuple[Trained, dict[str, Tensor]]:
        parameters = self.weights.trainable()
        means = {name: torch.zeros_like(p) for name, p in parameters.items()}
        mean = Mean(self.device)
        if budget.steps:  # the mean over all of the data is the same, whatever the batches
            self.train_data.check_batch_size(budget.batch_size)
        self.module.train()
        for batch, fraction in training_batches(self.train_data, budget, shuffle, tick):
            with nullcontext() if self.config.precision == "fp16" else self._autocast():
                _, loss = self._forward(batch)
            gradients = gradients_of(loss, list(parameters.values()))
            mean.add(loss.detach(), size_of(batch))
            share = size_of(batch) / mean.weight  # a running mean: a single batch is taken as it is, to the bit
            for total, gradient in zip(means.values(), gradients, strict=True):
                total.lerp_(torch.zeros_like(total) if gradient is None else gradient.to_dense(), share)
            tick(fraction)
        return self._trained(budget, mean), means

    # ------------------------------------------------------------------------------------------------------ evaluation
    def evaluate(self) -> Metrics:
        """ "eval/examples", "eval/loss" and each metric as "eval/NAME", on the test data; {} without any.

        Beside a stream that drifts, the test data are those of the position last trained on by this object.
        """
        device = self.place()
        test_data = None if self.test_data is None else self.test_data.as_of(self._position)
        if test_data is None or test_data.examples == 0:
            return {}
        means = {name: Mean(device) for name in ("loss", *self._metrics)}
        with blamed("evaluating"), seeded(0, device), torch.no_grad():
            self.module.eval()
            for batch in test_data.epoch(self.config.eval_batch_size, None):
                with self._autocast():
                    output, loss = self._forward(batch)
                count, target = size_of(batch), split(batch)[1]
                means["loss"].add(loss, count)
                for name, measure in self._metrics.items():
                    means[name].add(measure(output, target), count)
        values = {f"eval/{name}": value for name, mean in means.items() for value in mean.named("").values()}
        return {EVAL_WEIGHT: float(means["loss"].weight), **values}


def _statistic_entry(before: Tensor, after: Tensor, lr: float) -> Tensor:
    if not after.is_floating_point():
        return after.clone()
    return (before - after) / lr if lr else torch.zeros_like(after)


def built_with(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """What the model function makes under a seed, on the CPU."""
    with blamed("making the model"), seeded(seed, torch.device("cpu")):
        return built(factory)
