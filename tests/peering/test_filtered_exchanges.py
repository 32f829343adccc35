"""A job with filters moves to its peers: what they show each other goes through those that can be used for models."""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.gossip.gossip import GossipPeer
from tests.peering.scenario import JOB, LONG, Threaded, acquainted, check_merge
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until

FLOATS = 100_000


def gossip(node: Threaded) -> GossipPeer:
    found = node.peer.gossip
    assert found is not None
    return found


def test_exchanges_are_filtered_and_nothing_is_lost(server: Server, threaded: Callable[..., Threaded]) -> None:
    """`top_k` is for updates alone; two bytes per number are for models as well."""
    filters = [{"name": "top_k", "fraction": 1.0}, {"name": "half"}]
    server.begin(JOB, nodes=2, rounds=10_000, gossip={"allowed": True, **LONG}, filters=filters)
    nodes = [threaded(name, CountingLearner(10.0 * weight, 0.05, FLOATS)) for weight, name in enumerate("ab", 1)]
    acquainted(server, nodes, version=2)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before = server.job(JOB)["version"]
    group = nodes[0].pump.group.group  # type: ignore[union-attr]
    until("exchanges", lambda: group.router.exchanges.counts["b"] >= 3)
    assert [one.name for one in gossip(nodes[0]).me.filters] == ["half"]
    assert gossip(nodes[0]).me.model_bytes < 2.05 * FLOATS, "two bytes per number, and a little"
    assert group.expected_model.body_bytes < 2.05 * FLOATS, "and nothing of another length is taken"
    assert not [code for code in group.refusals.counts if code.startswith("payload.")]
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("the job to be back", lambda: server.job(JOB)["mode"] == "server")
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 2)
    assert check_merge(server, before, relative=1e-3) >= 1.0
