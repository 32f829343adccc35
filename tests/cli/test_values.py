"""KEY=VALUE, and job files that are changed by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.terminal.values import assignments, changed, job_of
from shoal.core.errors import InvalidJob, ShoalError


def test_assignments_keep_what_stands_behind_the_first_sign() -> None:
    assert assignments(["a=1", "b.c = x=y", "a=2"], "--set") == {"a": 2, "b.c": " x=y"}


@pytest.mark.parametrize("text", ["a", "=1", " =1", ""])
def test_what_is_no_assignment_is_a_usage_error(text: str) -> None:
    with pytest.raises(ShoalError, match="--option") as caught:
        assignments([text], "--option")
    assert caught.value.code == "usage.invalid"


JOB = 'name = "a"\nrounds = 3\n[algorithm]\nname = "fedavg"\nlr = 0.1\n'


@pytest.fixture
def job(place: Path) -> Path:
    path = place / "job.toml"
    path.write_text(JOB)
    return path


def test_a_job_file_as_it_stands(job: Path) -> None:
    spec, values = job_of(job)
    assert spec.rounds == values["rounds"] == 3


def test_a_job_file_with_changes(job: Path) -> None:
    spec, values = job_of(job, ["rounds=7", "algorithm.lr=0.5", "options.split=iid", "schedule.name=rounds"], "b")
    assert (spec.name, spec.rounds, spec.algorithm["lr"], spec.options) == ("b", 7, 0.5, {"split": "iid"})
    assert values["schedule"] == {"name": "rounds"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("algorithm.rl=1", "no field 'rl'"),
        ("round=1", "round: unknown key"),
        ("rounds=many", "rounds"),
        ("rounds.more=1", "rounds is not a table"),
        ("algorithm.name=fedagv", "fedagv"),
    ],
)
def test_a_wrong_change_is_named(job: Path, change: str, says: str) -> None:
    with pytest.raises(ShoalError, match=says):
        job_of(job, [change])


def test_a_wrong_file_is_named(place: Path) -> None:
    (place / "bad.toml").write_text("name = 'a'\nruonds = 3\n")
    with pytest.raises(InvalidJob, match=r"bad\.toml") as caught:
        job_of(place / "bad.toml", ["rounds=3"])
    assert caught.value.hint == "did you mean 'rounds'?"


def test_a_value_of_a_table_that_is_given_by_its_name_may_be_set() -> None:
    changed_values = changed({"name": "a", "algorithm": "scaffold"}, ["algorithm.lr=0.5", "schedule=buffer"])
    assert changed_values == {"name": "a", "algorithm": {"name": "scaffold", "lr": 0.5}, "schedule": "buffer"}
