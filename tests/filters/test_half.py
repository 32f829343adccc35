"""Half precision: its bytes, its error, and what lies beyond its range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob
from shoal.core.model.tree import DTYPES, FLOATS, Layout, Tree
from shoal.core.model.tree_checks import first_not_finite
from shoal.filters.half import WIDE, Half
from tests.core.strategies import layouts, trees, wide

FORMS = st.sampled_from(["bf16", "fp16"])
ERROR = {"bf16": 2**-8, "fp16": 2**-11}
"""Relative error of a number: half a unit of 8 and of 11 bits."""
LEAST = {"bf16": 2**-133, "fp16": 2**-24}
"""The smallest number above zero."""


@given(trees(bound=1000.0), FORMS)
def test_what_comes_back_is_near(drawn: tuple[Tree, ...], form: Any) -> None:
    (tree,) = drawn
    one = Half(form)
    sent = one.encode(tree, 0)
    assert sent.layout == one.layout(tree.layout)
    again = one.decode(sent, tree.layout)
    assert again.layout == tree.layout
    for leaf in tree.layout.leaves:
        before, after = wide(tree, leaf.name), wide(again, leaf.name)
        if leaf.dtype in WIDE:
            assert np.all(np.abs(after - before) <= np.abs(before) * ERROR[form] * (1 + 1e-6) + LEAST[form])
        else:
            np.testing.assert_array_equal(before, after)


@given(layouts(), FORMS)
def test_wide_numbers_cost_two_bytes_and_others_what_they_did(layout: Layout, form: Any) -> None:
    expected = sum(leaf.elements * (2 if leaf.dtype in WIDE else DTYPES[leaf.dtype].itemsize) for leaf in layout.leaves)
    assert Half(form).layout(layout).nbytes == expected


def test_a_large_tree_is_rounded_to_its_end() -> None:
    """More numbers than are handled at once."""
    values = np.random.default_rng(1).standard_normal(200_003).astype(np.float32)
    again = Half("fp16").decode(Half("fp16").encode(Tree.of({"w": values}), 0), Tree.of({"w": values}).layout)
    np.testing.assert_array_equal(again["w"], values.astype(np.float16).astype(np.float32))


def test_ties_go_to_the_even_number() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    again = Half("bf16").decode(Half("bf16").encode(Tree.of({"w": values}), 0), Tree.of({"w": values}).layout)
    assert again["w"].tolist() == [1.0, 1 + 2**-6]


@pytest.mark.parametrize(("form", "fits"), [("bf16", True), ("fp16", False)])
def test_a_number_beyond_the_range_is_seen_as_such(form: Any, fits: bool) -> None:
    tree = Tree.of({"w": np.array([1.0, 70_000.0], np.float32)})
    again = Half(form).decode(Half(form).encode(tree, 0), tree.layout)
    assert (first_not_finite(again) is None) is fits


def test_a_form_that_is_none() -> None:
    with pytest.raises(InvalidJob, match="bf16 or fp16"):
        Half("fp8")  # type: ignore[arg-type]


def test_all_of_floats_are_known() -> None:
    assert WIDE < FLOATS
