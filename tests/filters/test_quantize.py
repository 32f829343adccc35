"""Quantization: its form, its error, no bias, and what hostile bytes come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.algorithm.filter import pack, pack_difference, packed_layouts, unpack, unpack_difference, unpack_tree
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.tree import DTYPES, FLOATS, Array, Layout, Tree, digest, sub
from shoal.filters.quantize import Quantize
from shoal.wire.payload import measure
from tests.core.strategies import layouts, trees, wide

BITS = st.sampled_from([8, 4])
BUCKETS = st.sampled_from([2, 6, 512])
LEVELS = {8: 127, 4: 7}
ROUNDING = {"F64": 2**-23, "F32": 2**-23, "F16": 2**-10, "BF16": 2**-7}
"""Relative error of storing a number in that type, and of the filter's own arithmetic in float32."""


def flat(tree: Tree) -> Array:
    """All floats in the order in which they are packed."""
    parts = [wide(tree, leaf.name).reshape(-1) for leaf in tree.layout.leaves if leaf.dtype in FLOATS]
    return np.concatenate([np.zeros(0), *parts])


def scales_of(values: Array, bucket: int) -> Array:
    """The scale that each number gets, by hand: the greatest magnitude of its bucket."""
    padded = np.zeros(-(-values.size // bucket) * bucket)
    padded[: values.size] = np.abs(values)
    return np.repeat(padded.reshape(-1, bucket).max(axis=1), bucket)[: values.size]


@given(trees(bound=1000.0), BITS, BUCKETS, st.integers(0, 2**56))
def test_what_comes_back_is_near(drawn: tuple[Tree, ...], bits: Any, bucket: int, seed: int) -> None:
    (tree,) = drawn
    one = Quantize(bits, bucket)
    sent = one.encode(tree, seed)
    assert sent.layout == one.layout(tree.layout)
    again = one.decode(sent, tree.layout)
    assert again.layout == tree.layout
    for leaf in tree.layout.leaves:
        if leaf.dtype not in FLOATS:
            np.testing.assert_array_equal(again[leaf.name], tree[leaf.name])
    before, after = flat(tree), flat(again)
    rounding = np.repeat([ROUNDING[leaf.dtype] for leaf in floats(tree)], [leaf.elements for leaf in floats(tree)])
    scales = scales_of(before, bucket)
    assert np.all(np.abs(after - before) <= scales / LEVELS[bits] * (1 + 1e-5) + 2 * scales * rounding + 1e-7)


def floats(tree: Tree) -> list[Any]:
    return [leaf for leaf in tree.layout.leaves if leaf.dtype in FLOATS]


@given(layouts(), BITS, BUCKETS)
def test_sizes_are_the_documented_ones(layout: Layout, bits: Any, bucket: int) -> None:
    """`bits` for each float, in whole buckets; four bytes for each bucket; whole numbers as they are."""
    numbers = sum(leaf.elements for leaf in layout.leaves if leaf.dtype in FLOATS)
    whole = sum(leaf.stop - leaf.start for leaf in layout.leaves if leaf.dtype not in FLOATS)
    buckets = -(-numbers // bucket)
    assert Quantize(bits, bucket).layout(layout).nbytes == buckets * bucket * bits // 8 + 4 * buckets + whole


@pytest.mark.parametrize(("bits", "nbytes"), [(8, 4 * 512 + 4 * 4), (4, 4 * 256 + 4 * 4)])
def test_bytes_of_a_model(bits: Any, nbytes: int) -> None:
    layout = Layout.of([("w", "F32", (40, 50)), ("b", "F32", (10,))])  # 2,010 numbers: four buckets
    assert Quantize(bits).layout(layout).nbytes == nbytes


def test_two_numbers_in_a_byte_and_their_places() -> None:
    """-7 to 7 are sent as 1 to 15; the first of two is in the lower half."""
    tree = Tree.of({"w": np.array([-7, 7, 3, 0], np.float32)})
    sent = Quantize(4, 4).encode(tree, 0)
    assert sent["codes"].tolist() == [1 | 15 << 4, 11 | 8 << 4]
    assert sent["scales"].tolist() == [7.0]
    eight = Quantize(8, 4).encode(Tree.of({"w": np.array([-127, 127, 64, 0], np.float32)}), 0)
    assert eight["codes"].view(np.int8).tolist() == [-127, 127, 64, 0]


@pytest.mark.parametrize("bits", [8, 4])
def test_there_is_no_bias(bits: Any) -> None:
    """The mean over many seeds comes as near as chance allows: five standard errors of a uniform rounding."""
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    tree, one, seeds = Tree.of({"w": values}), Quantize(bits), 400
    total = np.zeros(1000)
    for seed in range(seeds):
        total += one.decode(one.encode(tree, seed), tree.layout)["w"]
    unit = scales_of(values.astype(np.float64), 512) / LEVELS[bits]
    assert np.all(np.abs(total / seeds - values) <= 5 * unit * 0.5 / np.sqrt(seeds))
    assert abs(float(np.mean((total / seeds - values) / unit))) < 5 * 0.5 / np.sqrt(seeds * 1000)


def test_the_seed_alone_decides() -> None:
    tree = Tree.of({"w": np.random.default_rng(1).standard_normal(300_000).astype(np.float32)})
    first, same, other = (digest(Quantize(8).encode(tree, seed)) for seed in (1, 1, 2))
    assert first == same != other


def test_zeros_stay_zeros() -> None:
    tree = Tree.of({"w": np.zeros(700, np.float32)})
    for bits in (8, 4):
        one = Quantize(bits)  # type: ignore[arg-type]
        assert not np.any(one.decode(one.encode(tree, 3), tree.layout)["w"])


@pytest.mark.parametrize("value", [1e-45, 1e-38, 1e-30, 3e38])
def test_the_smallest_and_the_greatest_numbers(value: float) -> None:
    tree = Tree.of({"w": np.array([value, -value, value / 2, 0], np.float32)})
    for bits in (8, 4):
        one = Quantize(bits, 2)  # type: ignore[arg-type]
        again = one.decode(one.encode(tree, 3), tree.layout)["w"].astype(np.float64)
        scales = scales_of(tree["w"].astype(np.float64), 2)
        assert np.all(np.abs(again - tree["w"]) <= scales / LEVELS[bits] * (1 + 1e-5) + 4e-37)


@given(trees(count=2, bound=100.0), BITS, st.integers(0, 2**56))
def test_sender_and_receiver_have_the_same_model(drawn: tuple[Tree, ...], bits: Any, seed: int) -> None:
    model, base = drawn
    filters = (Quantize(bits, 6),)
    sent, mine = pack_difference(filters, model, base, seed)
    assert digest(unpack_difference(filters, sent, base)) == digest(mine)
    assert digest(unpack_tree(filters, sent, base.layout)) == digest(
        unpack_tree(filters, sent, sub(model, base).layout)
    )


def test_packed_slots_are_checked_before_they_are_opened() -> None:
    filters = (Quantize(8, 4),)
    tree = Tree.of({"w": np.arange(5, dtype=np.float32), "n": np.array(3)})
    layouts_ = {"model": tree.layout, "turn": None}
    sent = pack(filters, {"model": tree, "turn": 2.0}, 7)
    form = packed_layouts(filters, layouts_)
    assert {name: value.layout if isinstance(value, Tree) else None for name, value in sent.items()} == form
    again = unpack(filters, sent, layouts_)
    assert (again["turn"], int(again["model"]["n"])) == (2.0, 3)  # type: ignore[index, call-overload]
    for wrong, code in (
        ({"model": sent["model"]}, "payload.slots"),
        ({"model": 1.0, "turn": 2.0}, "payload.slots"),
        ({"model": tree, "turn": 2.0}, "payload.layout"),
        ({"model": sent["model"], "turn": tree}, "payload.slots"),
    ):
        with pytest.raises(InvalidPayload) as caught:
            unpack(filters, wrong, layouts_)
        assert caught.value.code == code


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_made_up_scale_is_seen_when_it_is_measured(scale: float, bits: Any) -> None:
    """Decoding neither warns nor fails; the result is not finite, or as large as stated."""
    one = Quantize(bits, 4)
    layout = Layout.of([("w", "F16", (4,))])
    codes = np.full(4 * bits // 8, 0x7F if bits == 8 else 0xFF, np.uint8)
    sent = Tree.of({"codes": codes, "scales": np.array([scale], np.float32)})
    assert sent.layout == one.layout(layout)
    with pytest.raises(InvalidPayload):
        measure({"model": one.decode(sent, layout)})


@given(st.binary(min_size=8, max_size=8), BITS)
def test_any_codes_can_be_decoded(data: bytes, bits: Any) -> None:
    layout = Layout.of([("w", "F32", (64 // bits,))])
    one = Quantize(bits, 64 // bits)
    sent = Tree.of({"codes": np.frombuffer(data, np.uint8).copy(), "scales": np.array([1.0], np.float32)})
    found = one.decode(sent, layout)["w"]
    assert np.all(np.abs(found) <= {8: 128 / 127, 4: 8 / 7}[bits] * (1 + 1e-6))


@pytest.mark.parametrize("fields", [{"bits": 3}, {"bits": 16}, {"bucket": 0}, {"bucket": 7}, {"bucket": 1 << 21}])
def test_bad_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"quantize: (bits|bucket) is"):
        Quantize(**fields)


def test_every_type_can_be_quantized() -> None:
    assert set(ROUNDING) == set(FLOATS)
    assert set(FLOATS) < set(DTYPES)
