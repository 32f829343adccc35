"""A running job moves to its nodes and back, with a real coordinator: by an operator's word, and over its death."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peering.scenario import (
    JOB,
    LONG,
    SHORT,
    Looping,
    Process,
    Threaded,
    acquainted,
    begin,
    check_merge,
    versions,
)
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until

Make = Callable[..., Threaded]


def three_nodes(threaded: Make, kind: type[Threaded] = Threaded) -> list[Threaded]:
    learners = {name: CountingLearner(10.0 * weight, 0.02 * weight) for weight, name in enumerate("abc", 1)}
    return [threaded(name, learner, kind=kind) for name, learner in learners.items()]


def rounds(node: Threaded) -> int:
    """How many local rounds it has made since it went away."""
    gossip = node.peer.gossip
    return gossip.me.local_rounds if gossip is not None else 0


def seen(node: Threaded, name: str) -> int:
    """How many rounds of that node its model holds."""
    gossip = node.peer.gossip
    return gossip.me.counts.version_vector.get(name, 0) if gossip is not None else 0


@pytest.mark.parametrize("kind", [Threaded, Looping])
def test_an_operator_sends_a_job_to_its_peers_and_back(server: Server, threaded: Make, kind: type[Threaded]) -> None:
    """Also where each node trains by a loop of the user's own."""
    begin(server, 3, **LONG)
    nodes = three_nodes(threaded, kind)
    acquainted(server, nodes, version=3)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before = server.job(JOB)["version"]
    until("rounds", lambda: all(rounds(node) >= 8 for node in nodes))
    until("word of it", lambda: server.get(f"/jobs/{JOB}/peers")["now"])
    seen = server.get(f"/jobs/{JOB}/peers")
    assert {row["name"]: (row["state"], row["weight"]) for row in seen["peers"]} == {
        "a": ("gossip", 10.0),
        "b": ("gossip", 20.0),
        "c": ("gossip", 30.0),
    }
    assert seen["now"]["residual"] < 0.5, "what is under way is little"
    assert server.job(JOB)["version"] == before, "the schedule rests"
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("the job to be back", lambda: server.job(JOB)["mode"] == "server")
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 3)
    assert check_merge(server, before) >= 8.0
    assert {node.peer.state for node in nodes} == {"coordinated"}
    modes = [event["text"] for event in server.events(JOB, "mode")]
    assert modes == ["the peers carry on: by an operator", "back to the server: by an operator", "back at the server"]


def test_a_job_survives_the_death_of_its_coordinator(
    server: Server, process: Callable[..., Process], tmp_path: Path
) -> None:
    """All are at work when it dies. They carry on; one of them dies, and finds the others without it; it comes back."""
    begin(server, 3, **SHORT)
    hold = tmp_path / "hold"
    hold.touch()
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    nodes = [process(name, weight=10.0 * one, pause_s=0.02 * one, hold=hold) for name, one in weights.items()]
    for node in nodes:
        node.start()
    acquainted(server, nodes, version=0)
    until("all to be at work", lambda: len(list(tmp_path.glob("held-by-*"))) == 3)
    before = server.job(JOB)["version"]
    server.kill()
    until("all to gossip", lambda: all(node.status().get("state") == "gossip" for node in nodes), every_s=0.1)
    assert all(node.status()["local_rounds"] == 0 for node in nodes), "what is in hand goes on"
    hold.unlink()
    until("rounds", lambda: all(node.status()["rounds_by_peer"].get("c", 0) >= 4 for node in nodes), every_s=0.1)
    nodes[2].kill()
    made = max(node.status()["rounds_by_peer"]["c"] for node in nodes[:2])
    nodes[2].start()
    until("it to carry on", lambda: nodes[2].status().get("local_rounds", 0) > made, every_s=0.1)
    assert nodes[2].status()["state"] == "gossip"
    until("its rounds", lambda: all(node.status()["rounds_by_peer"]["c"] > made for node in nodes), every_s=0.1)
    server.start()
    until("all to be back", lambda: all(node.status().get("state") == "coordinated" for node in nodes), every_s=0.1)
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 2)
    assert check_merge(server, before) > 4.0


def test_a_coordinator_that_is_started_anew_meanwhile_calls_them_back(server: Server, threaded: Make) -> None:
    """Reasons for which an operator switches a job to gossip. They had a task, so they need not knock."""
    begin(server, 3, **LONG)
    nodes = three_nodes(threaded)
    acquainted(server, nodes)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before = server.job(JOB)["version"]
    server.kill()
    until("rounds", lambda: all(rounds(node) >= 8 for node in nodes))
    server.start()
    until("word of it", lambda: all(node.peer.term == 2 for node in nodes))
    assert server.job(JOB)["mode"] == "gossip"
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("the job to be back", lambda: server.job(JOB)["mode"] == "server")
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 2)
    assert check_merge(server, before) >= 8.0


def test_who_cannot_be_called_takes_part(server: Server, threaded: Make) -> None:
    begin(server, 3, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.05)) for name in "ab"]
    nodes.append(threaded("c", CountingLearner(40.0, 0.05), peer_listen="none"))
    acquainted(server, nodes)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before = server.job(JOB)["version"]
    until("its rounds to be known", lambda: all(seen(node, "c") >= 3 for node in nodes))
    until("those of others to be known there", lambda: min(seen(nodes[2], name) for name in "ab") >= 3)
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("rounds at the server", lambda: server.job(JOB)["version"] >= before + 2)
    check_merge(server, before)


def test_who_does_not_listen_only_works(server: Server, threaded: Make) -> None:
    begin(server, 3, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.02)) for name in "ab"]
    plain = threaded("c", CountingLearner(10.0, 0.02), peer_listen="")
    acquainted(server, nodes)
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("both to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    before = server.job(JOB)["version"]
    until("rounds", lambda: all(rounds(node) >= 4 for node in nodes))
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    until("the job to be back", lambda: server.job(JOB)["version"] >= before + 3)
    numbers = [version["number"] for version in versions(server)]
    assert numbers == list(range(len(numbers)))
    assert plain.outcome == []
