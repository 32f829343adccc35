"""kill -9 at random instants while jobs run, and proof that nodes would see it if something got lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.coordinator import Server
from tests.support.history import check
from tests.support.node import History, Node
from tests.support.waiting import pause, until

SIZES = {"inline": 10, "large": 66_000}
SUMS = {"inline": "fixed", "large": "float64"}
KILLS = 5
Swarm = Callable[..., list[Node]]


def storm(running: Server, seed: int, kills: int) -> None:
    """Kill it `kills` times, after 0.3 to 1 s each, and start it again at once."""
    rng = random.Random(seed)
    for _ in range(kills):
        pause(rng.uniform(0.3, 1.0))
        running.kill()
        running.start()
        assert running.ended() is None, running.log.read_text()[-2000:]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1])
def test_jobs_survive_a_storm_of_kills(seed: int, server: Callable[..., Server], swarm: Swarm) -> None:
    running, history = server().start(), History()
    for job in SIZES:
        running.begin(job, nodes=3, rounds=100_000, aggregation_precision=SUMS[job])
    nodes = swarm(running, 3, SIZES, history, breaks_uploads=True)
    storm(running, seed, KILLS)
    for job in SIZES:
        assert running.post(f"/jobs/{job}/stop", {"when": "round", "why": "enough"})
    for node in nodes:
        node.finish()
    check(running, history, SIZES, SUMS, nodes=3)
    for job in SIZES:
        until("the job to have stopped", lambda job=job: running.job(job)["state"] == "stopped")
        assert running.job(job)["version"] > 3


@pytest.mark.parametrize("mutant", ["", "acknowledge before commit", "forget the journal"])
def test_a_node_sees_when_a_coordinator_promises_too_early(mutant: str, server: Callable[..., Server]) -> None:
    """Both planted bugs lose an acknowledged report: its task comes again. Without one, it does not."""
    running = server().start()
    running.begin("inline", nodes=2)
    n0, n1 = (Node(lambda: running.url, f"n{i}", running.token(), {"inline": 10}) for i in range(2))
    for node in (n0, n1):
        node.enter()
    n0.step()  # makes the initial model, and so opens the first round
    until("version 0 to be written down", lambda: running.rows("SELECT 1 FROM versions"))
    running.kill()
    running.start(mutant=mutant)
    until("n0's report to be acknowledged", lambda: n0.step() or n0.history.acks)
    running.kill()
    running.start(mutant=mutant)
    n0.unsure = True
    n0.step()
    assert [wrong.split(" of inline ")[1] for wrong in n0.history.wrongs] == (
        ["came again after its acknowledgement"] if mutant else []
    )
    for node in (n0, n1):
        node.client.close()
