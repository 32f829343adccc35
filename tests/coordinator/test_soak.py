"""A job of very many rounds: memory, open files and disk of its coordinator stop growing, and no byte is lost.

`SOAK_ROUNDS` sets the number of rounds of the nightly test. The processor time of a round is printed too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.coordinator import Server
from tests.support.node import Node
from tests.support.waiting import until

JOB = "soak"
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "100000"))
SMALL = {"rounds_kept": 25, "events_kept": 100, "reports_kept": 100, "logs_bytes_max": 2**20, "models_kept": 2}
"""Limits that are reached soon."""

ROWS = 2500
"""Rows of the tables that grow with rounds: with these limits, and what comes between two trimmings."""

MEMORY_PER_ROUND = 200.0
"""Bytes that the allocator's ups and downs may look like. The defect that this test is for had 8,000."""


@dataclass(frozen=True)
class Sample:
    """The coordinator's memory and files after some rounds."""

    rounds: int
    memory: int
    files: int
    disk: int
    rows: int
    seconds: float
    """Seconds of processor time since its start."""


def sample(running: Server) -> Sample:
    process = Path(f"/proc/{running.pid}")
    ticks = sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
    disk = sum(path.stat().st_size for path in running.folder.rglob("*") if path.is_file())
    rows = [
        running.rows(f"SELECT count(*) FROM {table}")[0][0]
        for table in ("versions", "traffic", "job_events", "reports")
    ]
    open_files = len(list((process / "fd").iterdir()))
    version = running.job(JOB)["version"]
    return Sample(version, running.rss_bytes(), open_files, disk, sum(rows), ticks / os.sysconf("SC_CLK_TCK"))


def soaked(running: Server, swarm: Callable[..., list[Node]], rounds: int) -> list[Sample]:
    """Eleven looks at a coordinator, from its first rounds to its last."""
    running.begin(JOB, nodes=2, rounds=rounds)
    nodes = swarm(running, 2, {JOB: 10})
    found = []
    for tenth in range(1, 11):
        wanted = rounds * tenth // 10 - (tenth == 10)  # before it ends

        def reached(wanted: int = wanted) -> bool:
            return bool(running.job(JOB)["version"] >= wanted)

        until(f"round {wanted}", reached, patience_s=60 + rounds, every_s=0.2)
        found.append(sample(running))
    for node in nodes:
        node.finish()
    return found


def show(samples: list[Sample]) -> None:
    for before, after in pairwise(samples):
        count = max(1, after.rounds - before.rounds)
        cost = (after.seconds - before.seconds) / count * 1000
        grown = (after.memory - before.memory) / count
        line = f"{after.rounds:>8} rounds {after.memory / 1e6:8.1f} MB {grown:8.0f} B/round {after.files:4} files"
        print(f"{line} {after.disk / 1e6:8.2f} MB on disk {after.rows:7} rows {cost:7.2f} core-ms/round")  # noqa: T201


def versions_held(running: Server) -> int:
    return int(running.rows("SELECT count(*) FROM versions")[0][0])


def check(running: Server, samples: list[Sample]) -> None:
    """Return the sizes that must not grow with the number of rounds."""
    show(samples)
    assert samples[-1].files <= samples[2].files + 4
    assert samples[-1].rows <= ROWS
    until("old rounds are rolled up", lambda: versions_held(running) <= 3 * SMALL["rounds_kept"] + 64)
    job, traffic = running.job(JOB), running.get(f"/jobs/{JOB}/traffic")
    assert traffic["total"] == {"up": job["up_bytes"], "down": job["down_bytes"]}
    versions = running.get(f"/jobs/{JOB}/versions")["versions"]
    assert [one["number"] for one in versions][-SMALL["rounds_kept"] :] == list(
        range(job["version"] - SMALL["rounds_kept"] + 1, job["version"] + 1)
    )
    assert sum(one["up_bytes"] + one["down_bytes"] for one in versions) <= versions[-1]["total_bytes"]


def test_rows_and_files_stop_growing(server: Callable[..., Server], swarm: Callable[..., list[Node]]) -> None:
    running = server(**SMALL).start()
    check(running, soaked(running, swarm, 300))


@pytest.mark.nightly
@pytest.mark.timeout(60 + ROUNDS)
def test_a_long_job_leaves_memory_files_and_disk_flat(
    server: Callable[..., Server], swarm: Callable[..., list[Node]]
) -> None:
    running = server(**SMALL).start()
    samples = soaked(running, swarm, ROUNDS)
    check(running, samples)
    settled, last = samples[len(samples) // 2], samples[-1]
    assert (last.memory - settled.memory) / (last.rounds - settled.rounds) < MEMORY_PER_ROUND
    assert last.disk <= 1.5 * settled.disk
