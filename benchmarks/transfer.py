"""Cost of large blobs at the coordinator: uploaded, checked, folded; stored as a new model; downloaded.

python benchmarks/transfer.py --mb 100 --at-once 1 8 --rounds 3

Nodes in processes of their own speak the real protocol over loopback, without a learner. One more node answers last,
so
closing the round (the mean, the new model's file) is counted by itself. Beside it, in the same run, the cost of a
process that only receives, or only sends, over the same loopback with plain sockets.

Printed: gigabytes per processor second of the coordinator (its own process, kernel work included), and wall seconds.
"upload" receives, checks, hashes and stores durably; "report" measures the norm, journals and folds; "upload to fold"
is both together. Wall time is the machine's as much as the coordinator's: trust the processor seconds.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness import HOST, MB, Node, Served, Update, arguments, coordinator, show, write_model

PIECE_BYTES = 1 << 20
JOB = "transfer"
WAYS = ("receive", "send")
PHASES = ("download", "upload", "report", "upload to fold", "close")


@dataclass
class Phases:
    """Processor and wall seconds by phase, one entry per round."""

    served: Served
    cpu_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wall_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what the coordinator uses within the block."""
        cpu, wall = self.served.cpu_s(), time.monotonic()
        yield
        self.cpu_s[name].append(self.served.cpu_s() - cpu)
        self.wall_s[name].append(time.monotonic() - wall)


class Remote:
    """A node in a process of its own: `ask` begins a step, `end` waits for it."""

    def __init__(self, url: str, token: str, number: int, model: Path) -> None:
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_serve, args=(there, url, token, number, model), daemon=True)
        self._process.start()

    def ask(self, step: str) -> None:
        """Begin a step."""
        self._here.send(step)

    def end(self) -> None:
        """Wait for its end. Raises `RuntimeError` with what went wrong there."""
        failure = self._here.recv()
        if failure:
            raise RuntimeError(failure)


def _serve(pipe: Connection, url: str, token: str, number: int, model: Path) -> None:
    """Run a node's process: do what is asked for."""
    data = model.read_bytes()
    hashed = hashlib.sha256(memoryview(data)[:-4])
    node = Node(url, token, f"node-{number}")
    task: Any = None
    update = Update(data, number)
    while True:
        try:
            step = pipe.recv()
        except EOFError:  # the benchmark has ended
            return
        try:
            if step == "task":
                task = node.task(JOB)
                update = Update(data, number + 100 * task.version)  # an old one might be here still
            elif step == "download":
                node.download(JOB, task.blob)
            elif step == "upload":
                node.client.blobs.upload(JOB, update.ref(hashed), update)
            elif not node.report(JOB, task, update.ref(hashed)).counted:
                raise RuntimeError("the report was not counted")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - told to the parent
            pipe.send(f"node {number}, {step}: {error!r}")
        else:
            pipe.send("")


def together(nodes: list[Remote], step: str) -> None:
    """Have all nodes take a step at once."""
    for node in nodes:
        node.ask(step)
    for node in nodes:
        node.end()


def measured(model: Path, at_once: int, rounds: int) -> Phases:
    """Run some rounds of one job; the first is not counted."""
    with coordinator() as served:
        schedule = {"name": "rounds", "min_nodes": at_once + 1, "deadline_s": 3600.0}
        served.begin({"name": JOB, "rounds": rounds + 2, "schedule": schedule}, model)
        token = served.tokens(at_once + 1)
        nodes = [Remote(served.url, token, number, model) for number in range(at_once + 1)]
        *workers, last = nodes
        found = Phases(served)
        for _ in range(rounds + 1):
            together(nodes, "task")
            with found.phase("download"):
                together(workers, "download")
            with found.phase("upload to fold"):
                with found.phase("upload"):
                    together(workers, "upload")
                with found.phase("report"):
                    together(workers, "report")
            together([last], "upload")
            with found.phase("close"):
                together([last], "report")
    for seconds in (*found.cpu_s.values(), *found.wall_s.values()):
        del seconds[0]
    return found


# The machine's own limit


def loopback(nbytes: int, *, receives: bool) -> float:
    """Return the gigabytes per processor second of a process that only receives (or sends) over loopback."""
    listening = socket.create_server((HOST, 0))
    here, there = multiprocessing.Pipe()
    one, other = (_receive, _send) if receives else (_send, _receive)
    process = multiprocessing.Process(target=_timed, args=(there, partial(one, nbytes=nbytes), listening), daemon=True)
    process.start()
    with socket.create_connection(listening.getsockname()) as sock:
        other(sock, nbytes=nbytes)
        seconds: float = here.recv()
    process.join()
    listening.close()
    return nbytes / 1e9 / seconds


def _timed(pipe: Connection, move: Callable[[socket.socket], None], listening: socket.socket) -> None:
    with listening.accept()[0] as sock:
        began = time.process_time()
        move(sock)
        pipe.send(time.process_time() - began)


def _receive(sock: socket.socket, nbytes: int) -> None:
    block = memoryview(bytearray(PIECE_BYTES))
    while nbytes:
        nbytes -= sock.recv_into(block[: min(nbytes, PIECE_BYTES)])


def _send(sock: socket.socket, nbytes: int) -> None:
    block = bytes(PIECE_BYTES)
    while nbytes:
        sock.sendall(block[: min(nbytes, PIECE_BYTES)])
        nbytes -= min(nbytes, PIECE_BYTES)


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of a model, in millions of bytes")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8], help="nodes that transfer at once")
    parser.add_argument("--rounds", type=int, default=3, help="that are measured")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    limits = {way: [loopback(options.mb * MB * 4, receives=way == "receive") for _ in range(3)] for way in WAYS}
    limit = {way: statistics.median(found) for way, found in limits.items()}
    rows = []
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        model = Path(folder) / "model.safetensors"
        ref = write_model(model, options.mb * MB)
        for at_once in options.at_once:
            found = measured(model, at_once, options.rounds)
            rows += [row(found, phase, at_once, ref.nbytes, limit) for phase in PHASES]
    show(f"transfer of {options.mb} MB bodies", rows, options.json)
    return 0


def row(found: Phases, phase: str, at_once: int, nbytes: int, limit: dict[str, float]) -> dict[str, Any]:
    """Return one line of the table."""
    moved = nbytes / 1e9 * (1 if phase == "close" else at_once)
    cpu, wall = statistics.median(found.cpu_s[phase]), statistics.median(found.wall_s[phase])
    plain = {"download": limit["send"], "upload": limit["receive"], "upload to fold": limit["receive"]}.get(phase)
    return {
        "at_once": at_once,
        "phase": phase,
        "gb_per_cpu_s": moved / cpu,
        "cpu_s_per_gb": cpu / moved,
        "gb_per_s": moved / wall,
        "plain_socket_gb_per_cpu_s": plain if plain is not None else "",
    }


if __name__ == "__main__":
    sys.exit(main())
