"""Examples of the API's views of jobs, nodes, events and versions."""

from __future__ import annotations

from typing import Any

from shoal_coordinator.schemas.jobs import JobEventView, JobView, SplitJobDetail, VersionView
from shoal_coordinator.schemas.nodes import JobNode


def a_job(**changed: Any) -> dict[str, Any]:
    """Return a job as the API shows it."""
    values = {
        "name": "digits",
        "title": "Digits",
        "state": "running",
        "state_why": "round 3: 1 reports",
        "algorithm": "fedavg",
        "schedule": "rounds",
        "version": 2,
        "versions": 5,
        "progress": 0.4,
        "eta_s": 12.0,
        "nodes": 4,
        "busy": 3,
        "created_at": "2026-01-02T03:04:05.000Z",
        "started_at": "2026-01-02T03:04:06.000Z",
        "ended_at": None,
        "model": {"digest": "0" * 64, "bytes": 19_768, "parameters": 4_810},
        "metrics": {"eval/accuracy": 0.9312, "eval/loss": 0.25},
        "best": {"accuracy": 0.9312, "version": 2},
        "up_bytes": 123_456,
        "down_bytes": 234_567,
        "spec": {"name": "digits"},
    }
    return JobView.model_validate(values | changed).model_dump(mode="json")


def a_node(name: str = "node-1", **changed: Any) -> dict[str, Any]:
    """Return a node of a job."""
    values = {
        "name": name,
        "state": "training",
        "progress": 0.5,
        "task": "1.7",
        "version": 2,
        "reports": 2,
        "weight": 258.0,
        "seconds": 0.12,
        "metrics": {"eval/accuracy": 0.9},
        "up_bytes": 1000,
        "down_bytes": 2000,
        "last_seen_s": 0.1,
        "failures": 0,
        "last_error": None,
        "info": {},
    }
    return JobNode.model_validate(values | changed).model_dump(mode="json")


def a_split_job(**changed: Any) -> dict[str, Any]:
    """Return a split job."""
    round_ = {"number": 1, "nodes": ["a", "b"], "metrics": {"train/loss": 0.25}, "batches": 6, "examples": 41}
    nodes = [("a", 3, ""), ("b", None, ""), ("c", None, "no [red]such[/] class")]
    values = {
        "name": "clinics",
        "state": "running",
        "id": "0" * 16,
        "spec": {"name": "clinics", "rounds": 3},
        "form": "0" * 64,
        "forms": {},
        "merge_small": False,
        "round": 1,
        "ended": "",
        "nodes": [dict(zip(("name", "turn_batches", "excluded"), one, strict=True)) for one in nodes],
        "metrics": round_["metrics"],
        "step_up_bytes": 384,
        "step_down_bytes": 200,
        "up_bytes": 9000,
        "down_bytes": 8000,
        "versions": [{**round_, "up_bytes": 6 * 1500, "down_bytes": 6 * 1300}],
    }
    return SplitJobDetail.model_validate(values | changed).model_dump(mode="json")


def a_job_event(number: int, **changed: Any) -> dict[str, Any]:
    """Return an event of a job."""
    values = {"id": number, "at": "2026-01-02T03:04:05.000Z", "version": 2, "kind": "decision", "node": None}
    text = f"version {number}: 4 of 4 reports"
    return JobEventView.model_validate(values | {"text": text} | changed).model_dump(mode="json")


def a_version(number: int, **changed: Any) -> dict[str, Any]:
    """Return a closed version of a job."""
    values = {
        "number": number,
        "digest": f"{number:064x}",
        "bytes": 19_768,
        "why": "4 of 4 reports",
        "opened_at": "2026-01-02T03:04:05.000Z",
        "closed_at": "2026-01-02T03:04:06.000Z",
        "elapsed_s": float(number),
        "seconds": 1.0,
        "reports": 4,
        "asked": 4,
        "weight": 1150.0,
        "numbers": {},
        "metrics": {"eval/accuracy": 0.9 + number / 100},
        "up_bytes": 10,
        "down_bytes": 20,
        "total_bytes": 30 * number,
    }
    return VersionView.model_validate(values | changed).model_dump(mode="json")
