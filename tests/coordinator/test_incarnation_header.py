"""Which coordinator an answer is of, as a node reads it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from shoal.core.errors import Refused, Unreachable
from shoal.runtime.http.node_client import NodeClient
from tests.support.coordinator import inside
from tests.support.peers import GOSSIP, OPEN
from tests.support.scenario import Stage, set_up


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with inside(tmp_path / "data", **OPEN) as running:
        made = set_up(running, gossip=GOSSIP)
        yield made
        made.close()


def test_every_answer_carries_the_incarnation_and_none_is_refused_for_it(stage: Stage) -> None:
    heard: list[tuple[str, int, int]] = []
    life = stage.running.runner("main").gate.incarnation
    assert life > 0
    with NodeClient(stage.running.url, credential=stage.nodes[0].client.headers["Authorization"].split()[1]) as client:
        client.link.on_term = lambda *said: heard.append(said)
        client.poll_work(0.0, {"main": (9, 9)})
        with pytest.raises(Refused):
            client.ping("main", 2**60)
        assert heard == [("main", 1, life)] * 2

        def deaf(job: str, term: int, number: int) -> None:
            raise Unreachable("another")

        client.link.on_term = deaf
        for ask in (
            partial(client.ping, "main", 2**60),
            partial(client.ping, "main", 0),
            partial(client.poll_work, 0.0, {}),
        ):
            with pytest.raises(Unreachable, match="another"):
                ask()
    assert "shoal-incarnation" not in httpx.get(f"{stage.running.url}/api/v1/jobs/main/trust").headers
