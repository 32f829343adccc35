"""Shared parts of the benchmarks: a coordinator in a process of its own, light nodes that speak its protocol, a
table.

Processor time and memory are the kernel's counts of the coordinator's process (Linux: its processor clock and
/proc/PID/status), so neither the clients nor a busy machine are in them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Ack, BlobRef, Report, Task, TaskId
from shoal.runtime.durable_files import FileSource
from shoal.runtime.http.client import Link
from shoal.runtime.http.node_client import NodeClient
from shoal.wire.payload import payload_pieces

HOST = "127.0.0.1"
TOKEN = "sho_benchmark"  # noqa: S105 - of a coordinator that lives for a minute, on loopback
ROOT = Path(__file__).resolve().parents[1]
READY_S, END_S = 60.0, 20.0
TENSOR_ELEMENTS = 250_000
MB = 1_000_000


@dataclass(frozen=True)
class Served:
    """A coordinator that runs beside us."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    def cpu_s(self) -> float:
        """Return the processor seconds of the process so far, including all threads and the kernel's work for them."""
        return cpu_s(self.process.pid)

    def memory_bytes(self, field: str = "VmRSS") -> int:
        """Return its resident memory now (`VmRSS`), or the greatest since `forget_peak` (`VmHWM`)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise LookupError(field)

    def forget_peak(self) -> None:
        """Reset `VmHWM`."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def operator(self) -> Link:
        """Open a connection with the operators' token."""
        return Link(self.url, credential=TOKEN)

    def begin(self, spec: dict[str, Any], start: Path | None = None) -> None:
        """Create a job, from an initial model in that file if there is one."""
        body: dict[str, Any] = {"spec": spec}
        with self.operator() as link:
            if start is not None:
                body["start_model"] = upload_model(link, start)
            link.json("POST", "/api/v1/jobs", body=body)

    def tokens(self, nodes: int) -> str:
        """Create one enrolment token for this many nodes."""
        with self.operator() as link:
            return str(link.json("POST", "/api/v1/tokens", body={"role": "node", "uses": nodes})["token"])


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process, including ended threads (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def coordinator(**settings: Any) -> Iterator[Served]:
    """Start one on a free port, in a temporary folder; it and the folder are gone afterwards."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what follows is cleaned up then, too
    folder = Path(tempfile.mkdtemp(prefix="shoal-benchmark-"))
    port = free_port()
    given = {"host": HOST, "port": port, "data": folder / "data", "operator_token": TOKEN, **settings}
    named = {f"SHOAL_COORDINATOR__{name.upper()}": str(value) for name, value in given.items()}
    with (folder / "coordinator.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "coordinator"],
            cwd=folder,
            env=environment(folder) | named,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    served = Served(process, f"http://{HOST}:{port}", folder)
    try:
        _await_ready(served)
        yield served
    finally:
        end([process])
        shutil.rmtree(folder, ignore_errors=True)


def _await_ready(served: Served) -> None:
    due = time.monotonic() + READY_S
    while True:
        try:
            with served.operator() as link:
                link.json("GET", "/readyz")
                return
        except Exception as error:
            if served.process.poll() is not None or time.monotonic() > due:
                log = (served.folder / "coordinator.log").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"the coordinator does not run: {error}\n{log}") from error
            time.sleep(0.05)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of child processes: no user settings, one thread each, this checkout's packages first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "MALLOC_"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    (folder / "empty.toml").touch()
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**kept, **threads, "SHOAL_CONFIG": str(folder / "empty.toml"), "PYTHONPATH": paths}


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as tried:
        tried.bind((HOST, 0))
        found: int = tried.getsockname()[1]
        return found


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End these gracefully, then at once."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# Models and nodes


def write_model(path: Path, nbytes: int, seed: int = 0) -> BlobRef:
    """Write a model of float32 noise, about `nbytes` long, in tensors of 1 MB."""
    draw = np.random.default_rng(seed)
    sizes = [TENSOR_ELEMENTS] * (nbytes // 4 // TENSOR_ELEMENTS) or [max(1, nbytes // 4)]
    tree = Tree.of({f"layer{i:04d}": draw.standard_normal(size, np.float32) for i, size in enumerate(sizes)})
    sha, length = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in payload_pieces({"model": tree}):
            sha.update(piece)
            length += file.write(piece)
    return BlobRef(sha.hexdigest(), length)


def upload_model(link: Link, path: Path) -> str:
    """Upload an initial model; its digest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # In pieces, so that the model is never whole in memory.
    model = FileSource(path)
    headers = {"Content-Length": str(len(model))}
    with link.exchange("PUT", f"/api/v1/blobs/{digest}", headers=headers, content=model.pieces()) as answer:
        answer.read(MB)
    return digest


class Update:
    """A model's bytes with four of a node's own at the end, so that no two nodes send the same body."""

    def __init__(self, data: bytes, number: int) -> None:
        self._data, self._tail = memoryview(data), np.float32(1e-3 * (number + 1)).tobytes()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        edge = len(self) - 4
        return bytes(self._data[start : min(stop, edge)]) + self._tail[max(start - edge, 0) : max(stop - edge, 0)]

    def ref(self, hashed: Any) -> BlobRef:
        """Return the update's reference. `hashed`: the SHA-256 of all but the last four bytes, made once for all
        nodes.
        """
        sha = hashed.copy()
        sha.update(self._tail)
        return BlobRef(sha.hexdigest(), len(self))


class Node:
    """A node without a learner, a spool or threads: what the protocol asks for, and nothing else."""

    def __init__(self, url: str, token: str, name: str) -> None:
        self.name = name
        self.client = NodeClient(url)
        self.client.link.credential, _ = self.client.enrol(token, name, {}, secrets.token_urlsafe(24))
        self.client.hello({})
        self._held: dict[str, TaskId] = {}

    def task(self, job: str) -> Task:
        """Poll until there is a new task."""
        while True:
            frame = self.client.poll_work(20.0, self._held, (job,)).frame
            if frame is not None and isinstance(frame.message, Task):
                self._held = {job: frame.message.id}
                return frame.message

    def download(self, job: str, ref: BlobRef) -> int:
        """Fetch a body and drop it; how many bytes came."""
        with self.client.blobs.download(job, ref) as (_, pieces):
            return sum(len(piece) for piece in pieces)

    def report(self, job: str, task: Task, blob: BlobRef | None) -> Ack:
        """Answer a task with a body that is uploaded already."""
        return self.client.report(job, Report(self.name, task.id, task.version, 1.0, blob))


# Output


def arguments(text: str | None) -> argparse.ArgumentParser:
    """Return a command-line parser that says what the benchmark measures, with `--json FILE`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return parser


def show(title: str, rows: Sequence[dict[str, Any]], file: Path | None = None) -> None:
    """Print rows with equal keys as a table; add them to the JSON file."""
    print(f"\n{title}")
    cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if file is not None:
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**known, title: list(rows)}, indent=2) + "\n")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
