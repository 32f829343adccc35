"""The digits that shoal ships: 1,797 handwritten digits of 8x8 pixels. Needs numpy, not torch; nothing is fetched.

Alpaydin, Kaynak: "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998. Source and licence
are in `files/README.md`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Digits(NamedTuple):
    """Grey values of 0 to 16 and classes of 0 to 9: `x uint8[1797, 64]`, `y uint8[1797]`. Both are read-only."""

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def digits() -> Digits:
    """Load the digits, once per process."""
    with files("shoal.learn").joinpath("files", "digits.npz").open("rb") as file, np.load(file) as arrays:
        found = Digits(arrays["x"], arrays["y"])
    for array in found:
        array.flags.writeable = False
    return found
