"""Steps of a model towards another one, rounded once."""

from __future__ import annotations

import numpy as np

from shoal.core.model.tree import DTYPES, Bytes, Tree, from_float, same_layout, to_float


def towards(x: Tree, a: Tree, b: Tree, share: float, more: Tree | None = None) -> Tree:
    """Compute `x + share * (b - a) + more` on weights, rounded once; on integers the greater of `x` and `b`.

    Statistics become the mean of `x` and `b`, of which `b` weighs `share`, at least 0 and at most 1.
    """
    return _moved(x, a, b, share, more, None)


def towards_owing(x: Tree, a: Tree, b: Tree, share: float, owed: Tree | None) -> tuple[Tree, Tree]:
    """Compute `towards`, and the rounding error, to be added to the next step: then all steps together are off by one
    rounding (compensated summation; Kahan, Comm. ACM 8 (1965), p. 40). The error of a value that is not finite is 0."""
    left = np.zeros(x.layout.nbytes, np.uint8)
    return _moved(x, a, b, share, owed, left), Tree(x.layout, left)


def _moved(x: Tree, a: Tree, b: Tree, share: float, owed: Tree | None, left: Bytes | None) -> Tree:
    same_layout(x.layout, a.layout)
    same_layout(x.layout, b.layout)
    if owed is not None:
        same_layout(x.layout, owed.layout)
    out = np.empty(x.layout.nbytes, np.uint8)
    part = min(max(share, 0.0), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        for segment in x.layout.segments:
            for block in segment.blocks():
                start, stop, place = block.start, block.stop, out[block.start : block.stop]
                if segment.is_statistic:
                    old, new = (to_float(one.block(start, stop), block.dtype) for one in (x, b))
                    from_float((1.0 - part) * old + part * new, block.dtype, place)
                elif segment.is_float:
                    wide = to_float(b.block(start, stop), block.dtype) - to_float(a.block(start, stop), block.dtype)
                    wide *= share
                    wide += to_float(x.block(start, stop), block.dtype)
                    if owed is not None:
                        wide += to_float(owed.block(start, stop), block.dtype)
                    from_float(wide, block.dtype, place)
                    if left is not None:
                        wide -= to_float(place, block.dtype)
                        wide[~np.isfinite(wide)] = 0.0
                        from_float(wide, block.dtype, left[start:stop])
                else:
                    kind = DTYPES[block.dtype]
                    mine, theirs = x.block(start, stop).view(kind), b.block(start, stop).view(kind)
                    place.view(kind)[:] = np.maximum(mine, theirs)
    return Tree(x.layout, out)
