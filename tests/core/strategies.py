"""Trees of every type that shoal carries, for hypothesis."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.core.model.tree import DTYPES, FLOATS, Array, Layout, Tree

WHOLE = tuple(name for name in DTYPES if name not in FLOATS)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda n: n != "__metadata__")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


BASE_MODELS = st.sampled_from(["", "ba5e" * 16, "0dd0" * 16])


@st.composite
def layouts(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES), most: int = 6) -> Layout:
    """Up to `most` tensors, also empty ones and ones without dimensions; with a base model or without."""
    names = draw(st.lists(NAMES, max_size=most, unique=True))
    entries = [(name, draw(st.sampled_from(dtypes)), draw(SHAPES)) for name in names]
    return Layout.of(entries, draw(BASE_MODELS))


def values(dtype: str, shape: tuple[int, ...], bound: float | None) -> st.SearchStrategy[Array]:
    """Contents of a tensor; floats within the bound, or anything at all when there is none."""
    if dtype == "BF16" and bound is not None:
        width = st.floats(-bound, bound, width=32)
        return hnp.arrays(np.float32, shape, elements=width).map(lambda a: (a.view(np.uint32) >> 16).astype(np.uint16))
    if dtype not in FLOATS or dtype == "BF16":
        return hnp.arrays(DTYPES[dtype], shape)
    kind = DTYPES[dtype]
    bits = kind.itemsize * 8
    limit = None if bound is None else float(kind.type(bound))
    low, high = (None, None) if limit is None else (-limit, limit)
    return hnp.arrays(kind, shape, elements=st.floats(low, high, width=bits))  # type: ignore[arg-type]


@st.composite
def trees_of(draw: st.DrawFn, layout: Layout, bound: float | None = None) -> Tree:
    """A tree of that layout."""
    arrays = {leaf.name: draw(values(leaf.dtype, leaf.shape, bound)) for leaf in layout.leaves}
    return Tree(layout, Tree.of(arrays, {leaf.name: leaf.dtype for leaf in layout.leaves}).buffer)


@st.composite
def trees(
    draw: st.DrawFn, count: int = 1, dtypes: tuple[str, ...] = tuple(DTYPES), bound: float | None = None
) -> tuple[Tree, ...]:
    """Draw that many trees of one layout."""
    layout = draw(layouts(dtypes))
    return tuple(draw(trees_of(layout, bound)) for _ in range(count))


def bfloat16(bits: Array) -> Array:
    """Return the numbers of these bits."""
    return np.asarray((bits.astype(np.uint32) << 16).view(np.float32))


def wide(tree: Tree, name: str) -> Array:
    """A tensor in float64; whole numbers as they are."""
    leaf = tree.layout.index[name]
    array = bfloat16(tree.stored(name)) if leaf.dtype == "BF16" else tree[name]
    return array.astype(np.float64) if leaf.dtype in FLOATS else np.asarray(array)


def rounded(values: Array, dtype: str) -> Array:
    """Float64 rounded to a float type, in float64 again. BF16: the nearer neighbor of the float32, ties to even."""
    with np.errstate(all="ignore"):
        if dtype != "BF16":
            return values.astype(DTYPES[dtype]).astype(np.float64)
        single = values.astype(np.float32)
        out = np.empty(single.shape, np.float64)
        for index in np.ndindex(single.shape):
            out[index] = nearest_bfloat16(single[index])
        return out


def nearest_bfloat16(value: np.float32) -> float:
    """By comparing both neighbors, so unlike the way the code takes."""
    if not np.isfinite(value):
        return float(value)
    low = int(np.float32(value).view(np.uint32)) >> 16
    pair = [float(bfloat16(np.array([bits], np.uint16))[0]) for bits in (low, low + 1)]
    if not np.isfinite(pair[1]):
        pair[1] = float(np.copysign(2.0**128, value))
    gaps = [abs(float(value) - neighbor) for neighbor in pair]
    chosen = pair[0] if gaps[0] < gaps[1] or (gaps[0] == gaps[1] and low % 2 == 0) else pair[1]
    return float(np.copysign(np.inf, value)) if abs(chosen) == 2.0**128 else chosen
