"""A job at a moment that tests like: two nodes have a task each, a third has none, nothing has been reported."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from shoal.core.protocol.message import BlobRef, Report, Task
from shoal.wire import codec
from tests.support.coordinator import Inside
from tests.support.node import History, Node, body, displacement, initial
from tests.support.waiting import until

SIZE = 10
CHANGES = ("up_bytes", "down_bytes", "last_seen_s", "failures", "last_error", "eta_s")
"""Return the public views, and the state that a refused request may not change."""


def by_hand(running: Inside, name: str, jobs: dict[str, int] | None = None) -> Node:
    """A node that only does what the test makes it do."""
    node = Node(lambda: running.url, name, running.token(), jobs or {}, History())
    node.enter()
    return node


def task_of(node: Node, job: str) -> tuple[Task, bytes]:
    """The task that stands for a node in a job, and what came with it."""

    def look() -> tuple[Task, bytes] | None:
        found = node.ask("GET", "/work", params={"wait_s": 1, "job": job})
        if found.status_code == 204:
            return None
        frame = codec.decode(found.content)
        return (frame.message, frame.payload) if isinstance(frame.message, Task) else None

    answer: tuple[Task, bytes] = until("a task", look)
    return answer


class Clock:
    """Stands for the module `time` where signs of life are kept: it moves only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@dataclass
class Stage:
    """Nodes n0 and n1 hold training tasks of version 0 of `job`; n2 is a member without one."""

    running: Inside
    job: str
    nodes: list[Node] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)

    def close(self) -> None:
        for node in self.nodes:
            node.client.close()

    def picture(self) -> dict[str, Any]:
        """All that a refused request must leave as it was."""
        runner, database = self.running.runner(self.job), self.running
        hub = runner.hub
        job = {name: value for name, value in database.job(self.job).items() if name not in CHANGES}
        return {
            "job": job,
            "versions": database.rows("SELECT number, digest, reports, weight, metrics FROM versions"),
            "events": database.rows("SELECT count(*), max(seq) FROM journal"),
            "hub": json.dumps(hub.snapshot(), sort_keys=True, default=str),
            "reports": [asdict(report) for report in hub.state.round.reports],
            "sum": (hub.state.sum.totals.weight, hub.state.sum.totals.trees.keys()),
            "blobs": runner.blobs.digests(),
            "people": database.rows("SELECT name, secret, revoked FROM nodes ORDER BY name"),
        }

    def frame(
        self, values: npt.NDArray[Any] | bytes | None = None, node: str = "n0", **changes: Any
    ) -> tuple[bytes, bytes]:
        """(head, payload) of a node's report, right but for the changes."""
        task = self.tasks[node]
        if values is None:
            values = displacement(node, task.version, SIZE)
        data = values if isinstance(values, bytes) else body(values)
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data))
        values_of = {"type": "report", **asdict(Report(node, task.id, task.version, 5.0, ref, {}))}
        values_of.pop("norm")
        head = json.dumps({"shoal": 1, "job": self.job, **values_of, **changes}).encode()
        return len(head).to_bytes(4, "big") + head, data

    def report(
        self, values: npt.NDArray[Any] | bytes | None = None, node: str = "n0", **changes: Any
    ) -> httpx.Response:
        """Send a report that is right but for the changes."""
        head, data = self.frame(values, node, **changes)
        return self.send(node, "POST", f"/jobs/{self.job}/reports", content=head + data)

    def dismiss(self, node: str) -> None:
        """Have a node leave, so that the next rounds are those of the others."""
        assert self.send(node, "POST", "/leave").status_code == 204

    def send(self, node: str, method: str, path: str, **more: Any) -> httpx.Response:
        """A request of that node's: any answer will do."""
        client = next(one for one in self.nodes if one.node == node).client
        return client.request(method, f"{self.running.url}/api/v1{path}", **more)


def set_up(running: Inside, job: str = "main", size: int = SIZE, rounds: int = 3, **spec: Any) -> Stage:
    """Bring a new job to that moment."""
    stage = Stage(running, job)
    running.begin(job, nodes=2, rounds=rounds, **spec)
    stage.nodes += [by_hand(running, name, {job: size}) for name in ("n0", "n1")]
    task, _ = task_of(stage.nodes[0], job)
    assert task.kind == "init"
    assert stage.nodes[0].report(job, task).counted
    for node in stage.nodes:
        stage.tasks[node.node], payload = task_of(node, job)
        assert payload in (b"", body(initial(size)))
    stage.nodes.append(by_hand(running, "n2", {job: size}))
    return stage


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Assert that an answer is that problem, with a text and a remedy; returns it."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["code"] == code, found
    assert found["status"] == status
    assert found["title"]
    assert found["detail"]
    assert found["hint"], found
    assert found["instance"].startswith("/")
    return found


ZEROS = np.zeros(SIZE, np.float32)


def set_free_bytes(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let every disk have that much free space."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=nbytes, f_frsize=1))
