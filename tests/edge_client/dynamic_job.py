"""One job with dynamic averaging in step, simulated and with a real coordinator and real edge clients."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import wire
from shoal.core.learner import Learner
from shoal.core.machine import Version
from shoal.core.message import Order, Ref
from shoal.core.tree import Slots
from shoal.learn import digits
from shoal.runtime.store import digest_of
from shoal.sim.bodies import MemoryBodies
from shoal.simulation import Record, payload_bytes
from shoal.spec import parse_job
from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from tests.coordinator.server import Api

NODES = ("n0", "n1", "n2")
Decisions = list[tuple[int, str]]
"""(version, what and why) of everything that the schedule decided, in order."""
Made = list[tuple[int, list[tuple[str, float, str]], str]]
"""(version, its reports as (node, weight, digest of the update) by node, digest of the model)."""


def job(filters: list[dict[str, Any]], **schedule: Any) -> dict[str, Any]:
    return {
        "name": "digits",
        "seed": 5,
        "sums": "fixed",
        "filters": filters,
        "algorithm": {"name": "dynamic", "steps": 5, "batch_size": 10, "lr": 0.1, "checks": 12},
        "schedule": {"name": "drift", "in_step": True, "min_nodes": 3, "deadline_s": 600.0, **schedule},
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
        time.sleep(self._seconds)
        return self._learner.train(*arguments, **more)


class FileNames(MemoryBodies):
    """Bodies in memory under the names that their files would have."""

    def put(self, slots: Slots) -> Ref:
        ref = Ref(digest_of(wire.payload_pieces(slots)), payload_bytes(slots))
        self._kept.setdefault(ref.digest, (ref, dict(slots)))
        return ref


def simulated(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Decisions, Made]:
    """What `shoal.simulate` makes of the job."""
    made: Made = []
    close = Record._close

    def noted(self: Record, version: Version) -> None:
        reports = sorted((node, weight, digest) for node, _, weight, digest in version.reports)
        made.append((version.number, reports, version.model.digest))
        close(self, version)

    monkeypatch.setattr(Record, "_close", noted)
    monkeypatch.setattr("shoal.simulation.MemoryBodies", FileNames)
    result = shoal.simulate(parse_job(values), learners())
    return [(note.version, note.text) for note in result.notes if note.kind == "decision"], made


class Joined(threading.Thread):
    """A real edge client in a thread of its own."""

    def __init__(
        self, url: str, token: str, name: str, learner: Any, folder: Path, jobs: Sequence[str] = ("digits",)
    ) -> None:
        super().__init__(daemon=True)
        given = {"url": url, "token": token, "name": name, "jobs": list(jobs), "wait_s": 2.0}
        settings = EdgeSettings.model_validate({**given, "state": folder / name, "backoff_s": 0.1})
        self.agent = Agent(settings, learner, at=self._at)
        self.outcome: bool | BaseException | None = None
        self.before_report: Callable[[Order], None] = lambda order: None
        """Called with the order that is about to be answered; the node does nothing else meanwhile."""

    def _at(self, point: str) -> None:
        if point == "report.sending" and "digits" in self.agent.jobs:
            order = self.agent.jobs["digits"].pump.worker.order
            if order is not None:  # else it has been withdrawn meanwhile
                self.before_report(order)

    def run(self) -> None:
        try:
            self.outcome = asyncio.run(self.agent.run())
        except BaseException as error:  # shown where it is waited for
            self.outcome = error

    def finish(self) -> None:
        self.join(240.0)
        assert not self.is_alive(), "it goes on and on"
        if isinstance(self.outcome, BaseException):
            raise AssertionError(f"{self.agent.name} ended with {self.outcome!r}") from self.outcome
        assert self.outcome is True


def clients(api: Api, folder: Path, url: str = "") -> list[Joined]:
    """All nodes, not started yet. The first in the simulation is the last to be heard here."""
    named = zip((0.04, 0.02, 0.0), learners().items(), strict=True)
    return [Joined(url or api.url, api.token(), name, Late(one, delay), folder) for delay, (name, one) in named]


def take_part(api: Api, folder: Path, url: str = "") -> list[Joined]:
    """All nodes, started."""
    joined = clients(api, folder, url)
    for one in joined:
        one.start()
    return joined


def decided(api: Api) -> tuple[Decisions, Made]:
    """What a coordinator has decided, and made."""
    decisions = [(note["version"], note["text"]) for note in api.notes("digits", "decision")]
    made = []
    for number, reports, model in api.rows("SELECT number, reports, digest FROM versions ORDER BY number"):
        made.append((number, sorted((node, weight, digest) for node, _, weight, digest in json.loads(reports)), model))
    return decisions, made


def in_training(decisions: Decisions) -> Decisions:
    """Without what is decided before training begins, which hangs on who comes first."""
    begun = next(place for place, (_, text) in enumerate(decisions) if "from version 0" in text)
    return decisions[begun:]
