"""A node that the peers do not know comes in while the coordinator is dead, by the certificate that it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal_edge_client.prepare import prepare
from shoal_edge_client.settings import EdgeSettings
from tests.peering.scenario import JOB, SHORT, Threaded, acquainted, begin, settings, versions
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until

Make = Callable[..., Threaded]


def seen(node: Threaded, name: str) -> int:
    gossip = node.peer.gossip
    return gossip.me.counts.version_vector.get(name, 0) if gossip is not None else 0


def test_a_newcomer_enters_while_the_coordinator_is_dead(server: Server, threaded: Make, tmp_path: Path) -> None:
    begin(server, 2, **SHORT)
    nodes = [threaded(name, CountingLearner(10.0, 0.05)) for name in "ab"]
    acquainted(server, nodes, version=2)
    (ready,) = prepare(EdgeSettings.model_validate(settings(server, tmp_path, "c")))
    assert ready.job == JOB
    assert ready.version >= 2
    rosters = {node.pump.group.version for node in nodes}  # type: ignore[union-attr]
    server.kill()
    until("both to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    newcomer = threaded("c", CountingLearner(20.0, 0.05), token="")
    until("it to carry on", lambda: newcomer.pump is not None and newcomer.peer.state == "gossip")
    until("its work to reach the others", lambda: all(seen(node, "c") >= 3 for node in nodes))
    until("theirs to reach it", lambda: all(seen(newcomer, name) >= 3 for name in "ab"))
    assert {node.pump.group.version for node in nodes} == rosters, "by no roster"  # type: ignore[union-attr]
    before = len(rosters)
    server.start()
    until("the job to be back", lambda: server.job(JOB)["mode"] == "server", patience_s=60)
    until(
        "the coordinator to know it", lambda: "c" in {row["name"] for row in server.get(f"/jobs/{JOB}/peers")["peers"]}
    )
    until("versions to go on", lambda: len(versions(server)) > before + 3)
