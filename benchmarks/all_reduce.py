"""Ring all-reduce among peers in processes of their own, on loopback, beside torch.distributed's all-reduce (gloo).

python benchmarks/all_reduce.py              all of it
python benchmarks/all_reduce.py --passes     each pass over the bytes alone, in this process

Each peer is the product's own (`shoal peer run`), with a learner that does nothing. The first rounds are not counted.

`round_ms` is the median from one round's start to the next, over all peers. `averaging_ms` is the part of it from the
last peer's end of its local round, as it reports it, to the last learner's start of the next: the ring, the durable
new model, the next task, and its way to the training process. `core_ms` are processor milliseconds per round of all
peers together, without their training processes (`training_core_ms`); `alone_core_ms` are those of as many peers whose
rosters have no other, so that the difference is averaging. Memory is resident at the end: `rss_mb` of the peers and
`training_rss_mb` of their training processes as the kernel counts each, `pss_mb` of both with shared pages counted
once, `peak_mb` the sum of each peer's own peak. `models_sent`: bytes written to other peers, heads and membership
included, in models per peer and round; 2 (n - 1) / n is the least.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from harness import HOST, MB, arguments, cpu_s, end, environment, free_port, show

from shoal.core.model.tree import Tree, combine, norm
from shoal.mixing.all_reduce import cut, joined
from shoal.peering.state.peer_blobs import IncomingChunk, PeerBlobs
from shoal.runtime.http.client import Link

JOB = "ring"
LEARNER = Path(__file__).with_name("noop.py")
PATIENCE_S = 120.0
TEXT = """
name = "{job}"
rounds = 100000
learner = "{learner}:learner"
[options]
parameters = {parameters}
layers = 10
metrics = false
[algorithm]
name = "fedavg"
[gossip.mixing]
name = "all_reduce"
"""
FLOOR = """
import sys, time, torch, torch.distributed as dist
rank, count, port, parameters, rounds = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
model, took = torch.ones(parameters), []
for number in range(rounds + 3):
    dist.barrier()
    if number == 3:
        cpu = time.process_time()
    begun = time.perf_counter()
    dist.all_reduce(model)
    took.append(time.perf_counter() - begun)
    model /= count
print(sorted(took[3:])[rounds // 2], (time.process_time() - cpu) / rounds)
"""


@dataclass
class RunningPeer:
    """One peer's process, and the times at which it reported the end of each local round."""

    process: subprocess.Popen[bytes]
    url: str
    starts: Path
    ended: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Note the time of each report; the body of a thread."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace"))
            if line.startswith(b"round "):
                self.ended.append(time.monotonic())

    def started(self) -> list[float]:
        """Return the times at which its learner started to train; it did so once before, to count its examples."""
        return [float(line) for line in self.starts.read_text().split()][1:] if self.starts.exists() else []

    def training(self) -> int:
        """Return the process id of its training process."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return next(int(pid) for thread in threads for pid in thread.read_text().split())

    def sent(self) -> int:
        """Return the bytes that it has sent to other peers."""
        with Link(self.url) as link:
            return sum(link.json("GET", f"/p2p/{JOB}/status")["bytes"]["sent"].values())


@dataclass(frozen=True)
class Moment:
    """Counts at one instant, of all peers."""

    core_s: float
    training_core_s: float
    sent: int


def main() -> int:
    """Run the peers, the same peers alone, and the floor; print."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--parameters", type=int, default=2_500_000, help="float32, so four bytes each")
    parser.add_argument("--rounds", type=int, default=20, help="that are measured")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before them")
    parser.add_argument("--passes", action="store_true", help="measure only each pass over the bytes, alone")
    parser.add_argument("--no-floor", action="store_true", help="without the floor")
    parser.add_argument(
        "--profile", metavar="COMMAND", default="", help="run this once it is warm; {pid} is a peer's process"
    )
    options = parser.parse_args()
    if options.passes:
        show("processor time of one peer and round", passes(options.peers, options.parameters), options.json)
        return 0
    with running(options, [options.peers]) as peers:
        row = measured(peers, options, options.profile)
    with running(options, [1] * options.peers) as peers:
        alone = measured(peers, options)
    row["alone_core_ms"] = alone["core_ms"]
    row["averaging_core_ms"] = row["core_ms"] - alone["core_ms"]
    show("ring all-reduce among peers", [row], options.json)
    if not options.no_floor:
        show("gloo all-reduce, in the same run", [floor(options)], options.json)
    return 0


@contextmanager
def running(options: Any, groups: Sequence[int]) -> Iterator[list[RunningPeer]]:
    """Run a group of peers for each number in `groups`, each a job of its own; their folder is gone afterwards."""
    peers: list[RunningPeer] = []
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as name:
        folder = Path(name)
        job = folder / "job.toml"
        job.write_text(TEXT.format(job=JOB, learner=LEARNER, parameters=options.parameters))
        try:
            for number, count in enumerate(groups):
                peers += group(folder, number, count)
            yield peers
        finally:
            end([peer.process for peer in peers])


def group(folder: Path, number: int, count: int) -> list[RunningPeer]:
    """Start peers that have a roster in common."""
    urls = {f"p{place}": f"http://{HOST}:{free_port()}" for place in range(count)}
    place = folder / f"group-{number}"
    command = [sys.executable, "-m", "shoal"]
    listed = [f"--peer={name}={url}" for name, url in urls.items()]
    where, quiet = environment(folder), subprocess.DEVNULL
    subprocess.run([*command, "peer", "init", str(folder / "job.toml"), "--folder", str(place), *listed],
                   check=True, env=where, stdout=quiet)  # fmt: skip
    return [
        start([*command, "--verbose", "peer", "run"], place / name, url, where, count) for name, url in urls.items()
    ]


def start(command: list[str], folder: Path, url: str, where: dict[str, str], count: int) -> RunningPeer:
    """Start one peer."""
    given = [str(folder), f"--option=starts={folder / 'starts'}", f"--min-peers={count}"]
    process = subprocess.Popen([*command, *given], env=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peer = RunningPeer(process, url, folder / "starts")
    threading.Thread(target=peer.read, daemon=True).start()
    return peer


def measured(peers: list[RunningPeer], options: Any, profile: str = "") -> dict[str, Any]:
    """Watch the peers from the end of their warm-up on, looking seldom."""
    last = options.warmup + options.rounds
    wait(lambda: all(len(peer.ended) >= options.warmup for peer in peers), peers)
    began, first = moment(peers), min(len(peer.ended) for peer in peers)
    profiler = subprocess.Popen(profile.format(pid=peers[0].process.pid), shell=True) if profile else None  # noqa: S602
    wait(lambda: all(len(peer.ended) >= last for peer in peers), peers)
    ended, rounds = moment(peers), min(len(peer.ended) for peer in peers) - first
    if profiler is not None:
        profiler.wait()
    counted = range(options.warmup, last - 1)
    starts = [peer.started() for peer in peers]
    periods = [after - before for one in starts for before, after in pairwise(one[options.warmup : last])]
    averaging = [
        max(one[number + 1] for one in starts) - max(peer.ended[number] for peer in peers) for number in counted
    ]
    pids, training = [peer.process.pid for peer in peers], [peer.training() for peer in peers]
    return {
        "peers": len(peers),
        "model_mb": 4 * options.parameters / MB,
        "rounds": rounds,
        "round_ms": 1000 * statistics.median(periods),
        "averaging_ms": 1000 * statistics.median(averaging),
        "core_ms": 1000 * (ended.core_s - began.core_s) / rounds,
        "training_core_ms": 1000 * (ended.training_core_s - began.training_core_s) / rounds,
        "models_sent": (ended.sent - began.sent) / (rounds * len(peers) * 4 * options.parameters),
        "rss_mb": memory_mb(pids, "status", "VmRSS"),
        "peak_mb": memory_mb(pids, "status", "VmHWM"),
        "training_rss_mb": memory_mb(training, "status", "VmRSS"),
        "pss_mb": memory_mb([*pids, *training], "smaps_rollup", "Pss"),
    }


def wait(what: Callable[[], bool], peers: list[RunningPeer]) -> None:
    """Wait for something. Raises `RuntimeError` if it does not come, or a process ends."""
    due = time.monotonic() + PATIENCE_S
    while not what():
        for peer in peers:
            if peer.process.poll() is not None or time.monotonic() > due:
                raise RuntimeError(f"a peer does not go on: {peer.lines[-5:]}")
        time.sleep(0.02)


def moment(peers: list[RunningPeer]) -> Moment:
    """Look at all peers."""
    return Moment(
        sum(cpu_s(peer.process.pid) for peer in peers),
        sum(cpu_s(peer.training()) for peer in peers),
        sum(peer.sent() for peer in peers),
    )


def memory_mb(pids: Sequence[int], file: str, name: str) -> float:
    """Return the sum of a count of memory in /proc/PID."""
    found = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
        found += next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    return float(found * 1024 / MB)


def floor(options: Any) -> dict[str, Any]:
    """Average vectors of the same length by torch.distributed."""
    given = [str(value) for value in (options.peers, free_port(), options.parameters, options.rounds)]
    where = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", FLOOR, str(rank), *given], env=where, stdout=subprocess.PIPE)
        for rank in range(options.peers)
    ]
    found = [[float(text) for text in process.communicate()[0].split()] for process in processes]
    return {
        "peers": options.peers,
        "rounds": options.rounds,
        "averaging_ms": 1000 * max(took for took, _ in found),
        "core_ms": 1000 * sum(cpu for _, cpu in found),
    }


def passes(count: int, parameters: int) -> list[dict[str, Any]]:
    """Return the processor milliseconds of each pass of one peer in one round, a median of nine."""
    model = Tree.of({"w": np.random.default_rng(0).standard_normal(parameters, np.float32)})
    other, chunk = Tree(model.layout, model.buffer.copy()), cut(model, 0, count)
    theirs, sends = Tree(chunk.layout, chunk.buffer.copy()), 2 * (count - 1)
    pieces = [cut(model, number, count) for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as name:
        blobs = PeerBlobs(Path(name))
        ref = blobs.put_transient({"piece": chunk})
        data = memoryview(bytes(blobs.source(ref)[:]))

        def receive() -> None:
            with IncomingChunk(blobs.memory, ref) as incoming:
                incoming.write(data)
                incoming.finish()

        def save() -> None:
            other.buffer[0] += 1
            blobs.put({"model": other})

        ways: dict[str, tuple[int, Callable[[], object]]] = {
            "cut a piece": (count, lambda: cut(model, 0, count)),
            "copy and hash a chunk to send": (count, lambda: blobs.put_transient({"piece": chunk})),
            "send and receive it, plain sockets": (sends, lambda: crossed(data)),
            "copy and hash a received chunk": (sends, receive),
            "norm and finiteness, at reception and in the machine": (2 * sends, lambda: norm(chunk)),
            "add": (count - 1, lambda: combine(theirs, chunk, 0.5, 0.5)),
            "join the pieces": (1, lambda: joined(model.layout, pieces)),
            "store the mean (hash, write, fsync)": (1, save),
        }
        return [{"pass": name, "times": times, "ms": times * cpu_ms(work)} for name, (times, work) in ways.items()]


def crossed(data: memoryview) -> None:
    """Pass bytes through a pair of sockets."""
    left, right = socket.socketpair()
    with left, right:
        sender = threading.Thread(target=left.sendall, args=(data,))
        sender.start()
        due, block = len(data), bytearray(1 << 18)
        while due:
            due -= right.recv_into(block)
        sender.join()


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the median processor time of a call."""
    found = []
    for _ in range(10):
        begun = time.process_time()
        work()
        found.append(1000 * (time.process_time() - begun))
    return statistics.median(found[1:])


if __name__ == "__main__":
    sys.exit(main())
