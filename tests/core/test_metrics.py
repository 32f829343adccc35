"""Means of what nodes measured."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.protocol.metrics import METRICS_MAX, LatestMeans, Means, metrics_fault, own_count


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


def test_a_metric_that_is_undefined_on_a_node_is_the_mean_of_the_others() -> None:
    one, two = {"eval/examples": 1.0, "eval/auc": math.nan}, {"eval/examples": 3.0, "eval/auc": 0.5}
    found = means((one, 1.0), (two, 1.0), ({"eval/examples": 1.0, "eval/loss": 1.0}, 1.0))
    assert (found["eval/auc"], found["eval/auc/nodes"], found["eval/nodes"]) == (0.5, 1.0, 3.0)
    everywhere = means((one, 1.0))
    assert math.isnan(everywhere["eval/auc"])
    assert everywhere["eval/auc/nodes"] == 0.0


def test_a_metric_weighs_by_the_number_of_its_own() -> None:
    """Numbers of labels or pixels that count, where they differ from the examples."""
    one = {"eval/examples": 10.0, "eval/accuracy": 1.0, "eval/accuracy/examples": 30.0, "eval/loss": 1.0}
    two = {"eval/examples": 10.0, "eval/accuracy": 0.0, "eval/accuracy/examples": 10.0, "eval/loss": 2.0}
    assert means((one, 1.0), (two, 1.0)) == {
        "eval/accuracy": 0.75,
        "eval/accuracy/examples": 40.0,
        "eval/examples": 20.0,
        "eval/loss": 1.5,
        "eval/nodes": 2.0,
    }


@pytest.mark.parametrize(
    "name", ["eval/AUC", "eval/F1 (macro)", "eval/recall@5", "train/layer.0/grad-norm", "loss", "a" * 64]
)
def test_names_as_people_give_them_can_be_reported(name: str) -> None:
    assert metrics_fault({name: 1.0}) == ""


@pytest.mark.parametrize("name", ["", " auc", "auc ", "-auc", "a\nb", "é", 'a"b', "a\\b", "a" * 65])
def test_names_that_could_hide_something_cannot(name: str) -> None:
    assert "is not a metric name" in metrics_fault({name: 1.0})


def test_there_may_be_256_metrics() -> None:
    many = {f"recall_{i}": 0.0 for i in range(METRICS_MAX)}
    counts = {own_count(name): 1.0 for name in many}
    assert metrics_fault(many, METRICS_MAX) == metrics_fault(many | counts) == ""
    assert "at most 256" in metrics_fault({**many, "more": 0.0}, METRICS_MAX)


def test_a_weight_of_nothing_counts_for_nothing() -> None:
    assert means(({"train/loss": math.nan}, 0.0), ({"train/loss": 2.0}, 3.0)) == {"train/loss": 2.0}


VALUES = st.sampled_from([0.1, 0.25, 3.0, 1e300, math.nan])
SAID = st.fixed_dictionaries(
    {}, optional={"eval/loss": VALUES, "eval/accuracy": VALUES, "eval/accuracy/examples": st.sampled_from([0.0, 2.0])}
)
STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 3.0, 7.0]), st.none() | SAID), max_size=12)


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found.keys() == expected.keys() and all(
        math.isclose(found[name], value, rel_tol=1e-12) or (math.isnan(found[name]) and math.isnan(value))
        for name, value in expected.items()
    )


@given(STEPS)
def test_the_means_over_last_reports_are_those_of_the_last_reports_alone(steps) -> None:
    """After any history and any departures; after a restart too, to the last bit."""
    made, last = LatestMeans(), {}
    for node, examples, said in steps:
        if said is None:
            made.drop(node)
            last.pop(node, None)
        elif said and examples:
            last[node] = {"eval/examples": examples, **said}
            made.put(node, last[node] | {"train/loss": 9.0})
        else:
            made.put(node, {"eval/examples": 0.0, **said})
    plain = Means()
    for node, said in last.items():
        plain.add({n: v if abs(v) < 1e100 else math.nan for n, v in said.items()}, 1.0, node)
    assert same(made.values(), plain.values())
    again = LatestMeans.restore(json.loads(json.dumps(made.state(), allow_nan=False)))
    assert repr(again.values()) == repr(made.values())
    assert again._sums == made._sums, "a name that no last report has is not kept"
