"""Alerts of a coordinator: each condition seen for real, told once, kept, acknowledged, and posted elsewhere."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.protocol.message import TaskFailed
from shoal.core.server.roster import FAILURES_MAX
from shoal.wire import codec
from shoal_coordinator.alerts import alert_rules, webhook
from shoal_coordinator.alerts.webhook import signature
from shoal_coordinator.composition import housekeeping
from tests.support.coordinator import Inside, inside
from tests.support.http_servers import Asked, Said, answering
from tests.support.scenario import SIZE, by_hand, problem, set_up, task_of
from tests.support.sse import listening
from tests.support.waiting import pause, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "ALERTS_S", 0.02)
    monkeypatch.setattr(alert_rules, "CLEAR_S", 0.1)
    monkeypatch.setitem(alert_rules.HOLD_S, "disk-low", 0.0)
    monkeypatch.setattr(webhook, "RETRY_MIN_S", 0.01)


def told(running: Inside, kind: str, **more: Any) -> list[dict[str, Any]]:
    return [one for one in running.get("/alerts", **more)["alerts"] if one["kind"] == kind]


def waited(running: Inside, kind: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = until(f"an alert: {kind}", lambda: told(running, kind, **more))[0]
    return found


def test_a_node_is_lost_and_comes_back(tmp_path: Path) -> None:
    with inside(tmp_path / "data", lease_s=0.5, alert_disk_bytes=0) as running:
        stage = set_up(running)
        found = waited(running, "node-lost")
        assert (found["job"], found["jobs"]) == ("", ["main"])
        assert found["node"] in ("n0", "n1", "n2")
        assert found["cleared_at"] is None
        until("all of them", lambda: len(told(running, "node-lost")) == 3)
        node = stage.nodes[0]
        until(
            "it to be over",
            lambda: (
                node.ask("GET", "/work", params={"wait_s": 0.05})
                and [one for one in told(running, "node-lost") if one["node"] == "n0" and one["cleared_at"]]
            ),
        )
        stage.close()


def test_a_node_that_leaves_is_not_lost(tmp_path: Path) -> None:
    with inside(tmp_path / "data", lease_s=0.4, alert_disk_bytes=0) as running:
        stage = set_up(running)
        stage.dismiss("n2")
        until("the others", lambda: len(told(running, "node-lost")) == 2)
        assert {one["node"] for one in told(running, "node-lost")} == {"n0", "n1"}
        stage.close()


def test_a_quorum_is_missed(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_disk_bytes=0) as running:
        stage = set_up(running, schedule={"deadline_s": 0.2, "quorum": 2})
        found = waited(running, "quorum-missed")
        assert "0 of the 2 reports" in found["text"]
        stage.close()


def test_a_node_that_fails_for_good_leaves_too_few(tmp_path: Path) -> None:
    with inside(tmp_path / "data", lease_s=86_400.0, alert_disk_bytes=0) as running:
        stage = set_up(running, schedule={"quorum": 2})
        stage.dismiss("n2")
        assert stage.report(node="n1").status_code == 200
        for _ in range(FAILURES_MAX):
            task, _ = task_of(stage.nodes[0], "main")
            failed = codec.Frame("main", TaskFailed("n0", task.id, "CUDA out of memory"))
            answer = stage.send("n0", "POST", "/jobs/main/failures", content=codec.encode(failed))
            assert answer.status_code == 200
        text = waited(running, "nodes-set-aside", active=True)["text"]
        assert "below the quorum: 1 of 2; set aside after failures: n0" in text
        assert "n0: CUDA out of memory" in text
        assert text.endswith(alert_rules.SET_ASIDE_REMEDY)
        waiting, failure = (
            "below the quorum: 1 of 2; set aside after failures: n0",
            "last failure of n0: CUDA out of memory",
        )
        assert running.job("main")["headline"] == f"Stalled: {waiting}; {failure}"
        stage.close()


def test_a_model_diverges(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_disk_bytes=0) as running:
        stage = set_up(running)
        problem(stage.report(np.full(SIZE, np.nan, np.float32)), 422, "payload.not-finite")
        found = waited(running, "diverged")
        assert "n0" in found["text"]
        stage.close()


def test_a_metric_that_is_not_finite(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_disk_bytes=0) as running:
        stage = set_up(running)
        for node in ("n0", "n1"):
            assert stage.report(node=node, metrics={"eval/loss": "NaN", "eval/examples": 3.0}).status_code == 200
        assert waited(running, "diverged")["text"] == "eval/loss of version 0 is NaN"
        stage.close()


def test_nothing_goes_on(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_stalled_s=0.3, alert_disk_bytes=0) as running:
        stage = set_up(running)
        assert waited(running, "no-progress")["job"] == "main"
        running.post("/jobs/main/pause")
        until("it to be over", lambda: not told(running, "no-progress", active=True))
        stage.close()


def test_an_initial_model_never_comes(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_stalled_s=0.3, alert_disk_bytes=0) as running:
        running.begin("main", nodes=1, rounds=3)
        node = by_hand(running, "n0", {"main": SIZE})
        assert task_of(node, "main")[0].kind == "init"
        assert waited(running, "no-progress")["job"] == "main"
        node.client.close()


def test_a_job_that_no_node_has_joined_is_not_missed(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_stalled_s=0.01, alert_disk_bytes=2**60) as running:
        running.begin("main", nodes=1, rounds=3)
        waited(running, "disk-low")  # so it looks
        pause(0.2)
        assert not told(running, "no-progress")


def test_the_disk_is_low_once_whatever_restarts(tmp_path: Path) -> None:
    for life in range(2):
        with inside(tmp_path / "data", alert_disk_bytes=2**60) as running:
            found = waited(running, "disk-low")
            assert found["job"] == ""
            assert len(told(running, "disk-low")) == 1, life


def test_an_alert_is_acknowledged_by_operators(tmp_path: Path) -> None:
    with inside(tmp_path / "data", alert_disk_bytes=2**60) as running, listening(running.url) as events:
        found = waited(running, "disk-low")
        viewer = running.post("/tokens", {"role": "viewer"})["token"]
        path = f"/api/v1/alerts/{found['id']}/acknowledge"
        headers = {"Authorization": f"Bearer {viewer}"}
        problem(running.request("POST", path, headers=headers), 403, "auth.forbidden")
        first = running.post(f"/alerts/{found['id']}/acknowledge")
        assert first["acknowledged_at"]
        assert running.post(f"/alerts/{found['id']}/acknowledge") == first
        said = next(event for event in events if event.name == "alert" and event.data["acknowledged_at"])
        assert said.data == first
        problem(running.request("POST", "/api/v1/alerts/99/acknowledge"), 404, "alert.unknown")


# Elsewhere


class Receiver:
    """Takes messages; `answers` are the next statuses."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        self.answers: list[int] = []
        self.paths: list[str] = []
        self.url = ""

    def take(self, asked: Asked) -> Said:
        self.paths.append(asked.path)
        status = self.answers.pop(0) if self.answers else 204
        if status == 204:
            self.got.put(({name.lower(): value for name, value in asked.headers.items()}, asked.body))
        return Said(status, headers={"Location": "/elsewhere"} if status == 302 else {})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    with answering(made.take) as url:
        made.url = f"{url}/hook/x"
        yield made


def test_an_alert_is_posted_and_signed(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [503, 500]
    hook = {"alert_webhook": receiver.url, "alert_webhook_secret": "geheim"}
    with inside(tmp_path / "data", alert_disk_bytes=2**60, **hook) as running:
        headers, body = receiver.got.get(timeout=60)
        assert receiver.paths == ["/hook/x"] * 3, "tried again"
        said = json.loads(body)
        assert said == {"event": "raised", **waited(running, "disk-low")}
        at, _, given = headers["shoal-signature"].partition(",v1=")
        mine = hmac.new(b"geheim", at.removeprefix("t=").encode() + b"." + body, hashlib.sha256).hexdigest()
        assert given == mine
        assert "authorization" not in headers


def test_the_end_of_a_job_is_posted(tmp_path: Path, receiver: Receiver) -> None:
    with inside(tmp_path / "data", alert_webhook=receiver.url) as running:
        set_up(running).close()
        running.post("/jobs/main/stop", {"why": "enough"})
        while (said := json.loads(receiver.got.get(timeout=60)[1]))["event"] != "job-ended":
            assert said["event"] in ("raised", "cleared")
        assert (said["job"], said["state"], said["state_why"], said["version"]) == ("main", "stopped", "enough", 0)
        assert said["ended_at"] == running.get("/jobs/main")["ended_at"]


def test_a_redirect_is_not_followed(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [302]
    with inside(tmp_path / "data", alert_disk_bytes=2**60, alert_webhook=receiver.url) as running:
        waited(running, "disk-low")
        until("the try", lambda: receiver.paths)
        running.coordinator.parts.alert_loop.webhook.enqueue({"id": 2})  # type: ignore[union-attr]
        running.loop.call_soon_threadsafe(running.coordinator.parts.alert_loop.webhook._has_messages.set)  # type: ignore[union-attr]
        receiver.got.get(timeout=60)
        assert set(receiver.paths) == {"/hook/x"}


def test_a_receiver_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """The address takes no connection's data: jobs, alerts and the end of the process do not wait for it."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        with inside(tmp_path / "data", alert_disk_bytes=2**60, alert_webhook=url) as running:
            waited(running, "disk-low")
            set_up(running).close()
            assert running.get("/jobs/main")["state"] == "running"


def test_a_signature_is_of_its_time_and_body() -> None:
    one = signature("s", b"x", 1)
    assert one.startswith("t=1,v1=")
    assert len({one, signature("s", b"x", 2), signature("s", b"y", 1), signature("t", b"x", 1)}) == 4
