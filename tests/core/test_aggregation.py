"""Sums that do not depend on the order of arrival, in memory that is used once."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.model import aggregation, tree
from shoal.core.model.aggregation import FIXED_LIMIT, FIXED_STEP, Totals, TreeSum
from shoal.core.model.tree import DTYPES, FLOATS, Layout, Tree, norm
from tests.core.strategies import layouts, rounded, trees_of, wide
from tests.core.test_tree import OnDisk

FLAT = Layout.of([("a", "F64", (3,))])


@pytest.fixture(params=[tree.BLOCK_ELEMENTS, 2], ids=["one block", "many blocks"], autouse=True)
def blocks(request: pytest.FixtureRequest):
    before, tree.BLOCK_ELEMENTS = tree.BLOCK_ELEMENTS, request.param
    yield
    tree.BLOCK_ELEMENTS = before


@st.composite
def reports(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES), most: int = 6):
    """Some weighted trees of one layout."""
    layout = draw(layouts(dtypes))
    count = draw(st.integers(1, most))
    weights = draw(st.lists(st.floats(0.001, 1000), min_size=count, max_size=count))
    return [(draw(trees_of(layout, bound=100.0)), weight) for weight in weights]


def summed(parts, kind: aggregation.SumKind) -> TreeSum:
    total = TreeSum(parts[0][0].layout, kind)
    for part, weight in parts:
        total.add(part, weight, norm(part))
    return total


def exact_mean(parts, name: str) -> np.ndarray:
    weights = sum(Fraction(weight) for _, weight in parts)
    arrays = [(wide(part, name), Fraction(weight)) for part, weight in parts]
    out = np.empty(arrays[0][0].shape, np.float64)
    for index in np.ndindex(out.shape):
        out[index] = float(sum(weight * Fraction(float(array[index])) for array, weight in arrays) / weights)
    return out


@given(reports(), st.sampled_from(["float64", "fixed"]), st.booleans(), st.sampled_from([1.0, 0.5]))
def test_mean_onto_is_the_mean(parts, kind: aggregation.SumKind, onto: bool, rate: float) -> None:
    """In place, with all types mixed: the same as without tricks, up to the rounding of sum and result."""
    base = parts[0][0] if onto else None
    weight = float(sum(Fraction(weight) for _, weight in parts))
    grain = 1e-12 * 200 + (len(parts) * FIXED_STEP / 2 / weight if kind == "fixed" else 0.0)  # rounded to nearest
    result = summed(parts, kind).mean_onto(base, rate)
    assert result.layout == parts[0][0].layout
    for leaf in result.layout.leaves:
        found = wide(result, leaf.name)
        if leaf.dtype not in FLOATS:
            assert np.array_equal(found, np.max([part[leaf.name] for part, _ in parts], axis=0))
            continue
        wanted = rate * exact_mean(parts, leaf.name) + (wide(base, leaf.name) if base is not None else 0.0)
        low, high = rounded(wanted - grain, leaf.dtype), rounded(wanted + grain, leaf.dtype)
        assert np.all((low <= found) & (found <= high))


@given(reports(dtypes=("F64",)), st.randoms())
def test_float64_sums_do_not_depend_on_the_order(parts, random) -> None:
    again = list(parts)
    random.shuffle(again)
    one, two = summed(parts, "float64").mean_onto(), summed(again, "float64").mean_onto()
    size = max((float(np.abs(wide(part, name)).max(initial=0.0)) for part, _ in parts for name in part), default=0.0)
    for name in one:
        assert np.abs(one[name] - two[name]).max(initial=0.0) <= 1e-12 * max(size, 1.0)


@given(reports(), st.randoms())
def test_fixed_sums_are_the_same_bits_in_any_order(parts, random) -> None:
    again = list(parts)
    random.shuffle(again)
    one, two = summed(parts, "fixed"), summed(again, "fixed")
    assert one.weight == two.weight
    assert one.mean_onto(parts[0][0]).buffer.tobytes() == two.mean_onto(parts[0][0]).buffer.tobytes()


def test_single_precision_would_depend_on_the_order() -> None:
    """So the two tests above test something."""
    parts = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    forth = back = np.float32(0)
    for one, two in zip(parts, reversed(parts), strict=True):
        forth, back = forth + one, back + two
    assert forth != back


def test_whole_numbers_take_the_greatest() -> None:
    layout = Layout.of([("n", "I64", (2,)), ("u", "U8", ()), ("flag", "BOOL", (2,))])
    total = TreeSum(layout)
    big = 2**53 + 1  # no float64
    for n, u, flag in (([-5, big], 250, [False, False]), ([-7, 3], 7, [True, False])):
        part = Tree.of({"n": np.array(n), "u": np.array(u, np.uint8), "flag": np.array(flag)})
        total.add(part, 2.0, 0.0)
    base = {"n": np.array([-4, 0]), "u": np.array(9, np.uint8), "flag": np.array([False, True])}
    result = total.mean_onto(Tree.of(base))
    assert result["n"].tolist() == [-4, big]
    assert result["u"] == 250
    assert result["flag"].tolist() == [True, True]


def test_the_result_lies_in_the_memory_of_the_sum() -> None:
    total = TreeSum(FLAT)
    cells = total._cells
    total.add(Tree.of({"a": np.ones(3)}), 1.0, 2.0)
    assert np.shares_memory(total.mean_onto().buffer, cells)


def test_a_sum_holds_eight_bytes_for_each_float_and_whole_numbers_as_they_are() -> None:
    assert TreeSum(Layout.of([("h", "F16", (1000,)), ("i", "I8", (24,))]))._cells.nbytes == 8 * 1000 + 24


@pytest.mark.parametrize("kind", ["float64", "fixed"])
def test_what_lies_on_disk_is_added_piece_by_piece(kind: aggregation.SumKind, monkeypatch) -> None:
    monkeypatch.setattr(tree, "BLOCK_ELEMENTS", 1000)
    here = Tree.of({"a": np.linspace(-1, 1, 50_000), "b": np.ones(7_000, np.float16), "n": np.arange(9_000)})
    disk, base = OnDisk(here.buffer.tobytes()), OnDisk(here.buffer.tobytes())
    total = TreeSum(here.layout, kind)
    total.add(Tree(here.layout, disk), 3.0, norm(here))
    result = total.mean_onto(Tree(here.layout, base))
    assert disk.largest == base.largest == 8000
    assert np.allclose(result["a"], 2 * here["a"])
    assert result["n"].tolist() == here["n"].tolist()


# Refusals


def state_of(totals: Totals) -> tuple:
    kept = {name: (part.weight, part.bound, part._cells.tobytes()) for name, part in totals.trees.items()}
    return totals.weight, dict(totals.numbers), kept


@pytest.mark.parametrize(
    ("kind", "weight", "size"),
    [
        ("fixed", 1.0, FIXED_LIMIT),
        ("fixed", 1e9, 1.0),
        ("fixed", 1.0, np.inf),
        ("fixed", 1.0, np.nan),
        ("float64", 1e300, 1e10),
        ("float64", 1.0, np.inf),
        ("float64", 1.0, np.nan),
    ],
)
def test_what_could_overflow_is_refused_and_changes_nothing(
    kind: aggregation.SumKind, weight: float, size: float
) -> None:
    totals = Totals(kind)
    totals.add({"model": Tree.of({"a": np.ones(3)}), "turn": 2.0}, 5.0, 2.0)
    before = state_of(totals)
    with pytest.raises(Refused, match=f"a {kind} sum holds magnitudes up to") as caught:
        totals.add({"turn": 1.0, "model": Tree.of({"a": np.full(3, size)})}, weight, size)
    assert caught.value.code == "sum.overflow"
    assert ("float64" in caught.value.hint) == (kind == "fixed")
    assert state_of(totals) == before


def test_fixed_point_has_a_factor_of_two_in_hand() -> None:
    assert FIXED_STEP == 2.0**-40
    assert FIXED_LIMIT / FIXED_STEP == 2.0**62


def test_the_bound_counts_all_that_was_added() -> None:
    total = TreeSum(FLAT, "fixed")
    part = Tree.of({"a": np.full(3, FIXED_LIMIT / 8)})
    for _ in range(7):
        total.add(part, 1.0, FIXED_LIMIT / 8)
    with pytest.raises(Refused):
        total.add(part, 1.0, FIXED_LIMIT / 8)
    assert total.mean_onto()["a"].tolist() == [FIXED_LIMIT / 8] * 3


@pytest.mark.parametrize(
    "bad", [{"turn": np.nan}, {"turn": np.inf}, {"extra": Tree.of({"b": np.zeros(2)}), "turn": -np.inf}]
)
def test_a_bad_number_leaves_no_half_of_its_report(bad) -> None:
    totals = Totals()
    before = state_of(totals)
    with pytest.raises(Refused, match="turn is"):
        totals.add({"model": Tree.of({"a": np.ones(3)}), **bad}, 1.0, 1.0)
    assert state_of(totals) == before
    totals.add({"model": Tree.of({"a": np.ones(3)}), "turn": 1.0}, 1.0, 1.0)
    before = state_of(totals)
    with pytest.raises(Refused, match="turn is"):
        totals.add({"model": Tree.of({"a": np.ones(3)}), **bad}, 1.0, 1.0)
    assert state_of(totals) == before


def test_another_layout_is_refused_and_changes_nothing() -> None:
    totals = Totals()
    totals.add({"model": Tree.of({"a": np.ones(3)})}, 1.0, 2.0)
    before = state_of(totals)
    with pytest.raises(InvalidPayload, match="a is F64"):
        totals.add({"model": Tree.of({"a": np.ones(4)})}, 1.0, 2.0)
    assert state_of(totals) == before


def test_a_mean_out_of_its_type_is_infinite_and_no_warning() -> None:
    layout = Layout.of([("h", "F16", (1,)), ("b", "BF16", (1,))])
    part = Tree.of({"h": np.array([6e4], np.float16), "b": np.array([0x7F7F], np.uint16)}, {"b": "BF16"})
    total = TreeSum(layout)
    total.add(part, 1.0, norm(part) if np.isfinite(norm(part)) else 4e38)
    result = total.mean_onto(part)
    assert np.isinf(result["h"]).all()
    assert np.isinf(result["b"]).all()


# Totals


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.001, 1e6)), min_size=1, max_size=20), st.randoms())
def test_numbers_and_weights_are_exact_in_any_order(parts, random) -> None:
    again = list(parts)
    random.shuffle(again)
    one, two = Totals(), Totals()
    for totals, order in ((one, parts), (two, again)):
        for value, weight in order:
            totals.add({"turn": value}, weight, 0.0)
    assert one == two
    weights = sum(Fraction(weight) for _, weight in parts)
    assert one.weight == weights
    wanted = sum(Fraction(value) * Fraction(weight) for value, weight in parts) / weights
    assert one.mean_number("turn") == float(wanted)


def test_slots_have_their_own_means() -> None:
    totals = Totals()
    for value, weight in ((1.0, 1.0), (4.0, 2.0)):
        part = Tree.of({"a": np.full(3, value)})
        totals.add({"model": part, "c": part}, weight, 8.0)
    assert totals.mean("c")["a"].tolist() == [3.0] * 3
    assert totals.mean_onto("model", Tree.of({"a": np.arange(3.0)}))["a"].tolist() == [3.0, 4.0, 5.0]
    assert totals.trees == {}
