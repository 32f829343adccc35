"""The table of runs: what a byte buys."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob
from shoal.results.compare import NodePrice, compare, lower_is_better
from shoal.results.run_record import NodeTraffic, RunRecord, dump_record, load_record, record_of_job
from tests.compare.runs import a_run, accuracies

COSTLY = accuracies(0.1, 0.8, 0.97, 0.96, bytes_per_version=300)
SPARING = accuracies(0.1, 0.5, 0.7, 0.9, 0.95, 0.94, bytes_per_version=30, more_bytes=12)


def test_each_run_has_its_price() -> None:
    table = compare({"costly": COSTLY, "sparing": SPARING})
    assert (table.metric, table.baseline) == ("eval/accuracy", "costly")
    assert table.target == pytest.approx(0.98 * 0.95)
    costly, sparing = table.rows
    assert (costly.final, costly.best, costly.syncs) == (0.96, 0.97, 3)
    assert (costly.up_bytes, costly.down_bytes, costly.bytes) == (300, 600, 900)
    assert (costly.version_to_target, costly.bytes_to_target, costly.seconds_to_target) == (2, 600, 20.0)
    assert costly.ratio == 1
    assert (sparing.final, sparing.best, sparing.syncs) == (0.94, 0.95, 5)
    assert (sparing.bytes, sparing.ratio) == (162, pytest.approx(162 / 900))
    assert (sparing.version_to_target, sparing.bytes_to_target, sparing.seconds_to_target) == (4, 120, 40.0)


def test_target_and_baseline_can_be_said() -> None:
    table = compare({"costly": COSTLY, "sparing": SPARING}, target=0.96, baseline="sparing")
    costly, sparing = table.rows
    assert (table.target, costly.bytes_to_target) == (0.96, 600)
    assert (sparing.bytes_to_target, sparing.seconds_to_target, sparing.version_to_target) == (None, None, None)
    assert (costly.ratio, sparing.ratio) == (pytest.approx(900 / 162), 1)


@given(
    values=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=8), min_size=1, max_size=4), swapped=st.booleans()
)
def test_the_usual_target_is_reached_by_all(values: list[list[float]], swapped: bool) -> None:
    """Also where a metric is better when it is smaller: a loss of 1 - accuracy has its own target."""
    name = "eval/loss" if swapped else "eval/accuracy"
    table = compare({str(n): a_run([{name: value} for value in own]) for n, own in enumerate(values)}, metric=name)
    for row, own in zip(table.rows, values, strict=True):
        assert row.best == (min(own) if swapped else max(own))
        assert row.version_to_target is not None
        met = [value <= table.target if swapped else value >= table.target for value in own]
        assert met.index(True) == row.version_to_target


def test_the_metric_is_one_that_all_have() -> None:
    both = a_run([{"eval/accuracy": 0.5, "held_out/accuracy": 0.6}])
    assert compare({"a": both, "b": both}).metric == "held_out/accuracy"
    assert compare({"a": both, "b": accuracies(0.5)}).metric == "eval/accuracy"
    assert compare({"a": both, "b": both}, metric="eval/accuracy").metric == "eval/accuracy"


def test_what_is_no_number_is_not_best() -> None:
    (row,) = compare({"a": accuracies(0.3, inf, nan)}, target=0.9).rows
    assert (row.final, row.best, row.version_to_target) == (None, 0.3, None)


def test_versions_may_come_in_any_order_and_lack_the_metric() -> None:
    run = a_run([{}, {"eval/accuracy": 0.5}, {"eval/accuracy": 0.9}, {}])
    turned = run.model_copy(update={"versions": run.versions[::-1]})
    assert compare({"a": run}, target=0.4) == compare({"a": turned}, target=0.4)
    assert (compare({"a": run}).rows[0].final, compare({"a": run}, target=0.4).rows[0].version_to_target) == (0.9, 1)


@pytest.mark.parametrize(
    ("runs", "more", "says"),
    [
        ({}, {}, "no run"),
        ({"a": COSTLY, "b": a_run([])}, {}, "b has no version"),
        ({"a": COSTLY, "b": a_run([{"eval/loss": 1.0}])}, {}, "held_out/accuracy or eval/accuracy"),
        ({"a": COSTLY, "b": a_run([{"eval/loss": 1.0}])}, {"metric": "eval/accuracy"}, "b has no eval/accuracy"),
        ({"a": accuracies(nan)}, {}, "a has no eval/accuracy"),
        ({"a": COSTLY}, {"baseline": "c"}, "'c' is none"),
    ],
)
def test_what_cannot_be_compared_is_said(runs: dict[str, RunRecord], more: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidJob, match=says) as caught:
        compare(runs, **more)
    assert caught.value.hint


# ------------------------------------------------------------------------------------------------------------ records
def test_a_job_with_its_traffic() -> None:
    """Bytes of a round are booked under the version that it began with, those outside any round under -1."""
    job = {"name": "j", "state": "done", "algorithm": "fedavg", "schedule": "rounds", "spec": {"seed": 7}}
    versions = [
        {"number": n, "why": "w", "elapsed_s": 2.0 * n, "seconds": 1.5, "reports": 2, "metrics": {"eval/loss": "NaN"}}
        for n in range(3)
    ]
    rows = [
        {"version": version, "node": f"n{version % 2}", "direction": direction, "bytes": 10 ** (version + 1) * factor}
        for version in (2, -1, 0, 1)
        for direction, factor in (("up", 1), ("down", 2))
    ]
    run = record_of_job(job, versions, {"rows": rows, "total": {"up": 1111, "down": 2222}})
    assert [(one.up_bytes, one.down_bytes, one.bytes) for one in run.versions] == [
        (1, 2, 3),
        (11, 22, 33),
        (111, 222, 333),
    ]
    assert [one.nodes for one in run.versions] == [
        {"n1": (1, 2)},
        {"n0": (10, 20), "n1": (1, 2)},
        {"n0": (10, 20), "n1": (101, 202)},
    ]
    assert run.nodes == {"n0": (1010, 2020), "n1": (101, 202)}
    assert [(one.opened_s, one.closed_s) for one in run.versions] == [(-1.5, 0), (0.5, 2), (2.5, 4)]
    assert (run.up_bytes, run.down_bytes, run.seed, run.origin) == (1111, 2222, 7, "coordinator")
    assert run.versions[0].metrics["eval/loss"] != run.versions[0].metrics["eval/loss"]


def test_what_nodes_have_sent_each_other_counts_once() -> None:
    job = {"name": "j", "state": "done", "algorithm": "fedavg", "schedule": "rounds", "spec": {}}
    version = {"number": 1, "why": "w", "elapsed_s": 2.0, "seconds": 1.5, "reports": 2, "metrics": {}}
    rows = [
        {"version": 0, "node": node, "kind": kind, "direction": direction, "bytes": count}
        for node in ("a", "b")
        for kind, direction, count in (
            ("work", "up", 1),
            ("work", "down", 2),
            ("gossip", "up", 100),
            ("gossip", "down", 100),
        )
    ]
    run = record_of_job(job, [version], {"rows": rows, "total": {"up": 202, "down": 4}})
    assert (run.versions[0].up_bytes, run.versions[0].down_bytes) == (202, 4)
    assert run.nodes == {"a": (101, 102), "b": (101, 102)}


def test_each_node_has_its_price() -> None:
    versions = tuple(
        one.model_copy(update={"nodes": {"a": NodeTraffic(one.number, 2 * one.number), "b": NodeTraffic(0, 5)}})
        for one in COSTLY.versions
    )
    whole = {"a": NodeTraffic(9, 18), "b": NodeTraffic(1, 5), "c": NodeTraffic(7, 7)}
    run = COSTLY.model_copy(update={"versions": versions, "nodes": whole})
    (row,) = compare({"costly": run}, target=0.96).rows
    assert (row.up_bytes_to_target, row.down_bytes_to_target) == (200, 400)
    assert row.nodes == (NodePrice("a", 9, 18, 2, 4), NodePrice("b", 1, 5, 0, 5), NodePrice("c", 7, 7, 0, 0))
    (never,) = compare({"costly": run}, target=0.99).rows
    assert never.nodes[0] == NodePrice("a", 9, 18, None, None)
    assert (never.up_bytes_to_target, never.down_bytes_to_target) == (None, None)


def test_bytes_by_node_survive_a_file() -> None:
    run = COSTLY.model_copy(update={"nodes": {"a": NodeTraffic(9, 18)}})
    assert load_record(dump_record(run), "file") == run


@given(values=st.lists(st.floats(width=64), max_size=5))
def test_a_record_survives_its_file(values: list[float]) -> None:
    run = accuracies(*values)
    text = dump_record(run)
    assert repr(load_record(text, "file")) == repr(run)  # as texts, because NaN differs from itself
    assert "NaN," not in text.replace('"NaN",', "")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "shoal-run/9"}', dump_record(COSTLY).replace('"seed": 1', '"seed": "x"')]
)
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"^runs/a\.json is not a record of a run: ") as caught:
        load_record(text, "runs/a.json")
    assert "--record" in caught.value.hint


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("eval/loss", True),
        ("eval/loss_mean", True),
        ("eval/error_rate", True),
        ("eval/perplexity", True),
        ("eval/Perplexity@10", True),
        ("eval/accuracy", False),
        ("eval/f1", False),
    ],
)
def test_lower_is_better_for_losses_and_errors_anywhere_in_the_name(metric: str, lower: bool) -> None:
    assert lower_is_better(metric) is lower
