"""`shoal jobs`: cloning with a model, removing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from shoal.client.client import connect
from shoal.core.model.tree import Tree
from shoal.wire.payload import payload_pieces
from tests.cli.command_cases import job_answers, model_answers
from tests.cli.conftest import Shoal
from tests.support.coordinator_views import a_job, a_split_job
from tests.support.fake_coordinator import FakeCoordinator, Problem, at, raw

pytestmark = pytest.mark.usefixtures("quick")


def test_a_clone_starts_from_a_version_of_a_job(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    """The model is fetched and sent: the API knows uploaded models alone."""
    job_answers(fake, place)
    model = b"".join(bytes(piece) for piece in payload_pieces({"model": Tree.of({"w": np.ones(3, np.float32)})}))
    digest = hashlib.sha256(model).hexdigest()
    fake.answers["GET /jobs/digits/models/7"] = raw(model, {"ETag": f'"sha256:{digest}"'})
    fake.answers[f"PUT /blobs/{digest}"] = None
    result = shoal("jobs", "clone", "digits", "--model", "digits@7", env=at(fake))
    assert result.exit_code == 0, result.output
    assert next(one.body for one in fake.asked if one.method == "PUT") == model
    assert fake.asked[-1].json()["start_model"] == digest
    gone = shoal("jobs", "clone", "digits", "--model", "gone.safetensors", env=at(fake))
    assert "gone.safetensors" in gone.stderr
    assert [one.path for one in fake.asked].count("/api/v1/jobs") == 3, "nothing was begun: two lists and one job"


@pytest.mark.parametrize(("nbytes", "shown"), [(None, "not uploaded"), (2_000_000, "2 MB")])
def test_a_job_is_shown_with_its_base_model(
    shoal: Shoal, fake: FakeCoordinator, place: Path, nbytes: int | None, shown: str
) -> None:
    job_answers(fake, place)
    base = {"digest": "ab" * 32, "bytes": nbytes, "nodes": 1}
    fake.answers["GET /jobs/digits"] = a_job(base_model=base, members=4)
    result = shoal("jobs", "show", "digits", env=at(fake))
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("base model")]
    assert line.split(None, 2)[2] == f"abababababab, {shown}, held by 1 of 4 nodes"


def test_points_of_a_curve_are_not_listed(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    fake.answers["GET /jobs/digits"] = a_job(metrics={"eval/accuracy": 0.5, "eval/accuracy@0.3": 0.4})
    said = shoal("jobs", "show", "digits", env=at(fake)).stdout
    assert "eval/accuracy " in said
    assert "@" not in said
    others = {"eval/recall@10": 0.5, "eval/map@0.5": 0.25, "eval/accuracy@5": 0.75}
    fake.answers["GET /jobs/digits"] = a_job(metrics=others)
    said = shoal("jobs", "show", "digits", env=at(fake)).stdout
    assert all(name in said for name in others), "metrics of the user's own"


def test_checkpoints_are_marked_among_the_models(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    model_answers(fake, place)
    lines = shoal("models", "digits", env=at(fake)).stdout.splitlines()
    assert [line.split()[:3] for line in lines if "checkpoint" in line] == [["1", "production", "checkpoint"]]


def test_a_job_that_runs_is_not_removed_and_nobody_is_asked(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    fake.answers["GET /jobs/digits"] = a_job(ended_at=None)
    result = shoal("jobs", "remove", "digits", "--yes", env=at(fake))
    assert result.exit_code == 1
    assert "shoal jobs stop digits" in result.stderr
    assert [one.method for one in fake.asked] == ["GET"]


@pytest.mark.parametrize("command", ["logs", "failures"])
def test_an_empty_list_of_a_job_that_is_none_says_so(
    shoal: Shoal, fake: FakeCoordinator, place: Path, command: str
) -> None:
    """Else "nothing" would be read as good news about a name that was mistyped."""
    fake.answers = {
        "GET /logs": {"lines": [], "older": False},
        "GET /failures": {"failures": [], "before": None},
        "GET /jobs/there": a_job(),
        "GET /jobs/gone": Problem(404, "job.unknown", "no job is called 'gone'", "jobs here: there"),
    }
    assert shoal(command, "there", env=at(fake)).exit_code == 0
    result = shoal(command, "gone", env=at(fake))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "jobs here: there" in result.stderr


def test_split_jobs_are_listed_and_shown(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    job_answers(fake, place)
    unknown = Problem(404, "job.unknown", "no job is called that")
    fake.answers |= {"GET /jobs/clinics": unknown, "GET /jobs/nothing": unknown}
    fake.answers |= {"GET /split": {"split_jobs": [a_split_job()]}, "GET /split/clinics": a_split_job()}
    listed = shoal("jobs", "list", env=at(fake)).stdout
    (row,) = [line for line in listed.splitlines() if line.startswith("clinics")]
    assert "1 of 3" in row
    assert "clinics" not in shoal("jobs", "list", "--tag", "x", env=at(fake)).stdout
    shown = shoal("jobs", "show", "clinics", env=at(fake)).stdout
    for text in ("384 B up, 200 B down, by formula", "1.5 kB up, 1.3 kB down", "3 steps", "no [red]such[/] class"):
        assert text in shown
    assert json.loads(shoal("jobs", "show", "clinics", "--json", env=at(fake)).stdout)["data"] == {
        "split_job": a_split_job()
    }
    assert "no job is called that" in shoal("jobs", "show", "nothing", env=at(fake)).stderr


def test_split_jobs_from_python(fake: FakeCoordinator) -> None:
    fake.answers = {"GET /split": {"split_jobs": [a_split_job()]}, "GET /split/clinics": a_split_job()}
    with connect(fake.url) as coordinator:
        assert coordinator.split_job("clinics") == coordinator.split_jobs[0] == a_split_job()
