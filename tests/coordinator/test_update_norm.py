"""The norm of a body that is measured while it arrives is the norm of the body that arrived."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.model.tree import BLOCK_ELEMENTS, Slots, Tree
from shoal.wire.payload import layouts_of, measure, payload_layout, payload_pieces
from shoal_coordinator.updates.streaming_norm import StreamingNorm


def body(slots: Slots) -> bytes:
    return b"".join(bytes(piece) for piece in payload_pieces(slots))


def metered(slots: Slots, cuts: list[int]) -> float | None:
    """Return a meter's result for the body in pieces that end at these places."""
    data = body(slots)
    meter = StreamingNorm(payload_layout(layouts_of(slots)))
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        meter.feed(data[start:stop])
    return meter.norm


def mixed(seed: int, elements: int) -> Slots:
    """Trees of several types, empty and whole tensors among them, and a number."""
    draw = np.random.default_rng(seed)
    arrays = {
        "a": draw.standard_normal(elements),
        "b": draw.standard_normal((elements, 3)).astype(np.float32),
        "c": draw.integers(-9, 9, elements),
        "d": np.zeros((0, 4), np.float32),
        "e": draw.standard_normal(elements).astype(np.float16),
        "f": draw.integers(0, 0x4000, elements).astype(np.uint16),
        "g": draw.integers(0, 2, elements).astype(bool),
    }
    arrays |= {"v.var": draw.uniform(0, 1e3, elements), "v.mean": draw.uniform(-9, 9, elements).astype(np.float16)}
    other = Tree.of({"w": draw.standard_normal(elements).astype(np.float32)})
    model = Tree.of(arrays, {"f": "BF16"}, statistics=["v.var", "v.mean"])
    return {"model": model, "c": other, "step": -float(elements) * 1e20}


@given(st.integers(0, 99), st.integers(1, 200), st.lists(st.integers(0, 10_000), max_size=12))
def test_the_norm_does_not_depend_on_the_chunks(seed: int, elements: int, cuts: list[int]) -> None:
    slots = mixed(seed, elements)
    assert metered(slots, cuts) == measure(slots)
    del slots["step"]
    assert metered(slots, cuts) == measure(slots)


@pytest.mark.parametrize("step", [1, 4093, 65_536, 256_000, 10**9])
def test_large_updates_are_measured_in_the_blocks_of_aggregation(step: int) -> None:
    draw = np.random.default_rng(0)
    size = 50 if step == 1 else 3 * BLOCK_ELEMENTS + 17
    slots: Slots = {"model": Tree.of({"w": draw.standard_normal(size).astype(np.float32), "v": draw.normal(size=size)})}
    assert metered(slots, list(range(0, 13 * size, step))) == measure(slots)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("place", ["model", "c", "step"])
def test_non_finite_values_are_left_to_the_full_check(value: float, place: str) -> None:
    slots = mixed(1, 20)
    slots["step"] = 1.0
    if place == "step":
        slots["step"] = value
    else:
        slots[place] = Tree.of({"w": np.array([1.0, value, 1.0], np.float32)})
    expected = 1e30 if (place, value) == ("step", 1e30) else None
    assert metered(slots, [7]) == expected


@pytest.mark.parametrize("cuts", [[], [1], list(range(0, 2000, 97))])
def test_invalid_booleans_are_left_to_the_full_check(cuts: list[int]) -> None:
    for value in (0, 1, 2, 255):
        mask = np.ones(1000, np.uint8)
        mask[700] = value
        slots: Slots = {"model": Tree.of({"mask": mask.view(bool), "w": np.ones(3)})}
        assert metered(slots, cuts) == (None if value > 1 else measure(slots))


@pytest.mark.parametrize("cuts", [[], [1], list(range(0, 600_000, 9973))])
@pytest.mark.parametrize("name", ["bn.var", "bn.mean"])
def test_invalid_statistics_are_left_to_the_full_check(name: str, cuts: list[int]) -> None:
    for value in (1.0, -1.0, np.nan, np.inf):
        arrays = {one: np.full(BLOCK_ELEMENTS + 9, 1e3, np.float32) for one in ("bn.mean", "bn.var", "w")}
        arrays[name][-1] = value
        slots: Slots = {"model": Tree.of(arrays, statistics=["bn.mean", "bn.var"])}
        fits = value == 1.0 or (value == -1.0 and name == "bn.mean")
        assert metered(slots, cuts) == (measure(slots) if fits else None)


def test_an_update_of_numbers_without_tensors_has_a_norm() -> None:
    assert metered({"step": -2.5}, []) == 2.5
    assert metered({"model": Tree.of({"n": np.arange(5)})}, []) == 0.0
