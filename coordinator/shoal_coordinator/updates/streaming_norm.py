"""The norm of a blob, measured while the blob arrives, so that it need not be read again for it.

It is the receiver's own measurement, over the same blocks as `shoal.wire.payload.measure`, and so the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shoal.core.model.tree import Layout, Segment, to_float
from shoal.core.model.tree_checks import is_variance
from shoal.wire.payload import parse_header


class _NormBlock(NamedTuple):
    """Bytes of a blob that are measured together: numbers of one type, of one slot; dtype "" is not measured."""

    slot: int
    dtype: str
    nbytes: int
    least: float | None = None
    """The least valid number, for a statistic: it has no part in the norm."""


_END = _NormBlock(0, "", 0)


class StreamingNorm:
    """`expected`: the whole blob's layout, which its header must have been compared with."""

    def __init__(self, expected: Layout) -> None:
        self._blocks = _blocks(expected)
        self._block = next(self._blocks)
        self._missing = self._block.nbytes
        self._kept = bytearray()  # of the block in hand, when it does not come in one piece
        self._squares: dict[int, float] = {}
        self._is_valid = True  # booleans and statistics

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(piece)
        with np.errstate(over="ignore", invalid="ignore"):  # `norm` tells
            while view and self._missing:
                part, view = view[: self._missing], view[self._missing :]
                self._missing -= len(part)
                if self._block.dtype and (self._missing or self._kept):
                    self._kept += part
                if not self._missing:
                    self._measure(self._kept or part)

    def _measure(self, data: bytearray | memoryview) -> None:
        """Measure the complete block, and begin the next one."""
        slot, dtype, _, least = self._block
        if dtype == "BOOL":
            self._is_valid &= bool(np.frombuffer(data, np.uint8).max() <= 1)
        elif least is not None:
            values = to_float(np.frombuffer(data, np.uint8), dtype)
            self._is_valid &= bool(np.isfinite(values).all() and values.min() >= least)
        elif dtype:
            wide = to_float(np.frombuffer(data, np.uint8), dtype, np.float64 if dtype == "F64" else np.float32)
            self._squares[slot] = self._squares.get(slot, 0.0) + float(np.dot(wide, wide))
        self._kept = bytearray()
        self._block = next(self._blocks, _END)
        self._missing = self._block.nbytes

    @property
    def norm(self) -> float | None:
        """The greatest norm of a slot; None when something is wrong with a number: `measure` says what."""
        norms = [math.sqrt(square) for square in self._squares.values()]
        return max(norms, default=0.0) if self._is_valid and all(map(math.isfinite, norms)) else None


def _blocks(expected: Layout) -> Iterator[_NormBlock]:
    """Yield the blocks of a blob from its first byte to its last, cut as the operations on trees cut each slot."""
    yield _NormBlock(0, "", len(expected.header))
    for slot, layout in enumerate(parse_header(expected.header).values()):
        if layout is None:
            yield _NormBlock(slot, "F64", 8)
            continue
        for segment in layout.segments:
            if segment.is_statistic:
                yield from _statistic_blocks(slot, layout, segment)
                continue
            for block in segment.blocks():
                measured = block.is_float or block.dtype == "BOOL"
                yield _NormBlock(slot, block.dtype if measured else "", block.stop - block.start)


def _statistic_blocks(slot: int, layout: Layout, segment: Segment) -> Iterator[_NormBlock]:
    """Yield the blocks of the statistics in a segment, none of which reaches beyond its tensor."""
    for leaf in layout.leaves:
        if leaf.elements and segment.start <= leaf.start < segment.stop:
            least = 0.0 if is_variance(leaf.name) else -math.inf
            for block in segment._replace(start=leaf.start, stop=leaf.stop).blocks():
                yield _NormBlock(slot, leaf.dtype, block.stop - block.start, least)
