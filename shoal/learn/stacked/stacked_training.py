"""Training of several learners at once: weights stacked in one tensor per parameter, with one batched step for all.

For simulations, where many small models on one machine leave it idle one by one. The numbers are those of training
each learner alone, but for the rounding of batched arithmetic, however many examples each has. The gain depends on
model and device; on a CPU only small models gain, so measure (`benchmarks/fedavg_mnist.py` does).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Progress, TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Tree
from shoal.learn.data.batches import TensorSource, split
from shoal.learn.seeds import seeded
from shoal.learn.stacked.row_draws import ConstantDraws, RowDraws
from shoal.learn.stacked.row_module import RowModule, is_tied
from shoal.learn.stacked.stacked_batches import Rows, StackedBatch, StackedBatches
from shoal.learn.stacked.stacked_corrections import StackedCorrections
from shoal.learn.stacked.stacked_optimizer import StackedOptimizer, clipped, made_optimizer, why_not_stepped
from shoal.learn.stacked.stacked_trees import repeated, trees_of, views
from shoal.learn.training.descent import descend, gradients_of
from shoal.learn.training.measures import Loss
from shoal.learn.training.module_pool import recipe
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.training.weights import ModuleTraits, unwrapped
from shoal.learn.user_errors import user_code

BATCHED_ATTENTION = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]
"""Kernels of attention that torch can batch. With another one it loops over the rows of a stack, and warns."""


def why_not(learners: Sequence[TorchLearner]) -> str:
    """Return why these learners cannot be trained at once; empty if they can."""
    first = learners[0]
    if any(not isinstance(learner.train_data, TensorSource) for learner in learners):
        return "their data are not tensors"
    unlike = _why_unlike(learners) if len(learners) > 1 else ""
    return unlike or why_not_stepped(first) or _why_not_stacked(first.own_module.traits)


def _why_unlike(learners: Sequence[TorchLearner]) -> str:
    """Return in what learners with data of tensors differ; empty if they can be trained at once if one of them can."""
    if any(learner.layout != learners[0].layout for learner in learners):
        return "their models differ"
    if len({cast("TensorSource", learner.train_data).form for learner in learners}) > 1:
        return "their examples differ in shape, type or place"
    if len({steps_key(learner) for learner in learners}) > 1:
        return "their optimizers or settings differ"
    if len({learner.own_module.traits.buffers for learner in learners}) > 1:
        return "their buffers differ"
    return ""


def is_of_classes(loss: Loss) -> bool:
    """Return True if this is torch's cross entropy as it is."""
    return loss is nn.functional.cross_entropy or recipe(loss) == recipe(nn.CrossEntropyLoss())


def _why_not_stacked(traits: ModuleTraits) -> str:
    """Return why the weights of a learner's model cannot be stacked; empty if they can."""
    if traits.roles.local:
        return "some of the model's weights stay on the node"
    if traits.has_hooks:
        return "the model's parameters have hooks"
    return ""


def stack_key(learner: TorchLearner) -> Hashable:
    """Return a value that is equal for learners which can be trained at once, if each of them can be stacked; and it is
    equal only where either all of them can or none."""
    learner.place()
    traits, form = learner.own_module.traits, cast("TensorSource", learner.train_data).form
    made_by = recipe(learner.factory), recipe(learner.loss), steps_key(learner), traits.buffers
    return traits.layout, made_by, form, learner.device, bool(learner.config.callbacks), traits.has_hooks, traits.roles


def steps_key(learner: TorchLearner) -> Hashable:
    """Return a value that is equal for learners whose steps are alike."""
    config = learner.config
    arithmetic = config.precision, config.tf32, config.deterministic, bool(config.compile)
    steps = config.clip_norm, config.accumulate, config.keep_optimizer
    return recipe(learner.optimizer), steps, arithmetic


class StackedResult(NamedTuple):
    """The result of training.

    alone   the fraction of its steps that the learner made alone, for want of others with batches of its size
    steps   the number of gradients that were corrected
    mean    the mean of them before their correction, if it was asked for
    """

    trained: Trained
    model: Tree
    alone: float = 0.0
    steps: int = 0
    mean: Tree | None = None


def train_stacked(
    learners: Sequence[TorchLearner],
    model: Tree,
    configs: Sequence[TrainConfig],
    progress: Progress = no_progress,
    corrections: Sequence[Correction] = (),
    *,
    are_alike: bool = False,
) -> list[StackedResult]:
    """Return the results of `load(model)`, `train(config)` and `model()` for each learner, in their order.

    The configs differ in their seed only, the corrections of gradients, if there are any, in their trees. The first
    learner's module does the work and holds `model` afterwards; the others are not touched. Raises `InvalidJob` where
    `why_not` has a reason; `are_alike`: it is known that it has none.
    """
    for learner in learners:
        learner.place()
    if not are_alike and (reason := why_not(learners)):
        raise InvalidJob(f"the learners cannot be trained at once: {reason}", code="learner.stacked")
    first = learners[0]
    first.load(model)
    first.weights.enter_training_mode()
    rows = repeated(model, len(learners), first.device)
    batches = StackedBatches(learners, configs)
    parameters = views(model.layout, rows, list(first.weights.trainable()))
    buffers = [name for name, _ in unwrapped(first.module).named_buffers() if name in model.layout.index]
    module = RowModule(unwrapped(first.module), parameters | views(model.layout, rows, buffers))
    is_simple = is_of_classes(first.loss) and batches.has_classes
    draws = RowDraws([configs[one].seed for one in batches.learners])
    training = _StackedTraining(first, module, parameters, draws, configs[0].lr, is_simple=is_simple)
    if corrections:
        ordered = [corrections[one] for one in batches.learners]
        training.corrections = StackedCorrections(ordered, model.layout, list(parameters), first.device)
    with user_code("training"), seeded(0, first.device, progress), sdpa_kernel(BATCHED_ATTENTION):
        if batches.is_ragged and is_simple and not buffers:
            batches.is_padded = _can_be_padded(first.module, split(batches.sample(8))[0])
        try:
            for batch in batches:
                training.step(batch)
                progress(batch.fraction)
        finally:
            changed = module.restore()
        if changed:
            raise LearnerFailed(f"training changes {changed}, which is not exchanged", code="learner.model")
        first.weights.check_complete()
    return _results(learners, configs, batches, training, trees_of(model.layout, rows))


def _results(
    learners: Sequence[TorchLearner],
    configs: Sequence[TrainConfig],
    batches: StackedBatches,
    training: _StackedTraining,
    trees: Sequence[Tree],
) -> list[StackedResult]:
    """Return the result of each learner, in the order of the learners."""
    results: dict[int, StackedResult] = {}
    sums, seen, alone = training.losses.tolist(), batches.seen.tolist(), batches.alone.tolist()
    corrected = training.corrections
    means = corrected.means(batches.steps) if corrected is not None else [None] * len(trees)
    for row, (one, steps) in enumerate(zip(batches.learners, batches.steps, strict=True)):
        examples = seen[row]
        weight = examples if configs[one].batch_index >= 0 else learners[one].train_data.examples or 0
        trained = Trained(float(weight), {"train/loss": sums[row] / examples} if examples else {})
        results[one] = StackedResult(trained, trees[row], alone[row] / max(1, steps), steps, means[row])
    return [results[one] for one in range(len(learners))]


class _StackedTraining:
    """The training of the parameters of several learners, `[row, …]`, and the sums of their losses over examples."""

    def __init__(
        self,
        learner: TorchLearner,
        module: RowModule,
        parameters: dict[str, Tensor],
        draws: RowDraws,
        lr: float,
        *,
        is_simple: bool,
    ) -> None:
        self._module, self._loss, self._draws = module, learner.loss, draws
        self._parameters, self._lr, self._clip_norm = parameters, lr, learner.config.clip_norm
        call = partial(functional_call, module.module, tie_weights=is_tied(module.module))
        self._objective = partial(_loss, call, cross_entropy if is_simple else self._loss)
        self._gradients = self._stacked("error")
        self._own, self._is_checked = learner.weights.trainable(), False
        first = next(iter(parameters.values()))
        self.losses = torch.zeros(len(first), dtype=torch.float32, device=first.device)
        self.corrections: StackedCorrections | None = None
        self._optimizer: StackedOptimizer | None = None
        if learner.optimizer is not torch.optim.SGD:
            self._optimizer = StackedOptimizer(made_optimizer(learner, lr), self._own, len(first))
        self._unused: frozenset[str] | None = None if self._optimizer is not None else frozenset()

    def _stacked(self, randomness: str) -> Callable[..., Any]:
        return vmap(grad_and_value(self._objective, has_aux=True), randomness=randomness)

    def step(self, batch: StackedBatch) -> None:
        """Make a step of the learners that have a batch. The first one is stacked, which finds out whether it can be,
        and whether the model draws random numbers."""
        if not isinstance(batch.rows, int):
            self._step_at_once(batch.rows, batch)
        elif not self._is_checked:
            row = slice(batch.rows, batch.rows + 1)
            self._step_at_once(row, batch._replace(tensors=tuple(part.unsqueeze(0) for part in batch.tensors)))
        else:
            with self._draws.alone(batch.rows) if self._draws.has_begun else nullcontext():
                self._step_alone(batch.rows, batch.tensors)
        self._is_checked = True

    def _step_at_once(self, rows: slice | Tensor, batch: StackedBatch) -> None:
        weights = batch.weights
        chosen = {name: tensor[rows] for name, tensor in self._parameters.items()}
        gradients, (losses, buffers) = self._found(rows, chosen, batch, *([] if weights is None else [weights]))
        if self._unused is None and self.corrections is None:
            self._unused = _unused(self._objective, chosen, buffers, batch.tensors)
        self._module.put_buffers(rows, buffers)
        self._move(rows, chosen, {name: gradients[name] for name in chosen if name not in (self._unused or ())})
        self.losses[rows] += losses * torch.from_numpy(batch.sizes).to(losses.device)
        if not isinstance(rows, slice):  # which are not views
            for name, tensor in self._parameters.items():
                tensor[rows] = chosen[name]

    def _found(self, rows: slice | Tensor, values: dict[str, Tensor], batch: StackedBatch, *weights: Tensor) -> Any:
        """Return the gradients of some rows, and their losses and buffers."""
        if not self._draws.has_begun:
            try:
                return self._gradients(values, self._module.chosen_buffers(rows), batch.tensors, *weights)
            except RuntimeError as error:
                self._draws.begin(error, self.losses.device)
            self._gradients = self._stacked("different")
        with self._draws.at_once(rows, batch.sizes):
            found = self._gradients(values, self._module.chosen_buffers(rows), batch.tensors, *weights)
        if not self._is_checked:
            own = tuple(part[0, : batch.sizes[0]] for part in batch.tensors)
            first = rows.start if isinstance(rows, slice) else int(rows[0])
            alone = partial(_loss_alone, self._objective, values, self._module.chosen_buffers(rows), own)
            self._draws.check(first, found[1][0][0], alone)
        return found

    def _step_alone(self, row: int, batch: tuple[Tensor, ...]) -> None:
        """Let the module itself make the step, with the row as its parameters: a `functional_call` takes longer."""
        self._module.take(row)
        parameters, (inputs, target) = list(self._own.values()), split(batch)
        loss = self._loss(self._module.module(*inputs), target)
        gradients = gradients_of(loss, parameters)
        self._module.keep_buffers(row)
        if self._optimizer is None and self._clip_norm is None and self.corrections is None:
            descend(parameters, gradients, self._lr)
        else:
            rows = slice(row, row + 1)
            named = zip(self._own, gradients, strict=True)
            found = {name: gradient.unsqueeze(0) for name, gradient in named if gradient is not None}
            self._move(rows, {name: tensor[rows] for name, tensor in self._parameters.items()}, found)
        self.losses[row].add_(loss.detach(), alpha=len(batch[0]))

    def _move(self, rows: Rows, values: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        """Move the values of some rows, `[n, …]`, against their gradients."""
        if self.corrections is not None:
            gradients = self.corrections.corrected(rows, values, gradients)
        if self._clip_norm is not None:
            gradients = clipped(gradients, self._clip_norm)
        if self._optimizer is not None:
            self._optimizer.step(rows, values, gradients)
        else:
            descend([values[name] for name in gradients], list(gradients.values()), self._lr)


def _loss(
    call: Callable[..., Any],
    loss: Loss,
    parameters: dict[str, Tensor],
    buffers: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *weights: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, and the buffers after the forward pass, which may change or replace them."""
    inputs, target = split(batch)
    tensors = parameters | buffers
    return loss(call(tensors, inputs), target, *weights), {name: tensors[name] for name in buffers}


def _loss_alone(
    objective: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    values: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: tuple[Tensor, ...],
) -> Tensor:
    """Return the loss of the first of some rows, as it is without others."""
    with torch.no_grad():
        own = {name: tensor[0] for name, tensor in buffers.items()}
        return objective({name: tensor[0] for name, tensor in values.items()}, own, batch)[0]


def _unused(
    objective: Callable[..., tuple[Tensor, dict[str, Tensor]]],
    values: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    batch: tuple[Tensor, ...],
) -> frozenset[str]:
    """Return the names of parameters on which the loss does not depend. Alone they have no gradient, and an optimizer
    leaves them; stacked they have a gradient of 0, at which weight decay would move them."""
    first = {name: tensor[0].clone().requires_grad_() for name, tensor in values.items()}
    own = {name: tensor[0].clone() for name, tensor in buffers.items()}
    loss, _ = objective(first, own, tuple(part[0] for part in batch))
    found: Sequence[Tensor | None] = torch.autograd.grad(loss, list(first.values()), allow_unused=True)
    return frozenset(name for name, gradient in zip(first, found, strict=True) if gradient is None)


def cross_entropy(output: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return torch's cross entropy with numbers of classes. For its own one, torch has no batched form, and takes it
    apart into a dozen operations at each call.

    With weights of the examples, `float32[n]`, it is the weighted sum.
    """
    each = -output.log_softmax(1).gather(1, target.unsqueeze(1))
    return each.mean() if weights is None else each.flatten(1).mean(1) @ weights.to(each.dtype)


def _can_be_padded(module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Return True if each example seems to be treated by itself, and to have random numbers of its own."""
    with ConstantDraws() as draws:
        return is_by_example(module, inputs) and draws.are_by_example(2, len(inputs[0]))


def is_by_example(module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Return True if the module's outputs for two examples seem not to depend on what others are in their batch."""
    if len(inputs[0]) < 3:
        return False
    with torch.no_grad(), seeded(0, inputs[0].device):
        of_two, of_all = module(*(part[:2] for part in inputs)), module(*inputs)
    if not isinstance(of_two, Tensor) or of_all.shape[:1] != inputs[0].shape[:1] or of_two.shape != of_all[:2].shape:
        return False
    return bool(torch.allclose(of_two, of_all[:2], rtol=1e-5, atol=1e-5 * float(of_two.abs().max())))
