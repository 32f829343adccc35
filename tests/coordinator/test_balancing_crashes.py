"""kill -9 in the middle of balancings: what was asked stays asked, and every model is that of a life without deaths."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.core.protocol.message import Task
from tests.edge_client.dynamic_job import Decisions, Joined, Made, clients, decided, in_training, job, simulated
from tests.support.coordinator import Server
from tests.support.proxy import Proxy
from tests.support.sampling import nightly
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.timeout(300)

JOB = job([], balancing="double", delta=1.0)
POINTS = {
    "runner.fed": (9, 7, 8, 6),
    "runner.journaled": (9, 7, 8, 6),
    "journal.before-commit": (12, 9, 10, 11),
    "task.answer": (9, 7, 8, 6),
    "report.answer": (4, 3, 2, 3),
    "report.received": (4, 3, 2, 3),
}
"""Each process ends at its n-th pass of a crash point: during checks and balancings."""


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> tuple[Decisions, Made]:
    """Return the result of the job without a crash."""
    return simulated(JOB, monkeypatch)


@pytest.fixture
def scene(server: Callable[..., Server], tmp_path: Path) -> Iterator[tuple[Server, list[Joined]]]:
    """A coordinator that has the job and is down, and nodes that are about to look for it."""
    running = server().start()
    running.post("/jobs", {"spec": JOB})
    proxy = Proxy(lambda: running.url)
    nodes = clients(running, tmp_path, proxy.url)
    running.kill()
    yield running, nodes
    proxy.close()


def check(running: Server, nodes: list[Joined], foreseen: tuple[Decisions, Made]) -> None:
    for node in nodes:
        node.finish()
    decisions, made = decided(running)
    assert made == foreseen[1]
    assert in_training(decisions) == in_training(foreseen[0])


@pytest.mark.parametrize("point", nightly(POINTS, but=["runner.journaled", "journal.before-commit", "report.answer"]))
def test_a_death_changes_nothing(
    point: str, scene: tuple[Server, list[Joined]], foreseen: tuple[Decisions, Made]
) -> None:
    running, nodes = scene
    for node in nodes:
        node.start()
    for k in POINTS[point]:
        running.start(crash=f"{point}#{k}")
        until("the death", lambda: running.ended() is not None or all(node.outcome for node in nodes))
        assert running.ended() == -9, f"{point}#{k} was not reached: give the job more checks"
    running.start()
    check(running, nodes, foreseen)


@dataclass
class Gate:
    """Delays the nodes that a balancing asked, before they answer."""

    left: int
    arrived: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, task: Task) -> None:
        if task.recall and self.left:
            self.left -= 1
            self.arrived.set()
            assert self.opened.wait(PATIENCE_S)
            self.opened.clear()


def test_a_death_between_query_and_answer(scene: tuple[Server, list[Joined]], foreseen: tuple[Decisions, Made]) -> None:
    running, nodes = scene
    assert sum("1 more are asked" in text for _, text in foreseen[0]) > 2
    gate = Gate(2)
    running.start()
    for node in nodes:
        node.before_report = gate
        node.start()
    for _ in range(2):
        assert gate.arrived.wait(PATIENCE_S)
        gate.arrived.clear()
        running.kill()
        running.start()
        gate.opened.set()
    check(running, nodes, foreseen)
    assert gate.left == 0
