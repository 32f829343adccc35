"""Sketches and books: what is equal over all peers, whatever they exchange."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.core.model.tree import Tree
from shoal_edge_client.peering.conservation_sums import PROJECTIONS, ConservationSums


def model(*values: float) -> Tree:
    return Tree.of({"w": np.array(values, np.float32), "n": np.array(7, np.int64)})


def total(shown: list[dict[str, list[float]]], what: str) -> np.ndarray:
    return np.sum([one[what] for one in shown], axis=0)


def test_exchanges_leave_the_sums_equal_and_learning_moves_both() -> None:
    rng = np.random.default_rng(3)
    models = [model(*rng.normal(size=200)) for _ in range(3)]
    weights, books = [1.0, 5.0, 20.0], [ConservationSums(11) for _ in range(3)]
    for one, weight, book in zip(models, weights, books, strict=True):
        book.start(weight, one)
    learned = model(*(models[1]["w"] + np.float32(0.5)))
    books[1].add_update(weights[1], models[1], learned)
    models[1] = learned
    # Two meet: the mean by weight stays where it is.
    mean = (weights[0] * models[0]["w"] + weights[1] * models[1]["w"]) / (weights[0] + weights[1])
    models[0] = models[1] = model(*mean)
    shown = [book.report(weight, one) for book, weight, one in zip(books, weights, models, strict=True)]
    assert total(shown, "model_projection") == pytest.approx(total(shown, "expected_projection"), rel=1e-5, abs=1e-4)
    wrong = [*shown[:2], books[2].report(weights[2], model(*(models[2]["w"] + np.float32(0.01))))]
    assert total(wrong, "model_projection") != pytest.approx(total(wrong, "expected_projection"), rel=1e-5, abs=1e-4), (
        "nobody learned that"
    )


def test_a_sketch_tells_lengths() -> None:
    """In the mean over draws, its squared length is the vector's."""
    one = model(*np.linspace(-1, 2, 300))
    found = []
    for draw in range(300):
        books = ConservationSums(draw)
        books.start(1.0, one)
        model_projection = books.report(1.0, one)["model_projection"]
        assert len(model_projection) == PROJECTIONS
        found.append(float(np.dot(model_projection, model_projection)))
    length = float(np.dot(one["w"].astype(np.float64), one["w"].astype(np.float64)))
    assert np.mean(found) == pytest.approx(length, rel=0.05)


def test_they_outlive_the_process_and_are_closed_at_the_end() -> None:
    books = ConservationSums(5)
    assert books.state() is None
    assert books.report(2.0, model(1.0)) == {"model_projection": [], "expected_projection": []}
    books.start(2.0, model(1.0, 2.0))
    kept = json.loads(json.dumps(books.state()))
    again = ConservationSums(5, kept)
    again.add_update(2.0, model(1.0, 2.0), model(1.5, 2.0))
    books.add_update(2.0, model(1.0, 2.0), model(1.5, 2.0))
    assert again.state() == books.state() != kept
    books.close()
    assert books.report(2.0, model(1.0, 2.0)) == {"model_projection": [], "expected_projection": []}
