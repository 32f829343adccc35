"""Lists of filters in a job: which can be, what they cost, and that faults do not show in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import shoal
from shoal.core.algorithm.filter import Filter, check_filters, model_filters
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Layout, Tree, digest
from shoal.jobs.spec import parse_job
from tests.algorithms.softmax import unbalanced

LISTS: dict[str, list[dict[str, Any]]] = {
    "bf16": [{"name": "half"}],
    "fp16": [{"name": "half", "form": "fp16"}],
    "8 bits": [{"name": "quantize"}],
    "top_k": [{"name": "top_k", "fraction": 0.05}],
    "top_k, 8 bits": [{"name": "top_k", "fraction": 0.05}, {"name": "quantize"}],
    "top_k, bf16": [{"name": "top_k", "fraction": 0.05}, {"name": "half"}],
}


def job(filters: list[dict[str, Any]], **fields: Any) -> shoal.JobSpec:
    schedule = {"name": "rounds", "min_nodes": 3, "quorum": 3}
    given = {
        "name": "filters",
        "rounds": 6,
        "seed": 5,
        "aggregation_precision": "fixed",
        "schedule": schedule,
        "filters": filters,
    }
    return parse_job({**given, **fields})


@pytest.mark.parametrize("filters", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("seed", range(2))
def test_faults_do_not_show_in_the_model(filters: list[dict[str, Any]], seed: int) -> None:
    """A memory that was kept of an update which did not count, or lost with one that did, would show here."""
    faults = shoal.Faults(
        until_s=30, delay_s=0.2, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=3
    )
    bad = shoal.simulate(job(filters), unbalanced(), faults=faults, fault_seed=seed)
    good = shoal.simulate(job(filters), unbalanced())
    assert digest(bad.model) == digest(good.model)


@pytest.mark.parametrize("filters", LISTS.values(), ids=LISTS)
def test_it_learns(filters: list[dict[str, Any]]) -> None:
    algorithm = {"name": "fedavg", "lr": 0.5}
    learnt = shoal.simulate(job(filters, rounds=12, algorithm=algorithm), unbalanced(tested=True))
    plain = shoal.simulate(job([], rounds=12, algorithm=algorithm), unbalanced(tested=True))
    assert learnt.versions[-1].metrics["eval/accuracy"] >= plain.versions[-1].metrics["eval/accuracy"] - 0.02


def test_whole_models_go_through_what_rounds_them_little() -> None:
    tables = [{"name": "top_k"}, {"name": "quantize"}], [{"name": "quantize", "bits": 4}], [{"name": "half"}]
    through = [[one.name for one in model_filters(job(list(table)).build_filters())] for table in tables]
    assert through == [["quantize"], [], ["half"]]
    for mixing, used in {"pairwise": 1, "neighbors": 1, "push_sum": 0, "all_reduce": 0}.items():
        assert len(job([{"name": "half"}], gossip={"mixing": {"name": mixing}}).shown_through()) == used


WRONG = {
    "two precisions": (["half", "quantize"], "both set the precision"),
    "twice the same": (["top_k", "top_k"], "both set the choice"),
    "chosen after rounding": (["quantize", "top_k"], "top_k comes before quantize"),
}


@pytest.mark.parametrize(("names", "hint"), WRONG.values(), ids=WRONG)
def test_lists_that_cannot_be(names: list[str], hint: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        job([{"name": name} for name in names])
    assert caught.value.code == "job.filter"
    assert hint in caught.value.hint


@dataclass(frozen=True)
class OneWay(Filter):
    """A user's filter that forgets how to decode."""

    name: ClassVar[str] = "one_way"

    def layout(self, layout: Layout) -> Layout:
        return Layout.of([("gone", "U8", (0,))])

    def encode(self, tree: Tree, seed: int) -> Tree:
        return Tree(self.layout(tree.layout), b"")


def test_a_filter_that_cannot_be_undone() -> None:
    with pytest.raises(InvalidJob, match="one_way cannot be undone"):
        check_filters([OneWay()])
