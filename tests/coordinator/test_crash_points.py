"""The coordinator is killed at every named point of the source, at its first and second pass, and goes on.

At night it is killed at the third pass too.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.runtime.durable_files import STEPS
from tests.support.coordinator import Server
from tests.support.history import check, final, predicted
from tests.support.node import PAUSE_S, Gone, History, Node
from tests.support.sampling import nightly
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
SIZES = {"inline": 10, "large": 66_000}
SUMS = {"inline": "fixed", "large": "float64"}
ROUNDS = {"inline": 12, "large": 6}
PASSES = (1, 2)
PASSES_AT_NIGHT = (1, 2, 3)
LATER = {"journal.before-commit": (12, 25, 41), "journal.after-commit": (11, 23, 40)}
"""The first commits of a life are those of its start; these lie in the middle of rounds."""


ELSEWHERE = {"trust-documents.stored", "restore.committed", "re-enrolment.committed", "owner.assigned", "split.fed"}
"""Passed only when a job's peers change, when a lost coordinator is rebuilt, among several, or in split jobs:
`test_trust_documents`, `test_recovery`, `test_reenrolment`, `test_follower_failures` and `test_split_jobs` crash
there."""


def points() -> list[str]:
    """The names of all crash points that a coordinator passes, from the source."""
    source = "\n".join(path.read_text() for path in sorted((ROOT / "coordinator").rglob("*.py")))
    named = re.findall(r'\bcrashpoint\("([a-z.-]+)"\)', source)
    store = (ROOT / "shoal/runtime/blob_files.py").read_text()
    written = set(re.findall(r'rename_durably\([^"\n]*"([a-z]+)", self\._at\)', store))
    return sorted({*named, *(f"{what}.{step}" for what in written for step in STEPS)})


POINTS = sorted(set(points()) - ELSEWHERE)
BY_DAY = [(point, PASSES) for point in POINTS]
BY_NIGHT = [(point, PASSES_AT_NIGHT) for point in POINTS]


def test_the_points_are_found() -> None:
    found = points()
    assert set(found) >= ELSEWHERE
    assert {"journal.before-commit", "upload.received", "enrol.committed", "blob.renamed"} <= set(found)
    calls = sum(path.read_text().count("crashpoint(") for path in (ROOT / "coordinator").rglob("*.py"))
    steps = len([name for name in found if name.startswith("blob.")])
    others = 2  # its definition, and the clock of fsync (metrics.py), which passes the store's points on
    assert len(found) - steps == calls - others, "a call of crashpoint whose name is not a plain text, or is used twice"


class Visitors(threading.Thread):
    """Nodes that only enrol and say hello to no job, one after the other."""

    def __init__(self, server: Server, tokens: list[str], history: History) -> None:
        super().__init__(daemon=True)
        self.nodes = [Node(lambda: server.url, f"v{i}", token, {}, history) for i, token in enumerate(tokens)]

    def run(self) -> None:
        for node in self.nodes:
            try:
                wanted = {"token": node.token, "name": node.node}
                found = node.ask("POST", "/enrol", json=wanted, headers={"Idempotency-Key": node.key})
            except Gone:
                return
            if found.status_code != 201:
                node.history.wrong(f"{node.node} cannot enrol: {found.text}")
            node.quit.wait(PAUSE_S)

    def finish(self) -> None:
        for node in self.nodes:
            node.quit.set()
        self.join(PATIENCE_S)
        for node in self.nodes:
            node.client.close()


def lives(server: Server, point: str, passes: tuple[int, ...], nodes: list[Node]) -> None:
    """Crash at each of these passes, one life after the other, then begin the last life."""
    for k in passes:
        server.start(crash=f"{point}#{k}")
        until(
            f"{point}#{k} to be passed or the jobs to end",
            lambda: server.ended() is not None or not any(node.is_alive() for node in nodes),
        )
        assert server.ended() == -9, f"{point}#{k} was not reached: make the scenario pass it"
    server.start()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("point", "passes"), nightly([*BY_DAY, *BY_NIGHT], but=BY_DAY), ids=str)
def test_a_crash_at_every_point(
    point: str, passes: tuple[int, ...], server: Callable[..., Server], swarm: Callable[..., list[Node]]
) -> None:
    running = server().start()
    for job in SIZES:
        running.begin(job, nodes=2, rounds=ROUNDS[job], aggregation_precision=SUMS[job])
    history = History()
    visitors = Visitors(running, [running.token() for _ in range(40)], history)
    tokens = [running.token() for _ in range(2)]
    assert running.end() == 0
    nodes = [Node(lambda: running.url, f"n{i}", token, SIZES, history) for i, token in enumerate(tokens)]
    nodes[0].breaks_uploads = nodes[1].beats = True
    for thread in (*nodes, visitors):
        thread.start()
    try:
        lives(running, point, (*passes, *LATER.get(point, ())), nodes)
        for node in nodes:
            node.finish()
        check(running, history, SIZES, SUMS, nodes=2)
        for job, size in SIZES.items():
            assert final(running, job) == predicted(size, ROUNDS[job], ("n0", "n1"), SUMS[job])
            until("the job to be done", lambda job=job: running.job(job)["state"] == "done")
        who_may(running, history)
    finally:
        for node in nodes:
            node.quit.set()
        visitors.finish()


def who_may(running: Server, history: History) -> None:
    """A node that received a credential can use it."""
    for name, credential in itertools.islice(history.enrolled.items(), 3):
        answer = running.request("POST", "/api/v1/hello", json={}, headers={"Authorization": f"Bearer {credential}"})
        assert answer.status_code == 200, (name, answer.text)
