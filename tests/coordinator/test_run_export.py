"""A run as JSON Lines: what the other routes tell, page by page, and an end that says that it is all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal_coordinator.analytics import run_export
from tests.support.coordinator import Inside, inside
from tests.support.node import Node
from tests.support.scenario import problem
from tests.support.waiting import until

Swarm = Callable[..., list[Node]]


def exported(running: Inside, job: str, *what: str) -> list[dict[str, Any]]:
    answer = running.request("GET", f"/api/v1/jobs/{job}/export", params={"what": list(what)})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["content-disposition"] == f'attachment; filename="{job}.jsonl"'
    return [json.loads(line) for line in answer.text.splitlines()]


def of(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "type"} for line in lines if line["type"] == kind]


def lasting(job: dict[str, Any]) -> dict[str, Any]:
    """But for bytes: to save the run costs some."""
    return {name: value for name, value in job.items() if not name.endswith("_bytes")}


def test_a_run_has_what_the_other_routes_tell(tmp_path: Path, swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pages of three rows, so that each kind has several."""
    monkeypatch.setattr(run_export, "PAGE", 3)
    with inside(tmp_path / "data") as running:
        running.begin("a", nodes=2, rounds=5)
        running.begin("b", nodes=2, rounds=5)
        for node in swarm(running, 2, {"a": 10, "b": 10}):
            node.finish()
        until("the jobs to have ended", lambda: all(running.job(job)["ended_at"] for job in "ab"))
        lines = exported(running, "a")
        assert [lasting(job) for job in of(lines, "job")] == [lasting(running.job("a"))]
        versions = of(lines, "version")
        known = running.get("/jobs/a/versions")["versions"]
        assert [lasting(version) for version in versions] == [lasting(version) for version in known]
        assert [version["up_bytes"] for version in versions] == [version["up_bytes"] for version in known]
        totals = [version["total_bytes"] for version in versions]
        assert totals == sorted(totals)
        assert totals[-1] > 0
        assert of(lines, "report") == running.get("/jobs/a/reports")["reports"]
        assert of(lines, "job_event") == running.events("a")
        traffic = running.get("/jobs/a/traffic", by=["version", "node", "kind"])["rows"]
        assert [row for row in of(lines, "traffic") if row["kind"] != "export"] == [
            row for row in traffic if row["kind"] != "export"
        ], "but for this file itself"
        kinds = ("job", "version", "traffic", "report", "job_event", "failure")
        assert lines[-1] == {"type": "end", "lines": {kind: len(of(lines, kind)) for kind in kinds}}
        assert len(lines) > 30


def test_less_may_be_asked_for(coordinator: Inside) -> None:
    coordinator.begin("a", nodes=1, title="größer <b>")
    lines = exported(coordinator, "a", "job_event", "job", "job")
    assert [line["type"] for line in lines] == ["job", *["job_event"] * len(coordinator.events("a")), "end"]
    assert lines[0]["title"] == "größer <b>"
    assert set(lines[-1]["lines"]) == {"job_event", "job"}
    problem(coordinator.request("GET", "/api/v1/jobs/a/export?what=secrets"), 422, "request.invalid")
    problem(coordinator.request("GET", "/api/v1/jobs/z/export"), 404, "job.unknown")
