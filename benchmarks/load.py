"""Cost of many small clients at one coordinator: check-ins, small reports, and open polls.

python benchmarks/load.py --clients 1000 --rounds 5 --idle 5000
python benchmarks/load.py --database postgres
python benchmarks/load.py --database-url postgresql://user@host/name
python benchmarks/load.py --database postgres --follower

Clients are connections of this process that speak the protocol, and nothing else; the coordinator runs in a process
of
its own, and its processor time is the kernel's count of that process: neither the clients nor the database are in it.
Phases: every client takes its task (`task`), asks again while nothing is new (`check-in`), and reports (`report`, the
update inline); in the end this many polls are held open at once (`idle`). Aims: at most 150 µs of the coordinator's
processor time per check-in, 250 µs per small report. All requests of a phase are made at once and wait in a queue
before one process: `p50_ms` and `p99_ms` are mostly that.

With `--follower` another coordinator of the same database owns a second job, in which the clients take part too, and
which waits for one more: it is asked about each poll without news, and its processor time is added.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from harness import ROOT, Served, arguments, coordinator, show, write_model

from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef, Report, Task
from shoal.wire import codec
from shoal.wire.payload import payload_pieces

JOB, OTHER = "load", "other"
FILES_SPARE = 200
TOKEN_USES_MAX = 1000
IDLE_WATCHED_S = 10.0
AT_ONCE = 100  # connections that are opened, and nodes that enrol, at the same time


@dataclass
class Client:
    """One node: a connection that is kept, its credential, and the task that it holds."""

    host: str
    port: int
    name: str
    jobs: str = f"&job={JOB}"
    headers: str = ""
    held: Task | None = None
    latencies: list[float] = field(default_factory=list)

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self.host, self.port)

    async def close(self) -> None:
        """Hang up, whatever is on its way."""
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    async def ask(self, method: str, path: str, content: bytes = b"", kind: str = "application/json") -> bytes:
        """Send one request and return the answer's body, empty for 204. Raises for any status other than 2xx."""
        head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(content)}\r\n"
        head += f"Content-Type: {kind}\r\n{self.headers}\r\n" if content else f"{self.headers}\r\n"
        began = time.perf_counter()
        try:
            answer = await self._sent(head.encode() + content)
        except (
            asyncio.IncompleteReadError,
            ConnectionError,
        ):  # idle for longer than connections are kept: not measured
            await self.open()
            began = time.perf_counter()
            answer = await self._sent(head.encode() + content)
        lines = answer.split("\r\n")
        named = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        body = await self._reader.readexactly(int(named.get("content-length", 0)))
        self.latencies.append(time.perf_counter() - began)
        status = int(lines[0].split()[1])
        if not 200 <= status < 300:
            raise RuntimeError(f"{self.name}: {method} {path}: {status} {body[:500]!r}")
        return body

    async def _sent(self, request: bytes) -> str:
        """Send; the head of the answer."""
        self._writer.write(request)
        return (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def enter(self, token: str) -> None:
        """Enrol, and say hello."""
        wanted = {"token": token, "name": self.name, "info": {}, "protocols": list(codec.PROTOCOLS)}
        self.headers = f"Idempotency-Key: {self.name}-{'k' * 24}\r\n"
        found = json.loads(await self.ask("POST", "/enrol", json.dumps(wanted).encode()))
        self.headers = f"Authorization: Bearer {found['credential']}\r\n"
        hello = {"info": {}, "protocols": list(codec.PROTOCOLS)}
        await self.ask("POST", "/hello", json.dumps(hello).encode())

    async def poll(self, wait_s: float) -> bool:
        """Poll; return whether there was a new task."""
        held = f"&held={JOB}:{self.held.id[0]}.{self.held.id[1]}" if self.held is not None else ""
        found = await self.ask("GET", f"/work?wait_s={wait_s:g}{self.jobs}{held}")
        if not found:
            return False
        message = codec.decode(found).message
        if isinstance(message, Task):
            self.held = message
        return True

    async def take_task(self) -> None:
        """Poll until there is a new task."""
        while not await self.poll(20.0):
            pass

    async def report(self, update: bytes, ref: BlobRef) -> None:
        """Answer the task, the update inline."""
        assert self.held is not None
        said = Report(self.name, self.held.id, self.held.version, 1.0, ref)
        content = codec.encode(codec.Frame(JOB, said, update))
        await self.ask("POST", f"/jobs/{JOB}/reports", content, codec.MEDIA_TYPE)


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--checkins", type=int, default=5, help="of each client in each round, with nothing new to hear"
    )
    parser.add_argument("--parameters", type=int, default=1000, help="float32, so four bytes each")
    parser.add_argument("--idle", type=int, default=5000, help="polls that are held open at once; 0: none")
    parser.add_argument("--distinct", action="store_true", help="every update is another, as in real jobs")
    parser.add_argument("--database-url", default="", help="of the coordinator; empty: SQLite in its folder")
    parser.add_argument(
        "--database", choices=["sqlite", "postgres"], help="postgres: a server that is made for the run"
    )
    parser.add_argument("--follower", action="store_true", help="a second coordinator, which owns another job")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(options.clients, options.idle) + FILES_SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        parser.error(f"{wanted} connections need as many open files, and the limit is {hard}: raise it with ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))  # the coordinator inherits it
    with database(options) as url, coordinators(url, options.follower) as served:
        rows, idle = asyncio.run(measured(served, options))
    kind = urlsplit(url).scheme or "sqlite"
    show(f"{options.clients} clients at once, {kind}, {4 * options.parameters / 1000:g} KB", rows, options.json)
    if idle:
        show("polls that wait", [idle], options.json)
    return 0


@contextmanager
def database(options: Any) -> Iterator[str]:
    """Yield the address of the database; "" for SQLite."""
    if options.database != "postgres":
        yield options.database_url
        return
    sys.path.append(str(ROOT))
    from tests.support.postgres import Cluster

    cluster = Cluster()  # it does not wait for its disk, which is not part of the coordinator's processor time
    try:
        yield cluster.database()
    finally:
        cluster.close()


@dataclass(frozen=True)
class Together(Served):
    """Two, of whom the first is asked; both work."""

    other: Served

    def cpu_s(self) -> float:
        return super().cpu_s() + self.other.cpu_s()


@contextmanager
def coordinators(url: str, follower: bool) -> Iterator[Served]:
    """Start one coordinator on that database ("": on SQLite), or two of which one leads."""
    given: dict[str, Any] = {"lease_s": 3600, **({"database_url": url} if url else {})}
    if not follower:
        with coordinator(**given) as served:
            yield served
        return
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        given["blobs"] = folder
        with coordinator(**given) as leader, coordinator(**given) as other:
            await_follower(leader)
            yield Together(leader.process, leader.url, leader.folder, other)


def await_follower(leader: Served) -> None:
    """Wait until it knows of one."""
    with leader.operator() as link:
        while not link.json("GET", "/api/v1/leader")["followers"]:
            time.sleep(0.1)


async def measured(served: Served, options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure all phases."""
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        start = Path(folder) / "model.safetensors"
        write_model(start, 4 * options.parameters)
        schedule = {"name": "rounds", "min_nodes": options.clients, "deadline_s": 3600.0}
        served.begin({"name": JOB, "rounds": options.rounds + 1, "schedule": schedule}, start)
        if options.follower:
            never = {"name": "rounds", "min_nodes": options.clients + 1}
            served.begin({"name": OTHER, "rounds": 1, "schedule": never}, start)
    clients = await entered(served, "c", options.clients)
    for client in clients:
        client.jobs += f"&job={OTHER}" if options.follower else ""
    phases = await rounds(served, clients, options)
    await asyncio.gather(*(client.close() for client in clients))
    return [phase.row() for phase in phases if phase.requests], await idle(served, options.idle) if options.idle else {}


async def entered(served: Served, letter: str, number: int) -> list[Client]:
    """Enrol this many clients."""
    address = urlsplit(served.url)
    uses = [min(TOKEN_USES_MAX, number - first) for first in range(0, number, TOKEN_USES_MAX)]
    tokens = [served.tokens(count) for count in uses]
    clients = [Client(str(address.hostname), address.port or 80, f"{letter}{at}") for at in range(number)]

    async def enter(at: int) -> None:
        await clients[at].open()
        await clients[at].enter(tokens[at // TOKEN_USES_MAX])

    await limited([lambda at=at: enter(at) for at in range(number)])
    return clients


async def limited(calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Make these calls, `AT_ONCE` at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        async with places:
            await call()

    await asyncio.gather(*(one(call) for call in calls))


@dataclass
class Phase:
    """One kind of request, all clients at once."""

    name: str
    requests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    latencies: list[float] = field(default_factory=list)

    async def run(self, served: Served, clients: Sequence[Client], calls: Sequence[Awaitable[Any]]) -> None:
        """Let these run side by side, and count."""
        for client in clients:
            client.latencies.clear()
        cpu, began = served.cpu_s(), time.perf_counter()
        await asyncio.gather(*calls)
        self.wall_s += time.perf_counter() - began
        self.cpu_s += served.cpu_s() - cpu
        found = [one for client in clients for one in client.latencies]
        self.requests += len(found)
        self.latencies += found

    def row(self) -> dict[str, Any]:
        """Return a line of the table."""
        p50, p99 = np.percentile(self.latencies, [50, 99])
        return {
            "request": self.name,
            "count": self.requests,
            "cpu_us": 1e6 * self.cpu_s / self.requests,
            "per_s": self.requests / self.wall_s,
            "p50_ms": 1000 * float(p50),
            "p99_ms": 1000 * float(p99),
        }


async def rounds(served: Served, clients: list[Client], options: Any) -> list[Phase]:
    """Run the rounds; the first is not counted."""
    phases = [Phase("task"), Phase("check-in"), Phase("report")]
    for turn in range(options.rounds + 1):
        first = turn * len(clients)
        updates = [update_of(options.parameters, first + at if options.distinct else 0) for at in range(len(clients))]
        if turn == 1:
            phases = [Phase(phase.name) for phase in phases]
        task, checkin, report = phases
        await task.run(served, clients, [client.take_task() for client in clients])
        for _ in range(options.checkins):
            await checkin.run(served, clients, [client.poll(0.0) for client in clients])
        await report.run(served, clients, [one.report(*update) for one, update in zip(clients, updates, strict=True)])
    return phases


def update_of(parameters: int, number: int) -> tuple[bytes, BlobRef]:
    """Return the update of that number, and its reference."""
    values = np.full(parameters, 1e-3, np.float32)
    values[0] += 1e-6 * number
    tree = Tree.of({"layer0000": values})
    update = b"".join(bytes(piece) for piece in payload_pieces({"model": tree}))
    return update, BlobRef(hashlib.sha256(update).hexdigest(), len(update))


async def idle(served: Served, polls: int) -> dict[str, Any]:
    """Measure open polls while nothing happens."""
    clients = await entered(served, "i", polls)
    for client in clients:
        await client.close()
    await asyncio.sleep(1.0)
    before = served.memory_bytes()
    await limited([client.open for client in clients])
    waiting = [asyncio.create_task(client.poll(25.0)) for client in clients]
    await asyncio.sleep(2.0)
    cpu, began, held = served.cpu_s(), time.perf_counter(), served.memory_bytes()
    await asyncio.sleep(IDLE_WATCHED_S)
    spent = (served.cpu_s() - cpu) / (time.perf_counter() - began)
    await asyncio.gather(*waiting)
    await asyncio.gather(*(client.close() for client in clients))
    return {"polls": polls, "kb_each": (held - before) / polls / 1000, "cpu_share": spent, "rss_mb": held / 1e6}


if __name__ == "__main__":
    sys.exit(main())
