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
from shoal.core.protocol.message import NoTask
from shoal.core.protocol.peer_message import CoordinatorProbe, CoordinatorStatus, PeerMessage, RelayRequest
from shoal.peering.host.peer_group import PeerCallbacks, PeerGroup
from shoal.peering.http.hosted_peer import HostedJobs
from shoal.peering.http.message_receiver import ExpectedModel
from shoal.peering.http.peer_app import serve_jobs
from shoal.peering.http.peer_link import OutgoingMessage
from shoal.peering.state.byte_counts import ByteCounts
from shoal.peering.state.peer_blobs import PeerBlobs
from shoal.peering.state.peer_state import PeerDocuments, read_documents
from shoal.runtime.http.server.serving import listen
from shoal.sim.hosts.toy_models import ToyLearner
from shoal.trust.documents import ModeRecord, Roster, sign_document
from shoal.trust.keys import load_or_create
from tests.peer.scenario import folders, until
from tests.support.ports import free_ports

ANSWER = CoordinatorStatus("b", 1, True, False, 0, None)


@dataclass
class Machine:
    """Notes what it is told, and answers a question with a bulletin."""

    name: str
    heard: list[PeerMessage] = field(default_factory=list)
    live: frozenset[str] = frozenset()

    async def hear(self, messages: Sequence[PeerMessage]) -> list[OutgoingMessage]:
        self.heard += messages
        return [(replace(ANSWER, node=self.name), None) for one in messages if isinstance(one, CoordinatorProbe)]

    def see(self, live: frozenset[str]) -> None:
        self.live = live

    def about(self) -> dict[str, Any]:
        return {"state": "coordinated"}

    async def decreed(self, record: ModeRecord) -> bool:
        return False


def made_in(folder: Path, documents: PeerDocuments) -> tuple[PeerGroup, Machine]:
    machine = Machine(documents.me.node)
    folder.mkdir(exist_ok=True)
    standard = ExpectedModel("toys", PeerBlobs(folder / "blobs"))
    standard.set_model({"model": ToyLearner(1).init(3).layout}, lambda: 0.0)
    ears = PeerCallbacks(machine.hear, lambda peers: machine.see(peers.nodes), machine.about, machine.decreed)
    return PeerGroup(documents, folder, 1, standard, ears), machine


@asynccontextmanager
async def running_group(documents: PeerDocuments, folder: Path, port: int) -> AsyncIterator[tuple[PeerGroup, Machine]]:
    """A peer that listens at that port."""
    made, machine = made_in(folder, documents)
    with listen("127.0.0.1", port) as sock:
        async with serve_jobs(
            HostedJobs({"toys": made}.get, ByteCounts(folder / "unidentified_bytes.json"), made.record_refusal), sock
        ):
            made.start()
            try:
                yield made, machine
            finally:
                made.close()


def test_peers_connect_and_exchange_messages(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", ports=ports)
        documents = [read_documents(peers / name) for name in "ab"]
        async with running_group(documents[0], tmp_path / "x", ports[0]) as (a, told_a):
            async with running_group(documents[1], tmp_path / "y", ports[1]) as (b, told_b):
                await until(lambda: told_a.live == {"b"} and told_b.live == {"a"})
                a.router.post("b", [(CoordinatorProbe("a", 3), None)])
                await until(lambda: told_a.heard == [ANSWER], "the answer is heard like a word of its own")
                assert told_b.heard == [CoordinatorProbe("a", 3)]
                a.router.post("b", [(RelayRequest("a", NoTask((1, 1))), None), (CoordinatorProbe("a", 4), None)])
                await until(lambda: CoordinatorProbe("a", 4) in told_b.heard)
                assert not [one for one in told_b.heard if isinstance(one, RelayRequest)], "nobody passes anything on"
                peers_of_a = a.status()["peers"]["b"]
                assert peers_of_a["state"] == "alive"
                assert peers_of_a["sent"] > 0 < peers_of_a["received"]
                assert peers_of_a["rtt_ms"] > 0
                a.save()
                await b.leave()
                await until(lambda: a.membership.state_of("b") == "left")
            assert a.status()["state"] == "coordinated"

    asyncio.run(scene())


def test_byte_counts_are_those_of_this_process(tmp_path: Path) -> None:
    """The coordinator adds up what each start has told."""

    async def scene() -> None:
        peers = folders(tmp_path, "ab", ports=free_ports(2))
        folder = tmp_path / "x"
        folder.mkdir()
        before = ByteCounts(folder / "bytes.json")
        before.add("b", sent=1000, received=2000)
        before.save()
        made, _ = made_in(folder, read_documents(peers / "a"))
        made.byte_counts.add("b", sent=3)
        found = made.peers()["b"]
        assert (found["sent"], found["received"]) == (3, 0)
        assert made.byte_counts.totals()["sent"]["b"] == 1003
        made.close()

    asyncio.run(scene())


def test_a_newer_roster_moves_and_removes_peers(tmp_path: Path) -> None:
    async def scene() -> None:
        ports = free_ports(3)
        peers = folders(tmp_path, "abc", ports=ports)
        documents = read_documents(peers / "a")
        async with (
            running_group(documents, tmp_path / "x", ports[0]) as (a, told),
            running_group(read_documents(peers / "b"), tmp_path / "y", ports[1]),
        ):
            await until(lambda: told.live == {"b"})
            link = a.router.links["b"]
            newer = with_roster(documents, peers, [peer for peer in documents.roster.peers if peer.node != "c"])
            a.update_documents(newer)
            assert set(a.router.links) == {"b"}
            assert a.router.links["b"] is link, "who has not moved keeps his connections"
            moved = [replace(one, urls=("http://127.0.0.1:9",)) if one.node == "b" else one for one in newer.others]
            a.update_documents(with_roster(newer, peers, [documents.me, *moved]))
            assert a.router.links["b"] is not link
            assert a.router.links["b"].peer.urls == ("http://127.0.0.1:9",)
            with pytest.raises(Refused, match="is held"):
                a.update_documents(documents)
            assert a.documents.roster.version == newer.roster.version + 1, "a refused roster changes nothing"

    asyncio.run(scene())


def with_roster(documents: PeerDocuments, peers: Path, members: list[Any]) -> PeerDocuments:
    """These documents with a newer roster, signed by the operator."""
    roster = Roster("toys", documents.roster.version + 1, tuple(members))
    operator = load_or_create(peers / "operator.pem")
    return replace(documents, roster=roster, sealed_roster=sign_document(roster, operator, documents.charter))
