"""The half of a learner that follows from its torch module: weights, device, seeds and gradients.

`TorchLearner`, `shoal.learn.hf.HFLearner` and `shoal.learn.lightning.LightningLearner` add the data and the training
loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from shoal.core.algorithm.learner import Correct, ExtraLoss, Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Array, Layout, Tree
from shoal.learn.seeds import seeded, seeded_to_build
from shoal.learn.training.corrections import Corrector, corrector_of
from shoal.learn.training.descent import KeptOptimizer, gradients_of
from shoal.learn.training.devices import resolve
from shoal.learn.training.measures import Mean
from shoal.learn.training.module_pool import OwnModule, recipe
from shoal.learn.training.tensor_roles import Travels, tensor_roles
from shoal.learn.training.weights import Weights, built, pack
from shoal.learn.user_errors import user_code

Losses = Iterator[tuple[Tensor, int, float]]
"""(mean loss of a batch, its number of examples, fraction of the training done after it)."""


def _array(output: Tensor) -> Array:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32."""
    found: Array = (output.float() if output.is_floating_point() else output).cpu().numpy()
    return found


class ModuleLearner(ABC):
    """A `Learner` of a torch module that `model` makes; `travels` and `local_norms` as in `tensor_roles`."""

    applies_corrections = True
    """`train` passes every gradient through `correct` (see `shoal.core.algorithm.capability`)."""
    calls_training_step = False
    """Training calls the module's own `training_step`."""

    def __init__(
        self, model: Callable[[], nn.Module], device: str, travels: Travels | None = None, *, local_norms: bool = False
    ) -> None:
        self.factory, self._kept, self._device = model, KeptOptimizer(), device
        self._placed: torch.device | None = None
        trains_itself = self.calls_training_step
        make = partial(_made, model, travels, local_norms=local_norms, calls_training_step=trains_itself)
        self.own_module = OwnModule((recipe(model), recipe(travels), local_norms, trains_itself), make)

    @property
    def module(self) -> nn.Module:
        """The module. A learner that a simulation makes for one task has none before this is first asked."""
        return self.own_module.module

    @property
    def weights(self) -> Weights:
        """The exchanged tensors of the module."""
        return self.own_module.weights

    @abstractmethod
    def _train(
        self,
        config: TrainConfig,
        corrector: Corrector | None,
        extra_loss: ExtraLoss | None,
        shuffle: torch.Generator,
        progress: Progress,
    ) -> Trained:
        """Train the placed module with the seed of the config."""

    @abstractmethod
    def _losses(self, config: TrainConfig, shuffle: torch.Generator, progress: Progress) -> Losses:
        """Yield the loss of each batch of one training at the present weights, in training mode."""

    @property
    @abstractmethod
    def examples(self) -> int | None:
        """The number of training examples; None if only iteration tells."""

    def _trained(self, config: TrainConfig, mean: Mean) -> Trained:
        """Return the result of a training. For a sequence the rate counts: a faster stream has more weight."""
        weight = None if config.batch_index >= 0 else self.examples
        return Trained(float(weight or mean.weight), mean.named("train/loss"))

    # -------------------------------------------------------------------------------------------------- where it lives
    @property
    def device(self) -> torch.device:
        """The device of the module. Raises `InvalidJob` when it is not available."""
        if self._placed is not None:
            return self._placed
        chosen = resolve(self._device)
        self._device = str(chosen)  # of several cards another one may have the most free memory later
        return chosen

    def place(self) -> torch.device:
        """Move model and data to the device, if necessary. Every other method calls this first."""
        if self._placed is not None:
            return self._placed
        device = self.device
        with user_code(f"moving the model and the data to {device}"):
            self.own_module.place(device)
            self._place_data(device)
        self._kept.forget()
        self._placed = device
        return device

    def _place_data(self, device: torch.device) -> None:  # noqa: B027 - not all learners keep data on the device
        """Move what goes with the module."""

    # --------------------------------------------------------------------------------------------------------- weights
    def init(self, seed: int) -> Tree:
        """Return and load new weights from the model function under this seed."""
        self.place()
        module = _built(self.factory, seed, calls_training_step=self.calls_training_step)
        if module is self.module:
            raise InvalidJob(
                "the model function gave the same module twice, so its weights are not fresh",
                code="learner.model",
                hint="make the module inside the function",
            )
        fresh = Weights(module, self.weights.roles)
        tree = fresh.save()
        self.weights.load(tree)
        self.weights.restore_local(fresh.local())
        return tree

    def load(self, model: Tree) -> None:
        """Load weights. Raises `InvalidPayload` when they do not fit the module."""
        self.place()
        self.weights.load(model)

    @property
    def layout(self) -> Layout:
        """Return names, types and shapes of the weights."""
        return self.own_module.layout

    def model(self) -> Tree:
        """Return a copy of the current weights."""
        self.place()
        return self.weights.save()

    def predict(self, inputs: Array | Mapping[str, Array]) -> Array | dict[str, Array]:
        """Return the outputs of the module in evaluation mode, with the loaded weights.

        `inputs`: an array for its first parameter, or arrays by the names of its parameters. Several outputs are
        returned by name. Raises `LearnerFailed` for inputs that the module does not take.
        """
        device = self.place()
        with user_code("predicting"), torch.inference_mode(), self._arithmetic():
            self.module.eval()
            if isinstance(inputs, Mapping):
                output = self.module(**{name: torch.as_tensor(one, device=device) for name, one in inputs.items()})
            else:
                output = self.module(torch.as_tensor(inputs, device=device))
            if isinstance(output, Mapping):
                return {name: _array(one) for name, one in output.items() if isinstance(one, Tensor)}
            return _array(output)

    # -------------------------------------------------------------------------------------------------------- training
    def train(
        self,
        config: TrainConfig,
        *,
        correct: Correct | None = None,
        extra_loss: ExtraLoss | None = None,
        progress: Progress = no_progress,
    ) -> Trained:
        """Train from the current weights. After an error or `Cancelled` the weights are undefined: load again."""
        device = self.place()
        kept = self.weights.local()
        try:
            with (
                user_code("training"),
                seeded(config.seed, device, progress) as shuffle,
                self._arithmetic(),
                corrector_of(self.weights, correct) as corrector,
            ):
                trained = self._train(config, corrector, extra_loss, shuffle, progress)
                self.weights.check_constants()
                self.weights.check_complete()
                return trained
        except BaseException:
            self.weights.restore_local(kept)
            self._kept.forget()
            raise
        finally:
            self.module.zero_grad(set_to_none=True)
            self._kept.end_task()
            self.own_module.free(device)

    def _arithmetic(self) -> AbstractContextManager[None]:
        """Return the settings of torch under which the module computes."""
        return nullcontext()

    def gradient(self, config: TrainConfig, *, progress: Progress = no_progress) -> tuple[Trained, Tree]:
        """Return the mean gradient over all training data, or over `steps` batches. Weights and statistics do not
        change.

        Buffers have no gradient, but must not stand still either: their entries are their values after the pass.
        Computed in float32 where the precision is fp16, because there is no scale to find out first.
        """
        if self.weights.roles.local:
            raise InvalidJob(
                "tensors that stay on this node need an algorithm that trains locally",
                hint='use fedavg, or batch_norm="average" and travels="trainable"',
            )
        device = self.place()
        before = {name: tensor.clone() for name, tensor in self.weights.buffers().items()}
        try:
            code = user_code("computing the gradient")
            with code, seeded(config.seed, device, progress) as shuffle, self._arithmetic():
                trained, entries = self._gradient(replace(config, epochs=1.0), shuffle, progress)
            entries |= {name: tensor.clone() for name, tensor in self.weights.buffers().items()}
            return trained, pack(self.weights.layout, entries)
        finally:
            for name, tensor in self.weights.buffers().items():
                tensor.copy_(before[name])
            self.module.zero_grad(set_to_none=True)
            self.own_module.free(device)

    def _gradient(
        self, config: TrainConfig, shuffle: torch.Generator, progress: Progress
    ) -> tuple[Trained, dict[str, Tensor]]:
        parameters = self.weights.trainable()
        means = {name: torch.zeros_like(p) for name, p in parameters.items()}
        mean = Mean(self.device)
        for loss, size, fraction in self._losses(config, shuffle, progress):
            gradients = gradients_of(loss, list(parameters.values()))
            mean.add(loss.detach(), size)
            share = size / mean.weight  # a running mean: a single batch is taken as it is, to the bit
            for total, gradient in zip(means.values(), gradients, strict=True):
                total.lerp_(torch.zeros_like(total) if gradient is None else gradient.to_dense(), share)
            progress(fraction)
        return self._trained(config, mean), means


def _built(factory: Callable[[], nn.Module], seed: int, *, calls_training_step: bool) -> nn.Module:
    """Return the model for a seed, on the CPU."""
    with user_code("making the model"), seeded_to_build(seed):
        return built(factory, calls_training_step=calls_training_step)


def _made(
    factory: Callable[[], nn.Module], travels: Travels | None, *, local_norms: bool, calls_training_step: bool
) -> tuple[nn.Module, Weights]:
    """Return a new module and its weights."""
    module = _built(factory, 0, calls_training_step=calls_training_step)
    with user_code("choosing the tensors that travel"):
        roles = tensor_roles(module, travels, local_norms=local_norms)
    weights = Weights(module, roles)
    weights.check_trainable()
    return module, weights


def load_base(learner: ModuleLearner, base: Tree) -> None:
    """Replace a learner's base model, before it has tasks. Raises `InvalidPayload` when its tensors differ."""
    learner.place()
    learner.own_module.weights = learner.weights.rebased(base)
