"""Base models: uploaded once, resumed at the byte, given to the nodes of the jobs that name them, and deleted."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shoal.core.model.tree import Layout, Tree
from shoal.core.protocol.message import Stop
from shoal.runtime.durable_files import digest_of
from shoal.wire.payload import payload_pieces
from shoal_coordinator.models import retention
from tests.coordinator.test_layout_mismatch import hello, polled
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.node import Node
from tests.support.scenario import by_hand, problem
from tests.support.waiting import until

TENSORS = {"a": np.arange(5000, dtype=np.float32), "b": np.array([np.nan, np.inf, 0], np.float32)}
LIMIT = 30_000


def file_of(tree: Tree) -> bytes:
    return b"".join(bytes(piece) for piece in payload_pieces({"model": tree}))


DATA = file_of(Tree.of(TENSORS))
DIGEST = digest_of([DATA])


def put(running: Inside, data: bytes = DATA, digest: str = "", **headers: str) -> httpx.Response:
    digest = digest or hashlib.sha256(data).hexdigest()
    return running.request("PUT", f"/api/v1/bases/{digest}", content=data, headers=headers)


def begin(running: Inside, name: str = "main", **spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = running.post("/jobs", {"spec": {"name": name, "rounds": 1, **spec}, "base_model": DIGEST})
    return found


def fetch(node: Node, job: str = "main", **headers: str) -> httpx.Response:
    return node.ask("GET", f"/jobs/{job}/blobs/{DIGEST}", headers=headers)


Enter = Callable[[Node], Node]
"""Returns a node, which is closed after the test."""


@pytest.fixture
def enter() -> Iterator[Enter]:
    with ExitStack() as stack:

        def entered(node: Node) -> Node:
            stack.callback(node.client.close)
            return node

        yield entered


def test_a_node_without_a_task_fetches_the_base_model_of_a_job(coordinator: Inside, enter: Enter) -> None:
    assert put(coordinator).status_code == 201
    view = begin(coordinator)
    assert view["base_model"] == {"digest": DIGEST, "bytes": len(DATA), "nodes": 0}
    assert view["spec"]["base_model"] == DIGEST
    node = enter(by_hand(coordinator, "n0"))
    assert fetch(node).content == DATA
    rest = fetch(node, range="bytes=100-")
    assert (rest.status_code, rest.content) == (206, DATA[100:])
    rows = coordinator.get("/jobs/main/traffic", by=["kind", "node"])["rows"]
    (row,) = [one for one in rows if one["kind"] == "base" and one["direction"] == "down"]
    assert row["node"] == "n0"
    assert row["body_bytes"] == 2 * len(DATA) - 100, "counted apart from models and updates"
    coordinator.begin("other", nodes=1)
    problem(fetch(node, "other"), 409, "task.none")


def test_a_job_is_restored_with_its_base_model(tmp_path: Path, enter: Enter) -> None:
    with inside(tmp_path / "data") as running:
        put(running)
        begin(running)
    with inside(tmp_path / "data") as running:
        assert running.job("main")["base_model"] == {"digest": DIGEST, "bytes": len(DATA), "nodes": 0}
        assert fetch(enter(by_hand(running, "n0"))).content == DATA


def test_a_node_is_told_that_it_lacks_the_base_model_before_there_is_a_model(coordinator: Inside, enter: Enter) -> None:
    put(coordinator)
    node = enter(by_hand(coordinator, "n0"))
    hello(node, Layout.of([("w", "F32", (3,))], "c" * 64))
    begin(coordinator)
    told = f"its model differs from the job's (base model cccccccccccc, not base model {DIGEST[:12]})"
    assert polled(node) == Stop(told, model_differs=True)
    for name in ("n1", "n2"):
        hello(enter(by_hand(coordinator, name)), Layout.of([("w", "F32", (3,))], DIGEST))
    view = coordinator.job("main")
    assert (view["base_model"]["nodes"], view["members"]) == (2, 3)


def test_an_interrupted_upload_goes_on_at_the_byte(coordinator: Inside, enter: Enter) -> None:
    half, partial = len(DATA) // 2, coordinator.folder / "blobs" / ".start" / "partial" / "operator"

    def head() -> httpx.Response:
        return coordinator.request("HEAD", f"/api/v1/bases/{DIGEST}")

    assert (head().status_code, head().headers["upload-offset"]) == (404, "0")
    lines = [f"PUT /api/v1/bases/{DIGEST} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {OPERATOR}"]
    head_bytes = "\r\n".join([*lines, f"Content-Length: {len(DATA)}", "", ""]).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(coordinator.url).port)) as line:
        line.sendall(head_bytes + DATA[:half])
        until("half of it", lambda: [path for path in partial.glob("*.tmp") if path.stat().st_size == half])
    until("the kept bytes", lambda: head().headers["upload-offset"] == str(half))
    part = {"content-range": f"bytes {half}-{len(DATA) - 1}/{len(DATA)}"}
    assert put(coordinator, DATA[half:], DIGEST, **part).status_code == 201
    assert (head().status_code, head().headers["content-length"]) == (200, str(len(DATA)))
    begin(coordinator)
    assert fetch(enter(by_hand(coordinator, "n0"))).content == DATA


def test_a_hostile_base_model_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    adapter, measured = (Tree.of(TENSORS, **more) for more in ({"base_model": "c" * 64}, {"statistics": ["a"]}))
    with inside(tmp_path / "data", base_bytes_max=LIMIT) as running:
        problem(put(running, DATA, "0" * 64), 422, "blob.digest")
        problem(put(running, b"\xff" * 3000), 422, "payload.header")
        problem(put(running, file_of(adapter)), 422, "payload.header")
        problem(put(running, file_of(measured)), 422, "payload.header")
        assert "base_bytes_max" in problem(put(running, bytes(LIMIT + 1)), 413, "body.too-large")["hint"]
        assert [path for path in (running.folder / "blobs" / ".start").rglob("*") if path.is_file()] == []
        wanted = {"spec": {"name": "main"}, "base_model": DIGEST}
        problem(running.request("POST", "/api/v1/jobs", json=wanted), 422, "job.invalid")


def test_another_base_model_than_the_job_files_is_refused(coordinator: Inside) -> None:
    put(coordinator)
    wanted: dict[str, Any] = {"spec": {"name": "main", "base_model": "c" * 64}, "base_model": DIGEST}
    found = problem(coordinator.request("POST", "/api/v1/jobs", json=wanted), 422, "job.invalid")
    assert "another base model than the job file's" in found["detail"]
    start = file_of(Tree.of({"w": np.zeros(3, np.float32)}))
    digest = digest_of([start])
    assert coordinator.request("PUT", f"/api/v1/blobs/{digest}", content=start).status_code == 201
    wanted = {"spec": {"name": "main"}, "base_model": DIGEST, "start_model": digest}
    problem(coordinator.request("POST", "/api/v1/jobs", json=wanted), 422, "job.start-model")


def test_it_is_deleted_when_no_job_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ORPHAN_AGE_S", 0.0)
    monkeypatch.setattr(retention, "TIDY_S", 0.0)
    with inside(tmp_path / "data") as running:
        put(running)
        begin(running)
        begin(running, "second", seed=2)

        def kept() -> list[str]:
            return sorted(path.parent.name for path in (running.folder / "blobs").glob(f"*/{DIGEST}"))

        until("jobs alone to keep it", lambda: kept() == ["main", "second"])
        places = [running.folder / "blobs" / job / DIGEST for job in kept()]
        assert places[0].samefile(places[1]), "one file"
        for job in ("main", "second"):
            assert DIGEST in {path.name for path in places if path.exists()}
            running.post(f"/jobs/{job}/stop")
            until("its end", lambda job=job: running.job(job)["ended_at"])  # type: ignore[misc]
            assert running.request("DELETE", f"/api/v1/jobs/{job}").status_code < 300
        assert kept() == []


def test_a_job_gets_the_base_model_that_another_job_keeps(tmp_path: Path, enter: Enter) -> None:
    """As a clone does, long after the upload was deleted, and after the first job has ended."""
    with inside(tmp_path / "data") as running:
        put(running)
        first = begin(running)
        running.post("/jobs/main/stop")
        running.coordinator.blobs.starts.delete(DIGEST)
        copy = running.post("/jobs", {"spec": {**first["spec"], "name": "copy"}})
        assert copy["base_model"] == first["base_model"]
        assert fetch(enter(by_hand(running, "n0")), "copy").content == DATA
        until("its end", lambda: running.job("main")["ended_at"])
        assert running.request("DELETE", "/api/v1/jobs/main").status_code < 300
        assert fetch(enter(by_hand(running, "n1")), "copy").content == DATA
        other = running.post("/jobs", {"spec": {"name": "other", "base_model": "c" * 64}})
        assert other["base_model"] == {"digest": "c" * 64, "bytes": None, "nodes": 0}
