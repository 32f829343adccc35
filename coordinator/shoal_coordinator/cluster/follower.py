"""A follower's exchange with the leader.

Nodes poll the leader; so the follower tells it which nodes to wake, and learns which nodes are alive. The leader
authenticates nodes and people; so the follower looks unknown credentials up in the database, and forgets known ones
when the leader does not answer, because it may have revoked them. The leader alone writes byte counts and log lines of
all coordinators: so one process changes those rows, and no stopped process can block the others.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from itertools import accumulate
from typing import Any

import structlog
from fastapi import Request
from sqlalchemy.exc import OperationalError
from starlette.types import ASGIApp, Receive, Send

from shoal.core.errors import ShoalError
from shoal_coordinator.cluster.host import ClusterParts
from shoal_coordinator.cluster.reverse_proxy import Unanswered
from shoal_coordinator.cluster.rpc import Rpc
from shoal_coordinator.http import problems
from shoal_coordinator.http.client_certificates import VOUCHED_KEY
from shoal_coordinator.nodes.credentials import COOKIE, hash_secret

log = structlog.get_logger()

EXCHANGE_S = 1.0
LEADER_SILENT_S = 3.0
"""Seconds without an answer of the leader after which presence is unknown and known credentials are dropped."""
AGES_S = 2.0
"""Interval of requests for signs of life, of which there may be thousands. Short leases of nodes shorten all three."""
ROWS_MAX, LINES_BYTES_MAX = 1500, 400_000
"""In one exchange; both together are less than what is taken there (`request_limits.INTERNAL_BYTES_MAX`)."""
RETRY_S = 0.2


class Follower:
    """The side of a follower in its exchange with the leader; it replaces `TelemetryWriter`."""

    def __init__(self, coordinator: ClusterParts, rpc: Rpc) -> None:
        self._coordinator, self._rpc = coordinator, rpc
        self._lease_s = coordinator.settings.lease_s
        self._process_id, self._number = secrets.token_hex(8), 0
        self._batch: dict[str, Any] | None = None  # sent to the leader of `_sent_term`, and not answered
        self._sent_term = self._known_term = 0  # of the leader that was asked last, and of the one that answered last
        self._at = self._ages_at = float("-inf")  # of the last answer, and the last with ages; monotonic
        self._assigned: set[str] = (
            set()
        )  # jobs that the leader has assigned to this follower, and that it does not run yet
        self._wakeups, self._has_wakeups = set[str](), asyncio.Event()
        self._exchanging = asyncio.Lock()

    @property
    def hears_leader(self) -> bool:
        """Return whether the leader reports nodes' signs of life."""
        return time.monotonic() - self._at < min(LEADER_SILENT_S, self._lease_s / 2)

    async def run(self) -> None:
        """Exchange with the leader until cancelled."""
        await asyncio.gather(self._exchange_forever(), self._send_wakeups())

    def queue_wakeup(self, node: str) -> None:
        """Wake a node's poll at the leader soon."""
        self._wakeups.add(node)
        self._has_wakeups.set()

    async def _send_wakeups(self) -> None:
        while True:
            await self._has_wakeups.wait()
            self._has_wakeups.clear()
            nodes, self._wakeups = self._wakeups, set()
            leader = self._rpc.leader()
            if leader is None:  # the next leader asks first
                continue
            try:
                await self._rpc.call(leader, "POST", "/internal/wake", {"nodes": sorted(nodes)})
            except Unanswered:
                self._wakeups |= nodes
                await asyncio.sleep(RETRY_S)
                self._has_wakeups.set()

    # Counts, lines, signs of life

    async def _exchange_forever(self) -> None:
        while True:
            try:
                await self.exchange()
                if self._assigned:
                    await self._coordinator.adopt_jobs(self._assigned)
            except Unanswered:
                if not self.hears_leader:
                    self._coordinator.credentials.clear(self._coordinator.operator_token)
            except ShoalError as error:
                log.error("the reply of the leader was not applied; trying again", error=error.message)
            await asyncio.sleep(min(EXCHANGE_S, self._lease_s / 4))

    async def write_counts(self) -> None:
        """Send the byte counts so far to the leader. Without a leader they wait."""
        try:
            await self.exchange()
        except Unanswered:
            log.info("byte counts are late: no leader answers")

    async def flush_logs(self) -> None:
        """Do nothing: log lines go with the counts."""

    async def exchange(self) -> None:
        """Exchange once with the leader. Raises `Unanswered`."""
        async with self._exchanging:
            leader = self._rpc.leader()
            if leader is None:
                raise Unanswered
            fresh = leader.term != self._known_term or not self.hears_leader
            reply = await self._rpc.call(leader, "POST", "/internal/sync", self._next_request(leader.term, fresh))
            if reply.status != 200:
                raise Unanswered
            self._batch = None
            await self._apply_reply(reply.json(), fresh)
            self._known_term = leader.term

    def _next_request(self, term: int, fresh: bool) -> dict[str, Any]:
        """Return the next batch, or the last one if it was not answered.

        A new leader does not receive a batch that another may have written: counts may be missing after a crash, but
        never doubled.
        """
        coordinator = self._coordinator
        if self._batch is not None and term != self._sent_term:
            coordinator.log_store.take_in(self._batch["lines"])  # these are written once, however often they are sent
            self._batch = None
        self._sent_term = term
        if self._batch is None:
            rows, lines = coordinator.traffic.take(), coordinator.log_store.gather()
            few = _fitting_lines(lines)
            coordinator.traffic.put_back(rows[ROWS_MAX:], [])
            coordinator.log_store.take_in(lines[few:])
            self._number += 1
            self._batch = {"number": self._number, "rows": rows[:ROWS_MAX], "lines": lines[:few]}
        wants = fresh or time.monotonic() - self._ages_at >= min(AGES_S, self._lease_s / 4)
        return {"name": coordinator.owner, "process_id": self._process_id, "wants_ages": wants, **self._batch}

    async def _apply_reply(self, reply: dict[str, Any], fresh: bool) -> None:
        coordinator, jobs = self._coordinator, set(self._coordinator.jobs.records)
        if fresh:  # the database has all that the leader has counted until now
            await coordinator.database.write(lambda c: coordinator.traffic.reload(c, jobs))
            coordinator.presence.renew_all()
        else:
            coordinator.traffic.add_to_sums(reply["rows"])
        if reply["ages"] is not None:
            coordinator.presence.merge_ages(reply["ages"])
            self._ages_at = time.monotonic()
        self._at = time.monotonic()
        self._assigned = set(reply["jobs"]) - jobs


def _fitting_lines(lines: list[dict[str, Any]]) -> int:
    """Return how many of these lines fit into one exchange."""
    ends = accumulate(len(json.dumps(line)) + 1 for line in lines)
    return sum(end <= LINES_BYTES_MAX for end in ends)


class CredentialLookup:
    """An ASGI middleware around a follower's application that looks unknown credentials up in the database."""

    def __init__(self, app: ASGIApp, coordinator: ClusterParts) -> None:
        self._app, self._coordinator = app, coordinator

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and VOUCHED_KEY not in scope:
            try:
                await self._look_up(Request(scope))
            except OperationalError as error:
                await problems.unreadable(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _look_up(self, request: Request) -> None:
        secret = request.headers.get("authorization", "").partition(" ")[2].strip() or request.cookies.get(COOKIE)
        directory = self._coordinator.credentials
        if secret and directory.principal_of(secret) is None:
            async with self._coordinator.database.reader.connect() as connection:
                await connection.run_sync(directory.look_up, hash_secret(secret))
