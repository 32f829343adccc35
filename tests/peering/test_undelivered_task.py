"""The coordinator dies when a round is open and a task is still on its way to a node that could do without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.peering.scenario import LONG, Threaded, acquainted, begin, versions
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until


@pytest.mark.parametrize("nth", [1, 2])
def test_the_next_life_gives_the_order_and_it_is_obeyed(
    server: Server, threaded: Callable[..., Threaded], nth: int
) -> None:
    """It is of the term before, and the answer that brings it says that there is a new one."""
    begin(server, 2, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.02)) for name in "ab"]
    acquainted(server, nodes)
    server.kill()
    server.start(crash=f"task.answer#{nth}")
    until("the coordinator to die", lambda: server.ended() is not None)
    server.start()
    before = versions(server)[-1]["number"]
    until("the job to go on", lambda: versions(server)[-1]["number"] > before + 1)
    assert {node.peer.state for node in nodes} == {"coordinated"}
