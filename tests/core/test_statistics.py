"""Statistics among a model's tensors: named in its layout, carried as values, averaged and never stepped."""

from __future__ import annotations

import json
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.algorithm.filter import pack_with_feedback, unpack_tree
from shoal.core.errors import InvalidPayload
from shoal.core.model.aggregation import SumKind, Totals, TreeSum
from shoal.core.model.flat_view import count_floats, row, with_row
from shoal.core.model.model_form import differences
from shoal.core.model.sketch import projections
from shoal.core.model.tree import (
    Layout,
    Tree,
    add,
    dot,
    greatest_statistic,
    norm,
    same_layout,
    scale,
    statistics_distance,
    sub,
)
from shoal.core.model.tree_checks import STATISTICS_TIMES_MAX, is_variance, statistics_doubt
from shoal.core.model.tree_steps import towards, towards_owing
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK

MEASURED = ("bn.mean", "bn.var")


def model(w: float = 1.0, mean: float = 0.0, var: float = 1.0, seen: int = 0) -> Tree:
    arrays: dict[str, Any] = {"a.w": np.full(3, w, np.float32), "z.w": np.full(2, w, np.float32)}
    arrays |= {"bn.mean": np.full(2, mean, np.float32), "bn.var": np.full(2, var, np.float32)}
    return Tree.of({**arrays, "seen": np.array(seen)}, statistics=MEASURED)


def read(tree: Tree) -> tuple[float, float, float, int]:
    """The first number of each kind: weight, mean, variance and counter."""
    return (float(tree["a.w"][0]), float(tree["bn.mean"][0]), float(tree["bn.var"][0]), int(tree["seen"]))


# The layout


def test_they_follow_the_weights_of_their_type_and_stand_in_the_header() -> None:
    layout = model().layout
    assert [leaf.name for leaf in layout.leaves] == ["seen", "a.w", "z.w", "bn.mean", "bn.var"]
    assert [(one.dtype, one.is_weight, one.is_statistic) for one in layout.segments] == [
        ("I64", False, False),
        ("F32", True, False),
        ("F32", False, True),
    ]
    entries = json.loads(layout.header[8:])
    assert next(iter(entries)) == "__metadata__"
    assert entries["__metadata__"] == {"statistics": '["bn.mean","bn.var"]'}
    assert layout.shown["bn.var"] == "F32[2] statistic"


def test_a_model_without_any_has_the_bytes_that_it_would_have() -> None:
    plain = Tree.of({"w": np.ones(2, np.float32)})
    assert b"metadata" not in plain.layout.header
    assert plain.layout == Tree.of({"w": np.ones(2, np.float32)}, statistics=[]).layout


def test_safetensors_reads_such_a_file() -> None:
    tree = model(2.0, 3.0, 4.0, 5)
    found = safetensors.numpy.load(tree.layout.header + bytes(tree.buffer))
    assert {name: found[name].tolist() for name in found} == {name: tree[name].tolist() for name in tree}


@pytest.mark.parametrize("name", ["nowhere", "seen"])
def test_only_tensors_of_floats_can_be(name: str) -> None:
    with pytest.raises(InvalidPayload, match=f"the statistic {name} is not a tensor of floats") as caught:
        Tree.of({"w": np.ones(2, np.float32), "seen": np.array(1)}, statistics=[name])
    assert caught.value.code == "payload.statistic"


def test_layouts_differ_by_kind_and_the_first_tensor_is_named() -> None:
    layout, other = model().layout, Layout.of([(leaf.name, leaf.dtype, leaf.shape) for leaf in model().layout.leaves])
    assert layout != other
    assert layout.form.digest != other.form.digest
    assert layout.without_kinds == other
    with pytest.raises(InvalidPayload, match=r"bn\.mean is a statistic in one tree, a weight in the other"):
        same_layout(layout, other)
    with pytest.raises(InvalidPayload, match=r"bn\.mean is a weight in one tree, a statistic in the other"):
        add(Tree(other, model().buffer), model())
    assert differences(layout.shown, other.shown)[0] == "bn.mean is F32[2] statistic, not F32[2]"


def test_the_kinds_go_to_another_process() -> None:
    assert ForkingPickler.loads(ForkingPickler.dumps(model())).layout == model().layout


# Arithmetic


def test_displacements_carry_values() -> None:
    moved = sub(model(3.0, 5.0, 7.0, 9), model(1.0, 1.0, 1.0, 2))
    assert read(moved) == (2.0, 5.0, 7.0, 9)
    assert read(scale(moved, -2.0)) == (-4.0, 5.0, 7.0, 9)
    assert read(add(model(), moved, 0.0)) == (1.0, 5.0, 7.0, 9)


@given(st.floats(-3, 3))
def test_a_step_towards_a_model_stays_between_the_two(share: float) -> None:
    here, there = model(1.0, -4.0, 0.5), model(2.0, 6.0, 100.0)
    for made in (towards(here, model(0, 9, 90), there, share), towards_owing(here, here, there, share, None)[0]):
        _, mean, variance, _ = read(made)
        assert -4.0 <= mean <= 6.0
        assert 0.5 <= variance <= 100.0
    assert read(towards(here, here, there, 0.25))[1:3] == pytest.approx((-1.5, 25.375))
    assert read(towards(here, here, there, 1.0))[1:3] == (6.0, 100.0)


def test_lengths_are_those_of_the_weights() -> None:
    tree = model(2.0, 300.0, 1e6)
    assert norm(tree) == pytest.approx(20**0.5)
    assert dot(tree, tree) == pytest.approx(20.0)
    assert row(tree).tolist() == [2.0] * 5


def test_other_views_of_the_weights_have_none_either() -> None:
    tree, other = model(2.0, 3.0, 4.0), model(2.0, 5.0, 6.0)
    assert count_floats(tree.layout) == 5
    assert read(with_row(tree, np.full(5, 7.0, np.float32)))[:3] == (7.0, 3.0, 4.0)
    assert projections(tree, 1, 4).tolist() == projections(other, 1, 4).tolist()
    assert statistics_distance(tree, other) == pytest.approx(4.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_norm_proves_that_they_are_finite(bad: float) -> None:
    assert not np.isfinite(norm(model(1.0, bad)))
    assert greatest_statistic(model(1.0, -3.0, 2.0)) == 3.0
    assert greatest_statistic(Tree.of({"w": np.ones(2, np.float32)})) == 0.0


VALUES = st.floats(0, 1e3, width=32)
REPORTS = st.lists(st.tuples(VALUES, st.floats(0.25, 64)), min_size=1, max_size=5)


@given(REPORTS, st.floats(0.1, 5), VALUES, st.sampled_from(["float64", "fixed"]))
def test_a_mean_lies_between_what_went_into_it(
    reports: list[tuple[float, float]], rate: float, old: float, kind: SumKind
) -> None:
    """On any base and at any rate, no variance becomes negative."""
    total = TreeSum(model().layout, kind)
    for value, weight in reports:
        total.add(model(1.0, value, value), weight, 1e4)
    made = read(total.mean_onto(model(1.0, old, old), rate))
    assert made[0] == pytest.approx(1.0 + rate, rel=1e-6)
    low, high = min(value for value, _ in reports), max(value for value, _ in reports)
    slack = 0.0 if kind == "float64" else 1e-11
    assert low - slack <= made[2] <= high + slack
    expected = sum(value * weight for value, weight in reports) / sum(weight for _, weight in reports)
    assert made[2] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_length_of_a_mean_is_that_of_its_weights() -> None:
    total = TreeSum(model().layout)
    total.add(model(2.0, 50.0, 60.0), 3.0, 100.0)
    assert total.gap() == pytest.approx(20.0)


def test_sums_of_statistics_are_bounded_too() -> None:
    totals = Totals("fixed")
    totals.add({"model": model(1.0, 0.0, 1e3)}, 1.0, 1.0)
    with pytest.raises(Exception, match="holds magnitudes"):
        totals.add({"model": model(1.0, 0.0, 1e7)}, 1.0, 1.0)


# Filters


LISTS = [[Half()], [Quantize()], [TopK(0.4)], [TopK(0.4), Quantize()], [TopK(0.4), Half()]]


@pytest.mark.parametrize("filters", LISTS, ids=lambda one: " ".join(filter_.name for filter_ in one))
def test_filters_send_them_as_they_are(filters: list[Any]) -> None:
    tree = model(1.001, 3.14159, 1e6 + 1, 7)
    sent, left = pack_with_feedback(filters, {"model": tree}, {}, 5)
    assert isinstance(sent["model"], Tree)
    assert sent["model"].layout.statistics
    again = unpack_tree(filters, sent["model"], tree.layout)
    assert read(again)[1:] == read(tree)[1:]
    assert all(isinstance(one, Tree) and one["floats"].shape == (5,) for one in left.values())


def test_their_size_changes_nothing_about_the_weights() -> None:
    for one in (Quantize(), TopK(0.4)):
        small, large = model(1.0, 0.1, 0.1), model(1.0, 1e6, 1e9)
        found = [one.decode(one.encode(tree, 3), tree.layout)["a.w"].tolist() for tree in (small, large)]
        assert found[0] == found[1]


# Checks


@pytest.mark.parametrize(
    "name", ["bn.running_var", "moving_variance", "var", "a.b.ema_var", "var_ema", "=bn.running_var", "VAR", "vars"]
)
def test_a_variance_is_told_by_the_last_part_of_its_name(name: str) -> None:
    assert is_variance(name)


@pytest.mark.parametrize(
    "name", ["var.mean", "running_mean", "invariant", "variate", "log_var", "covariance.mean", "w"]
)
def test_other_names_say_nothing(name: str) -> None:
    assert not is_variance(name)


def test_statistics_of_peers_must_be_possible_and_not_absurd() -> None:
    mine = model(1.0, 2.0, 1.0)
    assert statistics_doubt(model(1.0, -2e5, 1e4), mine) == ""
    assert statistics_doubt(model(1.0, 0.0, -1e-3), mine) == "bn.var is a variance below 0"
    assert "times as great" in statistics_doubt(model(1.0, 0.0, 3 * STATISTICS_TIMES_MAX), mine)
    assert "times as great" in statistics_doubt(model(1.0, np.nan), mine)
