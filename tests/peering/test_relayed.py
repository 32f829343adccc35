"""One node loses only its own way to a real coordinator: others carry what it says, and no round goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.peering.scenario import JOB, SHORT, Threaded, acquainted, begin, model, versions
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.proxy import Proxy
from tests.support.waiting import until

Make = Callable[..., Threaded]
LONG_MODEL = 100_000
"""Numbers of a model that does not go along with a word."""


class BreakableRoute:
    """One node's way to the coordinator, which can break."""

    def __init__(self, server: Server) -> None:
        self._server, self.proxy = server, Proxy(lambda: server.url)

    def cut(self) -> None:
        self.proxy.close()

    def restore(self) -> None:
        self.proxy = Proxy(lambda: self._server.url, port=self.proxy.port)


@pytest.fixture
def route(server: Server) -> Iterator[BreakableRoute]:
    made = BreakableRoute(server)
    yield made
    made.cut()


def three_nodes(threaded: Make, route: BreakableRoute, size: int = 8) -> list[Threaded]:
    """a, b, and c, whose way may break."""
    nodes = [threaded(name, CountingLearner(10.0, 0.02, size=size)) for name in "ab"]
    return [*nodes, threaded("c", CountingLearner(10.0, 0.02, size=size), url=route.proxy.url)]


def check_each_round(server: Server, first: int, last: int) -> None:
    """Every version is made of all nodes' reports, each counted once."""
    until("the last one to be written down", lambda: versions(server)[-1]["number"] >= last)
    found = {version["number"]: version for version in versions(server)}
    assert sorted(found) == list(range(len(found)))
    assert {found[number]["why"] for number in range(first + 1, last + 1)} == {"3 of 3 reports"}
    assert model(server, last) - model(server, first) == pytest.approx(last - first)


def relays(server: Server) -> dict[str, str | None]:
    """Return the relay of each node, as the coordinator shows it."""
    return {row["name"]: row["relayed_by"] for row in server.get(f"/jobs/{JOB}/peers")["peers"]}


def expected_relays(lost: Threaded) -> dict[str, str | None]:
    """Return the relays while c's way is broken: c names the relay that it has chosen, and may choose again."""
    return {"a": None, "b": None, "c": lost.peer.reachability.relay}


@pytest.mark.parametrize("size", [8, LONG_MODEL])
def test_a_node_is_relayed_and_returns_to_its_own_route(
    server: Server, threaded: Make, route: BreakableRoute, size: int
) -> None:
    begin(server, 3, **SHORT)
    nodes = three_nodes(threaded, route, size)
    acquainted(server, nodes)
    lost, terms = nodes[2], [node.peer.term for node in nodes]
    route.cut()
    until("another to carry it", lambda: lost.peer.reachability.relay)
    before = server.job(JOB)["version"]
    until("rounds", lambda: server.job(JOB)["version"] >= before + 6)
    after = server.job(JOB)["version"]
    until("the coordinator to show who carries it", lambda: relays(server) == expected_relays(lost))
    route.restore()
    until("its own way to be whole again", lambda: not lost.peer.reachability.relay)
    until("rounds", lambda: server.job(JOB)["version"] >= after + 3)
    check_each_round(server, before, after + 3)
    assert [node.peer.term for node in nodes] == terms, "whoever goes away begins a new term"
    assert server.job(JOB)["mode"] == "server"
