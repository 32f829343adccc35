"""Trees as rows of bytes on a device, whose tensors are views with one row for each tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from shoal.core.model.stack import Stack
from shoal.core.model.tree import Layout, Tree
from shoal.learn.training.weights import TORCH_DTYPES


def repeated(tree: Tree, count: int, device: torch.device) -> Tensor:
    """Return the bytes of `count` copies, `uint8[count, nbytes]`."""
    padded = _padded(tree.layout, count)
    padded.numpy()[:, : tree.layout.nbytes] = tree.buffer
    return padded.to(device)[:, : tree.layout.nbytes]


def rows_of(trees: Sequence[Tree], device: torch.device) -> Tensor:
    """Return the bytes of trees of one layout, `uint8[tree, nbytes]`."""
    nbytes = trees[0].layout.nbytes
    padded = _padded(trees[0].layout, len(trees))
    for row, tree in zip(padded.numpy(), trees, strict=True):
        row[:nbytes] = tree.buffer
    return padded.to(device)[:, :nbytes]


def _padded(layout: Layout, count: int) -> Tensor:
    """Return room for trees, with a few bytes between two that align the numbers."""
    return torch.empty(count, (layout.nbytes + 7) // 8 * 8, dtype=torch.uint8, device="cpu")


def views(layout: Layout, rows: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """Return these tensors of all rows as views, `[row, …]`."""
    leaves = [layout.index[name] for name in names]
    return {
        leaf.name: rows[:, leaf.start : leaf.stop].view(TORCH_DTYPES[leaf.dtype]).view(len(rows), *leaf.shape)
        for leaf in leaves
    }


def trees_of(layout: Layout, rows: Tensor) -> list[Tree]:
    """Return the trees of all rows."""
    buffer = rows.cpu().numpy()
    if not Stack.suits(layout):
        return [Tree(layout, row) for row in buffer]
    stack = Stack(layout, buffer.view("<f4"))
    return [stack.row(index) for index in range(len(buffer))]
