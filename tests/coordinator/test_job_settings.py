"""Settings of a running job, changed over the API: what is shown, what is refused, and what a restart knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal_coordinator.api.routes import control
from tests.support.coordinator import Inside, inside
from tests.support.scenario import Stage, problem, set_up, task_of
from tests.support.waiting import until

LR = {"algorithm.lr": 0.05}


def change(running: Inside, values: dict[str, Any], job: str = "main") -> httpx.Response:
    return running.request("PATCH", f"/api/v1/jobs/{job}", json={"values": values, "why": "it oscillates"})


def close(stage: Stage) -> None:
    for node in ("n0", "n1"):
        assert stage.report(node=node).status_code == 200


def test_a_change_is_shown_kept_and_told_to_nodes(tmp_path: Path) -> None:
    """With the next round, also after a crash of the coordinator in between."""
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        stage.dismiss("n2")  # else it may be asked in n0's place, and is missed only after a lease
        found = change(running, LR).json()
        assert (found["settings_changed"], found["settings_pending"], found["spec"]["algorithm"].get("lr", 0.1)) == (
            {},
            LR,
            0.1,
        )
        told = "from version 2 on: algorithm.lr 0.1 → 0.05 (it oscillates)"
        until("the event", lambda: running.get("/jobs/main/events", kind="state")["events"][-1]["text"] == told)
        assert stage.tasks["n0"].numbers == {}
        close(stage)
        assert task_of(stage.nodes[0], "main")[0].numbers == LR
        assert (running.job("main")["settings_changed"], running.job("main")["settings_pending"]) == (LR, {})
        assert change(running, {"schedule.deadline_s": 60.5}).status_code == 200
        lines = running.request("GET", "/api/v1/jobs/main/export").text
        assert '"settings_changed":{"algorithm.lr":0.05}' in lines.replace(": ", ":")
        assert "algorithm.lr 0.1 → 0.05" in lines
        stage.close()
    with inside(tmp_path / "data") as running:
        again = running.job("main")
        assert (again["settings_changed"], again["settings_pending"]) == (LR, {"schedule.deadline_s": 60.5})
        assert running.runner("main").hub.settings.algorithm.lr == 0.05


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with inside(tmp_path_factory.mktemp("settings") / "data") as running:
        made = set_up(running)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("values", "code", "told"),
    [
        ({"seed": 3}, "job.fixed", "seed cannot be changed"),
        ({"algorithm.name": 1}, "job.fixed", "algorithm.name cannot"),
        ({"algorithm.lr": 0.5, "filters": 1}, "job.fixed", "filters cannot"),
        ({"schedule.deadline_s": -1}, "job.invalid", "deadline_s"),
        ({"algorithm.batch_size": 1.5}, "job.invalid", "batch_size"),
        ({"algorithm.batch_size": -5}, "job.invalid", "batch_size"),
        ({"algorithm.lr": -5}, "job.invalid", "lr"),
        ({"algorithm.epochs": -5}, "job.invalid", "epochs"),
        ({"rounds": 0}, "job.invalid", "0 versions already"),
        ({}, "request.invalid", ""),
        ({"algorithm.lr": "fast"}, "request.invalid", ""),
    ],
)
def test_what_may_not_change_is_refused_by_name(stage: Stage, values: dict[str, Any], code: str, told: str) -> None:
    before = stage.picture()
    answer = change(stage.running, values)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert told in answer.json()["detail"]
    assert answer.json()["hint"]
    assert stage.picture() == before


@pytest.mark.parametrize("literal", ["1e999", "-1e999", "NaN"])
def test_numbers_that_are_not_finite_are_refused(stage: Stage, literal: str) -> None:
    before = stage.picture()
    json = {"Content-Type": "application/json"}
    content = f'{{"values": {{"algorithm.lr": {literal}}}}}'
    answer = stage.running.request("PATCH", "/api/v1/jobs/main", content=content, headers=json)
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), answer.text
    assert stage.picture() == before


def test_what_the_hub_does_not_change_is_not_answered_as_if_it_did(stage: Stage, monkeypatch: Any) -> None:
    """The job goes on between the check and its turn."""
    monkeypatch.setattr(control, "check", lambda *_: None)
    before = stage.running.job("main")["settings_pending"]
    problem(change(stage.running, {"rounds": 0}), 409, "job.unchanged")
    assert stage.running.job("main")["settings_pending"] == before


def test_a_job_that_has_ended_keeps_its_settings(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        set_up(running).close()
        running.post("/jobs/main/stop")
        problem(change(running, LR), 409, "job.ended")
