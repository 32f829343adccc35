"""Means of what nodes measured."""

import math

import pytest

from shoal.core.metric import Means


def means(*reports: tuple[dict[str, float], float]) -> dict[str, float]:
    made = Means()
    for number, (metrics, weight) in enumerate(reports):
        made.add(metrics, weight, f"node-{number}")
    return made.values()


def test_evaluations_weigh_by_their_examples_and_the_rest_by_the_report() -> None:
    one = {"eval/examples": 10.0, "eval/loss": 1.0, "train/loss": 1.0}
    two = {"eval/examples": 30.0, "eval/loss": 2.0, "train/loss": 2.0}
    assert means((one, 300.0), (two, 100.0)) == {
        "eval/examples": 40.0,
        "eval/loss": 1.75,
        "eval/nodes": 2.0,
        "train/loss": 1.25,
    }


def test_the_nodes_that_measured_are_counted_once_each() -> None:
    """A node may report twice for a version; one that only trained has measured nothing."""
    made = Means()
    for node, metrics in (("a", {"eval/loss": 1.0}), ("a", {"eval/loss": 3.0}), ("b", {"train/loss": 1.0})):
        made.add(metrics, 1.0, node)
    assert made.values() == {"eval/loss": 2.0, "eval/nodes": 1.0, "train/loss": 1.0}


def test_without_examples_evaluations_weigh_the_same() -> None:
    assert means(({"eval/loss": 1.0}, 5.0), ({"eval/loss": 2.0}, 1.0)) == {"eval/loss": 1.5, "eval/nodes": 2.0}


def test_not_everybody_measures_everything() -> None:
    assert means(({"eval/loss": 1.0}, 1.0), ({}, 1.0), ({"train/loss": 3.0}, 2.0)) == {
        "eval/loss": 1.0,
        "eval/nodes": 1.0,
        "train/loss": 3.0,
    }
    assert means() == {}


def test_a_diverged_model_is_seen() -> None:
    assert math.isnan(means(({"eval/loss": math.nan}, 1.0), ({"eval/loss": 1.0}, 1.0))["eval/loss"])
    assert means(({"train/loss": math.inf}, 1.0), ({"train/loss": 1.0}, 1.0))["train/loss"] == math.inf


@pytest.mark.parametrize("examples", [0.0, -5.0, math.nan, math.inf])
def test_who_has_no_examples_has_no_say(examples: float) -> None:
    bad = {"eval/examples": examples, "eval/loss": math.nan, "train/loss": 2.0}
    assert means((bad, 1.0), ({"eval/examples": 4.0, "eval/loss": 1.0}, 1.0)) == {
        "eval/examples": 4.0,
        "eval/loss": 1.0,
        "eval/nodes": 1.0,
        "train/loss": 2.0,
    }


def test_a_weight_of_nothing_counts_for_nothing() -> None:
    assert means(({"train/loss": math.nan}, 0.0), ({"train/loss": 2.0}, 3.0)) == {"train/loss": 2.0}
