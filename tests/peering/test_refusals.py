"""Invalid requests to an edge client that is away: refused, counted, and the model untouched."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from shoal.core.algorithm.learner import Trained
from shoal.core.errors import Refused
from shoal.core.protocol.peer_message import ExchangeCommit
from shoal.peering.http import peer_app
from shoal.peering.http.peer_link import wall_s
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.http.node_client import JobDocuments
from shoal.sim.hosts.toy_models import ToyLearner
from shoal.trust.documents import JoinCert, Roster, open_charter, sign_document, verify_document
from shoal.trust.envelope import Signer
from shoal.trust.keys import SigningKey, load_key
from shoal_edge_client.peering.failover_pump import FailoverPump
from tests.peer.scenario import PeerClient
from tests.peer.test_refusals import DAY_S, FINE, REFUSALS, XID, elsewhere, reserved, swap
from tests.peering.scenario import Threaded
from tests.support.coordinator import Server
from tests.support.waiting import pause, until

JOB = "toys"


class Still(ToyLearner):
    """Learns nothing, and waits while that file exists."""

    def __init__(self, number: int, hold: Path) -> None:
        super().__init__(number)
        self._hold = hold

    @property
    def examples(self) -> int:
        return self._number

    def train(self, config: Any, *, progress: Any = lambda fraction: None, **more: Any) -> Trained:
        while self._hold.exists():
            progress(0.5)
            pause(0.005)
        return Trained(float(self._number), {"train/loss": 0.5})


@dataclass
class EdgePeerClient(PeerClient):
    """Speaks for an edge client that has left: with its key, and the documents that it has kept."""

    def __post_init__(self) -> None:
        (state,) = (path.parent for path in self.folder.glob("*/peer-key.pem"))
        kept = json.loads((state / "jobs" / JOB / "peer" / "documents.json").read_text())
        charter, sealed = open_charter(kept["charter"].encode()), kept["roster"].encode()
        key, roster = load_key(state / "peer-key.pem"), verify_document(sealed, Roster, charter)
        me = next(peer for peer in roster.peers if peer.peer_id == key.peer_id)
        self.documents = PeerDocuments(self.to.group.documents.spec, charter, roster, sealed, key, me)
        self.signer = Signer(key, charter, self.process_number)


class Victim:
    """The edge client `a`, alone and away, that rests."""

    def __init__(self, node: Threaded, folder: Path, hold: Path) -> None:
        self.node, self.folder, self.hold, self._process_number = node, folder, hold, 2**53
        assert node.agent.session.peering is not None
        self.url = node.agent.session.peering.listener.contact().urls[0]

    @property
    def pump(self) -> FailoverPump:
        pump = self.node.agent.jobs[JOB].pump
        assert isinstance(pump, FailoverPump)
        return pump

    @property
    def group(self) -> Any:
        return self.pump.group.group

    @property
    def model(self) -> bytes:
        gossip = self.pump.peer.gossip
        assert gossip is not None
        return bytes(gossip.me.model.buffer)

    def status(self) -> dict[str, Any]:
        try:
            answer = httpx.get(f"{self.url}/p2p/{JOB}/status", timeout=60.0)
        except httpx.ConnectError:  # it does not listen yet
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def alive(self) -> int:
        """How many others live, as far as it knows."""
        return sum(peer["state"] == "alive" for peer in self.status().get("peers", {}).values())

    def client(self) -> EdgePeerClient:
        """`b`, in a process later than all before."""
        self._process_number += 1
        here = SimpleNamespace(group=self.group, port=int(self.url.rpartition(":")[2]))
        return EdgePeerClient(self.folder / "b", here, self._process_number)  # type: ignore[arg-type]

    def there(self, call: Callable[[], Any]) -> Any:
        """Call something in its event loop."""
        done: Future[Any] = Future()

        def make() -> None:
            try:
                done.set_result(call())
            except Refused as error:
                done.set_exception(error)

        self.node.loop.call_soon_threadsafe(make)
        return done.result(60.0)


@pytest.fixture
def victim(server: Server, threaded: Callable[..., Threaded], tmp_path: Path) -> Iterator[Victim]:
    made = alone(server, threaded, tmp_path)
    yield made
    made.hold.unlink()


def alone(
    server: Server, threaded: Callable[..., Threaded], tmp_path: Path, kind: type[Still] = Still, **gossip: Any
) -> Victim:
    server.begin(JOB, nodes=3, rounds=10_000, gossip={"allowed": True, "coordinator_timeout_s": 3600.0, **gossip})
    holds = [tmp_path / f"hold-{name}" for name in "abc"]
    nodes = [
        threaded(hold.name[-1], kind(number, hold), jobs=[JOB], shutdown_upload_s=0.2)
        for number, hold in enumerate(holds, 40)
    ]
    until("all to listen", lambda: all(node.agent.session.peering is not None for node in nodes))
    made = Victim(nodes[0], tmp_path, holds[0])
    until("them to be known", lambda: made.alive() == 2)
    until("what they may claim", lambda: all(peer.examples for peer in made.group.documents.roster.peers))
    for hold in holds:
        hold.touch()
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    until("all to gossip", lambda: made.status().get("state") == "gossip")
    for node in nodes[1:]:
        node.leave()
    for node, hold in zip(nodes[1:], holds[1:], strict=True):
        node.end()
        hold.unlink()
    until("it to rest", lambda: not made.pump.peer.gossip.mixer.is_busy)  # type: ignore[union-attr]
    return made


@pytest.mark.timeout(400)
def test_it_is_refused_and_counted_and_changes_nothing(
    server: Server, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, expected = victim.model, Counter[str]()
    for wrong, outcome in REFUSALS.items():
        asyncio.run(reserved(victim.client()))
        assert (wrong.__name__, asyncio.run(wrong(victim.client()))[0]) == (wrong.__name__, outcome[0])  # type: ignore[arg-type]
        assert victim.model == before, wrong.__name__
        expected.update([outcome[1]] if wrong is not elsewhere else [])  # that concerns no job of this node's
        assert victim.status()["refused"] == expected, wrong.__name__

    def told() -> Any:
        return next(row["refused"] for row in server.get(f"/jobs/{JOB}/peers")["peers"] if row["name"] == "a")

    until("the coordinator to know", lambda: told() == expected)
    # A day makes no difference to a clock; and what is right is taken, so it was that which was wrong with the others.
    monkeypatch.setattr(peer_app, "wall_s", lambda: wall_s() + DAY_S)
    asyncio.run(reserved(victim.client()))
    status, said = asyncio.run(victim.client().send(swap(), blobs=FINE))
    assert (status, type(said[0]).__name__) == (200, "ExchangeAccept")
    assert victim.model != before


@pytest.mark.timeout(400)
def test_who_is_out_is_refused_and_an_older_roster_lets_nobody_in(
    server: Server, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, documents = victim.model, victim.group.documents
    coordinator = load_key(server.folder / "coordinator.pem")
    key = SigningKey.make()
    expired = JoinCert(JOB, "new", key.peer_id, key.public_key, 100, wall_s() - 2 * DAY_S)
    sealed = sign_document(expired, coordinator, documents.charter)
    victim.there(lambda: victim.group.verifier.introduce(sealed, wall_s() - 10 * DAY_S))
    stranger = victim.client()
    stranger.signer = Signer(key, documents.charter, 1)
    assert asyncio.run(stranger.send(ExchangeCommit("new", XID))) == (403, "trust.expired")

    client = victim.client()
    asyncio.run(reserved(client))
    left = tuple(peer for peer in documents.roster.peers if peer.node != "b")
    gone = replace(
        documents.roster,
        version=documents.roster.version + 1,
        peers=left,
        revoked_peer_ids=(client.documents.me.peer_id,),
    )
    newer = replace(documents, roster=gone, sealed_roster=sign_document(gone, coordinator, documents.charter))
    victim.there(lambda: victim.group.update_documents(newer))
    assert asyncio.run(client.send(swap(), blobs=FINE)) == (403, "trust.revoked")
    with pytest.raises(Refused) as caught:
        victim.there(lambda: victim.group.update_documents(documents))
    assert caught.value.code == "trust.roster-old"
    assert asyncio.run(client.send(swap(), blobs=FINE)) == (403, "trust.revoked")
    # A coordinator that was set back to what it once was brings its roster of then.
    charter = victim.pump.group._state.files.documents()["charter"].encode()
    older = JobDocuments(documents.roster.version, charter, documents.sealed_roster)
    monkeypatch.setattr(victim.pump.coordinator.hub, "trust_documents", lambda job, held: older)
    asyncio.run_coroutine_threadsafe(victim.pump.coordinator.fetch_documents(), victim.node.loop).result(60.0)
    assert asyncio.run(client.send(swap(), blobs=FINE)) == (403, "trust.revoked")
    assert victim.model == before
    expected = {"trust.expired": 1, "trust.revoked": 3, "trust.roster-old": 1}
    assert victim.status()["refused"] == expected

    def told() -> Any:
        return next(row["refused"] for row in server.get(f"/jobs/{JOB}/peers")["peers"] if row["name"] == "a")

    until("it to be shown", lambda: told() == expected)


@pytest.mark.timeout(400)
def test_of_two_coordinators_with_one_term_the_second_changes_nothing(
    server: Server, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the coordinator runs with the same key: it signs another roster of the version that is held."""
    before, documents, circle = victim.model, victim.group.documents, victim.pump.group
    kept = circle._state.files.documents()
    coordinator, key = load_key(server.folder / "coordinator.pem"), SigningKey.make()
    intruder = replace(documents.others[0], node="z", peer_id=key.peer_id, public_key=key.public_key)
    forked = replace(documents.roster, peers=(*documents.roster.peers, intruder))
    sealed = JobDocuments(
        forked.version, kept["charter"].encode(), sign_document(forked, coordinator, documents.charter)
    )
    monkeypatch.setattr(victim.pump.coordinator.hub, "trust_documents", lambda job, held: sealed)
    asyncio.run_coroutine_threadsafe(victim.pump.coordinator.fetch_documents(), victim.node.loop).result(60.0)
    assert victim.status()["refused"] == {"trust.roster-forked": 1}
    assert circle.documents is documents, "the one that was there first holds"
    assert circle._state.files.documents() == kept, "for the next process too"
    stranger = victim.client()
    stranger.signer = Signer(key, documents.charter, 1)
    assert asyncio.run(stranger.send(ExchangeCommit("z", XID))) == (403, "trust.stranger")
    assert victim.model == before

    def told() -> Any:
        return next(row["refused"] for row in server.get(f"/jobs/{JOB}/peers")["peers"] if row["name"] == "a")

    until("it to be shown", lambda: told().get("trust.roster-forked") == 1)
