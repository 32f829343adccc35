"""Peers of a small job in this process, over real sockets; and a client that can say whatever it likes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal import peer_wire, wire
from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.gossip import Learned
from shoal.core.machine import Result, Work
from shoal.core.message import Metrics, Ref
from shoal.core.peer_message import PeerMessage
from shoal.core.tree import Tree
from shoal.peer_wire import Letter
from shoal.runtime.store import FileBodies
from shoal.sim.books import floats
from shoal.sim.toys import ToyLearner
from shoal.sim.work import Begun
from shoal.trust.envelope import Request, Signer, sha256
from shoal.trust.keys import load_or_make
from shoal_peer.app import serving
from shoal_peer.folder import read_papers
from shoal_peer.invite import Invited, invite
from shoal_peer.listening import listen
from shoal_peer.node import Node, Settings
from shoal_peer.status import Summary

PATIENCE_S = 60.0
JOB = """
name = "toys"
seed = 3
learner = "nowhere.py:learner"
[algorithm]
name = "fedavg"
[gossip]
rounds = {rounds}
drain = {drain}
min_peers = {min_peers}
period_s = 0.5
patience_s = {patience_s}
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
) -> Path:
    """What `shoal peer new` makes, for peers a, b, c, …, who may claim 100 examples. `silent`: cannot be called."""
    job = root / "job.toml"
    least = min_peers or len(names)
    job.write_text(JOB.format(rounds=rounds, drain=drain, min_peers=least, patience_s=patience_s, more=more))
    urls = [f"http://127.0.0.1:{port}" for port in ports or [9] * len(names)]
    invited = [
        Invited(name, "" if name in silent else url, examples=100) for name, url in zip(names, urls, strict=True)
    ]
    invite(job, ToyLearner(1).init(3), invited, root / "peers")
    return root / "peers"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found


class Apart:
    """Bodies that are read here, and written there until the peer has taken them over."""

    def __init__(self, bodies: FileBodies, made: FileBodies) -> None:
        self.get, self.put = bodies.get, made.put


class HereTrainer:
    """A training process that is none. `hold` keeps every order until it is set."""

    def __init__(self, made: FileBodies, bodies: FileBodies, number: int) -> None:
        self._made, self._bodies, self.learner = made, bodies, ToyLearner(number)
        self.number, self.hold, self.starts = number, asyncio.Event(), 0
        self.hold.set()
        self.training = asyncio.Event()

    async def init(self, seed: int) -> tuple[Ref, float]:
        return self._made.put({"model": self.learner.init(seed)}), float(self.number)

    async def perform(self, work: Work) -> Result:
        self.training.set()
        await self.hold.wait()
        made = Begun(Algorithm(), self.learner, Apart(self._bodies, self._made), work.order, work.memory).piece(
            work.order
        )
        assert isinstance(made, Result)
        return made

    async def evaluate(self, model: Ref) -> Metrics:
        """Its loss is the length of its weights."""
        values = floats(tree_slot(self._bodies.get(model), "model"))
        return {"eval/accuracy": 0.5, "eval/loss": float(np.linalg.norm(values))}

    def close(self) -> None:
        self.hold.set()

    async def end(self) -> None:
        self.close()


class Silent:
    """Nobody looks."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.waits: list[list[str]] = []

    def round(self, effect: Learned, live: int) -> None:
        """A local round has ended."""

    def note(self, text: str) -> None:
        self.notes.append(text)

    def waiting(self, lines: Sequence[str]) -> None:
        self.waits.append(list(lines))


@asynccontextmanager
async def node(
    folder: Path, number: int = 1, *, running: bool = True, hold: bool = False, **more: Any
) -> AsyncIterator[Node]:
    """A peer that listens at `node.port`, and runs."""
    with listen("127.0.0.1", more.pop("port", 0)) as sock, Node(Settings(folder, **more), Silent()) as made:
        made.trainer = made.judge = HereTrainer(made.desk.made, made.desk.bodies, number)  # type: ignore[assignment]
        if hold:
            made.trainer.hold.clear()  # type: ignore[attr-defined]
        await made.start()
        made.port = sock.getsockname()[1]  # type: ignore[attr-defined]
        async with serving(made, sock):
            task = asyncio.create_task(made.run())
            try:
                yield made
            finally:
                made.trainer.close()
                made.pump.stop()
                await task


async def until(what: Callable[[], Any], why: str = "") -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, why or "it has not come to that"
        await asyncio.sleep(0.02)


def body_of(tree: Tree) -> bytes:
    """A model as it travels."""
    return b"".join(bytes(piece) for piece in wire.payload_pieces({"model": tree}))


def ref_of(body: bytes) -> Ref:
    return Ref(hashlib.sha256(body).hexdigest(), len(body))


@dataclass
class Voice:
    """Speaks for the peer of a folder to another one, in HTTP of its own."""

    folder: Path
    to: Node
    boot: int = 1
    signer: Signer = field(init=False)

    def __post_init__(self) -> None:
        self.papers = read_papers(self.folder)
        self.signer = Signer(load_or_make(self.folder / "key.pem"), self.papers.charter, self.boot)

    def letter(self, *messages: PeerMessage, bodies: bytes = b"") -> tuple[Request, bytes]:
        """A letter, signed."""
        head = peer_wire.encode(Letter("toys", tuple(messages)))
        return self.signed(head), head + bodies

    def signed(self, head: bytes) -> Request:
        return self.signer.request(self.to.papers.me.peer_id, "POST", "/p2p/toys", "", sha256(head))

    async def says(self, *messages: PeerMessage, bodies: bytes = b"") -> tuple[int, Any]:
        """Send a letter: (status, messages or the problem's code)."""
        request, content = self.letter(*messages, bodies=bodies)
        return await self.sends(request, content)

    async def sends(
        self, request: Request, content: bytes, *, announced: int | None = None, more: str = "", path: str = "/p2p/toys"
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
        return status, peer_wire.decode(body[4 : 4 + peer_wire.head_bytes(body[:4])]).messages if body else ()


async def raw_exchange(port: int, head: bytes, body: bytes = b"") -> bytes:
    """What comes back on a connection of its own, up to the end of the answer."""
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
        writer.close()


# How it has gone


async def to_its_end(one: Node) -> Summary:
    """What `shoal peer run` does: stay until nobody needs it, and leave."""
    await one.over()
    return await one.leave()


def drift(made: list[Node]) -> float:
    """How far sum(mass * model) is from where it began plus what was learned, relative to its size."""
    start = floats(ToyLearner(1).init(3))
    masses = [getattr(one.gossip.mixer, "mass", None) for one in made]
    total = sum(
        (one.gossip.me.weight if mass is None else mass) * floats(one.gossip.me.model)
        for one, mass in zip(made, masses, strict=True)
    )
    learned = sum(one.gossip.me.weight * (start + floats(one.desk.learned())) for one in made)  # type: ignore[arg-type]
    return float(np.abs(total - learned).max() / np.abs(learned).max())


def apart(made: list[Node]) -> float:
    """The greatest distance between two models, relative to their length."""
    models = [floats(one.gossip.me.model) for one in made]
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(x)) for x in models for y in models)
