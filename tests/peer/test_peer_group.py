"""The others as one peer has them: who calls whom, who is refused, and what a newer roster changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import Refused
from shoal.core.message import Idle
from shoal.core.peer_message import Bulletin, PeerMessage, Relay, Suspect
from shoal.runtime.store import FileBodies
from shoal.sim.toys import ToyLearner
from shoal.trust.keys import load_or_make
from shoal.trust.papers import ModeRecord, Roster, seal
from shoal_peer.app import Home, serving_all
from shoal_peer.company import Company, Ears
from shoal_peer.folder import Papers, read_papers
from shoal_peer.intake import Standard
from shoal_peer.ledger import Ledger
from shoal_peer.link import Told
from shoal_peer.listening import listen
from tests.peer.stage import folders, free_ports, until

ANSWER = Bulletin("b", 1, True, False, 0, None)


@dataclass
class Machine:
    """Notes what it is told, and answers a question with a bulletin."""

    name: str
    heard: list[PeerMessage] = field(default_factory=list)
    live: frozenset[str] = frozenset()

    async def hear(self, messages: Sequence[PeerMessage]) -> list[Told]:
        self.heard += messages
        return [(replace(ANSWER, node=self.name), None) for one in messages if isinstance(one, Suspect)]

    def see(self, live: frozenset[str]) -> None:
        self.live = live

    def about(self) -> dict[str, Any]:
        return {"state": "coordinated"}

    async def decreed(self, record: ModeRecord) -> bool:
        return False


def made_in(folder: Path, papers: Papers) -> tuple[Company, Machine]:
    machine = Machine(papers.me.node)
    folder.mkdir(exist_ok=True)
    standard = Standard("toys", FileBodies(folder / "bodies"))
    standard.expect(ToyLearner(1).init(3).layout, lambda: 0.0)
    ears = Ears(machine.hear, machine.see, machine.about, machine.decreed)
    return Company(papers, folder, 1, standard, ears), machine


@asynccontextmanager
async def company(papers: Papers, folder: Path, port: int) -> AsyncIterator[tuple[Company, Machine]]:
    """A peer that listens at that port."""
    made, machine = made_in(folder, papers)
    with listen("127.0.0.1", port) as sock:
        async with serving_all(Home({"toys": made}.get, Ledger(folder / "strangers.json"), made.refuse), sock):
            made.start()
            try:
                yield made, machine
            finally:
                made.close()


def test_they_meet_and_talk(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", ports=ports)
        papers = [read_papers(peers / name) for name in "ab"]
        async with company(papers[0], tmp_path / "x", ports[0]) as (a, told_a):
            async with company(papers[1], tmp_path / "y", ports[1]) as (b, told_b):
                await until(lambda: told_a.live == {"b"} and told_b.live == {"a"})
                a.post("b", [(Suspect("a", 3), None)])
                await until(lambda: told_a.heard == [ANSWER], "the answer is heard like a word of its own")
                assert told_b.heard == [Suspect("a", 3)]
                a.post("b", [(Relay("a", Idle((1, 1))), None), (Suspect("a", 4), None)])
                await until(lambda: Suspect("a", 4) in told_b.heard)
                assert not [one for one in told_b.heard if isinstance(one, Relay)], "nobody passes anything on"
                peers_of_a = a.status()["peers"]["b"]
                assert peers_of_a["state"] == "alive"
                assert peers_of_a["sent"] > 0 < peers_of_a["received"]
                assert peers_of_a["rtt_ms"] > 0
                a.keep()
                await b.leave()
                await until(lambda: a.membership.state_of("b") == "left")
            assert a.status()["state"] == "coordinated"

    asyncio.run(scene())


def test_bytes_are_those_of_this_process(tmp_path: Path) -> None:
    """The coordinator adds up what each start has told."""

    async def scene() -> None:
        peers = folders(tmp_path, "ab", ports=free_ports(2))
        folder = tmp_path / "x"
        folder.mkdir()
        before = Ledger(folder / "bytes.json")
        before.book("b", sent=1000, received=2000)
        before.keep()
        made, _ = made_in(folder, read_papers(peers / "a"))
        made.ledger.book("b", sent=3)
        found = made.peers()["b"]
        assert (found["sent"], found["received"]) == (3, 0)
        assert made.ledger.totals()["sent"]["b"] == 1003
        made.close()

    asyncio.run(scene())


def test_a_newer_roster_moves_and_removes_peers(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(3)
        peers = folders(tmp_path, "abc", ports=ports)
        papers = read_papers(peers / "a")
        async with (
            company(papers, tmp_path / "x", ports[0]) as (a, told),
            company(read_papers(peers / "b"), tmp_path / "y", ports[1]),
        ):
            await until(lambda: told.live == {"b"})
            link = a.links["b"]
            newer = with_roster(papers, peers, [peer for peer in papers.roster.peers if peer.node != "c"])
            a.take_papers(newer)
            assert set(a.links) == {"b"}
            assert a.links["b"] is link, "who has not moved keeps his connections"
            moved = [replace(one, urls=("http://127.0.0.1:9",)) if one.node == "b" else one for one in newer.others]
            a.take_papers(with_roster(newer, peers, [papers.me, *moved]))
            assert a.links["b"] is not link
            assert a.links["b"].peer.urls == ("http://127.0.0.1:9",)
            with pytest.raises(Refused, match="is held"):
                a.take_papers(papers)
            assert a.papers.roster.version == newer.roster.version + 1, "a refused roster changes nothing"

    asyncio.run(scene())


def with_roster(papers: Papers, peers: Path, members: list[Any]) -> Papers:
    """These papers with a newer roster, signed by the operator."""
    roster = Roster("toys", papers.roster.version + 1, tuple(members))
    operator = load_or_make(peers / "operator.pem")
    return replace(papers, roster=roster, sealed_roster=seal(roster, operator, papers.charter))
