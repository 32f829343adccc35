"""The errors of one node do not bury important events, also where a job stands still."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from shoal.core.protocol.metrics import REPORTED_MAX
from shoal_coordinator.models import retention
from shoal_coordinator.nodes import presence
from shoal_coordinator.nodes.presence import REFUSALS_MAX, NodeActivity
from tests.support.coordinator import inside
from tests.support.scenario import SIZE, body, problem, set_up
from tests.support.waiting import until


def test_refused_uploads_are_few_notes(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        for number in range(20):
            values = np.full(SIZE, np.nan, np.float32)
            values[number % SIZE :] = number  # each refusal names another place
            data = body(values[: SIZE - 1]) if number % 2 else body(values)
            path = f"/jobs/main/blobs/{hashlib.sha256(data).hexdigest()}"
            assert stage.send("n0", "PUT", path, content=data).status_code in (201, 422)
        shown = [event for event in running.events("main", "refusal") if event["node"] == "n0"]
        assert 0 < len(shown) <= REFUSALS_MAX
        stage.close()


def test_what_was_not_shown_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(presence.time, "monotonic", lambda: now[0])
    doing = NodeActivity()
    told = [doing.record_failure(f"error {number}") for number in range(60)]
    assert sum(told) == REFUSALS_MAX
    now[0] += presence.REFUSAL_S + 1
    assert doing.record_failure("another")
    assert doing.suppressed_text() == f" ({60 - REFUSALS_MAX} more before were not shown)"
    assert doing.suppressed_text() == ""
    assert not doing.record_failure("and one")


def test_of_a_nodes_metrics_the_newest_names_are_kept() -> None:
    """A node that renames its metrics in each report takes no more memory, and no longer answers."""
    doing = NodeActivity()
    doing.finish_task((1, 1), None, 1.0, {"train/loss": 9.0, "eval/loss": 8.0})
    for number in range(20):
        doing.finish_task((1, number), None, 1.0, {f"eval/{number}_{place}": 1.0 for place in range(62)})
        doing.add_metrics({"train/loss": float(number)})
    assert len(doing.metrics) == REPORTED_MAX
    assert doing.metrics["train/loss"] == 19.0
    assert {f"eval/19_{place}" for place in range(62)} < doing.metrics.keys()
    assert not {"eval/loss", "eval/0_0"} & doing.metrics.keys()


def test_notes_are_trimmed_though_no_version_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TIDY_S", 0.05)
    with inside(tmp_path / "data", events_kept=100) as running:
        stage = set_up(running)
        for _ in range(80):
            running.post("/jobs/main/pause", {"why": "to see"})
            running.post("/jobs/main/resume", {"why": "again"})
        until("fewer", lambda: running.rows("SELECT count(*) FROM job_events WHERE topic = 'job_event'")[0][0] <= 100)
        problem(stage.report(np.full(SIZE, np.nan, np.float32)), 422, "payload.not-finite")
        stage.close()
