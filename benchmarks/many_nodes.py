"""Benchmark of pauses of one coordinator's event loop for metrics, housekeeping and lists, by registered nodes.

python benchmarks/many_nodes.py --nodes 1000 10000 50000

The coordinator runs in this process, without sockets: the function itself is timed, and no request is answered while
one runs. All nodes are registered, give signs of life and take part in one job that asks a hundred of them. `metrics`
is GET /metrics by the whole application; `change_publisher` publishes to an open dashboard, twice a second;
`alert_loop` is a turn of the alert rules, every two seconds. `…_stop` is the longest pause of the event loop meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from harness import arguments, show

from shoal.core.protocol.message import Join
from shoal.core.server.roster import NodeRoster
from shoal.jobs.spec import parse_job
from shoal_coordinator.api.app import create_app
from shoal_coordinator.composition.coordinator import Coordinator
from shoal_coordinator.settings import Settings
from shoal_coordinator.telemetry.traffic import TrafficCounter

JOB, ASKED, REPEATS = "many", 100, 5
BEAT_S = 0.001


async def measured(work: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """Measure the milliseconds of the work, and of the longest pause meanwhile; medians."""
    took, stopped = [], []
    for _ in range(REPEATS):
        stops = asyncio.create_task(_longest_stop())
        await asyncio.sleep(5 * BEAT_S)
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
        await asyncio.sleep(2 * BEAT_S)
        stops.cancel()
        stopped.append(await stops)
    return {"ms": 1000 * median(took), "stop": 1000 * median(stopped)}


async def _longest_stop() -> float:
    longest = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            longest = max(longest, time.perf_counter() - began - BEAT_S)
    except asyncio.CancelledError:
        return longest


async def populate(coordinator: Coordinator, nodes: int) -> None:
    """Register nodes, and make them members of a running job."""
    spec = {"name": JOB, "rounds": 1000, "schedule": {"name": "rounds", "min_nodes": nodes + 1, "cohort": ASKED}}
    await coordinator.parts.lifecycle.create_job(parse_job(spec), None, None, False)
    runner, info = (
        coordinator.jobs.runner(JOB),
        {"platform": {"system": "Linux", "cores": 4}, "labels": {"site": "one"}},
    )
    names = [f"node-{number:06}" for number in range(nodes)]
    for name in names:
        coordinator.nodes.presence.set_info(name, info)
        coordinator.nodes.presence.joined_at[name] = time.time()
        coordinator.nodes.presence.mark_alive(name)
    await runner.submit(Join(names[0]))
    (member,) = runner.hub.roster.state()
    runner.hub.roster = NodeRoster.restore([member | {"node": name} for name in names])  # one by one takes a minute


async def run(nodes: int, folder: Path) -> dict[str, Any]:
    """Measure with `nodes` registered nodes."""
    settings = Settings(data=folder, lease_s=3600.0)
    coordinator = Coordinator(settings, TrafficCounter(), "sho_benchmark")
    await coordinator.start()
    await populate(coordinator, nodes)
    transport = httpx.ASGITransport(create_app(coordinator))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

        async def get(path: str) -> None:
            (await client.get(path)).raise_for_status()

        async def publish() -> None:
            reader = coordinator.telemetry.event_bus.open(None)
            await coordinator.parts.change_publisher.publish()
            coordinator.telemetry.event_bus.close(reader)

        works: dict[str, Callable[[], Awaitable[Any]]] = {
            "metrics": lambda: get("/metrics"),
            "change_publisher": publish,
            "alert_loop": coordinator.parts.alert_loop.evaluate,
            "job": lambda: get(f"/api/v1/jobs/{JOB}"),
            "nodes_page": lambda: get("/api/v1/nodes"),
            "job_nodes": lambda: get(f"/api/v1/jobs/{JOB}/nodes"),
        }
        found: dict[str, Any] = {"nodes": nodes}
        for name, work in works.items():
            one = await measured(work)
            found |= {f"{name}_ms": one["ms"], f"{name}_stop": one["stop"]}
    await coordinator.stop()
    return found


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000, 50_000])
    options = parser.parse_args()
    rows = []
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asyncio.run(run(nodes, Path(folder))))
    for row in rows:
        print(json.dumps({name: round(value, 2) for name, value in row.items()}))
    show("milliseconds", [{k: v for k, v in row.items() if not k.endswith("_stop")} for row in rows], options.json)
    show(
        "of these, the event loop stood still for",
        [{k: v for k, v in row.items() if not k.endswith("_ms")} for row in rows],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
