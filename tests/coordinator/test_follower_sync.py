"""A follower's counts reach the leader once, however often they are sent."""

import asyncio
from types import SimpleNamespace
from typing import Any

from shoal_coordinator.cluster.follower_jobs import FollowerSync
from shoal_coordinator.telemetry.traffic import TrafficCounter

ROW = {"job": "main", "version": 0, "node": "a", "kind": "blob", "direction": "up"}
ROW |= {"requests": 1, "head_bytes": 10, "body_bytes": 100}


async def do_nothing() -> None:
    """Write no counts."""


def test_a_batch_that_is_sent_again_counts_once() -> None:
    lines: list[Any] = []
    writer, counter = SimpleNamespace(write_counts=do_nothing), TrafficCounter()
    log_store = SimpleNamespace(take_in=lines.extend)
    coordinator: Any = SimpleNamespace(traffic=counter, log_store=log_store, telemetry_writer=writer)
    routes: Any = SimpleNamespace(jobs_of=lambda name: [])
    polls: Any = SimpleNamespace(retry=lambda name: None)
    sync = FollowerSync(coordinator, routes, polls)
    batches = [("b", "p", 1), ("b", "p", 1), ("b", "p", 2), ("b", "p", 2), ("b", "q", 2), ("c", "p", 1)]
    for name, process, number in batches:
        asyncio.run(sync.receive(name, process, number, [ROW], [f"{name} {process} {number}"]))
    assert lines == ["b p 1", "b p 2", "b q 2", "c p 1"]
    assert counter.totals["main", "up"] == 4 * 110
