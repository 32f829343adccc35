"""Time and memory of a coordinator that starts, twice with the same data, and of an edge client that waits for a job.

python benchmarks/start_up.py

Printed: seconds and processor seconds until `/readyz` answers, and resident and proportional memory when idle; those of
the edge client some seconds after its start, with a learner without torch. PSS counts pages that processes share once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import MB, Served, arguments, coordinator, cpu_s, end, show
from round_overhead import start_client

IDLE_S = 3.0


def main() -> int:
    """Measure, and print."""
    options = arguments(__doc__).parse_args()
    options.parameters, options.no_metrics = 1000, False
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        rows = [started("coordinator, first start", Path(folder)), started("coordinator, again", Path(folder), options)]
    show("start-up", [row for some in rows for row in some], options.json)
    return 0


def started(what: str, data: Path, edge: Any = None) -> list[dict[str, Any]]:
    """Return the rows of a coordinator and, with the options for it, of an edge client there."""
    began = time.perf_counter()
    with coordinator(data=data) as served:
        seconds, cpu = time.perf_counter() - began, served.cpu_s()
        time.sleep(IDLE_S)
        rows = [{"process": what, "ready_s": seconds, "cpu_s": cpu, **memory(served.process.pid)}]
        return rows if edge is None else [*rows, waiting(served, edge)]


def waiting(served: Served, options: Any) -> dict[str, Any]:
    """Return the row of an edge client without a job."""
    client = start_client(served, 0, options)
    try:
        time.sleep(2 * IDLE_S)
        return {"process": "edge client", "ready_s": "", "cpu_s": cpu_s(client.pid), **memory(client.pid)}
    finally:
        end([client])


def memory(pid: int) -> dict[str, float]:
    """Return the memory of a process in MB (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return {"rss_mb": kib["Rss"] * 1024 / MB, "pss_mb": kib["Pss"] * 1024 / MB}


if __name__ == "__main__":
    sys.exit(main())
