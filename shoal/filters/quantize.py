"""Few bits per number, without bias.

Alistarh, Grubic, Li, Tomioka, Vojnovic: "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, section 3.1, with the greatest magnitude of a bucket as its scale. In a bucket with scale s
and L levels on either side, x is sent as a whole number q with

    E[q] = x L / s,   q in {floor(x L / s), floor(x L / s) + 1}        and received as q s / L

Buckets are `bucket` numbers long, whatever the tensors; each costs four bytes more. Statistics and whole numbers of a
model are sent as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval

from shoal.core.algorithm.filter import Filter, Stage
from shoal.core.errors import InvalidJob
from shoal.core.model.flat_view import (
    Floats,
    count_floats,
    gather,
    packed_beside,
    part,
    put_others,
    scatter,
    take_others,
)
from shoal.core.model.tree import Bytes, Layout, Tree

CODES, SCALES = "codes", "scales"

BUCKETS_AT_ONCE = 256
"""Work in pieces that fit a core's cache."""

FACTOR_MAX = np.finfo(np.float32).max
"""Levels per unit: buckets whose scale is below 4e-37 are rounded coarser, if at all; one of zeros stays so."""


@dataclass(frozen=True)
class Quantize(Filter):
    """Send 8 or 4 bits per number."""

    name: ClassVar[str] = "quantize"
    title: ClassVar[str] = "Stochastic quantization (QSGD, Alistarh et al. 2017)"
    stage: ClassVar[Stage] = "precision"

    bits: Literal[8, 4] = 8
    """Bits per number."""
    bucket: Annotated[int, Interval(ge=2, le=1 << 20)] = 512
    """Numbers per block with a common scale; even."""

    def __post_init__(self) -> None:
        if self.bits not in (8, 4):
            raise InvalidJob(f"quantize: bits is {self.bits}, but must be 8 or 4")
        super().__post_init__()
        if self.bucket % 2:
            raise InvalidJob(f"quantize: bucket is {self.bucket}, but must be even")

    @property
    def suits_models(self) -> bool:
        """True with 8 bits. The step of 4 bits, a seventh of a bucket's greatest number, is too coarse for weights."""
        return self.bits == 8

    @property
    def _levels(self) -> int:
        return 127 if self.bits == 8 else 7

    def layout(self, layout: Layout) -> Layout:
        """Return a layout of codes and scales of all weights, one after the other; then the other tensors."""
        buckets = -(-count_floats(layout) // self.bucket)
        codes = (buckets * self.bucket * self.bits) // 8
        return packed_beside([(CODES, "U8", (codes,)), (SCALES, "F32", (buckets,))], layout)

    def encode(self, tree: Tree, seed: int) -> Tree:
        """Quantize; the rounding of each number is drawn from `seed`."""
        layout = self.layout(tree.layout)
        buffer = np.zeros(layout.nbytes, np.uint8)
        out = Tree(layout, buffer)
        rng = np.random.Generator(np.random.Philox(seed))
        values = np.zeros(layout.index[SCALES].elements * self.bucket, np.float32)
        gather(tree, values)
        codes, scales = part(out, CODES), part(out, SCALES).view("<f4")
        step = self.bucket * BUCKETS_AT_ONCE
        for start in range(0, values.size, step):
            rows = values[start : start + step].reshape(-1, self.bucket)
            bucket = start // self.bucket
            where = slice(start * self.bits // 8, (start + rows.size) * self.bits // 8)
            scales[bucket : bucket + len(rows)], codes[where] = self._encode_rows(rows, rng)
        put_others(tree, layout, buffer)
        return out

    def _encode_rows(self, rows: Floats, rng: np.random.Generator) -> tuple[Floats, Bytes]:
        scales = np.abs(rows).max(axis=1)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            levels = rows * np.minimum(self._levels / scales, FACTOR_MAX)[:, None]
        levels = np.nan_to_num(levels, nan=0.0, posinf=0.0, neginf=0.0)
        drawn = np.floor(levels + rng.random(rows.shape, np.float32))
        whole = np.clip(drawn, -self._levels, self._levels).astype(np.int8).reshape(-1)
        if self.bits == 8:
            return scales, whole.view(np.uint8)
        nibbles = (whole + 8).view(np.uint8)
        return scales, nibbles[0::2] | (nibbles[1::2] << 4)

    @np.errstate(over="ignore", invalid="ignore")  # invented numbers are found by later checks
    def decode(self, tree: Tree, layout: Layout) -> Tree:
        """Decode every number as a multiple of its bucket's scale."""
        out = np.zeros(layout.nbytes, np.uint8)
        codes, scales = part(tree, CODES), part(tree, SCALES).view("<f4")
        values = np.empty(scales.size * self.bucket, np.float32)
        step = self.bucket * BUCKETS_AT_ONCE
        for start in range(0, values.size, step):
            bucket = start // self.bucket
            stop = min(start + step, values.size)
            levels = self._levels_of(codes[start * self.bits // 8 : stop * self.bits // 8]).reshape(-1, self.bucket)
            unit = scales[bucket : bucket + len(levels)] / np.float32(self._levels)
            values[start:stop] = (levels * unit[:, None]).reshape(-1)
        scatter(values, layout, out)
        take_others(tree, layout, out)
        return Tree(layout, out)

    def _levels_of(self, codes: Bytes) -> Floats:
        if self.bits == 8:
            return codes.view(np.int8).astype(np.float32)
        nibbles = np.empty(codes.size * 2, np.uint8)
        nibbles[0::2], nibbles[1::2] = codes & 15, codes >> 4
        return nibbles.astype(np.float32) - 8
