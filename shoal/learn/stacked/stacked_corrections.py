"""Corrections of the gradients of several learners at once: `gradient + offset + pull * (weights - anchor)` by rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import Correct
from shoal.core.model.tree import Layout, Tree, same_layout, zeros
from shoal.learn.stacked.stacked_batches import Rows
from shoal.learn.stacked.stacked_trees import repeated, rows_of, trees_of, views


def is_same(asked: Correct | None, known: Correction | None) -> bool:
    """Return True if a correction that is asked for has the effect of a known one; if there is none, None."""
    if not isinstance(asked, Correction) or known is None:
        return asked is known
    pairs = ((asked.anchor, known.anchor), (asked.offset, known.offset))
    return form_of(asked) == form_of(known) and all(_is_equal(one, two) for one, two in pairs)


def form_of(correction: Correction | None) -> object:
    """Return a value that is equal for corrections which can be computed at once."""
    if correction is None:
        return None
    return correction.pull, correction.averages, correction.anchor is None, correction.offset is None


def _is_equal(one: Tree | None, two: Tree | None) -> bool:
    if one is None or two is None or one is two:
        return one is two
    return one.layout == two.layout and bool((one.buffer == two.buffer).all())


class StackedCorrections:
    """The corrections of all rows, which have one form. `names`: the parameters that are corrected."""

    def __init__(self, given: Sequence[Correction], layout: Layout, names: Sequence[str], device: torch.device) -> None:
        self._layout, self._names, self._device = layout, names, device
        self._pull, self._averages, self._count = given[0].pull, given[0].averages, len(given)
        self._anchors = self._held(one.anchor for one in given)
        self._offsets = self._held(one.offset for one in given)
        self._sums: dict[str, Tensor] = {}

    def _held(self, trees: Iterable[Tree | None]) -> dict[str, Tensor]:
        """Return the trees' parameters by rows; a single row if they are one tree."""
        found = [tree for tree in trees if tree is not None]
        if not found:
            return {}
        for tree in found:
            same_layout(self._layout, tree.layout)
        if all(tree is found[0] for tree in found):
            del found[1:]
        return views(self._layout, rows_of(found, self._device), self._names)

    def corrected(self, rows: Rows, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the corrected gradients of some rows, `[n, …]`; a missing one counts as zero."""
        found = {}
        for name in self._names:
            gradient = gradients[name] if name in gradients else torch.zeros_like(values[name])
            if self._averages:
                self._sum(name, gradient)[rows] += gradient
            if self._anchors:
                gradient = gradient.add(values[name] - self._chosen(self._anchors[name], rows), alpha=self._pull)
            if self._offsets:
                gradient = gradient + self._chosen(self._offsets[name], rows)
            found[name] = gradient
        return found

    def _sum(self, name: str, gradient: Tensor) -> Tensor:
        if name not in self._sums:
            dtype = torch.promote_types(gradient.dtype, torch.float32)
            self._sums[name] = gradient.new_zeros((self._count, *gradient.shape[1:]), dtype=dtype)
        return self._sums[name]

    def _chosen(self, held: Tensor, rows: Rows) -> Tensor:
        return held if len(held) == 1 else held[rows]

    def means(self, steps: Sequence[int]) -> list[Tree | None]:
        """Return the mean of each row's gradients before their correction, if it is asked for, from the numbers of
        steps."""
        if not self._sums:
            return [None] * self._count
        rows = repeated(zeros(self._layout), self._count, self._device)
        for name, tensor in views(self._layout, rows, self._sums).items():
            made = torch.tensor(steps, device=self._device)
            tensor.copy_(self._sums[name] / made.view(-1, *[1] * (tensor.ndim - 1)))
        return list(trees_of(self._layout, rows))
