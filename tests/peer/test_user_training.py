"""Callbacks of a `TorchLearner`, and a `LightningLearner`, in the training processes of peers without a coordinator."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from shoal.core.algorithm.algorithm import tree_slot
from tests.peer import user_learners
from tests.peer.scenario import PATIENCE_S, folders, node, to_its_end
from tests.support.ports import free_ports

# Lightning warns of few workers and of changes to come.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]
ROUNDS = 3


@pytest.mark.parametrize("kind", ["torch_learner", "lightning_learner"])
def test_callbacks_are_called_and_an_error_of_one_is_named(kind: str, tmp_path: Path) -> None:
    """The failed task is trained again, so that nothing is lost."""

    async def scene() -> None:
        make = getattr(user_learners, kind)
        ports, model = free_ports(2), make(0, str(tmp_path / "unused")).init(3)
        peers = folders(tmp_path, "ab", rounds=ROUNDS, patience_s=PATIENCE_S, ports=ports, model=model)
        async with AsyncExitStack() as stack:
            made = []
            for part, (name, port) in enumerate(zip("ab", ports, strict=True)):
                options = {"part": part, "notes": str(tmp_path / name), "fails": name == "b"}
                given = {"learner": f"{user_learners.__file__}:{kind}", "options": options, "port": port}
                made.append(await stack.enter_async_context(node(peers / name, **given)))
            async with asyncio.timeout(4 * PATIENCE_S):
                summaries = await asyncio.gather(*map(to_its_end, made))
            assert [one.finished for one in summaries] == [True, True]
            assert [one.rounds_by_peer for one in summaries] == [{"a": ROUNDS, "b": ROUNDS}] * 2
            first, second = (tree_slot(one.gossip.me.slots, "model") for one in made)
            assert all(np.allclose(first[name], second[name], atol=1e-6) for name in first)

    with capture_logs() as lines:
        asyncio.run(scene())
    (told,) = [line["why"] for line in lines if line["event"] == "the round failed"]
    assert "the lamp is out" in told
    assert "user_learners.py, line" in told
    notes = {name: (tmp_path / name).read_text().split() for name in "ab"}
    assert {name: (seen.count("started"), seen.count("ended")) for name, seen in notes.items()} == {
        "a": (ROUNDS, ROUNDS),
        "b": (ROUNDS + 1, ROUNDS),
    }
