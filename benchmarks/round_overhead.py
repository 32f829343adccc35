"""Cost of a round whose training costs nothing: a coordinator and edge clients in their own processes, over HTTP.

python benchmarks/round_overhead.py --clients 10 --parameters 10000 --rounds 100

Every client is the product's own (`shoal join`), with a learner that does nothing. The first rounds are not counted.
Printed: seconds per round, processor seconds per round of the coordinator and of one client, and bytes on the wire
(both directions, heads and polls included) per byte of model and client; 2 is the least: once down, once up.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Served, arguments, coordinator, cpu_s, end, environment, show

JOB = "overhead"
LEARNER = Path(__file__).with_name("noop.py")
LOOK_S = 0.25


@dataclass(frozen=True)
class Moment:
    """Versions and processor seconds at one instant."""

    version: int
    coordinator_s: float
    clients_s: float


def main() -> int:
    """Run the job once, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=10_000, help="float32, so four bytes each")
    parser.add_argument("--rounds", type=int, default=100, help="that are measured")
    parser.add_argument("--warmup", type=int, default=20, help="rounds before them")
    parser.add_argument("--sums", choices=("float64", "fixed"), default="float64")
    parser.add_argument("--no-metrics", action="store_true", help="reports without metrics")
    options = parser.parse_args()
    with coordinator() as served:
        begin(served, options)
        clients = [start_client(served, number, options) for number in range(options.clients)]
        try:
            row = measured(served, clients, options)
        finally:
            end(clients)
    show("round overhead, no-op training", [row], options.json)
    return 0


def begin(served: Served, options: Any) -> None:
    """Create the job; all clients take part in every round."""
    schedule = {"name": "rounds", "min_nodes": options.clients}
    rounds = options.warmup + options.rounds
    served.begin({"name": JOB, "rounds": rounds, "aggregation_precision": options.sums, "schedule": schedule})


def start_client(served: Served, number: int, options: Any) -> subprocess.Popen[bytes]:
    """Start one edge client, its output in a log."""
    chosen = [f"parameters={options.parameters}", f"metrics={str(not options.no_metrics).lower()}"]
    with (served.folder / f"client-{number}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "shoal", "join", served.url, "--learner", f"{LEARNER}:learner"]
            + ["--token", served.tokens(1), "--name", f"node-{number}"]
            + ["--state-dir", str(served.folder / f"node-{number}")]
            + [f"--option={option}" for option in chosen],
            cwd=served.folder,
            env=environment(served.folder),
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def measured(served: Served, clients: list[subprocess.Popen[bytes]], options: Any) -> dict[str, Any]:
    """Watch the job from the end of its warm-up to its last round, looking seldom."""
    with served.operator() as link:
        began = moment(served, clients, link, options.warmup)
        ended = moment(served, clients, link, options.warmup + options.rounds)
        versions = link.json("GET", f"/api/v1/jobs/{JOB}/versions")["versions"]
        traffic = link.json("GET", f"/api/v1/jobs/{JOB}/traffic?by=version")["rows"]
    closed = [one["elapsed_s"] for one in versions if one["number"] >= options.warmup]
    seconds = sorted(later - earlier for earlier, later in pairwise(closed))
    counted = range(options.warmup, options.warmup + options.rounds)
    wire_bytes = sum(row["bytes"] for row in traffic if row["version"] in counted)
    rounds = ended.version - began.version
    return {
        "clients": options.clients,
        "model_kb": options.parameters * 4 / 1000,
        "rounds": len(seconds),
        "round_ms": 1000 * statistics.median(seconds),
        "p10_ms": 1000 * seconds[len(seconds) // 10],
        "p90_ms": 1000 * seconds[len(seconds) * 9 // 10],
        "coordinator_cpu_ms": 1000 * (ended.coordinator_s - began.coordinator_s) / rounds,
        "client_cpu_ms": 1000 * (ended.clients_s - began.clients_s) / rounds / options.clients,
        "wire_per_model_byte": wire_bytes / (len(counted) * options.clients * options.parameters * 4),
    }


def moment(served: Served, clients: list[subprocess.Popen[bytes]], link: Any, wanted: int) -> Moment:
    """Wait for a version, then look."""
    while True:
        job = link.json("GET", f"/api/v1/jobs/{JOB}")
        if job["version"] >= wanted:
            return Moment(job["version"], served.cpu_s(), sum(cpu_s(client.pid) for client in clients))
        for client in [served.process, *clients]:
            if client.poll() is not None:
                logs = {log.name: log.read_text(errors="replace")[-1000:] for log in served.folder.glob("*.log")}
                raise RuntimeError(f"a process has ended: {logs}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
