"""A node is killed, really, at named points while it carries a job on: what it has learned counts once all the same."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peering.scenario import JOB, Process, Threaded, acquainted, begin, check_merge
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.sampling import nightly
from tests.support.waiting import until

GOSSIP = [
    *((f"machine.{step}", 4) for step in ("written", "kept")),
    ("blob.renamed", 6),
    ("windows.synced", 1),
    ("work.done", 2),
]
RETURNING = [("machine.renamed", 1), ("spool.written", 1), ("spool.kept", 1), ("report.sending", 1)]
PATIENT = {"coordinator_timeout_s": 3.0, "suspicion_s": 3600.0, "min_gossip_s": 0.0}
"""No node fails over by itself, and a returning node reports soon."""
COUNTED = [("report.answered", 1), ("spool.removed", 1)]
OFTEN = [
    ("gossip", "machine.written", 4),
    ("gossip", "blob.renamed", 6),
    ("gossip", "work.done", 2),
    ("returning", "spool.written", 1),
    ("returning", "report.sending", 1),
    ("counted", "report.answered", 1),
]


@pytest.mark.parametrize(
    ("moment", "point", "nth"),
    nightly(
        [
            *(("gossip", point, nth) for point, nth in GOSSIP),
            *(("returning", point, nth) for point, nth in RETURNING),
            *(("counted", point, nth) for point, nth in COUNTED),
        ],
        but=OFTEN,
    ),
)
def test_a_node_killed_at_any_point_counts_its_work_once(
    server: Server,
    threaded: Callable[..., Threaded],
    process: Callable[..., Process],
    tmp_path: Path,
    moment: str,
    point: str,
    nth: int,
) -> None:
    begin(server, 3, handback_timeout_s=3600.0, open_exchanges_timeout_s=3600.0, **PATIENT)
    others = [threaded("a", CountingLearner(10.0, 0.02)), threaded("b", CountingLearner(20.0, 0.04))]
    since = tmp_path / "since"
    victim = process("c", weight=30.0, pause_s=0.03).start(point, nth, since)
    acquainted(server, [*others, victim])
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: [node.peer.state for node in others] == ["gossip", "gossip"])
    until("its rounds", lambda: seen(others, "c") >= 2)
    before = server.job(JOB)["version"]
    since.touch()
    if moment == "gossip":
        until("its end", lambda: victim.ended is not None)
        made = seen(others, "c")
        victim.start()
        until("it to carry on", lambda: seen(others, "c") > made + 2)
        server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    else:
        server.post(f"/jobs/{JOB}/switch", {"to": "server"})
        until("its end", lambda: victim.ended is not None)
        victim.start()
    assert victim.ended is None or victim.ended == -signal.SIGKILL
    until("the job to be back", lambda: server.job(JOB)["mode"] == "server" and server.job(JOB)["version"] > before)
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 3)
    check_merge(server, before)


def seen(nodes: list[Threaded], name: str) -> int:
    """How many rounds of that node these know of."""
    return max(
        node.peer.gossip.me.counts.version_vector.get(name, 0) if node.peer.gossip is not None else 0 for node in nodes
    )
