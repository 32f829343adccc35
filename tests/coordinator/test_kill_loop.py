"""kill -9 at random instants while jobs run, and proof that the checker would see it if something got lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.coordinator.history import check
from tests.coordinator.node import History, Node
from tests.coordinator.server import Server, until

SIZES = {"inline": 10, "large": 66_000}
SUMS = {"inline": "fixed", "large": "float64"}
STORM_S = 20.0
Swarm = Callable[..., list[Node]]


def storm(running: Server, seed: int, seconds: float) -> int:
    """Kill it every 0.3 to 1 s, and start it again at once; how often that was."""
    rng, end, kills = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.3, 1.0))
        running.kill()
        kills += 1
        running.start()
        assert running.ended() is None, running.log.read_text()[-2000:]
    return kills


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1])
def test_jobs_survive_a_storm_of_kills(seed: int, server: Callable[..., Server], swarm: Swarm) -> None:
    running, history = server().start(), History()
    for job in SIZES:
        running.begin(job, nodes=3, rounds=100_000, sums=SUMS[job])
    nodes = swarm(running, 3, SIZES, history, breaks_uploads=True)
    kills = storm(running, seed, STORM_S)
    assert kills >= 5
    for job in SIZES:
        assert running.post(f"/jobs/{job}/stop", {"when": "round", "why": "enough"})
    for node in nodes:
        node.finish()
    check(running, history, SIZES, SUMS, nodes=3)
    for job in SIZES:
        until("the job to have stopped", lambda job=job: running.job(job)["state"] == "stopped")
        assert running.job(job)["version"] > 3


@pytest.mark.parametrize(
    "mutant",
    [
        # Whether the answer is out before the kill is a matter of milliseconds, which a busy machine does not keep.
        pytest.param("acknowledge before commit", marks=pytest.mark.nightly),
        pytest.param("forget the journal", marks=pytest.mark.nightly),
    ],
)
def test_the_checker_catches_a_coordinator_that_promises_too_early(
    mutant: str, server: Callable[..., Server], swarm: Swarm
) -> None:
    running, history = server(traffic_flush_s=0.05).start(mutant=mutant), History()
    running.begin("inline", nodes=2, rounds=100_000)
    nodes = swarm(running, 2, {"inline": 10}, history)
    for k in range(12, 60, 3):
        running.kill()
        running.start(crash=f"journal.before-commit#{k}", mutant=mutant)
        until("the crash", lambda: running.ended() is not None or history.wrongs)
        if any("came again after its acknowledgement" in wrong for wrong in history.wrongs):
            return
    for node in nodes:
        node.quit.set()
    raise AssertionError("16 crashes, and nothing was noticed")
