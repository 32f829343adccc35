"""Some peers of a job are hostile processes: what must be refused is, and the others learn all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.fedavg import FedAvg
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import ExchangeCommit, ExchangeOffer
from shoal.mixing.pairwise import Pairwise
from shoal.peering.state.peer_state import read_documents
from shoal.runtime.blob_files import FileBlobs
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import toy_tree
from tests.peer.line import Line, accuracy
from tests.peer.scenario import PeerClient, body_of, folders, ref_of
from tests.peer.test_processes import Process
from tests.peer.test_refusals import OTHER
from tests.support.ports import free_ports
from tests.support.sampling import nightly

LINE = Path(__file__).with_name("line.py")
ROUNDS = 12
NAN = body_of(toy_tree((float("nan"), 2.0, 3.0), 1))
RSS_MAX = 50 * 2**20


@dataclass(frozen=True)
class Cast:
    """Roles of the peers, each by a batch. `loud` has a folder, and no process: the test speaks for it."""

    honest: str
    poisoned: str
    loud: str


FIVE, EIGHT, SIXTEEN = Cast("abc", "d", "e"), Cast("abcdef", "g", "h"), Cast("abcdefghijklmn", "o", "p")


class LineProcess(Process):
    """As any peer, with another learner."""

    def __init__(self, folder: Path, number: int, port: int, poison: bool) -> None:
        self.folder, self.port, self.log = folder, port, folder / "log.txt"
        self._command = ["peer", "run", str(folder), "--json", "--learner"]
        self._command += [f"{LINE}:learner", "--option", f"number={number}", "--option", "pause_s=0.1"]
        self._command += ["--option", f"poison={str(poison).lower()}"]
        self.start()

    @property
    def rss(self) -> int:
        """Bytes of its resident memory, the most that it ever was."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1])

    def model(self) -> Any:
        """Its last model that is on the disk."""
        kept = json.loads((self.folder / "state" / "machine.json").read_text())["gossip"]
        slots = FileBlobs(self.folder / "state" / "blobs").get(BlobRef(*kept["slots"]))
        return np.array(tree_slot(slots, "model")["w"], float)


@contextmanager
def running(root: Path, cast: Cast) -> Iterator[dict[str, LineProcess]]:
    names = cast.honest + cast.poisoned + cast.loud
    ports = free_ports(len(names))
    # Local rounds go on and on: it ends when the test has seen enough.
    peers = folders(root, names, ports=ports, rounds=100_000, min_peers=len(cast.honest), more="loss_ratio_max = 1.5")
    made: dict[str, LineProcess] = {}
    try:
        for number, (name, port) in enumerate(zip(cast.honest + cast.poisoned, ports, strict=False), 1):
            if name in cast.poisoned:  # a peer that has learned nothing cannot tell a poisoned model from its own
                for one in made.values():
                    one.until(lambda said: said["local_rounds"] >= 1)
            made[name] = LineProcess(peers / name, number, port, name in cast.poisoned)
        yield made
    finally:
        for one in made.values():
            one.kill()


async def shouted(victim: LineProcess, folder: Path) -> list[tuple[int, Any]]:
    """All that the peer of this folder can think of, against one other: what came of each."""
    loud = folder.name
    here = SimpleNamespace(group=SimpleNamespace(documents=read_documents(victim.folder)), port=victim.port)
    client = PeerClient(folder, here)  # type: ignore[arg-type]

    def swap(body: bytes, who: str = loud) -> ExchangeOffer:
        return ExchangeOffer(who, (who, 1, 1), 10.0, 1e9, ref_of(body), {who: 1})

    found = [await client.send(swap(NAN), blobs=NAN), await client.send(swap(OTHER), blobs=OTHER)]
    request, content = client.batch(ExchangeCommit(loud, (loud, 1, 1)))
    assert (await client.send_bytes(request, content))[0] == 200
    found.append(await client.send_bytes(request, content))
    found.append(await client.send(swap(NAN, "a"), blobs=NAN))
    thief = PeerClient(folder.with_name("b"), here, 2)  # type: ignore[arg-type]
    thief.signer.key = client.signer.key
    thief.signer.key.peer_id = thief.documents.me.peer_id
    found.append(await thief.send(swap(NAN, "b"), blobs=NAN))
    big, _ = client.batch(swap(NAN), blobs=NAN)
    found.append(await PeerClient(folder, here, 3).send_bytes(big, b"", announced=2 * 2**30))  # type: ignore[arg-type]
    return found


def clean(honest: str) -> float:
    """The accuracy of the mean model of the honest ones after that many rounds, without the others."""
    slots = {"model": toy_tree((0.1, 0.0, 0.0), 0)}
    shared = GossipSetup(JobPlan(1, seed=3), FedAvg(), Pairwise().mixer, slots, TerminationRule(ROUNDS), 3)
    learners = {name: Line(number) for number, name in enumerate(honest, 1)}
    swarm = GossipWorld(shared, learners, dict.fromkeys(honest, 10.0), dict.fromkeys(honest, 1.0))
    assert swarm.run(10_000.0)
    models = [peer.gossip.me.model["w"] for peer in swarm.peers.values() if peer.gossip is not None]
    return accuracy(np.mean([np.array(model, float) for model in models], axis=0))


@pytest.mark.timeout(500)
@pytest.mark.parametrize("cast", nightly([FIVE, EIGHT, SIXTEEN], but=[FIVE]), ids=["five", "eight", "sixteen"])
def test_honest_peers_learn_despite_a_poisoning_and_a_malicious_peer(cast: Cast, tmp_path: Path) -> None:
    with running(tmp_path, cast) as peers:
        honest = [peers[name] for name in cast.honest]
        victim = peers["a"]
        before, rss = victim.status()["refused"], victim.rss
        answers = asyncio.run(shouted(victim, tmp_path / "peers" / cast.loud))
        assert answers == [
            (422, "payload.not-finite"),
            (422, "payload.length"),
            (403, "trust.replayed"),
            (409, "peer.sender"),
            (403, "trust.signature"),
            (413, "body.too-large"),
        ]
        counted = victim.status()["refused"]
        assert all(counted[code] > before.get(code, 0) for _, code in answers), "each is counted"
        assert victim.rss - rss < RSS_MAX
        for one in honest:
            one.until(lambda said: said["local_rounds"] >= ROUNDS and said["refused"].get("peer.loss", 0) > 0)
            one.until(lambda said: said["quarantine"] == list(cast.poisoned))
        for one in honest:
            assert cast.loud not in one.status()["rounds_by_peer"], "nothing of it is in anybody's model"
        for one in peers.values():
            one.kill()
        reached = accuracy(np.mean([one.model() for one in honest], axis=0))
    assert reached >= clean(cast.honest) - 0.05
