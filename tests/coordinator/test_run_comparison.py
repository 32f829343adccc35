"""Many runs in one answer: the figures are those of `shoal compare`, whatever is left out of the lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from shoal.results.compare import compare
from shoal.results.run_record import record_of_job
from shoal_coordinator.storage.tables import versions
from tests.coordinator.ended_runs import keep_run
from tests.support.coordinator import Inside, inside
from tests.support.scenario import problem

WAVY = [math.sin(number / 7) / 4 + number / 2000 + 0.3 for number in range(600)]
RUNS: dict[str, list[Any]] = {
    "wavy": WAVY,
    "short": [0.1, 0.5, 0.9],
    "broken": [0.1, 0.4, "NaN", None, 0.35, None],
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    folder: Path = tmp_path_factory.mktemp("comparing") / "data"
    with inside(folder) as first:
        for name, accuracies in RUNS.items():
            keep_run(first, name, accuracies)
        keep_run(first, "empty", [])
    with inside(folder) as made:
        yield made


def asked(running: Inside, *names: str, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = running.get("/compare", run=list(names), **params)
    return found


@pytest.mark.parametrize("target", [None, 0.35, 0.5, 0.95])
def test_figures_are_those_of_the_command(running: Inside, target: float | None) -> None:
    """Also after thinning."""
    table = asked(running, *RUNS, points=10, **({} if target is None else {"target": target}))
    records = {}
    for name in RUNS:
        rows = running.get(f"/jobs/{name}/versions", points=0)["versions"]
        traffic = running.get(f"/jobs/{name}/traffic", by=["version", "node", "kind"])
        records[name] = record_of_job(running.job(name), rows, traffic)
    known = compare(records, target=target)
    assert (table["judged"], table["target"]) == (known.metric, pytest.approx(known.target))
    for run, row in zip(table["runs"], known.rows, strict=True):
        assert run["job"]["name"] == row.run
        assert (run["best"], run["syncs"]) == (row.best, row.syncs)
        assert run["last"] == row.final
        reached = run["reached"]
        assert (reached and reached["version"]) == row.version_to_target
        assert (reached and reached["elapsed_s"]) == row.seconds_to_target


def test_lines_are_thinned_but_for_what_matters(running: Inside) -> None:
    wavy, _, broken = (run["line"] for run in asked(running, *RUNS, points=10, target=0.5)["runs"])
    assert 10 <= len(wavy["numbers"]) <= 13
    best = max(range(600), key=WAVY.__getitem__)
    reached = next(number for number, value in enumerate(WAVY) if value >= 0.5)
    assert {0, best, reached, 599} <= set(wavy["numbers"])
    assert wavy["values"]["eval/accuracy"] == [WAVY[number] for number in wavy["numbers"]]
    assert wavy["elapsed_s"] == [2.0 * number for number in wavy["numbers"]]
    assert broken["values"]["eval/accuracy"] == [0.1, 0.4, "NaN", None, 0.35, None]
    few = asked(running, "broken", points=2)["runs"][0]["line"]
    assert few["numbers"] == [0, 1, 2, 4, 5], "ends, the best, what is not finite, and the last that was measured"


def test_what_has_nothing_in_common_is_drawn_as_nothing(running: Inside) -> None:
    table = asked(running, "wavy", "empty", "wavy")
    assert [run["job"]["name"] for run in table["runs"]] == ["wavy", "empty"], "each once"
    assert table["metrics"] == {"accuracy": None, "loss": None}
    assert (table["judged"], table["target"]) == (None, None)
    assert (table["runs"][1]["best"], table["runs"][1]["reached"], table["runs"][1]["syncs"]) == (None, None, 0)


def test_a_run_that_lacks_what_the_others_have_leaves_them_comparable(running: Inside) -> None:
    table = asked(running, "empty", "wavy", "broken", target=0.3)
    assert table["metrics"] == {"accuracy": "eval/accuracy", "loss": "eval/loss"}
    assert table["judged"] == "eval/accuracy"
    bests = [run["best"] for run in table["runs"]]
    assert bests == [None, max(WAVY), 0.4]
    assert [run["reached"] is not None for run in table["runs"]] == [False, True, True]


def test_a_run_that_goes_on_is_read_anew(running: Inside) -> None:
    running.begin("live", nodes=1)
    assert asked(running, "live")["runs"][0]["line"]["numbers"] == []
    row = {"seq": 1, "digest": "0" * 64, "nbytes": 1, "why": "", "opened_s": 0.0, "closed_s": 1.0, "closed_at": 1.0}
    row |= {"job": "live", "number": 0, "weight": 1.0, "asked": 1, "reports": [], "numbers": {}, "metrics": {}}

    async def write() -> None:
        await running.coordinator.database.write(lambda connection: connection.execute(insert(versions), row))

    running.call(write())
    assert asked(running, "live")["runs"][0]["line"]["numbers"] == [0]


def test_what_cannot_be_compared_is_said(running: Inside) -> None:
    problem(running.request("GET", "/api/v1/compare"), 422, "request.invalid")
    problem(running.request("GET", "/api/v1/compare", params={"run": ["wavy", "gone"]}), 404, "job.unknown")
    many = {"run": [f"r{number}" for number in range(101)]}
    problem(running.request("GET", "/api/v1/compare", params=many), 422, "request.invalid")
    for wrong in ({"target": "nan"}, {"target": "much"}, {"points": "1"}, {"points": "5000"}):
        problem(running.request("GET", "/api/v1/compare", params={"run": "wavy", **wrong}), 422, "request.invalid")


def test_the_answer_is_json_with_no_number_that_json_has_not(running: Inside) -> None:
    text = running.request("GET", "/api/v1/compare", params={"run": list(RUNS)}).text
    json.loads(text, parse_constant=pytest.fail)
