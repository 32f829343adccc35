"""Which coordinator an answer is of, as a node reads it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from shoal.core.errors import Refused, Unreachable
from shoal.runtime.node_link import NodeLink
from tests.coordinator.peers import GOSSIP, OPEN
from tests.coordinator.server import inside
from tests.coordinator.stage import Stage, set_up


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with inside(tmp_path / "data", **OPEN) as running:
        made = set_up(running, gossip=GOSSIP)
        yield made
        made.close()


def test_every_answer_says_it_and_what_must_not_be_heard_refuses_nothing(stage: Stage) -> None:
    heard: list[tuple[str, int, int]] = []
    life = stage.running.driver("main").life
    assert life > 0
    with NodeLink(stage.running.url, credential=stage.nodes[0].client.headers["Authorization"].split()[1]) as link:
        link.hears = lambda *said: heard.append(said)
        link.work(0.0, {"main": (9, 9)})
        with pytest.raises(Refused):
            link.knock("main", 2**60)
        assert heard == [("main", 1, life)] * 2

        def deaf(job: str, term: int, number: int) -> None:
            raise Unreachable("another")

        link.hears = deaf
        for ask in (partial(link.knock, "main", 2**60), partial(link.knock, "main", 0), partial(link.work, 0.0, {})):
            with pytest.raises(Unreachable, match="another"):
                ask()
    assert "shoal-life" not in httpx.get(f"{stage.running.url}/api/v1/jobs/main/papers").headers
