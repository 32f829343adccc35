"""At the lead: one question to a deputy on behalf of all polls that wait for its answer.

If each poll asked by itself, a thousand nodes that come at once would need a thousand connections between two
coordinators. So one question is under way at a time, and polls that come meanwhile share the next: a deputy that is
slow is asked seldom, about many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

POLLS_MAX, BYTES_MAX = 256, 500_000
"""In one question; less than what is taken there (`guard.INSIDE_BYTES_MAX`)."""


class Poll(NamedTuple):
    """What a node has asked: the orders that it holds, and the jobs that it wants to hear of."""

    node: str
    held: Sequence[str]
    jobs: Sequence[str]

    @property
    def nbytes(self) -> int:
        """About as many as it takes in a question."""
        return 64 + sum(len(text) + 4 for text in (self.node, *self.held, *self.jobs))


Ask = Callable[[list[Poll]], Awaitable[Collection[str]]]
"""The nodes for which there is something new; none, when no answer came. It does not raise."""


class Inquiries:
    """Of one deputy."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: list[tuple[Poll, asyncio.Future[bool]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def has_news(self, poll: Poll) -> bool:
        """Whether there is something new for that node."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((poll, answer))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            many = _fitting([poll for poll, _ in self._waiting])
            asked, self._waiting = self._waiting[:many], self._waiting[many:]
            found = await self._ask([poll for poll, _ in asked])
            for poll, answer in asked:
                if not answer.done():  # else that node has hung up
                    answer.set_result(poll.node in found)


def _fitting(polls: Sequence[Poll]) -> int:
    """How many of these one question takes; at least one."""
    ends = accumulate(poll.nbytes for poll in polls[:POLLS_MAX])
    return max(1, sum(end <= BYTES_MAX for end in ends))
