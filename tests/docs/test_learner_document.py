"""The learner of six methods in the document runs as it stands there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.learner import Learner
from shoal.plugins import algorithms
from tests.conventions.sources import ROOT
from tests.docs.test_documents import blocks

NEED_MORE = {"codistillation", "diloco", "flexlora", "boosted_trees", "bagged_trees"}
"""Algorithms for learners that teach, for those that keep an optimizer, or for other models."""


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names of the document's example, once it has run."""
    (text,) = [text for text in blocks(ROOT / "docs/how-to/custom-learner.md", "python") if "class Line" in text]
    found: dict[str, Any] = {}
    exec(text, found)
    return found


def test_it_learns(names: dict[str, Any]) -> None:
    assert names["result"].state == "done"
    assert np.allclose(names["result"].model["w"], [1, 2, 3], atol=0.05)


def test_it_has_all_methods_of_the_protocol(names: dict[str, Any]) -> None:
    methods = {name for name, value in vars(Learner).items() if callable(value) and not name.startswith("_")}
    assert methods == {"init", "load", "model", "train", "gradient", "evaluate"}
    assert methods <= vars(names["Line"]).keys()


@pytest.mark.parametrize("algorithm", sorted({*algorithms()} - NEED_MORE))
def test_it_serves_every_algorithm_for_weights(names: dict[str, Any], algorithm: str) -> None:
    fields = {"local_steps": 60} if algorithms()[algorithm].continual else {}
    rounds = 100 if algorithm == "downpour" else 6
    job = {"name": "line", "rounds": rounds, "algorithm": {"name": algorithm, "lr": 0.05, **fields}}
    result = shoal.simulate(job, [names["Line"](part) for part in range(3)], progress=False)
    assert result.state == "done"
    assert result.versions[-1].metrics["eval/loss"] < result.versions[0].metrics["eval/loss"]
