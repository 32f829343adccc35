"""Budget of one update: the processor time of each pass over the bytes of a model, at the node and at the coordinator.

python benchmarks/stages.py --mb 100 --times 7

One process, one thread, no learner and no event loop: each pass runs alone, with the product's own code where it has
some, and its processor time is printed in milliseconds per 100 MB. "times" says how often a round with n nodes does
it: per update, per version, or per node that is sent the version. Rows in brackets are whole paths that contain the
passes above them. Sockets are loopback; the other side is a process of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from harness import HOST, MB, arguments, show, write_model
from transfer import loopback

from shoal.core.model.aggregation import TreeSum
from shoal.core.model.tree import Tree, sub
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.http.blob_transfers import BlobTransfers
from shoal.runtime.http.node_link import NodeLink
from shoal.wire.payload import layouts_of, measure, open_payload, payload_layout
from shoal_coordinator.settings import Settings
from shoal_coordinator.updates.streaming_norm import StreamingNorm
from shoal_coordinator.updates.uploads import ExpectedLayout, Uploads

PIECE_BYTES = 1 << 20
STORED = "0" * 64
JOB = "stages"


class Stages:
    """The passes, each as a call that takes the whole model once."""

    def __init__(self, folder: Path, nbytes: int, url: str) -> None:
        self.file = folder / "model"
        self.ref = write_model(self.file, nbytes)
        data = memoryview(self.file.read_bytes())
        self._pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
        self._form = ExpectedLayout(payload_layout(layouts_of(open_payload(data))))
        self._scratch = folder / "scratch"
        self._blobs = FileBlobs(folder / "blobs")
        settings = Settings(data=folder, disk_reserve_bytes=0, body_bytes_max=2 * len(data))
        self._uploads = Uploads(self._blobs, settings)
        self._base = self.stored()
        self._weights = {name: self._base[name] * 1.01 for name in self._base}
        self._trained = Tree.of(self._weights)
        self._sum = TreeSum(self._base.layout)
        self.transfers = BlobTransfers(NodeLink(url))

    # Stages of both sides

    def hash(self) -> None:
        sha = hashlib.sha256()
        for piece in self._pieces:
            sha.update(piece)

    def write(self) -> None:
        self._write(durably=False)

    def write_durably(self) -> None:
        self._write(durably=True)

    def _write(self, *, durably: bool) -> None:
        with self._scratch.open("wb", buffering=0) as file:
            for piece in self._pieces:
                file.write(piece)
            if durably:
                os.fsync(file.fileno())
        self._scratch.unlink()

    def put(self) -> None:
        """Store a tree in memory: hash, write, fsync, rename."""
        self._blobs.delete(self._blobs.put({"model": self._trained}).digest)

    def measure(self) -> None:
        measure({"model": self._trained})

    # Stages of the coordinator

    def norm(self) -> None:
        meter = StreamingNorm(self._form.layout)
        for piece in self._pieces:
            meter.feed(piece)
        assert meter.norm is not None

    def take(self) -> None:
        """Do everything between socket and fold: hash, write, norm, fsync, rename."""
        asyncio.run(self._uploads.receive("node", self.ref, 0, self._form, self._arriving()))
        self._blobs.delete(self.ref.digest)

    async def _arriving(self) -> AsyncIterator[memoryview]:
        for piece in self._pieces:
            yield piece

    def read(self) -> None:
        for segment in self._base.layout.segments:
            for block in segment.blocks():
                self._base.block(block.start, block.stop)

    def fold(self) -> None:
        self._sum.add(self.stored(), 1.0, 1e6)

    def open_sum(self) -> None:
        """Fold the first update of a round: memory for the sum comes with it."""
        TreeSum(self._base.layout).add(self.stored(), 1.0, 1e6)

    def step(self) -> float:
        """Make the next version in the memory of the sum; returns the processor seconds."""
        total = TreeSum(self._base.layout)
        total.add(self._base, 1.0, 1e6)
        began = time.process_time()
        total.mean_onto(self._base)
        return time.process_time() - began

    # Stages of the node

    def download(self) -> None:
        with self.transfers.download(JOB, self.ref) as (_, pieces):
            assert sum(map(len, pieces)) == self.ref.nbytes

    def fetch(self) -> None:
        """Download a model as a node does: receive, hash, write, fsync, rename."""
        with self._blobs.partials.incoming("coordinator", self.ref) as incoming:
            with self.transfers.download(JOB, self.ref) as (_, pieces):
                for piece in pieces:
                    incoming.write(piece)
            incoming.finish()
        self._blobs.delete(self.ref.digest)

    def load(self) -> None:
        """Copy a stored model into weights that are there."""
        for name, values in self.stored().items():
            self._weights[name][:] = values

    def subtract(self) -> None:
        sub(self._trained, self.stored())

    def upload(self) -> None:
        self.transfers.upload(JOB, self.ref, self._blobs.open(BlobRef(STORED, self.ref.nbytes)))

    def stored(self) -> Tree:
        """Return the model as a file, in the page cache as after a transfer."""
        if not self._blobs.has(STORED):
            copied = self._blobs.temporary()
            copied.write_bytes(self.file.read_bytes())
            self._blobs.adopt(copied, BlobRef(STORED, self.ref.nbytes))
        found = self._blobs.get(BlobRef(STORED, self.ref.nbytes))["model"]
        assert isinstance(found, Tree)
        return found


def passes(stages: Stages) -> list[tuple[str, str, str, Callable[[], object]]]:
    """Return (side, pass, times, work): the budget, in the order of a round."""
    return [
        ("coordinator", "hash", "per update", stages.hash),
        ("coordinator", "write", "per update", stages.write),
        ("coordinator", "write and fsync", "per update", stages.write_durably),
        ("coordinator", "norm and finiteness", "per update", stages.norm),
        ("coordinator", "(hash, write, norm, fsync)", "per update", stages.take),
        ("coordinator", "read", "per update", stages.read),
        ("coordinator", "(read and fold)", "per update", stages.fold),
        ("coordinator", "(read and fold, first of a round)", "per version", stages.open_sum),
        ("coordinator", "step", "per version", stages.step),
        ("coordinator", "(hash, write, fsync of the version)", "per version", stages.put),
        ("node", "receive", "per task", stages.download),
        ("node", "(receive, hash, write, fsync)", "per task", stages.fetch),
        ("node", "load", "per task", stages.load),
        ("node", "subtract", "per task", stages.subtract),
        ("node", "finiteness", "per task", stages.measure),
        ("node", "(hash, write, fsync of the update)", "per task", stages.put),
        ("node", "read and send", "per task", stages.upload),
    ]


def seconds_of(work: Callable[[], object], times: int) -> list[float]:
    """Return the processor seconds of each call, or those that it returns, after one that is not counted."""
    found = []
    for _ in range(times + 1):
        began = time.process_time()
        told = work()
        found.append(told if isinstance(told, float) else time.process_time() - began)
    return found[1:]


# The other side of a node's transfers


def _answer(listening: socket.socket, model: Path) -> None:
    """Serve the model and swallow uploads: a process with plain sockets."""
    data, nbytes = memoryview(model.read_bytes()), model.stat().st_size
    block = memoryview(bytearray(PIECE_BYTES))
    while True:
        with listening.accept()[0] as link:
            while head := _head(link):
                if head.startswith(b"PUT"):
                    _swallow(link, nbytes, block)
                    link.sendall(b"HTTP/1.1 201 Created\r\nShoal-Protocol: 1\r\nContent-Length: 0\r\n\r\n")
                    continue
                link.sendall(f"HTTP/1.1 200 OK\r\nShoal-Protocol: 1\r\nContent-Length: {nbytes}\r\n\r\n".encode())
                for place in range(0, nbytes, PIECE_BYTES):
                    link.sendall(data[place : place + PIECE_BYTES])


def _head(link: socket.socket) -> bytes:
    """Return a request's head, byte by byte, so that nothing of its body is in it; empty at the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        came = link.recv(1)
        if not came:
            return b""
        head += came
    return head


def _swallow(link: socket.socket, nbytes: int, block: memoryview) -> None:
    while nbytes:
        nbytes -= link.recv_into(block[: min(nbytes, PIECE_BYTES)])


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of a model, in millions of bytes")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=[], help="passes whose name contains one of these words")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    rows = []
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder, socket.create_server((HOST, 0)) as listening:
        stages = Stages(Path(folder), options.mb * MB, f"http://{HOST}:{listening.getsockname()[1]}")
        nbytes = stages.ref.nbytes
        other = multiprocessing.Process(target=_answer, args=(listening, stages.file), daemon=True)
        other.start()
        for way, when in {"receive": "per update", "send": "per node"}.items():
            if not options.only or way in options.only:
                alone = [nbytes / 1e9 / loopback(nbytes, receives=way == "receive") for _ in range(options.times)]
                rows.append(_row("coordinator", f"{way}, plain socket", when, alone, nbytes))
        for side, name, when, work in passes(stages):
            if not options.only or any(word in name for word in options.only):
                rows.append(_row(side, name, when, seconds_of(work, options.times), nbytes))
        other.terminate()
    show(f"budget of an update of {options.mb} MB, processor time", rows, options.json)
    return 0


def _row(side: str, name: str, when: str, seconds: list[float], nbytes: int) -> dict[str, Any]:
    scale = 1000 * 100 * MB / nbytes
    median, least = statistics.median(seconds), min(seconds)
    return {"side": side, "pass": name, "times": when, "ms_per_100_mb": median * scale, "least": least * scale}


if __name__ == "__main__":
    sys.exit(main())
