"""Peers whose learners measure nothing: `evaluate` may return {}, as a learner without test data does."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.core.errors import LearnerFailed
from shoal.core.protocol.message import BlobRef, Metrics
from tests.peer.scenario import PATIENCE_S, HereTrainer, folders, node, to_its_end
from tests.support.ports import free_ports


async def nothing(self: HereTrainer, model: BlobRef) -> Metrics:
    return {}


async def failure(self: HereTrainer, model: BlobRef) -> Metrics:
    raise LearnerFailed("no test data")


@pytest.mark.parametrize("evaluate", [nothing, failure])
def test_a_peer_that_measures_nothing_ends(evaluate: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HereTrainer, "evaluate", evaluate)

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", rounds=2, ports=ports)
        async with AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(node(peers / who, number, port=port))
                for number, (who, port) in enumerate(zip("ab", ports, strict=True), 1)
            ]
            summaries = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), PATIENCE_S)
        assert [(one.finished, one.final_metrics, one.end_metrics) for one in summaries] == [(True, {}, {})] * 2

    asyncio.run(scene())
