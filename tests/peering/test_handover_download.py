"""The job goes to its peers while a node's report is on the way: the node follows once the report is acknowledged."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.learner import Trained
from shoal.core.errors import Refused
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import Ack, BlobRef, Report
from shoal.runtime.worker_ports import CancelToken
from shoal_edge_client.peering.failover_pump import FailoverPump
from shoal_edge_client.peering.handover_download import HandoverDownload, StoringFetcher
from shoal_edge_client.transport import TaskTransport
from tests.peering.scenario import JOB, LONG, Threaded, acquainted
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import PATIENCE_S, until

FLOATS = 100_000


class DelayedReport:
    """Sends the job to its peers before the next report of b, which it holds back."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._report = server, TaskTransport.report
        self._is_armed, self.is_released = threading.Event(), threading.Event()
        held_back = self

        def send(transport: TaskTransport, job: str, report: Report, *given: Any) -> Ack:
            return held_back.send(transport, job, report, *given)

        monkeypatch.setattr(TaskTransport, "report", send)

    def send(self, transport: TaskTransport, job: str, report: Report, *given: Any) -> Ack:
        if report.node == "b" and self._is_armed.is_set():
            self._is_armed.clear()
            until("the report of a to count, so that there is a new version", lambda: not self._is_busy("a"))
            self._server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
            self.is_released.wait(2 * PATIENCE_S)
        return self._report(transport, job, report, *given)

    def _is_busy(self, name: str) -> bool:
        rows = self._server.get(f"/jobs/{JOB}/nodes")["nodes"]
        return next(bool(row["task"]) for row in rows if row["name"] == name)

    def arm(self) -> None:
        self._is_armed.set()


class OwnUpdates(CountingLearner):
    """A learner whose updates all differ, so that the coordinator cannot have their bytes already."""

    def train(self, *given: Any, **more: Any) -> Trained:
        trained = super().train(*given, **more)
        self.tree = Tree.of({"w": self.tree["w"] + np.float32(self.trained)})
        return trained


def make_pair(server: Server, folder: Path, filters: list[dict[str, object]]) -> list[Threaded]:
    """Two nodes that know each other."""
    server.begin(JOB, nodes=2, rounds=10_000, gossip={"allowed": True, **LONG}, filters=filters)
    learners = {"a": CountingLearner(10.0, 0.05, FLOATS), "b": OwnUpdates(20.0, 0.05, FLOATS)}
    nodes = [Threaded(server, folder, name, learner) for name, learner in learners.items()]
    acquainted(server, nodes, version=2)
    return nodes


def finish(nodes: list[Threaded]) -> None:
    for node in nodes:
        node.leave()
    for node in nodes:
        node.end()


def download_of(node: Threaded) -> HandoverDownload:
    pump = node.pump
    assert isinstance(pump, FailoverPump)
    return pump._handover


def test_a_report_with_private_memory_is_acknowledged_first(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `top_k`, each node keeps its unsent numbers."""
    delayed = DelayedReport(server, monkeypatch)
    nodes = make_pair(server, tmp_path, [{"name": "top_k", "fraction": 1.0}, {"name": "half"}])
    download, submitted = download_of(nodes[1]), threading.Event()
    submit = download._submit

    async def noted(event: Any) -> None:
        await submit(event)
        submitted.set()

    download._submit = noted
    delayed.arm()
    try:
        assert submitted.wait(PATIENCE_S), "the task comes while the report is on the way"
        assert nodes[1].peer.state == "coordinated"
        delayed.is_released.set()
        until("both to carry on", lambda: all(node.peer.state == "gossip" for node in nodes))
        assert server.events(JOB, "refusal") == [], "a report that is too late is not a fault of the node"
    finally:
        delayed.is_released.set()
        finish(nodes)


class FailsOnce:
    """Fetches a blob at the second try."""

    def __init__(self, blobs: StoringFetcher) -> None:
        self._blobs, self.has_failed = blobs, False

    async def fetch(self, ref: BlobRef | None, cancel: CancelToken) -> Slots:
        if not self.has_failed:
            self.has_failed = True
            raise Refused("not now", code="blob.unknown", hint="later")
        return await self._blobs.fetch(ref, cancel)


def test_a_task_whose_model_could_not_be_fetched_is_sent_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed = DelayedReport(server, monkeypatch)
    nodes = make_pair(server, tmp_path, [])
    download = download_of(nodes[1])
    download._blobs = FailsOnce(download._blobs)  # type: ignore[assignment]
    delayed.arm()
    try:
        until("the model to be asked for", lambda: download._blobs.has_failed)  # type: ignore[attr-defined]
        delayed.is_released.set()
        until("both to carry on", lambda: all(node.peer.state == "gossip" for node in nodes))
    finally:
        delayed.is_released.set()
        finish(nodes)
