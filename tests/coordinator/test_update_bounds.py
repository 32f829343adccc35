"""One node that lies about its update, at a coordinator with default limits: who is told, and what it could do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.protocol.message import Ack
from shoal.wire import codec
from shoal_coordinator.alerts import alert_rules
from shoal_coordinator.composition import housekeeping
from tests.support.coordinator import inside
from tests.support.scenario import SIZE, set_up, task_of
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ALERTS_S", 0.02)
    monkeypatch.setattr(alert_rules, "CLEAR_S", 0.1)


def test_an_update_of_1e15_is_refused_and_everybody_can_see_why(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_disk_bytes=0) as running:
        stage = set_up(running, schedule={"cohort": 0, "quorum": 2})
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        for node in stage.nodes:
            stage.tasks[node.node], _ = task_of(node, "main")
        answer = stage.report(np.full(SIZE, 1e15, np.float32), node="n2")
        ack = codec.decode(answer.content).message
        assert isinstance(ack, Ack)
        assert not ack.counted
        assert "times the typical" in ack.why
        for node in ("n0", "n1"):
            assert stage.report(node=node).status_code == 200
        until("version 2", lambda: running.job("main")["version"] >= 2)
        found = until("an alert", lambda: [a for a in running.get("/alerts")["alerts"] if a["kind"] == "node-limited"])
        assert found[0]["node"] == "n2"
        assert ack.why in found[0]["text"]
        (refusal,) = [one for one in running.get("/jobs/main/events")["events"] if one["kind"] == "refusal"]
        assert refusal["node"] == "n2"
        assert ack.why in refusal["text"]
        (failure,) = running.get("/failures", job="main")["failures"]
        assert (failure["node"], failure["phase"], failure["error"]) == ("n2", "fold", ack.why)
        model = running.runner("main").hub.store.slots["model"]
        assert np.abs(np.concatenate([np.ravel(value) for value in model.values()])).max() < 100
        stage.close()


def test_a_weight_of_999_999_999_is_not_counted_in_full(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_disk_bytes=0) as running:
        stage = set_up(running, schedule={"cohort": 0, "quorum": 2})
        for node in ("n0", "n1"):
            stage.report(node=node)
        for node in stage.nodes:
            stage.tasks[node.node], _ = task_of(node, "main")
        stage.report(node="n2", weight=999_999_999.0)
        for node in ("n0", "n1"):
            stage.report(node=node)
        (row,) = until("version 2", lambda: running.rows("SELECT weight FROM versions WHERE number = 2"))
        assert row[0] == pytest.approx(40.0)  # 5 + 5 + three times as much
        found = until("an alert", lambda: [a for a in running.get("/alerts")["alerts"] if a["kind"] == "node-limited"])
        assert "a weight of 1e+09 counts as 30" in found[0]["text"]
        stage.close()
