"""Correction of gradients, for algorithms that need it: on the parameters' device where the correction is linear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Correct
from shoal.core.model.tree import same_layout
from shoal.learn.training.weights import Weights, pack, unpack

WITHOUT_FLOAT64 = "mps"
"""The kind of devices that do not compute in float64."""

CPU_BLOCK_ELEMENTS, GPU_BLOCK_ELEMENTS = 1 << 16, 1 << 24
"""Elements corrected at once: 1 MiB of float64 stays in a core's cache; a GPU needs few large operations."""

Block = list[tuple[str, int, int]]
"""(name, start, stop) of pieces of vectors."""


class Corrector(Protocol):
    """The correction of the gradients of one training."""

    def corrected(self, gradients: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
        """Return the corrected gradients of all trained parameters, in their order; None counts as zero. They may be
        the same tensors. Gradients of parameters that stay on this node are not corrected."""
        ...


@contextmanager
def corrector_of(weights: Weights, correct: Correct | None) -> Iterator[Corrector | None]:
    """Make the corrector of a training in the block, after which the steps are counted and its copies are freed."""
    if correct is None:
        yield None
        return
    device = next(iter(weights.trainable().values())).device
    if not isinstance(correct, Correction) or device.type == WITHOUT_FLOAT64:
        yield TreeCorrector(weights, correct)
    else:
        corrector = TensorCorrector(weights, correct)
        try:
            yield corrector
            corrector.report()
        finally:
            corrector.release()


def correct_in_place(weights: Weights, corrector: Corrector) -> None:
    """Correct the gradients that the trained parameters hold."""
    parameters = list(weights.trainable().values())
    for p, gradient in zip(parameters, corrector.corrected([p.grad for p in parameters]), strict=True):
        p.grad = gradient


class TreeCorrector:
    """A correction by any function of trees. It copies weights and gradients to numpy and back in each step."""

    def __init__(self, weights: Weights, correct: Correct) -> None:
        self._weights, self._correct = weights, correct

    def corrected(self, gradients: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
        layout = self._weights.layout
        dense = {name: one.clone() for name, one in dense_of(self._weights.trainable(), gradients).items()}
        traveling = {name: one for name, one in dense.items() if name in layout.index}
        unpack(self._correct(self._weights.save(), pack(layout, traveling)), traveling)
        return tuple(dense.values())


class TensorCorrector:
    """A linear correction that is computed on the parameters' device.

    It copies anchor and offset there in the first step. It computes in float64 and rounds once, as the correction does
    when it is called, and adds up gradients in float64. One workspace serves all blocks of parameters.
    """

    def __init__(self, weights: Weights, correction: Correction) -> None:
        self._weights, self._correction, self._steps = weights, correction, 0
        self._anchor: dict[str, Tensor] = {}
        self._offset: dict[str, Tensor] = {}
        self._sum: dict[str, Tensor] = {}
        self._workspace: Tensor | None = None
        for tree in (correction.anchor, correction.offset):
            if tree is not None:
                same_layout(weights.layout, tree.layout)

    def corrected(self, gradients: Iterable[Tensor | None]) -> tuple[Tensor, ...]:
        parameters = self._weights.trainable()
        dense = dense_of(parameters, gradients)
        with torch.no_grad():
            traveling = {name: p.reshape(-1) for name, p in parameters.items() if name in self._weights.layout.index}
            flat = {name: dense[name].view(-1) for name in traveling}
            self._hold(traveling)
            for block in blocks_of(flat):
                self._correct_block(block, traveling, flat)
        self._steps += 1
        return tuple(dense.values())

    def _hold(self, parameters: Mapping[str, Tensor]) -> None:
        """Copy the numbers of the trees that belong to parameters to their device, if they are not there yet."""
        for tree, held in ((self._correction.anchor, self._anchor), (self._correction.offset, self._offset)):
            missing = [name for name in parameters if name not in held]
            if tree is not None and missing:
                made = {name: torch.empty_like(parameters[name]) for name in missing}
                unpack(tree, self._shaped(made))
                held.update(made)
        for name, p in parameters.items() if self._correction.averages else ():
            if name not in self._sum:  # -0.0 plus a number is that number, also if it is -0.0
                self._sum[name] = torch.full_like(p, -0.0, dtype=torch.float64)

    def _correct_block(self, block: Block, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        made, operand = self._rows(block)
        targets = pieces(gradients, block)
        if self._anchor:
            torch._foreach_copy_(made, pieces(values, block))
            torch._foreach_copy_(operand, pieces(self._anchor, block))
            torch._foreach_sub_(made, operand)
            torch._foreach_mul_(made, self._correction.pull)
        torch._foreach_copy_(operand, targets)
        if self._sum:
            torch._foreach_add_(pieces(self._sum, block), operand)
        if self._anchor:
            torch._foreach_add_(made, operand)
        else:
            made, operand = operand, made
        if self._offset:
            torch._foreach_copy_(operand, pieces(self._offset, block))
            torch._foreach_add_(made, operand)
        torch._foreach_copy_(targets, made)

    def _rows(self, block: Block) -> tuple[list[Tensor], list[Tensor]]:
        """Return two float64 tensors for each piece of a block, from the workspace."""
        sizes = [stop - start for _, start, stop in block]
        if self._workspace is None or self._workspace.shape[1] < sum(sizes):
            device = next(iter(self._weights.trainable().values())).device
            self._workspace = torch.empty((2, sum(sizes)), dtype=torch.float64, device=device)
        first, second = self._workspace[:, : sum(sizes)]
        return list(first.split(sizes)), list(second.split(sizes))

    def report(self) -> None:
        """Count the steps, with the mean of the gradients before their correction."""
        mean = None
        if self._correction.averages and self._steps:
            for total in self._sum.values():
                total.mul_(1.0 / self._steps)
            mean = pack(self._weights.layout, self._shaped(self._sum))
        self._correction.count(self._steps, mean)

    def _shaped(self, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        index = self._weights.layout.index
        return {name: vector.view(index[name].shape) for name, vector in vectors.items()}

    def release(self) -> None:
        """Free all tensors."""
        for held in (self._anchor, self._offset, self._sum):
            held.clear()
        self._workspace = None


def dense_of(parameters: Mapping[str, Tensor], gradients: Iterable[Tensor | None]) -> dict[str, Tensor]:
    """Return each parameter's gradient as a contiguous tensor, which may be the given one; None as zeros."""
    return {
        name: torch.zeros_like(p, memory_format=torch.contiguous_format)
        if gradient is None
        else gradient.to_dense().contiguous()
        for (name, p), gradient in zip(parameters.items(), gradients, strict=True)
    }


def blocks_of(vectors: Mapping[str, Tensor]) -> list[Block]:
    """Divide vectors among blocks of a size that suits their device. A long vector takes several blocks."""
    blocks: list[Block] = [[]]
    room = 0
    for name, vector in vectors.items():
        start = 0
        while start < len(vector):
            if not room:
                blocks.append([])
                room = CPU_BLOCK_ELEMENTS if vector.device.type == "cpu" else GPU_BLOCK_ELEMENTS
            stop = min(len(vector), start + room)
            blocks[-1].append((name, start, stop))
            room -= stop - start
            start = stop
    return blocks[1:]


def pieces(vectors: Mapping[str, Tensor], block: Block) -> list[Tensor]:
    """Return the pieces of vectors that are in a block."""
    return [vectors[name][start:stop] for name, start, stop in block]
