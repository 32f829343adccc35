"""Divisions: every example in exactly one part, the same for the same seed, and shaped as their names say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob
from shoal.learn.data.partition import by_group, chosen, dirichlet, divided, iid, quantity, shards, train_test_split

SEEDS = st.integers(0, 2**32)
LABELS = st.lists(st.integers(0, 9), min_size=12, max_size=200)


def whole(parts: list[np.ndarray], examples: int) -> bool:
    """Return whether every example is in exactly one part, each part sorted."""
    ordered = all((np.diff(part) > 0).all() for part in parts)
    return ordered and sorted(np.concatenate(parts).tolist()) == list(range(examples))


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return [part.tolist() for part in a] == [part.tolist() for part in b]


@given(st.integers(1, 300), st.integers(1, 20), SEEDS)
def test_iid_parts_are_equal(examples: int, parts: int, seed: int) -> None:
    if parts > examples:
        with pytest.raises(InvalidJob, match="cannot be divided"):
            iid(examples, parts, seed)
        return
    found = iid(examples, parts, seed)
    assert whole(found, examples)
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert same(found, iid(examples, parts, seed))


@given(LABELS, st.integers(1, 12), st.sampled_from([0.01, 0.5, 100.0]), SEEDS)
def test_dirichlet_parts_are_whole_and_never_empty(labels: list[int], parts: int, alpha: float, seed: int) -> None:
    found = dirichlet(labels, parts, alpha, seed)
    assert whole(found, len(labels))
    assert min(map(len, found)) >= 1
    assert same(found, dirichlet(labels, parts, alpha, seed))


@given(LABELS, st.integers(1, 6), st.integers(1, 2), SEEDS)
def test_shards_parts_are_whole(labels: list[int], parts: int, per_part: int, seed: int) -> None:
    found = shards(labels, parts, per_part, seed)
    assert whole(found, len(labels))
    assert same(found, shards(labels, parts, per_part, seed))


@given(st.integers(20, 300), st.integers(1, 20), st.sampled_from([0.01, 0.5, 100.0]), SEEDS)
def test_quantity_parts_are_whole_and_never_empty(examples: int, parts: int, beta: float, seed: int) -> None:
    found = quantity(examples, parts, beta, seed)
    assert whole(found, examples)
    assert min(map(len, found)) >= 1
    assert same(found, quantity(examples, parts, beta, seed))


def test_beta_sets_how_unequal_the_sizes_are() -> None:
    def largest(beta: float) -> float:
        """The largest part's fraction of all examples, on average."""
        return float(np.mean([max(map(len, quantity(1000, 10, beta, seed))) / 1000 for seed in range(10)]))

    assert largest(0.05) > 0.6
    assert largest(100.0) < 0.15


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=80), st.integers(1, 4))
def test_groups_stay_together(groups: list[str], parts: int) -> None:
    alone = by_group(groups)
    assert whole(alone, len(groups))
    assert all(len({groups[at] for at in part}) == 1 for part in alone)
    assert len(alone) == len(set(groups))
    if parts <= len(alone):
        dealt = by_group(groups, parts)
        assert whole(dealt, len(groups))
        assert len(dealt) == parts
        assert min(map(len, dealt)) >= 1
        assert all(sum(name in {groups[at] for at in part} for part in dealt) == 1 for name in set(groups))


def test_seeds_differ() -> None:
    labels = np.arange(200) % 10
    for one, other in ((iid(200, 4, 0), iid(200, 4, 1)), (shards(labels, 10, 2, 0), shards(labels, 10, 2, 1))):
        assert not same(one, other)
    assert not same(dirichlet(labels, 4, 0.5, 0), dirichlet(labels, 4, 0.5, 1))


def test_mcmahans_pathological_split() -> None:
    """100 clients, 200 shards of 300, two each: at most two classes in nearly every client, 600 examples in all."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    found = shards(labels, 100, 2)
    assert {len(part) for part in found} == {600}
    assert max(len(set(labels[part].tolist())) for part in found) == 2


def test_alpha_sets_how_alike_the_parts_are() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))

    def classes(alpha: float) -> float:
        """How many classes make up nine tenths of a part, on average."""
        counts = [np.sort(np.bincount(labels[part], minlength=10))[::-1] for part in dirichlet(labels, 8, alpha)]
        return float(np.mean([np.searchsorted(np.cumsum(count), 0.9 * count.sum()) + 1 for count in counts]))

    assert classes(0.05) < 4
    assert classes(100.0) > 8


@given(st.integers(1, 60), st.sampled_from([0.0, 0.01, 0.2, 0.9]), SEEDS)
def test_the_test_part_is_a_fraction(examples: int, share: float, seed: int) -> None:
    own = np.arange(examples) * 3
    train, test = train_test_split(own, share, seed)
    assert sorted([*train, *test]) == own.tolist()
    assert len(train) >= 1
    assert len(test) == (0 if share == 0 else min(examples - 1, max(1, round(share * examples))))


def test_splits_by_name() -> None:
    labels = np.arange(60) % 5
    assert same(divided("iid", labels, 4, 7), iid(60, 4, 7))
    assert same(divided("dirichlet:0.5", labels, 4, 7), dirichlet(labels, 4, 0.5, 7))
    assert same(divided("shards:3", labels, 4, 7), shards(labels, 4, 3, 7))
    assert same(divided("shards", labels, 4, 7), shards(labels, 4, 2, 7))
    assert same(divided("quantity:0.5", labels, 4, 7), quantity(60, 4, 0.5, 7))


@pytest.mark.parametrize(
    "form",
    ["", "IID", "iid:2", "dirichlet", "dirichlet:x", "dirichlet:0", "dirichlet:nan", "quantity", "quantity:0"],
)
def test_unknown_splits_are_refused(form: str) -> None:
    with pytest.raises(InvalidJob):
        divided(form, np.arange(60) % 5, 4)


@pytest.mark.parametrize("form", ["shards:x", "shards:0", "shards:-1", "shards:16", "iid\n"])
def test_impossible_shards_are_refused(form: str) -> None:
    with pytest.raises(InvalidJob):
        divided(form, np.arange(60) % 5, 4)


def test_parts_are_numbered() -> None:
    parts = iid(10, 2)
    assert chosen(parts, 1) is parts[1]
    for wrong in (-1, 2):
        with pytest.raises(InvalidJob, match="no part") as told:
            chosen(parts, wrong)
        assert told.value.hint == "parts are numbered 0 to 1"


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_impossible_test_shares_are_refused(share: float) -> None:
    with pytest.raises(InvalidJob, match="test fraction"):
        train_test_split(np.arange(5), share)
