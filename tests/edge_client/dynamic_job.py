"""One job with dynamic averaging in step, simulated and with a real coordinator and real edge clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.algorithm.learner import Learner
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import ModelVersion
from shoal.core.protocol.message import BlobRef, Task
from shoal.jobs.spec import parse_job
from shoal.learn import digits
from shoal.runtime.durable_files import digest_of
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.tasks.simulation_record import SimulationRecorder
from shoal.simulation import payload_bytes
from shoal.wire.payload import payload_pieces
from tests.support.coordinator import Api
from tests.support.edge_node import EdgeNode
from tests.support.waiting import pause

NODES = ("n0", "n1", "n2")
Decisions = list[tuple[int, str]]
"""(version, what and why) of everything that the schedule decided, in order."""
Made = list[tuple[int, list[tuple[str, float, str]], str]]
"""(version, its reports as (node, weight, digest of the update) by node, digest of the model)."""


def job(filters: list[dict[str, Any]], **schedule: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "seed": 5,
        "aggregation_precision": "fixed",
        "filters": filters,
        "algorithm": {"name": "dynamic", "steps": 5, "batch_size": 10, "lr": 0.1, "local_steps": 60},
        "schedule": {"name": "divergence", "in_step": True, "min_nodes": 3, "deadline_s": 600.0, **schedule},
    }


def learners() -> Mapping[str, Learner]:
    return {name: digits.learner(part, len(NODES)) for part, name in enumerate(NODES)}


class Late:
    """A learner that takes its time: the first in the simulation is the last in reality."""

    def __init__(self, learner: Learner, seconds: float) -> None:
        self._learner, self._seconds = learner, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def train(self, *arguments: Any, **more: Any) -> Any:
        pause(self._seconds)
        return self._learner.train(*arguments, **more)


class FileNames(MemoryBlobs):
    """Bodies in memory under the names that their files would have."""

    def put(self, slots: Slots) -> BlobRef:
        ref = BlobRef(digest_of(payload_pieces(slots)), payload_bytes(slots))
        self._kept.setdefault(ref.digest, (ref, dict(slots)))
        return ref


def simulated(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Decisions, Made]:
    """Return the result of `shoal.simulate` for the job."""
    made: Made = []
    close = SimulationRecorder._close

    def noted(self: SimulationRecorder, version: ModelVersion, slots: Slots) -> None:
        reports = sorted((node, weight, digest) for node, _, weight, digest in version.reports)
        made.append((version.number, reports, version.model.digest))
        close(self, version, slots)

    monkeypatch.setattr(SimulationRecorder, "_close", noted)
    monkeypatch.setattr("shoal.simulation.MemoryBlobs", FileNames)
    result = shoal.simulate(parse_job(values), learners(), fidelity="wire")
    return [(event.version, event.text) for event in result.events if event.kind == "decision"], made


class Joined(EdgeNode):
    """A node of such jobs."""

    def __init__(
        self, url: str, token: str, name: str, learner: Any, folder: Path, jobs: Sequence[str] = ("digits",)
    ) -> None:
        given = {"url": url, "token": token, "name": name, "jobs": list(jobs), "state_dir": folder / name}
        super().__init__(learner, at=self._at, poll_wait_s=2.0, **given)
        self.before_report: Callable[[Task], None] = lambda task: None
        """Called with the task that is about to be answered; the node does nothing else meanwhile."""

    def _at(self, point: str) -> None:
        if point == "report.sending" and "digits" in self.agent.jobs:
            task = self.agent.jobs["digits"].pump.worker.task
            if task is not None:  # else it has been withdrawn meanwhile
                self.before_report(task)


def clients(api: Api, folder: Path, url: str = "") -> list[Joined]:
    """All nodes, not started yet. The first in the simulation is the last to be heard here."""
    named = zip((0.04, 0.02, 0.0), learners().items(), strict=True)
    return [Joined(url or api.url, api.token(), name, Late(one, delay), folder) for delay, (name, one) in named]


def take_part(api: Api, folder: Path, url: str = "") -> list[Joined]:
    """All nodes, started."""
    return [one.start() for one in clients(api, folder, url)]


def decided(api: Api) -> tuple[Decisions, Made]:
    """Return a coordinator's decisions and versions."""
    decisions = [(event["version"], event["text"]) for event in api.events("digits", "decision")]
    made = []
    for number, reports, model in api.rows("SELECT number, reports, digest FROM versions ORDER BY number"):
        made.append((number, sorted((node, weight, digest) for node, _, weight, digest in json.loads(reports)), model))
    return decisions, made


def in_training(decisions: Decisions) -> Decisions:
    """Without what is decided before training begins, which hangs on who comes first."""
    begun = next(place for place, (_, text) in enumerate(decisions) if "from version 0" in text)
    return decisions[begun:]
