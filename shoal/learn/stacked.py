"""Several learners trained at once: their weights stacked in one tensor per parameter, one batched step for all.

For simulations, where many small models on one machine leave it idle one by one. The numbers are those of training
each learner alone, but for the rounding of batched arithmetic. Whether it is faster depends on model and device; on a
CPU only small models gain, so measure (`benchmarks/fedavg_mnist.py` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from shoal.core.errors import InvalidJob
from shoal.core.learner import Budget, Tick, Trained, no_tick
from shoal.core.tree import Tree
from shoal.learn.batches import Tensors, moved, split, training_batches
from shoal.learn.blame import blamed
from shoal.learn.seeds import generator_of
from shoal.learn.torch_learner import TorchLearner
from shoal.learn.weights import pack


def why_not(learners: Sequence[TorchLearner]) -> str:
    """Why these learners cannot be trained at once; empty when they can."""
    first = learners[0]
    if any(learner.weights.layout != first.weights.layout for learner in learners):
        return "their models differ"
    if any(not isinstance(learner.train_data, Tensors) for learner in learners):
        return "their data are not tensors"
    if len({learner.train_data.examples for learner in learners}) > 1:
        return "they have different numbers of examples"
    if list(first.module.buffers()):
        return "the model has buffers, which its forward pass may change"
    if any(not learner.is_plain for learner in learners):
        return "they use an optimizer other than SGD, or mixed precision"
    return ""


def train_stacked(
    learners: Sequence[TorchLearner], model: Tree, budgets: Sequence[Budget], tick: Tick = no_tick
) -> list[tuple[Trained, Tree]]:
    """What `load(model)`, `train(budget)` and `model()` of each learner would give, in their order.

    The budgets differ in their seed only. The first learner's module does the work and holds `model` afterwards; the
    others are not touched. Raises `InvalidJob` where `why_not` has a reason.
    """
    if reason := why_not(learners):
        raise InvalidJob(f"the learners cannot be trained at once: {reason}", code="learner.stacked")
    first, count = learners[0], len(learners)
    for learner in learners:
        learner.place()
    first.load(model)
    first.module.train()
    stacked = {name: _repeated(p.detach(), count) for name, p in first.weights.trainable().items()}
    step = vmap(grad_and_value(partial(_loss, first)), randomness="error")
    weight, losses = 0, torch.zeros(count, dtype=torch.float32, device=first.device)
    with blamed("training"):
        for batch, fraction in _batches(learners, budgets):
            gradients, values = step(stacked, batch)
            torch._foreach_add_(list(stacked.values()), [gradients[name] for name in stacked], alpha=-budgets[0].lr)
            losses.add_(values, alpha=len(batch[0][0]))
            weight += len(batch[0][0])
            tick(fraction)
    counted = weight if budgets[0].position >= 0 else first.train_data.examples or 0
    return [_result(first, stacked, losses / weight, counted, place) for place in range(count)]


def _loss(learner: TorchLearner, parameters: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    inputs, target = split(batch)
    loss: Tensor = learner.loss(functional_call(learner.module, parameters, inputs), target)
    return loss


def _repeated(tensor: Tensor, count: int) -> Tensor:
    return tensor.expand(count, *tensor.shape).clone()


def _batches(learners: Sequence[TorchLearner], budgets: Sequence[Budget]) -> Iterator[tuple[tuple[Tensor, ...], float]]:
    """The learners' batches, each tensor with a first dimension more: `[learner, example, …]`."""
    sources = [cast("Tensors", learner.train_data) for learner in learners]
    examples, options = sources[0].examples, sources[0].options
    parts = [torch.cat(tensors) for tensors in zip(*(source.tensors for source in sources), strict=True)]
    # Each learner's own order of examples: the batches of their numbers.
    numbers = Tensors((torch.arange(examples),), options._replace(device=torch.device("cpu")))
    orders = [training_batches(numbers, budget, generator_of(budget.seed)) for budget in budgets]
    starts = torch.arange(len(learners)).unsqueeze(1) * examples
    for choices in zip(*orders, strict=True):
        chosen = torch.stack([batch[0] for batch, _ in choices]) + starts
        flat = chosen.flatten().to(parts[0].device, non_blocking=True)
        batch = tuple(part.index_select(0, flat).reshape(*chosen.shape, *part.shape[1:]) for part in parts)
        yield moved(batch, options.device), choices[0][1]


def _result(
    learner: TorchLearner, stacked: dict[str, Tensor], losses: Tensor, weight: int, place: int
) -> tuple[Trained, Tree]:
    tensors = learner.weights.tensors() | {name: tensor[place] for name, tensor in stacked.items()}
    trained = Trained(float(weight), {"train/loss": float(losses[place])})
    return trained, pack(learner.weights.layout, tensors)
