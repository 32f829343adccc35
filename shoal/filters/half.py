"""Two bytes per number instead of four or eight.

Micikevicius et al.: "Mixed Precision Training", ICLR 2018, for what travels: sums and models stay as wide as they are.
bf16 keeps the range of float32 with 8 bits of precision, fp16 has 11 bits and ends at 65504, beyond which a number
becomes infinite, and its update is refused. Rounding is to nearest, ties to even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from shoal.core.algorithm.filter import Filter, Stage
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import BLOCK_ELEMENTS, DTYPES, Bytes, Layout, Tree, from_float, to_float

WIDE = frozenset({"F64", "F32"})


@dataclass(frozen=True)
class Half(Filter):
    """Send 16 bits per number."""

    name: ClassVar[str] = "half"
    title: ClassVar[str] = "Half precision (Micikevicius et al. 2018)"
    stage: ClassVar[Stage] = "precision"

    form: Literal["bf16", "fp16"] = "bf16"
    """bf16: the range of float32; fp16: eight times the precision, up to 65504."""

    def __post_init__(self) -> None:
        if self.form not in ("bf16", "fp16"):
            raise InvalidJob(f"half: form is {self.form!r}, but must be bf16 or fp16")

    @property
    def suits_models(self) -> bool:
        """Each number is rounded by itself, to 8 or 11 bits."""
        return True

    def layout(self, layout: Layout) -> Layout:
        """Return the layout with wide weights in half precision; statistics stay as they are."""
        narrow = self.form.upper().replace("FP", "F")
        narrowed = {leaf.name for leaf in layout.leaves if leaf.dtype in WIDE and layout.is_weight(leaf)}
        return Layout.of(
            ((leaf.name, narrow if leaf.name in narrowed else leaf.dtype, leaf.shape) for leaf in layout.leaves),
            layout.base_model,
            layout.statistics,
        )

    def encode(self, tree: Tree, seed: int) -> Tree:
        """Round every wide number."""
        return _turned(tree, self.layout(tree.layout))

    def decode(self, tree: Tree, layout: Layout) -> Tree:
        """Widen again."""
        return _turned(tree, layout)


def _turned(tree: Tree, layout: Layout) -> Tree:
    """Convert the tensors to the types of another layout."""
    out = np.empty(layout.nbytes, np.uint8)
    for leaf in tree.layout.leaves:
        place = layout.index[leaf.name]
        if leaf.dtype == place.dtype:
            out[place.start : place.stop] = tree.block(leaf.start, leaf.stop)
        elif leaf.elements:
            _turn(tree, leaf.start, leaf.dtype, place.dtype, out[place.start : place.stop])
    return Tree(layout, out)


def _turn(tree: Tree, start: int, dtype: str, to: str, out: Bytes) -> None:
    """Convert numbers from `start` on, block by block, until `out` is full."""
    source, target = DTYPES[dtype].itemsize, DTYPES[to].itemsize
    for first in range(0, out.size // target, BLOCK_ELEMENTS):
        count = min(BLOCK_ELEMENTS, out.size // target - first)
        wide = to_float(tree.block(start + first * source, start + (first + count) * source), dtype)
        with np.errstate(over="ignore"):  # a number beyond the range becomes infinite, and is refused as that
            from_float(wide, to, out[first * target : (first + count) * target])
