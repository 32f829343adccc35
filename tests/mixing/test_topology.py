"""Graphs and their weights, by their properties."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob
from shoal.core.mixing import topology
from shoal.core.mixing.topology import (
    Graph,
    complete,
    connected,
    halves,
    matrix,
    one_peer,
    regular,
    ring,
    spectral_gap,
    torus,
)

SIZES = st.integers(1, 40)


def names(size: int) -> tuple[str, ...]:
    return tuple(f"n{number:03}" for number in range(size))


def drawn_torus(size: int, seed: int) -> Graph:
    return torus(names(4 * size))


def drawn_regular(size: int, seed: int) -> Graph:
    degree = 2 + seed % 5
    enough = degree + 1 + size
    return regular(names(enough + enough * degree % 2), degree, seed)


GRAPHS: dict[str, Callable[[int, int], Graph]] = {
    "ring": lambda size, seed: ring(names(size)),
    "complete": lambda size, seed: complete(names(size)),
    "torus": drawn_torus,
    "regular": drawn_regular,
}


@pytest.mark.parametrize("draw", GRAPHS.values(), ids=GRAPHS)
@given(size=SIZES, seed=st.integers(0, 1000), tilt=st.floats(0.0, 3.0))
def test_symmetric_connected_and_stochastic(draw, size: int, seed: int, tilt: float) -> None:
    graph = draw(size, seed)
    assert all(node in graph[other] and node != other for node, heard in graph.items() for other in heard)
    assert connected(graph)
    mixing = matrix(graph)
    np.testing.assert_allclose(mixing.sum(axis=0), 1.0)
    np.testing.assert_allclose(mixing.sum(axis=1), 1.0)
    np.testing.assert_array_equal(mixing, mixing.T)
    assert mixing.min() >= 0
    assert mixing.diagonal().min() > 0

    weights = {node: float(np.exp(tilt * np.sin(seed + at))) for at, node in enumerate(graph)}
    towards = matrix(graph, weights)
    target = np.array([weights[node] for node in sorted(graph)])
    np.testing.assert_allclose(towards.sum(axis=1), 1.0)
    np.testing.assert_allclose(target @ towards, target)
    assert towards.min() >= 0


@given(size=SIZES, seed=st.integers(0, 100), degree=st.integers(0, 12))
def test_regular_graphs_are_regular_or_refused(size: int, seed: int, degree: int) -> None:
    there_is_one = degree < size and size * degree % 2 == 0 and (degree > 1 or size == degree + 1)
    if there_is_one:
        graph = regular(names(size), degree, seed)
        assert {len(heard) for heard in graph.values()} == {degree}
        assert graph == regular(names(size), degree, seed)
    else:
        with pytest.raises(InvalidJob) as refused:
            regular(names(size), degree, seed)
        assert refused.value.hint


def test_regular_graphs_differ_by_seed() -> None:
    assert len({str(sorted(map(sorted, regular(names(12), 3, seed).values()))) for seed in range(20)}) > 15


@given(size=SIZES, turn=st.integers(0, 1000))
def test_one_peer_listens_to_one_and_is_heard_by_one(size: int, turn: int) -> None:
    graph = one_peer(names(size), turn)
    wanted = {1} if size > 1 else {0}
    assert {len(heard) for heard in graph.values()} == wanted
    assert {len(topology.listeners(graph, node)) for node in graph} == wanted
    mixing = halves(graph)
    np.testing.assert_array_equal(mixing.sum(axis=0), 1.0)
    np.testing.assert_array_equal(mixing.sum(axis=1), 1.0)


@pytest.mark.parametrize("power", range(6))
@pytest.mark.parametrize("first", [0, 3])
def test_one_peer_is_exact_after_logarithmically_many_rounds(power: int, first: int) -> None:
    size = 2**power
    whole = np.eye(size)
    for turn in range(first, first + power):
        whole = halves(one_peer(names(size), turn)) @ whole
    np.testing.assert_allclose(whole, 1 / size, atol=1e-15)


def test_a_torus_is_made_of_circles() -> None:
    graph = torus(names(12))  # 3 x 4
    assert graph["n000"] == {"n001", "n003", "n004", "n008"}
    assert {len(heard) for heard in graph.values()} == {4}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 31])
def test_a_prime_number_forms_no_torus(size: int) -> None:
    with pytest.raises(InvalidJob) as refused:
        torus(names(size))
    assert "ring" in refused.value.hint


@pytest.mark.parametrize("wrong", [(), ("b", "a"), ("a", "a")])
def test_names_are_given_once_and_in_order(wrong: tuple[str, ...]) -> None:
    for build in (ring, complete, torus, lambda nodes: regular(nodes, 2, 0), lambda nodes: one_peer(nodes, 0)):
        with pytest.raises(InvalidJob, match="once and in order"):
            build(wrong)


def test_weights_need_a_mutual_graph_and_positive_targets() -> None:
    with pytest.raises(InvalidJob, match="undirected"):
        matrix(one_peer(names(5), 0))
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidJob, match="positive"):
            matrix(ring(names(3)), {"n000": 1.0, "n001": wrong, "n002": 1.0})


@pytest.mark.parametrize("size", [4, 5, 9, 16])
def test_the_gap_of_a_ring_is_the_known_one(size: int) -> None:
    """Circulant: the eigenvalues are (1 + 2 cos(2 pi k / n)) / 3."""
    sizes = sorted(abs(1 + 2 * cos(2 * pi * k / size)) / 3 for k in range(size))
    assert spectral_gap(matrix(ring(names(size)))) == pytest.approx(1 - sizes[-2])


def test_the_gap_of_complete_graphs_is_one() -> None:
    assert [spectral_gap(matrix(complete(names(size)))) for size in (1, 2, 7)] == pytest.approx([1, 1, 1])


def test_a_graph_in_two_parts_is_not_connected() -> None:
    graph = {node: frozenset({other}) for node, other in zip("abcd", "badc", strict=True)}
    assert not connected(graph)
    assert spectral_gap(matrix(graph)) == pytest.approx(0)


def test_drawing_a_graph_ends(monkeypatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(topology, "_paired", lambda *given: tried.append(given))
    with pytest.raises(InvalidJob, match="attempts"):
        regular(names(8), 3, 0)
    assert len(tried) == topology.DRAWS_MAX
