"""A tree is a safetensors file, and its arithmetic is that of its numbers."""

import hashlib

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload
from shoal.core.model import tree as core
from shoal.core.model import tree_checks, tree_steps
from shoal.core.model.tree import DTYPES, FLOATS, Layout, Tree
from tests.core.strategies import layouts, rounded, trees, trees_of, wide


@pytest.fixture(params=[core.BLOCK_ELEMENTS, 2], ids=["one block", "many blocks"], autouse=True)
def blocks(request: pytest.FixtureRequest):
    """Everything is done block by block, so everything is tried with blocks of two elements as well."""
    before, core.BLOCK_ELEMENTS = core.BLOCK_ELEMENTS, request.param
    yield
    core.BLOCK_ELEMENTS = before


def file_of(tree: Tree) -> bytes:
    return tree.layout.header + bytes(tree.buffer)


# The file


@given(trees())
def test_header_and_buffer_are_what_safetensors_writes(made: tuple[Tree]) -> None:
    (tree,) = made
    told = {}
    for leaf in tree.layout.leaves:
        tensor = torch.from_numpy(
            tree.stored(leaf.name).view(np.int16 if leaf.dtype == "BF16" else DTYPES[leaf.dtype]).copy()
        )
        told[leaf.name] = tensor.view(torch.bfloat16) if leaf.dtype == "BF16" else tensor
    metadata = {"base_model": tree.layout.base_model} if tree.layout.base_model else None
    assert file_of(tree) == safetensors.torch.save(told, metadata)


@given(trees(dtypes=tuple(set(DTYPES) - {"BF16"})))
def test_safetensors_reads_what_it_is(made: tuple[Tree]) -> None:
    (tree,) = made
    read = safetensors.numpy.load(file_of(tree))
    assert set(read) == set(tree)
    for name, array in read.items():
        assert array.dtype == tree[name].dtype
        assert array.shape == tree[name].shape
        assert array.tobytes() == tree[name].tobytes()


@given(trees())
def test_the_digest_is_that_of_the_file(made: tuple[Tree]) -> None:
    (tree,) = made
    assert core.digest(tree) == hashlib.sha256(file_of(tree)).hexdigest()


def test_the_digest_of_a_large_tree_is_read_in_pieces() -> None:
    tree = Tree.of({"a": np.arange(700_000, dtype=np.float32)})
    assert core.digest(tree) == hashlib.sha256(file_of(tree)).hexdigest()


@given(layouts(), st.randoms())
def test_a_layout_does_not_depend_on_the_order_given(layout: Layout, random) -> None:
    entries = [(leaf.name, leaf.dtype, leaf.shape) for leaf in layout.leaves]
    random.shuffle(entries)
    assert Layout.of(entries, layout.base_model) == layout


@given(layouts())
def test_segments_cover_the_buffer(layout: Layout) -> None:
    parts = [block for segment in layout.segments for block in segment.blocks()]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert (parts[-1].stop if parts else 0) == layout.nbytes
    counts = [(part.stop - part.start) // part.itemsize for part in parts]
    assert [part.first for part in parts] == [sum(counts[:i]) for i in range(len(counts))]
    assert sum(counts) == layout.elements == sum(leaf.elements for leaf in layout.leaves)
    assert len(layout.segments) == len({segment.dtype for segment in layout.segments})


# A mapping of arrays


@given(trees())
def test_it_is_a_mapping_of_arrays(made: tuple[Tree]) -> None:
    (tree,) = made
    assert list(tree) == [leaf.name for leaf in tree.layout.leaves]
    assert len(tree) == len(tree.layout.leaves)
    assert repr(tree) == f"Tree({len(tree)} tensors, {tree.layout.nbytes} bytes)"
    assert "no such tensor" not in tree
    for leaf in tree.layout.leaves:
        assert tree[leaf.name].shape == leaf.shape
        assert tree.stored(leaf.name).dtype == DTYPES[leaf.dtype]


@given(st.lists(st.integers(0, 2**16 - 1), max_size=7))
def test_bfloat16_reads_as_its_values_and_comes_back_as_its_bits(bits: list[int]) -> None:
    """-0.07 is nearly 0xBD90, which is not the number 48528."""
    stored = np.array([0xBD90, *bits], np.uint16)
    tree = Tree.of({"w": stored}, {"w": "BF16"})
    truth = torch.from_numpy(stored.view(np.int16).copy()).view(torch.bfloat16).float().numpy()
    assert np.array_equal(tree["w"], truth, equal_nan=True)
    assert tree["w"][0] == np.float32(-0.0703125)
    assert tree.stored("w").tolist() == stored.tolist()
    again = Tree.of(dict(tree), {"w": "BF16"}).stored("w")
    assert np.array_equal(again, np.where(np.isnan(truth), again, stored))
    with pytest.raises(ValueError, match="read-only"):
        tree["w"][0] = 3.0


def test_a_tensor_is_a_read_only_view() -> None:
    tree = Tree.of({"a": np.array([1.0, 2.0])})
    assert np.shares_memory(tree["a"], tree.buffer)
    with pytest.raises(ValueError, match="read-only"):
        tree["a"][0] = 3.0
    tree.buffer[0] = 1  # the view's flag must not have spread to the buffer


def test_arrays_in_any_memory_order_are_taken() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    tree = Tree.of(
        {"turned": rows.T, "strided": rows[:, ::2], "swapped": rows.astype(">f4"), "scalar": np.float16(2.5)}
    )
    assert tree["turned"].tolist() == rows.T.tolist()
    assert tree["strided"].tolist() == rows[:, ::2].tolist()
    assert tree["swapped"].tolist() == rows.tolist()
    assert tree["scalar"].shape == ()


def test_what_is_not_carried_is_refused() -> None:
    for array in (np.array([1j]), np.array(["a"]), np.array([1], np.uint32), np.array([None])):
        with pytest.raises(InvalidPayload, match="cannot be sent") as caught:
            Tree.of({"a": array})
        assert caught.value.code == "payload.dtype"
        assert "BF16" in caught.value.hint
    with pytest.raises(InvalidPayload, match="__metadata__"):
        Tree.of({"__metadata__": np.zeros(1)})
    with pytest.raises(InvalidPayload, match="7 bytes cannot fill a layout of 8"):
        Tree(Layout.of([("a", "F64", ())]), bytes(7))
    with pytest.raises(TypeError):
        Tree.of({"a": np.array([1.5], np.float64)}, {"a": "BF16"})  # float32 values, or bits


# Arithmetic


@given(trees(count=2, bound=1e4), st.floats(-8, 8), st.floats(-8, 8))
def test_combine(made: tuple[Tree, Tree], alpha: float, beta: float) -> None:
    a, b = made
    result = core.combine(a, b, alpha, beta)
    for leaf in a.layout.leaves:
        left, right = wide(a, leaf.name), wide(b, leaf.name)
        if leaf.dtype in FLOATS:
            wanted = rounded(alpha * left + beta * right, leaf.dtype)
            assert np.array_equal(wide(result, leaf.name), wanted, equal_nan=True)
        else:
            assert np.array_equal(result[leaf.name], np.maximum(left, right))


def test_a_difference_of_float32_has_the_bits_of_one_by_float64() -> None:
    draw = np.random.default_rng(0)
    left, right = (draw.integers(0, 2**32, 100_000, np.uint32).view(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        right[:1000] = left[:1000] * np.float32(1 + 2**-20)  # nearly equal
        expected = (left.astype(np.float64) - right.astype(np.float64)).astype(np.float32)
    made = core.sub(Tree.of({"w": left}), Tree.of({"w": right}))["w"]
    assert np.array_equal(made, expected, equal_nan=True)
    assert np.array_equal(np.signbit(made[made == 0]), np.signbit(expected[made == 0]))


@given(trees(count=2, bound=1e4))
def test_sub_and_add_go_there_and_back(made: tuple[Tree, Tree]) -> None:
    a, b = made
    moved = core.add(b, core.sub(a, b))
    for leaf in a.layout.leaves:
        left, right = wide(a, leaf.name), wide(b, leaf.name)
        if leaf.dtype in FLOATS:
            once = rounded(left - right, leaf.dtype)
            assert np.array_equal(wide(moved, leaf.name), rounded(right + once, leaf.dtype), equal_nan=True)
        else:
            assert np.array_equal(core.sub(a, b)[leaf.name], left)
            assert np.array_equal(moved[leaf.name], np.maximum(left, right))


@given(trees(), st.floats(allow_nan=False))
def test_scale_touches_floats_only(made: tuple[Tree], factor: float) -> None:
    (tree,) = made
    result = core.scale(tree, factor)
    for leaf in tree.layout.leaves:
        before = wide(tree, leaf.name)
        with np.errstate(all="ignore"):
            wanted = rounded(factor * before, leaf.dtype) if leaf.dtype in FLOATS else before
        assert np.array_equal(wide(result, leaf.name), wanted, equal_nan=leaf.dtype in FLOATS)


@pytest.mark.parametrize(("dtype", "bits"), [("F32", 23), ("F16", 10), ("BF16", 7)])
def test_steps_below_a_rounding_add_up_where_what_is_owed_is_kept(dtype: str, bits: int) -> None:
    layout, ulp = Layout.placed([("w", dtype, (3,))]), 2.0**-bits

    def tree(*numbers: float) -> Tree:
        out = np.empty(layout.nbytes, np.uint8)
        core.from_float(np.array(numbers), dtype, out)
        return Tree(layout, out)

    begin, here, there = tree(1.0, 1.0, -1.0), tree(0.0, 0.0, 0.0), tree(ulp / 8, -ulp / 8, ulp / 8)
    plain, exact, owed = begin, begin, None
    for _ in range(64):
        plain = tree_steps.towards(plain, here, there, 1.0)
        exact, owed = tree_steps.towards_owing(exact, here, there, 1.0, owed)
    assert bytes(plain.buffer) == bytes(begin.buffer)
    assert bytes(exact.buffer) == bytes(tree(1 + 8 * ulp, 1 - 8 * ulp, -1 + 8 * ulp).buffer)


def test_nothing_is_owed_of_what_is_not_finite() -> None:
    x, a, b = (Tree.of({"w": np.array([number, 1.0], np.float32)}) for number in (np.inf, 0.0, np.nan))
    _, owed = tree_steps.towards_owing(x, a, b, 0.5, None)
    assert np.isfinite(owed["w"]).all()


def test_infinity_stays_infinity() -> None:
    tree = Tree.of({"a": np.array([np.inf, -np.inf, np.nan, 2.0])})
    assert np.array_equal(core.scale(tree, 2.0)["a"], [np.inf, -np.inf, np.nan, 4.0], equal_nan=True)
    assert np.isinf(core.add(Tree.of({"a": np.array([1e308])}), Tree.of({"a": np.array([1e308])}))["a"]).all()


@given(trees(bound=1e4))
def test_zeros_are_neutral(made: tuple[Tree]) -> None:
    (tree,) = made
    total = core.add(tree, core.zeros(tree.layout))
    for leaf in tree.layout.leaves:
        before = wide(tree, leaf.name)
        assert np.array_equal(wide(total, leaf.name), before if leaf.dtype in FLOATS else np.maximum(before, 0))


@given(trees(count=2, bound=100.0))
def test_dot_and_norm(made: tuple[Tree, Tree]) -> None:
    a, b = made
    pairs = [(wide(a, leaf.name), wide(b, leaf.name)) for leaf in a.layout.leaves if leaf.dtype in FLOATS]
    size = sum(float(np.sum(np.abs(x * y))) for x, y in pairs)
    assert core.dot(a, b) == pytest.approx(sum(float(np.sum(x * y)) for x, y in pairs), abs=1e-5 * size + 1e-30)
    assert core.norm(a) == pytest.approx(np.sqrt(sum(float(np.sum(x * x)) for x, _ in pairs)), rel=1e-5, abs=1e-20)


@given(trees(bound=1e4))
def test_the_norm_bounds_every_number(made: tuple[Tree]) -> None:
    """To the accuracy of float32: a fixed-point sum keeps a factor of two in hand."""
    (tree,) = made
    for leaf in tree.layout.leaves:
        if leaf.dtype in FLOATS:
            assert np.abs(wide(tree, leaf.name)).max(initial=0.0) <= core.norm(tree) * (1 + 1e-6) + 1e-22


@given(st.data())
def test_a_number_that_is_not_finite_is_found(data: st.DataObject) -> None:
    layout = data.draw(layouts(tuple(FLOATS)).filter(lambda one: one.elements > 0))
    tree = data.draw(trees_of(layout, bound=1e4))
    assert tree_checks.first_not_finite(tree) is None
    assert np.isfinite(core.norm(tree))
    leaf = data.draw(st.sampled_from([leaf for leaf in layout.leaves if leaf.elements]))
    place = data.draw(st.integers(0, leaf.elements - 1))
    bits = {"F64": (np.inf, np.nan), "F32": (np.inf, np.nan), "F16": (np.inf, np.nan), "BF16": (0x7F80, 0x7FC0)}
    bad = data.draw(st.sampled_from(bits[leaf.dtype]))
    buffer = tree.buffer.copy()
    buffer[leaf.start : leaf.stop].view(DTYPES[leaf.dtype])[place] = bad
    spoiled = Tree(layout, buffer)
    assert tree_checks.first_not_finite(spoiled) == (leaf.name, place)
    assert not np.isfinite(core.norm(spoiled))


@pytest.mark.parametrize("operation", [core.add, core.sub, core.dot])
def test_different_layouts_are_told_apart(operation) -> None:
    a = Tree.of({"w": np.zeros(2, np.float32), "v": np.zeros(2, np.float32)})
    for other, told in (
        ({"w": np.zeros(3, np.float32), "v": np.zeros(2, np.float32)}, r"w is F32\[2\] in one tree, w is F32\[3\]"),
        ({"w": np.zeros(2), "v": np.zeros(2, np.float32)}, r"v is F32\[2\] in one tree, w is F64\[2\]"),
        ({"v": np.zeros(2, np.float32)}, "one tree has 2 tensors, the other 1"),
    ):
        with pytest.raises(InvalidPayload, match=told) as caught:
            operation(a, Tree.of(other))
        assert caught.value.code == "payload.layout"


class OnDisk:
    """Bytes that are read piece by piece, and remember how large the pieces were."""

    def __init__(self, data: bytes) -> None:
        self.data, self.largest = data, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, part: slice) -> bytes:
        piece = self.data[part]
        self.largest = max(self.largest, len(piece))
        return piece


def test_what_lies_on_disk_is_read_piece_by_piece(monkeypatch) -> None:
    monkeypatch.setattr(core, "BLOCK_ELEMENTS", 1000)
    here = Tree.of({"a": np.linspace(-1, 1, 300_000), "n": np.arange(200_000)})
    disks = [OnDisk(here.buffer.tobytes()) for _ in range(2)]
    there, other = (Tree(here.layout, disk) for disk in disks)
    assert core.norm(there) == core.norm(here)
    assert core.dot(there, other) == core.dot(here, here)
    assert bytes(core.combine(there, other, 0.5, 0.25).buffer) == bytes(core.combine(here, here, 0.5, 0.25).buffer)
    assert bytes(core.sub(there, other).buffer) == bytes(core.sub(here, here).buffer)
    assert all(disk.largest == 8000 for disk in disks)
    assert core.digest(there) == core.digest(here)
    assert disks[0].largest <= 1 << 20
    assert there["n"].tolist() == here["n"].tolist()
