"""Trees as rows of bytes on a device, whose tensors are views with one row for each tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.core.model.stack import Stack
from shoal.core.model.tree import Layout, Tree
from shoal.learn.stacked.device_stack import DeviceStack
from shoal.learn.training.weights import TORCH_DTYPES

STAYS_ON = frozenset({"cuda"})
"""Devices that models stay on after training: mps has no double precision to add them in."""


def repeated(tree: Tree, count: int, device: torch.device) -> Tensor:
    """Return the bytes of `count` copies, `uint8[count, nbytes]`."""
    rows = _room(tree.layout, count, device)
    if rows.is_cpu:
        rows.numpy()[:] = tree.buffer  # in half the time of torch, which does not copy a row at once
    else:
        rows[:] = torch.from_numpy(np.array(tree.buffer)).to(device)
    return rows


def rows_of(trees: Sequence[Tree], device: torch.device) -> Tensor:
    """Return the bytes of trees of one layout, `uint8[tree, nbytes]`."""
    rows = _room(trees[0].layout, len(trees), torch.device("cpu"))
    for row, tree in zip(rows.numpy(), trees, strict=True):
        row[:] = tree.buffer
    return rows.to(device)


def _room(layout: Layout, count: int, device: torch.device) -> Tensor:
    """Return room for trees, with a few bytes between two that align the numbers."""
    padded = torch.empty(count, (layout.nbytes + 7) // 8 * 8, dtype=torch.uint8, device=device)
    return padded[:, : layout.nbytes]


def views(layout: Layout, rows: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """Return these tensors of all rows as views, `[row, …]`."""
    leaves = [layout.index[name] for name in names]
    return {
        leaf.name: rows[:, leaf.start : leaf.stop].view(TORCH_DTYPES[leaf.dtype]).view(len(rows), *leaf.shape)
        for leaf in leaves
    }


def trees_of(layout: Layout, rows: Tensor) -> list[Tree]:
    """Return the trees of all rows. Those on a card stay there, and are copied only if their bytes are read."""
    if Stack.suits(layout):
        stays = rows.device.type in STAYS_ON
        stack = DeviceStack(layout, rows) if stays else Stack(layout, rows.cpu().numpy().view("<f4"))
        return [stack.row(index) for index in range(len(stack))]
    return [Tree(layout, row) for row in rows.cpu().numpy()]
