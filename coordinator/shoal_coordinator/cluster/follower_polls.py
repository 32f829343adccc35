"""Polls of nodes at the leader, which asks followers on their behalf.

If each poll asked by itself, a thousand nodes that come at once would need a thousand connections between two
coordinators. So one request to a follower is in progress at a time, and later polls share the next; a slow
follower is asked seldom, about many nodes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import urlencode

from fastapi import Request, Response

from shoal.core.cluster.leader_lease import RemoteLeader
from shoal_coordinator.cluster.job_routes import JobRoutes
from shoal_coordinator.cluster.rpc import FollowerCalls, RpcReply, node_identity, to_response
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.node_protocol.fair_queue import FairQueue
from shoal_coordinator.nodes.wakeups import Wakeups

TASKS_MAX = 32
"""Tasks that are fetched from followers at a time; each may carry a model, and takes a connection."""

LABEL = "shoal-label"
"""Header of a follower's answer to a poll: the job, the version and the kind under which its bytes are counted."""

POLLS_MAX, BYTES_MAX = 256, 500_000
"""Polls and bytes in one request; less than a follower accepts (`request_limits.INTERNAL_BYTES_MAX`)."""


class PendingPoll(NamedTuple):
    """A node's poll: the tasks that it holds, and the jobs for which it polls."""

    node: str
    held: Sequence[str]
    jobs: Sequence[str]

    @property
    def nbytes(self) -> int:
        """Return roughly how many bytes it takes in a request."""
        return 64 + sum(len(text) + 4 for text in (self.node, *self.held, *self.jobs))


Ask = Callable[[list[PendingPoll]], Awaitable[Collection[str]]]
"""Returns the nodes with new tasks, or none without an answer. It does not raise."""


class PollBatcher:
    """The polls of one follower."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: list[tuple[PendingPoll, asyncio.Future[bool]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def has_task(self, poll: PendingPoll) -> bool:
        """Return True if there is something new for that node."""
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


def _fitting(polls: Sequence[PendingPoll]) -> int:
    """Return the number of these polls that one request takes; at least one."""
    ends = accumulate(poll.nbytes for poll in polls[:POLLS_MAX])
    return max(1, sum(end <= BYTES_MAX for end in ends))


class FollowerPolls:
    """Tasks of followers for the nodes that poll here."""

    def __init__(self, routes: JobRoutes, followers: FollowerCalls, fair_queue: FairQueue, wakeups: Wakeups) -> None:
        self._routes, self._followers, self._fair_queue, self._wakeups = routes, followers, fair_queue, wakeups
        self._batchers: dict[str, PollBatcher] = {}  # by follower
        self._unanswered: defaultdict[str, set[str]] = defaultdict(set)  # by follower: nodes that it did not answer
        self._fetching = asyncio.Semaphore(TASKS_MAX)

    def forget(self, follower: str) -> None:
        """Forget a follower that is gone: its jobs come back, and all polls ask again."""
        self._unanswered.pop(follower, None)

    def retry(self, follower: str) -> None:
        """Wake the nodes that a follower did not answer: it is there again."""
        for node in self._unanswered.pop(follower, ()):
            self._wakeups[node].set()

    async def fetch_response(
        self, request: Request, node: str, held: Sequence[str], jobs: Collection[str]
    ) -> Response | None:
        """Return the next answer of a follower for a node, and label the request as that follower says."""
        reply = await self._fetch_task(node, held, jobs)
        if reply is None:
            return None
        job, version, kind = reply.headers[LABEL].split(" ")
        label(request, job, int(version), node, kind)
        return to_response(reply)

    async def _fetch_task(self, node: str, held: Sequence[str], jobs: Collection[str]) -> RpcReply | None:
        live = self._routes.live()
        if not live:  # as at most coordinators, with every poll
            return None
        poll, owning = PendingPoll(node, held, sorted(jobs)), set(self._routes.jobs.values())
        for name in self._fair_queue.ordered_followers(node, [name for name in live if name in owning]):
            if await self._batcher(name).has_task(poll):
                reply = await self._fetch_from(live[name], poll)
                if reply is not None and reply.status == 200:
                    self._fair_queue.served_by(node, name)
                    return reply
        return None

    def _batcher(self, name: str) -> PollBatcher:
        if name not in self._batchers:
            live = self._routes.live()
            self._batchers = {one: known for one, known in self._batchers.items() if one in live}
            self._batchers[name] = PollBatcher(partial(self._poll_follower, name))
        return self._batchers[name]

    async def _poll_follower(self, name: str, polls: list[PendingPoll]) -> Collection[str]:
        """Return the nodes for which a follower has something new; without an answer they ask again after `retry`."""
        follower, asked = self._routes.live().get(name), {"polls": [poll._asdict() for poll in polls]}
        reply = (
            await self._followers.call(follower, "POST", "/internal/pending", asked) if follower is not None else None
        )
        if reply is not None and reply.status == 200:
            return set(reply.json()["nodes"])
        self._unanswered[name].update(poll.node for poll in polls)
        return ()

    async def _fetch_from(self, follower: RemoteLeader, poll: PendingPoll) -> RpcReply | None:
        query = urlencode([*(("held", one) for one in poll.held), *(("job", one) for one in poll.jobs)])
        async with self._fetching:
            return await self._followers.call(follower, "GET", f"/internal/work?{query}", who=node_identity(poll.node))
