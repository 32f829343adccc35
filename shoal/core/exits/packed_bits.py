"""Features of +1 and -1 as bits: eight per byte, the first in the highest bit, each example from a byte of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidPayload
from shoal.core.exits.byte_costs import packed_bytes

Bytes = npt.NDArray[np.uint8]


def pack_bits(features: npt.NDArray[Any]) -> Bytes:
    """Return `uint8[examples, bytes]`. Raises `InvalidPayload` for a value other than +1 and -1."""
    if not bool((np.abs(features) == 1).all()):
        hint = "let the device's part end with Binarize()"
        raise InvalidPayload("a feature is neither +1 nor -1", code="payload.bits", hint=hint)
    return np.packbits(features.reshape(len(features), -1) > 0, axis=1)


def unpack_bits(packed: Bytes, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return features of this shape per example. Raises `InvalidPayload` if the bytes do not fit it."""
    values = prod(shape)
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != packed_bytes(values):
        text = f"{packed.dtype} {list(packed.shape)} instead of {packed_bytes(values)} bytes per example"
        raise InvalidPayload(text, code="payload.bits", hint="both levels need the same network")
    bits = np.unpackbits(packed, axis=1)
    if bool(bits[:, values:].any()):
        raise InvalidPayload("bits are set behind the last feature", code="payload.bits")
    return (bits[:, :values].astype(np.float32) * 2 - 1).reshape(len(packed), *shape)


@dataclass(frozen=True)
class PackedFeatures:
    """The packed features of examples, as a level sends them up."""

    shape: tuple[int, ...]
    """The shape of one example's features at one machine."""
    parts: tuple[Bytes | None, ...]
    """`uint8[examples, bytes]` of each machine of the level; None: it is left out."""

    @property
    def nbytes(self) -> int:
        """The bytes of all machines together."""
        return sum(part.nbytes for part in self.parts if part is not None)

    def chosen(self, examples: npt.NDArray[np.bool_]) -> PackedFeatures:
        """Return the features of some of the examples."""
        return PackedFeatures(self.shape, tuple(None if part is None else part[examples] for part in self.parts))
