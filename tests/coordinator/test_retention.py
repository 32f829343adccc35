"""Deleted and kept files: bodies are named by content, so rounds and jobs may share one."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from shoal.core.protocol.message import Task
from shoal.wire import codec
from tests.support.coordinator import Inside, Server, inside
from tests.support.history import check, final, predicted
from tests.support.node import History, Node, advance, body, displacement, initial
from tests.support.scenario import Stage, by_hand, problem, set_up, task_of
from tests.support.waiting import pause, until

Swarm = Callable[..., list[Node]]


class Idle(Node):
    """A node whose training changes nothing: all its updates are the same body."""

    def result(self, job: str, task: Task) -> tuple[bytes, float, dict[str, float]]:
        data, share, metrics = super().result(job, task)
        return (body(np.zeros(self.sizes[job], np.float32)) if task.kind == "train" else data), share, metrics


def idle_swarm(running: Inside | Server, count: int, sizes: dict[str, int]) -> list[Node]:
    nodes: list[Node] = [Idle(lambda: running.url, f"n{i}", running.token(), sizes) for i in range(count)]
    for node in nodes:
        node.start()
    return nodes


def blobs(running: Inside | Server, job: str) -> set[str]:
    """Digests of the files of a job."""
    folder = running.folder / "blobs" / job
    return {path.name for path in folder.iterdir() if len(path.name) == 64}


def models(running: Inside | Server, job: str) -> list[str]:
    rows = running.rows("SELECT digest FROM versions WHERE job = ? ORDER BY number", job)
    return [row[0] for row in rows]


def updates(running: Inside | Server, job: str) -> set[str]:
    """Digests of all updates that were counted."""
    rows = running.rows("SELECT reports FROM versions WHERE job = ?", job)
    return {entry[3] for row in rows for entry in json.loads(row[0])}


@pytest.mark.parametrize("size", [10, 66_000])
def test_updates_go_when_they_are_folded_and_models_when_they_are_old(tmp_path: Path, swarm: Swarm, size: int) -> None:
    with inside(tmp_path / "data", models_kept=3) as running:
        running.begin("a", nodes=2, rounds=10)
        for node in swarm(running, 2, {"a": size}):
            node.finish()
        until("the job to have ended", lambda: running.job("a")["ended_at"])
        best = running.job("a")["best"]["version"]
        made = models(running, "a")
        kept = {*made[-3:], made[best]}
        until("old files to go", lambda: blobs(running, "a") == kept)
        for number in range(11):
            answer = running.request("GET", f"/api/v1/jobs/a/models/{number}")
            if made[number] in kept:
                assert hashlib.sha256(answer.content).hexdigest() == made[number]
            else:
                problem(answer, 410, "model.gone")


def test_checkpoints_stay(tmp_path: Path, swarm: Swarm) -> None:
    with inside(tmp_path / "data", models_kept=2) as running:
        running.begin("a", nodes=2, rounds=13, checkpoint_every=4)
        for node in swarm(running, 2, {"a": 10}):
            node.finish()
        until("the job to have ended", lambda: running.job("a")["ended_at"])
        made, wanted = models(running, "a"), {4, 8, 12, 13, running.job("a")["best"]["version"]}
        until("old files to go", lambda: blobs(running, "a") == {made[number] for number in wanted})
        assert {row["version"] for row in running.get("/jobs/a/models", kept=True)["models"]} == wanted
        answer = running.request("GET", "/api/v1/jobs/a/models/5")
        assert "checkpoint_every" in problem(answer, 410, "model.gone")["hint"]


def test_what_an_algorithm_keeps_of_nodes_is_no_part_of_a_model(tmp_path: Path, swarm: Swarm) -> None:
    """ADMM keeps the last contribution of each node by its name: of the newest version alone, and not for download."""
    with inside(tmp_path / "data", models_kept=2) as running:
        running.begin("a", nodes=2, rounds=5, algorithm={"name": "admm"})
        for node in swarm(running, 2, {"a": 10}):
            node.finish()
        until("the job to have ended", lambda: running.job("a")["ended_at"])
        made = models(running, "a")
        until("old files to go", lambda: len(blobs(running, "a") - set(made)) == 1)
        (kept,) = blobs(running, "a") - set(made)
        for number in (4, 5):
            assert [*load(running.request("GET", f"/api/v1/jobs/a/models/{number}").content)] == ["w"]
        problem(running.request("GET", f"/api/v1/jobs/a/blobs/{kept}"), 404, "blob.unknown")


def test_updates_stay_where_they_should(tmp_path: Path, swarm: Swarm) -> None:
    with inside(tmp_path / "data", keep_updates=True) as running:
        running.begin("a", nodes=2, rounds=3)
        for node in swarm(running, 2, {"a": 10}):
            node.finish()
        until("the job to have ended", lambda: running.job("a")["ended_at"])
        pause(0.7)
        assert blobs(running, "a") == updates(running, "a") | set(models(running, "a"))
        assert len(updates(running, "a")) == 6


def test_a_small_update_stands_in_the_journal_until_it_is_folded_for_good(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        assert stage.report(node="n0").status_code == 200
        kept = running.rows("SELECT job, body FROM updates")
        assert kept == [(stage.job, stage.frame(node="n0")[1])]
        assert blobs(running, stage.job) == set(models(running, stage.job)), "it has no file"
        assert stage.report(node="n1").status_code == 200
        until("the round to close", lambda: running.job(stage.job)["version"] == 1)
        until("the snapshot to be there", lambda: running.rows("SELECT 1 FROM updates") == [])
        stage.close()


def test_the_same_update_in_every_round(coordinator: Inside) -> None:
    """Small ones; large ones are those of the next test."""
    size = 10
    coordinator.begin("a", nodes=2, rounds=12)
    for node in idle_swarm(coordinator, 2, {"a": size}):
        node.finish()
    made = models(coordinator, "a")
    assert len(made) == 13
    assert set(made) == {hashlib.sha256(body(initial(size))).hexdigest()}


def test_the_same_update_in_every_round_and_a_kill_now_and_then(server: Callable[..., Server]) -> None:
    running = server().start()
    running.begin("a", nodes=2, rounds=40)
    nodes = idle_swarm(running, 2, {"a": 66_000})
    for _ in range(3):
        seen = running.job("a")["version"]
        until("progress", lambda seen=seen: running.job("a")["version"] > seen + 2)
        running.kill()
        running.start()
    for node in nodes:
        node.finish()
    assert len(models(running, "a")) == 41


def test_an_update_that_is_a_model(coordinator: Inside) -> None:
    """A node may report the very model that it was sent: its file must survive the clearing away of updates."""
    stage = set_up(coordinator)
    for name in ("n0", "n1"):
        assert stage.report(initial(10), node=name).status_code == 200
    until("the version", lambda: len(models(coordinator, "main")) == 2)
    pause(0.7)
    assert set(models(coordinator, "main")) <= blobs(coordinator, "main")
    for number in (0, 1):
        assert coordinator.request("GET", f"/api/v1/jobs/main/models/{number}").status_code == 200
    stage.close()


def test_a_refused_report_takes_no_model_with_it(coordinator: Inside) -> None:
    """Naming an older model as an update and being refused must not delete it."""
    stage = set_up(coordinator)
    stage.dismiss("n2")
    for name in ("n0", "n1"):
        assert stage.report(node=name).status_code == 200
    until("the version", lambda: len(models(coordinator, "main")) == 2)
    stage.tasks["n0"], _ = task_of(stage.nodes[0], "main")
    for named in (initial(10), advance(initial(10), 0, ("n0", "n1"))):
        problem(stage.report(named, weight=2e9), 422, "update.weight")
    for number in (0, 1):
        assert coordinator.request("GET", f"/api/v1/jobs/main/models/{number}").status_code == 200
    stage.close()


def test_jobs_do_not_share_their_fate(coordinator: Inside, swarm: Swarm) -> None:
    """Two jobs with the same models and updates: what one clears away, the other still has."""
    coordinator.begin("a", nodes=2, rounds=3)
    coordinator.begin("b", nodes=2, rounds=6)
    history = History()
    for node in swarm(coordinator, 2, {"a": 10, "b": 10}, history):
        node.finish()
    check(coordinator, history, {"a": 10, "b": 10}, {}, nodes=2)
    assert final(coordinator, "b") == predicted(10, 6, ("n0", "n1"))


def test_what_was_uploaded_stays_until_its_report_comes(coordinator: Inside) -> None:
    """The body of the next round's report is the one that is being cleared away after the last round."""
    stage = set_up(coordinator, size=66_000)
    stage.dismiss("n2")
    data = bytes(save({"w": np.zeros(66_000, np.float32)}))
    digest = hashlib.sha256(data).hexdigest()
    for _ in range(3):
        for name in ("n0", "n1"):
            put = stage.send(name, "PUT", f"/jobs/main/blobs/{digest}", content=data)
            assert put.status_code in (200, 201)
        for name in ("n0", "n1"):
            answer = named(stage, name, digest, len(data))
            if answer.status_code == 409:
                problem(answer, 409, "blob.missing")
                assert stage.send(name, "PUT", f"/jobs/main/blobs/{digest}", content=data).status_code == 201
                answer = named(stage, name, digest, len(data))
            assert answer.status_code == 200
        if coordinator.job("main")["state"] == "running":
            for node in stage.nodes[:2]:
                stage.tasks[node.node], _ = task_of(node, "main")
    stage.close()


def named(stage: Stage, node: str, digest: str, nbytes: int):  # type: ignore[no-untyped-def]
    """A report whose blob was uploaded before."""
    head, _ = stage.frame(b"", node, blob={"digest": digest, "nbytes": nbytes})
    return stage.send(node, "POST", f"/jobs/{stage.job}/reports", content=head)


# Files without a reference


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_leftovers_of_a_crash_go_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        stage = set_up(running)
        stage.close()
    here = folder / "blobs" / "main"
    orphan, young = (body(displacement("x", i, 10)) for i in range(2))
    for data in (orphan, young):
        (here / hashlib.sha256(data).hexdigest()).write_bytes(data)
    age(here / hashlib.sha256(orphan).hexdigest(), 7200)
    (here / "tmp" / "0123.tmp").write_bytes(b"half")
    broken = here / "partial" / "n0"
    broken.mkdir(parents=True, exist_ok=True)
    (broken / f"{'a' * 64}.0123.tmp").write_bytes(b"half")
    (broken / ("b" * 64)).write_bytes(b"old")
    age(broken / ("b" * 64), 2 * 86400)
    with inside(folder) as running:
        found = blobs(running, "main")
        assert hashlib.sha256(orphan).hexdigest() not in found
        assert hashlib.sha256(young).hexdigest() in found, "its report may still be on the way"
        assert set(models(running, "main")) <= found
        assert not list((here / "tmp").iterdir())
        assert sorted(path.name for path in broken.iterdir()) == ["a" * 64], "what broke off can be gone on with"


def test_late_updates_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With over-selection the last to upload are not counted; their files must not stay until the next restart."""
    monkeypatch.setattr("shoal_coordinator.models.retention.ORPHAN_AGE_S", 0.0)
    monkeypatch.setattr("shoal_coordinator.models.retention.TIDY_S", 0.1)
    with inside(tmp_path / "data") as running:
        stage = set_up(running, schedule={"cohort": 1, "over_select": 1})
        late = body(displacement("late", 0, 10))
        digest = hashlib.sha256(late).hexdigest()
        assert stage.send("n1", "PUT", f"/jobs/main/blobs/{digest}", content=late).status_code == 201
        assert stage.report(node="n0").status_code == 200
        answer = codec.decode(stage.report(late, node="n1").content).message
        assert not answer.counted  # type: ignore[union-attr]
        until("the late update to go", lambda: digest not in blobs(running, "main"))
        assert set(models(running, "main")) <= blobs(running, "main")
        stage.close()


def test_start_models_do_not_pile_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_coordinator.models.retention.ORPHAN_AGE_S", 0.0)
    with inside(tmp_path / "data") as running:
        data = body(initial(10))
        digest = hashlib.sha256(data).hexdigest()
        assert running.request("PUT", f"/api/v1/blobs/{digest}", content=data).status_code == 201
        running.begin("a", nodes=1, start=digest)
    with inside(tmp_path / "data") as running:
        assert blobs(running, ".start") == set()
        assert blobs(running, "a") == {digest}
        node = by_hand(running, "n0", {"a": 10})
        task, _ = task_of(node, "a")
        assert task.kind == "train"
        node.client.close()
