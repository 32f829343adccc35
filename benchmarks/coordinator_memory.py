"""Memory of a coordinator in a round of large models, and its dependence on the number of clients.

python benchmarks/coordinator_memory.py --mb 100 --clients 10 50
python benchmarks/coordinator_memory.py --mb 8 --clients 4 --rounds 3      # adapters, whatever the size of their base

Light clients in threads speak the real protocol over loopback: each takes its task, downloads the model, uploads an
update of its own and reports. Printed: the coordinator's resident memory when idle, its peak until the last round's
model is made (the kernel's VmHWM), what is left then, and the difference in models. Aim: below three models, whatever
the number of clients.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import MB, Node, Served, Update, arguments, coordinator, show, write_model

from shoal.core.errors import Unreachable
from shoal.core.protocol.message import BlobRef, Task

JOB = "memory"
TRIES = 20


def all_rounds(served: Served, token: str, number: int, data: bytes, rounds: int, at_once: ThreadPoolExecutor) -> None:
    """Run one client's part of the rounds. Transfers of all clients run `at_once`."""
    node = Node(served.url, token, f"node-{number}")
    for _ in range(rounds):
        one_round(node, number, data, at_once)


def one_round(node: Node, number: int, data: bytes, at_once: ThreadPoolExecutor) -> None:
    """Do the next task of a client."""
    task = node.task(JOB)
    assert task.blob is not None
    update = Update(data, number)
    ref = update.ref(hashlib.sha256(memoryview(data)[:-4]))
    at_once.submit(node.download, JOB, task.blob).result()
    at_once.submit(node.client.blobs.upload, JOB, ref, update).result()
    if not reported(node, task, ref):
        raise RuntimeError(f"the report of node {number} was not counted")


def reported(node: Node, task: Task, ref: BlobRef) -> bool:
    """Report until there is an answer, as every edge client does: gigabytes are read and summed before it comes."""
    for _ in range(TRIES):
        try:
            return node.report(JOB, task, ref).counted
        except Unreachable:
            continue
    return False


def until_it_is_made(served: Served, rounds: int) -> None:
    """Wait for the last round's model: it is made after the last report was acknowledged."""
    with served.operator() as link:
        while link.json("GET", f"/api/v1/jobs/{JOB}")["version"] < rounds:
            time.sleep(0.2)


def measured(model: Path, nbytes: int, clients: int, transfers: int, rounds: int) -> dict[str, Any]:
    """Measure the memory of some rounds with this many clients."""
    data = model.read_bytes()
    with coordinator(lease_s=3600) as served:
        idle = served.memory_bytes()
        schedule = {"name": "rounds", "min_nodes": clients, "deadline_s": 3600.0}
        served.begin({"name": JOB, "rounds": rounds, "schedule": schedule}, model)
        token = served.tokens(clients)
        served.forget_peak()
        with ThreadPoolExecutor(transfers) as at_once, ThreadPoolExecutor(clients) as people:
            work = [people.submit(all_rounds, served, token, n, data, rounds, at_once) for n in range(clients)]
            for done in work:
                done.result()
        until_it_is_made(served, rounds)
        peak, after = served.memory_bytes("VmHWM"), served.memory_bytes()
    return {
        "clients": clients,
        "idle_mb": idle / MB,
        "peak_mb": peak / MB,
        "after_mb": after / MB,
        "above_idle_mb": (peak - idle) / MB,
        "above_idle_in_models": (peak - idle) / nbytes,
    }


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of a model, in millions of bytes")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--transfers", type=int, default=8, help="clients that transfer at the same time")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        model = Path(folder) / "model.safetensors"
        ref = write_model(model, options.mb * MB)
        rows = [measured(model, ref.nbytes, clients, options.transfers, options.rounds) for clients in options.clients]
    show(f"coordinator's memory in a round of {options.mb} MB models", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
