"""One node loses only its own way to a real coordinator: others carry what it says, and no round goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.coordinator.proxy import Proxy
from tests.coordinator.server import Server, until
from tests.peering.learner import Counting
from tests.peering.stage import JOB, SHORT, Threaded, acquainted, begin, model, versions

Make = Callable[..., Threaded]
LONG_MODEL = 100_000
"""Numbers of a model that does not go along with a word."""


class Way:
    """One node's way to the coordinator, which can break."""

    def __init__(self, server: Server) -> None:
        self._server, self.proxy = server, Proxy(lambda: server.url)

    def breaks(self) -> None:
        self.proxy.close()

    def heals(self) -> None:
        self.proxy = Proxy(lambda: self._server.url, port=self.proxy.port)


@pytest.fixture
def way(server: Server) -> Iterator[Way]:
    made = Way(server)
    yield made
    made.breaks()


def three(threaded: Make, way: Way, size: int = 8) -> list[Threaded]:
    """a, b, and c, whose way may break."""
    nodes = [threaded(name, Counting(10.0, 0.02, size=size)) for name in "ab"]
    return [*nodes, threaded("c", Counting(10.0, 0.02, size=size), url=way.proxy.url)]


def check_each_round(server: Server, first: int, last: int) -> None:
    """Every version is made of all nodes' reports, each counted once."""
    until("the last one to be written down", lambda: versions(server)[-1]["number"] >= last)
    found = {version["number"]: version for version in versions(server)}
    assert sorted(found) == list(range(len(found)))
    assert {found[number]["why"] for number in range(first + 1, last + 1)} == {"3 of 3 reports"}
    assert model(server, last) - model(server, first) == pytest.approx(last - first)


@pytest.mark.parametrize("size", [8, LONG_MODEL])
def test_it_goes_on_through_another_and_back(server: Server, threaded: Make, way: Way, size: int) -> None:
    begin(server, 3, **SHORT)
    nodes = three(threaded, way, size)
    acquainted(server, nodes)
    lost, terms = nodes[2], [node.peer.term for node in nodes]
    way.breaks()
    until("another to carry it", lambda: lost.peer.relay)
    before = server.job(JOB)["version"]
    until("rounds", lambda: server.job(JOB)["version"] >= before + 6)
    after = server.job(JOB)["version"]
    carrier = lost.peer.relay
    assert carrier
    rows = {row["name"]: row for row in server.get(f"/jobs/{JOB}/peers")["peers"]}
    assert {name: row["relayed_by"] for name, row in rows.items()} == {"a": None, "b": None, "c": carrier}
    way.heals()
    until("its own way to be whole again", lambda: not lost.peer.relay)
    until("rounds", lambda: server.job(JOB)["version"] >= after + 3)
    check_each_round(server, before, after + 3)
    assert [node.peer.term for node in nodes] == terms, "whoever goes away begins a new term"
    assert server.job(JOB)["mode"] == "server"
