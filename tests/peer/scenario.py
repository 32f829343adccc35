"""Peers of a small job in this process, over real sockets; and a client that can say whatever it likes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.gossip.gossip import LocalRoundDone
from shoal.core.mixing.pairwise_mixer import PairwiseMixer
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import TaskResult, Work
from shoal.core.protocol.message import BlobRef, Metrics
from shoal.core.protocol.peer_message import PeerMessage
from shoal.peering.http.peer_app import serve_peer
from shoal.peering.state.peer_state import read_documents
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.http.server.serving import listen
from shoal.sim.checks.conservation import floats
from shoal.sim.hosts.toy_models import ToyLearner
from shoal.sim.hosts.work import LearnerTask
from shoal.trust.envelope import SignedRequest, Signer, sha256
from shoal.trust.keys import load_or_create
from shoal.wire import peer_codec
from shoal.wire.payload import payload_pieces
from shoal.wire.peer_codec import MessageBatch
from shoal_peer.peer_process import PeerSettings, StandalonePeer
from shoal_peer.peer_status import PeerSummary
from shoal_peer.provision import InvitedNode, invite
from tests.support.waiting import PATIENCE_S, until_async

JOB = """
name = "toys"
seed = 3
learner = "nowhere.py:learner"
[algorithm]
name = "{algorithm}"
[gossip]
local_rounds = {rounds}
final_exchanges_max = {drain}
min_peers = {min_peers}
probe_interval_s = 0.5
exchange_timeout_s = {patience_s}
{more}
"""


def folders(
    root: Path,
    names: str = "abc",
    *,
    rounds: int = 4,
    drain: int = 100,
    min_peers: int = 0,
    patience_s: float = 3.0,
    ports: Sequence[int] = (),
    silent: str = "",
    more: str = "",
    algorithm: str = "fedavg",
    model: Tree | None = None,
) -> Path:
    """Make the folders of `shoal peer init` for peers a, b, c, …, which may claim 100 examples. `silent`: cannot be
    called. `model`: one like theirs; None: they are toys."""
    job = root / "job.toml"
    least = min_peers or len(names)
    job.write_text(
        JOB.format(algorithm=algorithm, rounds=rounds, drain=drain, min_peers=least, patience_s=patience_s, more=more)
    )
    urls = [f"http://127.0.0.1:{port}" for port in ports or [9] * len(names)]
    invited = [
        InvitedNode(name, "" if name in silent else url, examples=100) for name, url in zip(names, urls, strict=True)
    ]
    invite(job, model or ToyLearner(1).init(3), invited, root / "peers")
    return root / "peers"


class Apart:
    """Bodies that are read here, and written there until the peer has taken them over."""

    def __init__(self, blobs: FileBlobs, made: FileBlobs) -> None:
        self.get, self.put, self.add = blobs.get, made.put, made.put


class HereTrainer:
    """A fake training process. `hold` keeps every task until it is set."""

    def __init__(self, made: FileBlobs, blobs: FileBlobs, number: int) -> None:
        self._made, self._blobs, self.learner = made, blobs, ToyLearner(number)
        self.number, self.hold, self.starts = number, asyncio.Event(), 0
        self.hold.set()
        self.training = asyncio.Event()

    async def check(self) -> None:
        """Do nothing: it makes the tasks of all algorithms as federated averaging."""

    async def init(self, seed: int) -> tuple[BlobRef, float]:
        return self._made.put({"model": self.learner.init(seed)}), float(self.number)

    async def perform(self, work: Work) -> TaskResult:
        self.training.set()
        await self.hold.wait()
        made = LearnerTask(Algorithm(), self.learner, Apart(self._blobs, self._made), work.task, work.memory).run_piece(
            work.task
        )
        assert isinstance(made, TaskResult)
        return made

    async def evaluate(self, model: BlobRef) -> Metrics:
        """Its loss is the length of its weights."""
        values = floats(tree_slot(self._blobs.get(model), "model"))
        return {"eval/accuracy": 0.5, "eval/loss": float(np.linalg.norm(values))}

    def close(self) -> None:
        self.hold.set()

    async def end(self) -> None:
        self.close()


class Silent:
    """Do nothing."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.waits: list[list[str]] = []

    def on_round(self, effect: LocalRoundDone, live: int) -> None:
        """A local round has ended."""

    def on_event(self, text: str) -> None:
        self.events.append(text)

    def on_waiting(self, lines: Sequence[str]) -> None:
        self.waits.append(list(lines))


@asynccontextmanager
async def node(
    folder: Path, number: int = 1, *, running: bool = True, hold: bool = False, **more: Any
) -> AsyncIterator[StandalonePeer]:
    """A peer that listens at `node.port`, and runs. Without a `learner` it trains a toy in this process."""
    with (
        listen("127.0.0.1", more.pop("port", 0)) as sock,
        StandalonePeer(PeerSettings(folder, **more), Silent()) as made,
    ):
        if not made.settings.learner:
            made.trainer = made.evaluator = HereTrainer(made.state.results, made.state.blobs, number)  # type: ignore[assignment]
        if hold:
            made.trainer.hold.clear()  # type: ignore[attr-defined]
        await made.start()
        made.port = sock.getsockname()[1]  # type: ignore[attr-defined]
        async with serve_peer(made.group, sock):
            task = asyncio.create_task(made.run())
            try:
                yield made
            finally:
                made.trainer.close()
                made.machine.pump.events.close()
                await task


async def until(what: Callable[[], Any], why: str = "") -> None:
    """Wait until something is so."""
    await until_async(why or "it to come to that", what, every_s=0.02)


def body_of(tree: Tree) -> bytes:
    """A model as it travels."""
    return b"".join(bytes(piece) for piece in payload_pieces({"model": tree}))


def ref_of(body: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(body).hexdigest(), len(body))


@dataclass
class PeerClient:
    """Speaks for the peer of a folder to another one, in HTTP of its own."""

    folder: Path
    to: StandalonePeer
    process_number: int = 1
    signer: Signer = field(init=False)

    def __post_init__(self) -> None:
        self.documents = read_documents(self.folder)
        self.signer = Signer(load_or_create(self.folder / "key.pem"), self.documents.charter, self.process_number)

    def batch(self, *messages: PeerMessage, blobs: bytes = b"") -> tuple[SignedRequest, bytes]:
        """A batch, signed."""
        head = peer_codec.encode(MessageBatch("toys", tuple(messages)))
        return self.signed(head), head + blobs

    def signed(self, head: bytes) -> SignedRequest:
        return self.signer.request(self.to.group.documents.me.peer_id, "POST", "/p2p/toys", "", sha256(head))

    async def send(self, *messages: PeerMessage, blobs: bytes = b"") -> tuple[int, Any]:
        """Send a batch: (status, messages or the problem's code)."""
        request, content = self.batch(*messages, blobs=blobs)
        return await self.send_bytes(request, content)

    async def send_bytes(
        self,
        request: SignedRequest,
        content: bytes,
        *,
        announced: int | None = None,
        more: str = "",
        path: str = "/p2p/toys",
    ) -> tuple[int, Any]:
        """Send these very bytes with this very head."""
        length = len(content) if announced is None else announced
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in request.headers().items()]
        raw = "\r\n".join(lines) + "\r\n" + more + "\r\n"
        said = await raw_exchange(self.to.port, raw.encode(), content)  # type: ignore[attr-defined]
        head, _, body = said.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            return status, json.loads(body)["code"] if body else ""
        return status, peer_codec.decode(body[4 : 4 + peer_codec.head_bytes(body[:4])]).messages if body else ()


async def raw_exchange(port: int, head: bytes, body: bytes = b"") -> bytes:
    """Return the answer to a request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head + body)
        await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            said = await reader.readuntil(b"\r\n\r\n")
            lines = said.lower().split(b"\r\n")
            length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)
            return said + await reader.readexactly(length)
    finally:
        writer.transport.abort()


# How it has gone


async def to_its_end(one: StandalonePeer) -> PeerSummary:
    """Act as `shoal peer run`: stay until no peer needs it, and leave."""
    await one.progress.done.wait()
    return await one.leave()


def mass_of(peer: StandalonePeer) -> float:
    """Return the weight of its model, where models have one of their own."""
    mixer = peer.gossip.mixer
    mass = mixer.averaging.mass if isinstance(mixer, PairwiseMixer) else getattr(mixer, "mass", None)
    return peer.gossip.me.weight if mass is None else mass


def drift(made: list[StandalonePeer]) -> float:
    """How far sum(mass * model) is from where it began plus what was learned, relative to its size."""
    start = floats(ToyLearner(1).init(3))
    total = sum(mass_of(one) * floats(one.gossip.me.model) for one in made)
    learned = sum(one.gossip.me.weight * (start + floats(one.state.learned_total())) for one in made)  # type: ignore[arg-type]
    return float(np.abs(total - learned).max() / np.abs(learned).max())


def apart(made: list[StandalonePeer]) -> float:
    """The greatest distance between two models, relative to their length."""
    models = [floats(one.gossip.me.model) for one in made]
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(x)) for x in models for y in models)
