"""Batches on their way when a peer leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.peering.host.message_router import MessageRouter
from tests.support.waiting import PATIENCE_S


def test_a_peer_that_leaves_waits_for_letters_under_way() -> None:
    order: list[str] = []

    async def scene() -> None:
        no_context: Any = None
        router = MessageRouter(no_context, lambda *_: None, 1.0, lambda: 0, {})
        can_answer = asyncio.Event()

        async def batch() -> None:
            await can_answer.wait()
            order.append("answered")

        async def leave() -> None:
            await router.wait_delivered(PATIENCE_S)
            order.append("left")

        router.spawn(batch())
        leaving = asyncio.create_task(leave())
        asyncio.get_running_loop().call_soon(can_answer.set)
        await leaving

    asyncio.run(scene())
    assert order == ["answered", "left"]
