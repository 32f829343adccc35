"""Two peers over real sockets, through a slow proxy: a model takes far longer than their patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.learner import Trained
from shoal.core.model.tree import Tree
from shoal.sim.hosts.toy_models import ToyLearner
from tests.peer import scenario
from tests.peer.scenario import folders, node, until
from tests.support.ports import free_ports
from tests.support.waiting import pause_async

NUMBERS = 300_000
BYTES_PER_S = 400_000.0
PATIENCE_S = 1.0
"""A third of what a model takes one way."""
PIECE = 16 * 1024


class Big(ToyLearner):
    """A model of 1.2 MB."""

    def init(self, seed: int) -> Tree:
        return Tree.of({"w": np.ones(NUMBERS, np.float32)})

    def load(self, model: Tree) -> None:
        self._model = model

    def train(self, *given: Any, **more: Any) -> Trained:
        return Trained(1.0)


@asynccontextmanager
async def throttled(port: int, to: int) -> AsyncIterator[None]:
    """A listener with a limited rate in each direction of each connection."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            await pause_async(len(piece) / BYTES_PER_S)
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", to, limit=PIECE)
        try:
            with suppress(OSError):
                await asyncio.gather(pass_on(reader, back), pass_on(there, writer))
        finally:
            writer.transport.abort()
            back.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=PIECE)
    try:
        yield
    finally:
        server.close()


def test_a_model_that_takes_longer_than_patience_is_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the slot ran out, the model was asked for again while it came, and no exchange came to its end."""
    monkeypatch.setattr(scenario, "ToyLearner", Big)
    own, seen = free_ports(2), free_ports(2)
    more = f'mixing = {{ name = "pairwise", slot_timeout_s = {PATIENCE_S} }}'
    peers = folders(tmp_path, "ab", rounds=2, patience_s=PATIENCE_S, ports=seen, more=more)

    async def scene() -> None:
        async with (
            throttled(seen[0], own[0]),
            throttled(seen[1], own[1]),
            node(peers / "a", 1, port=own[0]) as a,
            node(peers / "b", 2, port=own[1]) as b,
        ):
            await until(
                lambda: len(a.gossip.me.counts.version_vector) == len(b.gossip.me.counts.version_vector) == 2,
                "they have not mixed",
            )
            crossed = a.group.byte_counts.totals()
            assert crossed["sent"]["b"] + crossed["received"]["b"] < 4.5 * 4 * NUMBERS, "two models, or four"

    asyncio.run(scene())
