"""Two nodes that nobody can call, and one that can be called, go without their coordinator on a bad network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.peering import fault_injector
from tests.peering.scenario import JOB, LONG, Process, begin
from tests.peering.test_faults import alive, back, seen
from tests.support.coordinator import Server
from tests.support.waiting import until

WEIGHTS = {"a": 10.0, "b": 20.0, "c": 30.0}
wait = partial(until, every_s=0.1)


@pytest.mark.timeout(400)
def test_they_mix_through_the_one_that_can_be_called(
    server: Server, process: Callable[..., Process], tmp_path: Path
) -> None:
    """Answers are lost and letters come late; the weighted mean is where it must be when all are back."""
    begin(server, len(WEIGHTS), probe_interval_s=0.5, **LONG)
    nodes = {}
    for name, weight in WEIGHTS.items():
        given = {"trainer": "thread", **({} if name == "a" else {"peer_listen": "none"})}
        nodes[name] = process(name, weight=weight, pause_s=0.1, main=fault_injector.main, given=given).start()
    wait("the job to run", lambda: server.job(JOB)["version"] >= 1)
    wait("a to know that both are there", lambda: alive(nodes["a"]) == set(WEIGHTS))
    (tmp_path / "weather").touch()
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    wait("all to mix", lambda: min(seen(nodes["a"]).get(name, 0) for name in WEIGHTS) >= 5)
    assert alive(nodes["a"]) == set(WEIGHTS)
    (tmp_path / "weather").unlink()
    back(server)
