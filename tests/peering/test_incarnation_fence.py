"""Two coordinators with one key and one term: a node hears the one that it heard first, and refuses the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import Unreachable
from shoal.core.failover.failover import IncarnationGrant
from shoal_edge_client.peering.failover_pump import FailoverPump
from shoal_edge_client.peering.node_state import NodeState
from shoal_edge_client.peering.recovery.incarnation_fence import IncarnationFence
from tests.peering.scenario import JOB, LONG, Threaded, acquainted, begin, versions
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("held", "said", "then"),
    [
        (IncarnationGrant(), (1, 7), IncarnationGrant(1, 7)),
        (IncarnationGrant(1, 7), (1, 7), IncarnationGrant(1, 7)),
        (IncarnationGrant(1, 7), (1, 8), None),
        (IncarnationGrant(1, 7), (2, 8), IncarnationGrant(2, 8)),
        (IncarnationGrant(2, 8), (1, 7), IncarnationGrant(2, 8)),
        (IncarnationGrant(1, 7), (1, 0), IncarnationGrant(1, 7)),
        (IncarnationGrant(1, 7), (2, 0), IncarnationGrant(1, 7)),
    ],
)
def test_a_term_is_granted_once(held: IncarnationGrant, said: tuple[int, int], then: IncarnationGrant | None) -> None:
    assert held.after(*said) == then


def test_the_next_process_is_deaf_to_the_same_one(tmp_path: Path) -> None:
    refused: list[str] = []

    def fence() -> IncarnationFence:
        return IncarnationFence(NodeState(tmp_path, JOB).files, lambda code, why: refused.append(code))

    fence().check(3, 7)
    again = fence()
    with pytest.raises(Unreachable) as caught:
        again.check(3, 8)
    assert caught.value.code == "trust.term-forked"
    assert refused == ["trust.term-forked"]
    assert (again.incarnation(3), again.incarnation(4)) == (7, 0)
    again.check(4, 8)
    assert again.incarnation(4) == 8


def fence_of(node: Threaded) -> Any:
    assert isinstance(node.pump, FailoverPump)
    return node.pump.fence._grant


@pytest.mark.timeout(300)
def test_of_a_coordinator_and_its_copy_the_first_is_heard(
    server: Server, threaded: Callable[..., Threaded], tmp_path: Path
) -> None:
    """The coordinator's disk was copied: both come to the same term, at the same address."""
    begin(server, 2, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.02)) for name in "ab"]
    acquainted(server, nodes)
    server.kill()
    shutil.copytree(server.folder, tmp_path / "copy")
    copy = Server(tmp_path / "copy", lease_s=3600.0, port=server.settings["port"])
    try:
        server.start()
        until("the first to be known", lambda: all(fence_of(node).term == 2 for node in nodes))
        before = versions(server)[-1]["number"]
        until("it to go on", lambda: versions(server)[-1]["number"] > before)
        server.kill()
        tasks = [node.agent.jobs[JOB].last_task for node in nodes]
        copy.start()

        def refused(node: Threaded) -> int:
            group = node.pump.group.group  # type: ignore[union-attr]
            return int(group.refusals.counts["trust.term-forked"])

        until("both to refuse the copy", lambda: all(refused(node) > 1 for node in nodes))
        assert [node.agent.jobs[JOB].last_task for node in nodes] == tasks, "nothing that it ordered is done"
        assert [(one.term, one.incarnation) for one in map(fence_of, nodes)] == [
            (2, fence_of(nodes[0]).incarnation)
        ] * 2
        assert {node.peer.state for node in nodes} == {"coordinated"}
        until("the copy to say so", lambda: copy.job(JOB)["headline"].startswith("Refused by a, b: another"))
    finally:
        copy.kill()
        copy.close()
    server.start()
    before = versions(server)[-1]["number"]
    until("the first to go on, in a later term", lambda: versions(server)[-1]["number"] > before)
    assert {fence_of(node).term for node in nodes} == {3}

    def told() -> list[dict[str, int]]:
        return [row["refused"] for row in server.get(f"/jobs/{JOB}/peers")["peers"]]

    until("it to be shown", lambda: all(row.get("trust.term-forked", 0) > 1 for row in told()))
    assert any("trust.term-forked" in event["text"] for event in server.events(JOB, "refusal"))
