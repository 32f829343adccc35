"""Three coordinators on one PostgreSQL: owners are killed and stopped, words are said twice, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.cluster import Fleet, Storm, doubled, lease, nodes_of
from tests.support.history import check
from tests.support.node import History
from tests.support.sampling import nightly
from tests.support.waiting import until

SIZES = {"inline": 10, "large": 66_000}
SUMS = {"inline": "fixed", "large": "float64"}
LEASE_S = 1.5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", nightly([12.0, 240.0], but=[12.0]))
def test_nothing_is_lost_or_doubled(seconds: float, fleet: Callable[..., Fleet]) -> None:
    three, history = fleet(3, LEASE_S), History()
    for job in SIZES:
        three.begin(job, nodes=3, rounds=100_000, aggregation_precision=SUMS[job])
    nodes = nodes_of(three, 3, SIZES, history)
    storm = Storm(three, 1)
    storm.run(seconds, 2.0)
    for job in SIZES:
        at = three.job(job)["version"]
        until("it to go on", lambda job=job, at=at: three.job(job)["version"] > max(at, 2) + 1)
        assert three.post(f"/jobs/{job}/stop", {"when": "round", "why": "enough"})
    for node in nodes:
        node.finish()
    check(three, history, SIZES, SUMS, nodes=3)
    assert doubled(three.database_url) == []
    for job in SIZES:
        until("the job to have stopped", lambda job=job: three.job(job)["state"] == "stopped")
    assert storm.kills + storm.zombies >= 2
    assert lease(three.database_url)[0] > storm.struck, "another lead after the last that was struck"
    assert sum(node.doubled for node in nodes) > 0
    assert all(one.ended() is None for one in three.members)
