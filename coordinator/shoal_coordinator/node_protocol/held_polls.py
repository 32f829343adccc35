"""Long polls: a request that is held open until there is an answer or its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal_coordinator.node_protocol.byte_labels import mark_alive
from shoal_coordinator.node_protocol.node_request import NodeServices

BUSY_S = 2.0
"""Further seconds that a poll waits for a busy hub, so that it never ends unanswered."""


def seconds_to_wait(left_s: float, *, is_ready: bool, is_unsure: bool) -> float | None:
    """Return how long a poll without an answer waits for a wakeup; None if it ends now.

    Args:
        left_s: seconds until the poll's deadline.
        is_ready: False while the coordinator stops.
        is_unsure: whether there may be an answer that could not be read yet.
    """
    left_s += BUSY_S if is_unsure else 0.0
    return left_s if is_ready and left_s > 0 else None


async def hold_poll(
    request: Request,
    services: NodeServices,
    node: str,
    wait_s: float,
    find_answer: Callable[[], Awaitable[Response | None]],
    is_unsure: Callable[[], bool] = lambda: False,
) -> Response | None:
    """Call `find_answer` at once and after each wakeup of the node, until it returns an answer or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait_s, services.settings.poll_s_max)
    wakeup, exchange = services.wakeups[node], request.scope.get(SCOPE_KEY)
    if exchange is not None:
        exchange.gone = wakeup.set  # a node that hangs up is not waited for
    mark_alive(request, services.presence, node)
    with services.presence.open_poll(node):
        while exchange is None or not exchange.closed:
            wakeup.clear()
            answer = await find_answer()
            if answer is not None:
                return answer
            left = seconds_to_wait(deadline - loop.time(), is_ready=services.is_ready(), is_unsure=is_unsure())
            if left is None:
                break
            try:
                async with asyncio.timeout(left):
                    await wakeup.wait()
            except TimeoutError:
                break
    return None
