"""Graphs over the names of peers, and mixing weights on them.

A graph maps each node to those whose models it takes in. All but `one_peer` are symmetric. They depend only on the
sorted names (and a seed, or the number of the round), so peers that know the same names draw the same graph.

Mixing takes a weighted mean, x_i <- sum_j W_ij x_j, and converges when the graph is connected and W_ii > 0. The limit
is sum_i p_i x_i for the row p with p W = p and sum_i p_i = 1 (the stationary distribution), so the plain mean when the
columns of W sum to 1 as the rows do. Each round shortens the distance to it by the factor 1 - spectral_gap(W) in the
long run (Xiao, Boyd 2004, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import isfinite, isqrt
from random import Random

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidJob

Graph = dict[str, frozenset[str]]
"""Maps each node to the nodes whose models it takes in."""

Matrix = npt.NDArray[np.float64]
"""`float64[n, n]`; rows and columns in the order of the sorted names."""

DRAWS_MAX = 10_000
"""Attempts at a random regular graph. Few are needed, but of 2-regular graphs only the single circle is connected."""


def complete(nodes: tuple[str, ...]) -> Graph:
    """Return the graph in which each node listens to all others."""
    _check_names(nodes)
    return {node: frozenset(nodes) - {node} for node in nodes}


def ring(nodes: tuple[str, ...]) -> Graph:
    """Return a circle in the order of the names."""
    _check_names(nodes)
    return {node: _others(node, nodes[at - 1], nodes[(at + 1) % len(nodes)]) for at, node in enumerate(nodes)}


def torus(nodes: tuple[str, ...]) -> Graph:
    """Return rows and columns, as nearly square as possible, each closed to a circle.

    Raises `InvalidJob` for a number of nodes that is not a product of two whole numbers above 1.
    """
    _check_names(nodes)
    count, rows = len(nodes), rows_of(len(nodes))
    if rows < 2:
        raise InvalidJob(
            f"{count} nodes do not form a grid",
            code="topology.torus",
            hint=f"use {count + 1} nodes, or the ring, or a random regular graph of degree 4",
        )
    columns = count // rows

    def at(row: int, column: int) -> str:
        return nodes[row % rows * columns + column % columns]

    around = ((-1, 0), (1, 0), (0, -1), (0, 1))
    places = [(place // columns, place % columns) for place in range(count)]
    return {at(row, column): _others(at(row, column), *(at(row + a, column + b) for a, b in around))
            for row, column in places}  # fmt: skip


def rows_of(count: int) -> int:
    """Return the rows of the most nearly square grid of `count` nodes; 1 when the number is prime."""
    return next((rows for rows in range(isqrt(count), 0, -1) if count % rows == 0), 1)


def regular(nodes: tuple[str, ...], degree: int, seed: int) -> Graph:
    """Return a connected graph in which each node has `degree` neighbors, drawn almost uniformly.

    Steger, Wormald: "Generating Random Regular Graphs Quickly", Combinatorics, Probability and Computing 8 (1999):
    Algorithm 2, repeated until the graph is connected. For a dense graph the complement is drawn. Raises `InvalidJob`
    when there is no such graph.
    """
    _check_names(nodes)
    count, rng = len(nodes), Random(seed)
    if count * degree % 2 or not (0 <= degree < count) or (degree < 2 and count > degree + 1):
        raise InvalidJob(
            f"no connected graph of {count} nodes gives each exactly {degree} neighbors",
            code="topology.regular",
            hint="choose a degree from 2 to the number of nodes - 1; an even one for an odd number of nodes",
        )
    dense = 2 * degree >= count
    for _ in range(DRAWS_MAX):
        joined = _paired(count, count - 1 - degree if dense else degree, rng)
        if joined is None:
            continue
        graph = {nodes[at]: frozenset(nodes[other] for other in others) for at, others in enumerate(joined)}
        if dense:
            graph = {node: frozenset(nodes) - {node} - others for node, others in graph.items()}
        if connected(graph):
            return graph
    raise InvalidJob(
        f"no connected graph of degree {degree} was found in {DRAWS_MAX} attempts",
        code="topology.regular",
        hint="take a higher degree: from 3 on nearly every graph is connected",
    )


def _paired(count: int, degree: int, rng: Random) -> list[set[int]] | None:
    """Pair the free ends at random, again and again, without loops and double edges; None when stuck."""
    joined: list[set[int]] = [set() for _ in range(count)]
    free = [at for at in range(count) for _ in range(degree)]
    while free:
        rng.shuffle(free)
        left = []
        for a, b in zip(free[::2], free[1::2], strict=True):
            if a == b or b in joined[a]:
                left += [a, b]
            else:
                joined[a].add(b)
                joined[b].add(a)
        if len(left) == len(free) and not any(b not in joined[a] for a, b in combinations(sorted(set(left)), 2)):
            return None
        free = left
    return joined


def one_peer(nodes: tuple[str, ...], round_: int) -> Graph:
    """Return the directed graph in which each node listens to the one 1, 2, 4, … places further round the circle, by
    round.

    Ying, Yuan, Chen, Hu, Pan, Yin: "Exponential Graph is Provably Efficient for Decentralized Deep Training", NeurIPS
    2021, section 4. With W_ij = 1/2 along these links the mean of n = 2^k nodes is reached exactly in k rounds.
    """
    _check_names(nodes)
    count = len(nodes)
    phases = max(1, (count - 1).bit_length())
    away = 1 << round_ % phases
    return {node: _others(node, nodes[(at + away) % count]) for at, node in enumerate(nodes)}


def _others(node: str, *around: str) -> frozenset[str]:
    return frozenset(around) - {node}


def _check_names(nodes: tuple[str, ...]) -> None:
    if not nodes or list(nodes) != sorted(set(nodes)):
        raise InvalidJob(
            "a graph needs the names of its nodes, each once and in order",
            code="topology.names",
            hint="pass tuple(sorted(names))",
        )


def listeners(graph: Graph, node: str) -> frozenset[str]:
    """Return the nodes that listen to that node."""
    return frozenset(other for other, heard in graph.items() if node in heard)


def connected(graph: Graph) -> bool:
    """Return whether all nodes can be reached from the first."""
    reached = open_ends = {min(graph)}
    while open_ends:
        open_ends = {other for node in open_ends for other in graph[node]} - reached
        reached = reached | open_ends
    return len(reached) == len(graph)


def metropolis(degree: int, other_degree: int, ratio: float = 1.0) -> float:
    """Return the weight W_ij of a node for a neighbor whose target is `ratio` times its own.

    Xiao, Boyd, Lall: "A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus", IPSN 2005: the
    Metropolis weights W_ij = 1 / (1 + max(d_i, d_j)); Xiao, Boyd: "Fast Linear Iterations for Distributed Averaging",
    Systems & Control Letters 53 (2004), section 4, have 1 / max(d_i, d_j), which need not converge (an even ring).

    They are Hastings' rule (Biometrika 57, 1970) for a walk that stays, or goes to any neighbor, with equal chance.
    For the stationary distribution p_i = n_i / sum_k n_k it says

        W_ij = min(1 / (1 + d_i), n_j / n_i / (1 + d_j))

    so that n_i W_ij = n_j W_ji. Rows sum to 1 with W_ii; columns do too only when all n_k are equal.
    """
    return min(1 / (1 + degree), ratio / (1 + other_degree))


def matrix(graph: Graph, weights: Mapping[str, float] | None = None) -> Matrix:
    """Return the matrix W of Metropolis weights on a symmetric graph; `weights`: the target distribution, None:
    uniform.

    Raises `InvalidJob` for weights that are not all finite and positive, or a graph that is not symmetric.
    """
    nodes = sorted(graph)
    target = dict.fromkeys(nodes, 1.0) if weights is None else weights
    if not all(target[node] > 0 and isfinite(target[node]) for node in nodes):
        raise InvalidJob("weights must be finite and positive", hint="leave out peers that hold no examples")
    if any(node not in graph[other] for node in nodes for other in graph[node]):
        raise InvalidJob(
            "Metropolis weights need an undirected graph",
            code="topology.one-way",
            hint="one_peer has the weight 1/2 on each link instead",
        )
    mixing = np.zeros((len(nodes), len(nodes)))
    for row, node in enumerate(nodes):
        for column, other in enumerate(nodes):
            if other in graph[node]:
                ratio = target[other] / target[node]
                mixing[row, column] = metropolis(len(graph[node]), len(graph[other]), ratio)
        mixing[row, row] = 1.0 - mixing[row].sum()
    return mixing


def halves(graph: Graph) -> Matrix:
    """Return the matrix of `one_peer`: half of itself, half of the node that it listens to."""
    nodes = sorted(graph)
    mixing = np.zeros((len(nodes), len(nodes)))
    for row, node in enumerate(nodes):
        mixing[row, row] = 0.5 if graph[node] else 1.0
        for other in graph[node]:
            mixing[row, nodes.index(other)] = 0.5
    return mixing


def spectral_gap(mixing: Matrix) -> float:
    """Return 1 - |lambda_2|, the second largest magnitude among the eigenvalues; 1 for a single node."""
    sizes = np.sort(np.abs(np.linalg.eigvals(mixing)))
    return float(1.0 - sizes[-2]) if len(sizes) > 1 else 1.0
