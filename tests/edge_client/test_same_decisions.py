"""One job with dynamic averaging in step, simulated and with a real coordinator and real edge clients: the same
decisions about the same nodes, and the same models to the last bit."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import shoal
from edge_client.agent import Agent
from edge_client.settings import EdgeSettings
from shoal import wire
from shoal.core.learner import Learner
from shoal.core.machine import Version
from shoal.core.message import Ref
from shoal.core.tree import Slots
from shoal.learn import digits
from shoal.runtime.store import digest_of
from shoal.sim.bodies import MemoryBodies
from shoal.simulation import Record, payload_bytes
from shoal.spec import parse_job
from tests.coordinator.server import Inside, inside

pytestmark = pytest.mark.timeout(300)

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

    def __init__(self, running: Inside, name: str, learner: Learner, folder: Path) -> None:
        super().__init__(daemon=True)
        given = {"url": running.url, "token": running.token(), "name": name, "jobs": ["digits"], "wait_s": 2.0}
        settings = EdgeSettings.model_validate({**given, "state": folder / name, "backoff_s": 0.1})
        self.agent = Agent(settings, learner)
        self.outcome: bool | BaseException | None = None

    def run(self) -> None:
        try:
            self.outcome = asyncio.run(self.agent.run())
        except BaseException as error:  # shown where it is waited for
            self.outcome = error

    def finish(self) -> None:
        self.join(240.0)
        assert not self.is_alive(), "it goes on and on"
        assert self.outcome is True, self.outcome


def in_reality(values: dict[str, Any], folder: Path) -> tuple[Decisions, Made]:
    """What a coordinator and edge clients make of it, over real sockets and files."""
    with inside(folder / "data") as running:
        running.post("/jobs", {"spec": values})
        clients = [
            Joined(running, name, Late(one, 0.02 * turn), folder)
            for turn, (name, one) in zip((2, 1, 0), learners().items(), strict=True)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.finish()
        decisions = [(note["version"], note["text"]) for note in running.notes("digits", "decision")]
        rows = running.rows("SELECT number, reports, digest FROM versions ORDER BY number")
    made = []
    for number, reports, model in rows:
        who = sorted((node, weight, digest) for node, _, weight, digest in json.loads(reports))
        made.append((number, who, model))
    return decisions, made


def who_is_asked_first(decisions: Decisions) -> tuple[Decisions, Decisions]:
    """(what is decided before training begins, which hangs on who comes first; the rest)."""
    begun = next(place for place, (_, text) in enumerate(decisions) if "from version 0" in text)
    return decisions[:begun], decisions[begun:]


@pytest.mark.parametrize(
    ("filters", "schedule", "partial"),
    [
        ([], {"balancing": "all", "delta": 0.2}, False),
        ([], {"balancing": "double", "delta": 1.0}, True),
        ([{"name": "quantize", "bits": 8}], {"balancing": "hedged", "delta": 0.3}, True),
        ([{"name": "quantize", "bits": 4}], {"balancing": "double", "delta": 0.02, "relative": True}, True),
        ([], {"balancing": "double", "delta": "auto"}, False),
    ],
    ids=["all", "double", "hedged in 8 bits", "relative in 4 bits", "auto"],
)
def test_simulation_and_reality_decide_the_same(
    filters: list[dict[str, Any]],
    schedule: dict[str, Any],
    partial: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = job(filters, **schedule)
    foreseen, models = simulated(values, monkeypatch)
    decided, made = in_reality(values, tmp_path)
    assert who_is_asked_first(decided)[1] == who_is_asked_first(foreseen)[1]
    assert made == models
    assert len(models) > 2
    assert partial == any("balanced" in text for _, text in foreseen)
