"""Jobs that are made of others, tags, and promoted models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_cases import MODEL, export_answers, model_answers, run_answers
from tests.cli.conftest import Shoal, envelope
from tests.support.coordinator_views import a_job
from tests.support.fake_coordinator import FakeCoordinator, Problem, at, raw


def sent(fake: FakeCoordinator, method: str, path: str) -> list[object]:
    return [asked.json() for asked in fake.asked if (asked.method, asked.path) == (method, f"/api/v1{path}")]


def test_a_clone_has_what_the_other_had_but_for_what_is_said(shoal: Shoal, fake: FakeCoordinator) -> None:
    spec = {"name": "digits-2", "algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 3}
    fake.answers = {
        "GET /jobs/digits-2": a_job(name="digits-2", spec=spec),
        "GET /jobs": {"jobs": [a_job(), a_job(name="digits-2"), a_job(name="digits-3")]},
        "POST /jobs": a_job(name="digits-4"),
    }
    done = shoal(
        "jobs", "clone", "digits-2", "--set", "algorithm.lr=0.5", "--set", "title=slow", "--json", env=at(fake)
    )
    assert envelope(done)["data"]["job"]["name"] == "digits-4"
    wanted = {"name": "digits-4", "algorithm": {"name": "fedavg", "lr": 0.5}, "rounds": 3, "title": "slow"}
    assert sent(fake, "POST", "/jobs") == [{"spec": wanted}]
    shoal("jobs", "clone", "digits-2", "--name", "mine", env=at(fake))
    assert sent(fake, "POST", "/jobs")[1] == {"spec": {**spec, "name": "mine"}}


def test_a_clone_whose_base_model_is_not_there_says_so(shoal: Shoal, fake: FakeCoordinator) -> None:
    base = {"digest": "ab" * 32, "nodes": 0}
    fake.answers = {"GET /jobs/digits": a_job(), "GET /jobs": {"jobs": []}}
    for nbytes, warned in ((None, True), (7, False)):
        fake.answers["POST /jobs"] = a_job(name="digits-2", base_model={**base, "bytes": nbytes})
        done = shoal("jobs", "clone", "digits", env=at(fake))
        assert done.exit_code == 0
        assert ("base model abababababab is not at the coordinator" in done.stderr) is warned


def test_a_clone_that_is_refused(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers = {
        "GET /jobs/digits": a_job(),
        "GET /jobs": {"jobs": []},
        "POST /jobs": Problem(422, "job.invalid", "algorithm fedavg: lr: Input should be a valid number"),
    }
    done = shoal("jobs", "clone", "digits", "--set", "algorithm.lr=fast", "--json", env=at(fake))
    assert done.exit_code != 0
    assert envelope(done)["error"]["code"] == "job.invalid"


@pytest.mark.parametrize("value", ["inf", "nan", "fast", "true"])
def test_a_setting_that_is_no_finite_number_is_not_sent(shoal: Shoal, fake: FakeCoordinator, value: str) -> None:
    done = shoal("jobs", "set", "digits", f"algorithm.lr={value}", "--json", env=at(fake))
    assert done.exit_code == 2
    assert envelope(done)["error"]["code"] == "usage.invalid"
    assert not fake.asked


def test_tags_are_added_and_taken_away(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers = {
        "GET /jobs/digits": a_job(tags=["old", "kept"]),
        "PUT /jobs/digits/tags": a_job(tags=["kept", "[red]new[/]"]),
    }
    done = shoal("jobs", "tag", "digits", "[red]new[/]", "--remove", "old", env=at(fake))
    assert done.stdout.strip() == "kept, [red]new[/]"
    assert sent(fake, "PUT", "/jobs/digits/tags") == [{"tags": ["[red]new[/]", "kept"]}]


def test_jobs_with_a_tag(shoal: Shoal, fake: FakeCoordinator) -> None:
    fake.answers = {"GET /jobs": {"jobs": [a_job(tags=["a", "b"]), a_job(name="other", tags=["c"])]}}
    found = envelope(shoal("jobs", "list", "--tag", "b", "--json", env=at(fake)))["data"]["jobs"]
    assert [job["name"] for job in found] == ["digits"]
    assert "no job has the tag d" in shoal("jobs", "list", "--tag", "d", env=at(fake)).stdout


def test_models_are_listed_with_what_they_are_called(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    model_answers(fake, place)
    said = shoal("models", "digits", "--limit", "3", env=at(fake)).stdout
    assert [line.split()[:2] for line in said.splitlines()[2:5]] == [
        ["2", "93.0"],
        ["1", "production"],
        ["0", "deleted"],
    ]
    assert "--limit 15" in said
    assert fake.asked[-1].query == "limit=3&kept=true"
    shoal("models", "digits", "--all", env=at(fake))
    assert fake.asked[-1].query == "limit=20&kept=false"


def test_a_version_is_promoted_and_demoted(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    model_answers(fake, place)
    assert shoal("promote", "digits", "best", "--why", "audit", env=at(fake)).stdout.strip() == "production: version 2"
    assert sent(fake, "PUT", "/jobs/digits/labels/production") == [{"version": 2, "why": "audit"}]
    shoal("promote", "digits", "production", env=at(fake))
    assert sent(fake, "PUT", "/jobs/digits/labels/production")[1] == {"version": 1, "why": ""}, "what is called so"
    done = shoal("promote", "digits", "gone", "--json", env=at(fake))
    assert (done.exit_code, envelope(done)["error"]["hint"]) == (2, "labels of this job: production")
    assert "any longer" in shoal("demote", "digits", "--why", "worse", env=at(fake)).stdout
    assert (fake.asked[-1].method, fake.asked[-1].query) == ("DELETE", "why=worse")


def test_what_a_label_names_is_exported(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    export_answers(fake, place)
    fake.answers["GET /jobs/digits"] = a_job(labels={"production": 2})
    assert shoal("export", "digits", "--version", "production", env=at(fake)).exit_code == 0
    assert (place / "digits-2.safetensors").read_bytes() == MODEL


def run_of(fake: FakeCoordinator, text: bytes) -> None:
    fake.answers = {"GET /jobs/digits/export": raw(text, {"Content-Type": "application/jsonl"})}


def test_a_run_is_saved_whole(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    text = b'{"type":"job","name":"digits"}\n{"type":"end","lines":{"job":1,"version":0,"job_event":1,"report":12}}\n'
    run_of(fake, text)
    said = shoal("export", "digits", "--run", "run.jsonl", env=at(fake)).stdout
    assert said.strip() == f"run.jsonl: {len(text)} B, 0 versions, 1 job event, 12 reports"
    assert (place / "run.jsonl").read_bytes() == text
    assert shoal("export", "digits", "--run", "run.jsonl", env=at(fake)).exit_code == 2, "it is there already"


def test_a_run_that_broke_off_is_not_kept(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    for text in (
        b'{"type":"job","name":"digits"}\n',
        b'{"type":"job"}\n{"type":"en',
        b"",
        b'{"type":"end"}\n',
        b"[]\n",
    ):
        run_of(fake, text)
        done = shoal("export", "digits", "--run", "run.jsonl", "--json", env=at(fake))
        assert envelope(done)["error"]["code"] == "export.damaged"
        assert not list(place.glob("*run.jsonl*"))


def test_a_job_is_submitted_to_be_started_later(shoal: Shoal, fake: FakeCoordinator, place: Path) -> None:
    run_answers(fake, place)
    said = shoal("run", "job.toml", "--paused", env=at(fake)).stdout
    assert said.splitlines()[-1] == "shoal jobs resume digits"
    (wanted,) = sent(fake, "POST", "/jobs")
    assert isinstance(wanted, dict)
    assert wanted["paused"] is True
    assert shoal("run", "job.toml", "--paused", "--compare", "fedavg,fedsgd", env=at(fake)).exit_code == 2
