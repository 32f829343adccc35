"""Nodes that carry a job on with a budget of bytes: it holds, is shown, and does not keep them from coming back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal.core.gossip.gossip import GossipPeer
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.node_client import NodeClient
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.peering.edge_peering import EdgePeering
from shoal_edge_client.settings import EdgeSettings
from tests.peering.scenario import JOB, LONG, Threaded, acquainted, begin, check_merge
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until

FLOATS = 200_000
HOURLY = 2e7
"""Two exchanges of 1.6 MB are saved up; the next takes five minutes."""


def gossip(node: Threaded) -> GossipPeer:
    found = node.peer.gossip
    assert found is not None
    return found


def test_it_holds_and_the_way_back_does_not_wait_for_it(server: Server, threaded: Callable[..., Threaded]) -> None:
    begin(server, 2, **LONG, bytes_per_hour=1e12)
    nodes = [threaded(name, CountingLearner(10.0, 0.05, FLOATS), peer_bytes_per_hour=HOURLY) for name in "ab"]
    acquainted(server, nodes, version=2)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before = server.job(JOB)["version"]
    until("an exchange", lambda: all(len(gossip(node).me.counts.version_vector) == 2 for node in nodes))
    until("rounds", lambda: all(gossip(node).me.local_rounds >= 20 for node in nodes))

    def rows() -> list[dict]:
        return [row for row in server.get(f"/jobs/{JOB}/peers")["peers"] if row["budget"] and row["state"] == "gossip"]

    until("word that it is used up", lambda: len(rows()) == 2 and all(row["budget"]["wait_s"] > 30 for row in rows()))
    for node in nodes:
        budget, group = node.peer.budget, node.pump.group.group  # type: ignore[union-attr]
        assert budget.bytes_per_hour == HOURLY, "the smaller one holds"
        assert group.byte_counts.crossed < budget.capacity + gossip(node).me.model_bytes
        assert group.status()["budget"]["wait_s"] > 30
        assert group.membership.live(), "liveness goes on"
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("the job to be back", lambda: server.job(JOB)["mode"] == "server")
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 2)
    assert check_merge(server, before) >= 20.0


def test_a_job_that_cannot_keep_to_it_is_not_carried_on_here(tmp_path: Path) -> None:
    with_limit = EdgeSettings(peer_listen="none", peer_bytes_per_hour=1e6)
    found = {"spec": {"name": "toys", "gossip": {"allowed": True, "mixing": {"name": "push_sum"}}}, "created_at": "now"}
    link = NodeClient("http://127.0.0.1:1")
    with StateFolder(tmp_path, parse("http://127.0.0.1:1")) as state:
        peering = EdgePeering(with_limit, state, (link,), lambda: link, {})
        assert peering.state_for("toys", found) is None
        found["spec"]["gossip"]["mixing"]["name"] = "pairwise"  # type: ignore[index]
        assert peering.state_for("toys", found) is not None
        peering.close()
