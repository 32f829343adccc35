"""At a deputy: what it tells the lead, and what it learns from it.

Nodes poll the lead; so it is told whose bell has rung here, and tells who gives signs of life. Nodes and people are let
in by the lead, so who is unknown here is looked up in the database, and what is known is forgotten when the lead does
not answer: it may have shut somebody out. Counts and log lines are written by the lead alone, who has them all; so rows
that many processes change are changed by one, and no stopped process can hold up the others with them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import Request
from sqlalchemy.exc import OperationalError

from shoal.core.errors import ShoalError
from shoal_coordinator import problems
from shoal_coordinator.auth import COOKIE, hashed
from shoal_coordinator.forwarding import VOUCHED_KEY, Unanswered
from shoal_coordinator.guard import App, Receive, Send
from shoal_coordinator.inside import Inside

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

log = structlog.get_logger()

EXCHANGE_S = 1.0
DEAF_S = 3.0
"""After so long without the lead nothing is known of nodes' signs of life, and nobody is believed from memory."""
AGES_S = 2.0
"""How often signs of life are asked for: there may be thousands. All three are shorter where nodes' leases are."""
ROWS_MAX, LINES_BYTES_MAX = 1500, 400_000
"""In one exchange; both together are less than what is taken there (`guard.INSIDE_BYTES_MAX`)."""
AGAIN_S = 0.2


class Dispatch:
    """Stands for `Books` at a deputy."""

    def __init__(self, coordinator: Coordinator, inside: Inside) -> None:
        self._coordinator, self._inside = coordinator, inside
        self._lease_s = coordinator.settings.lease_s
        self._life, self._number = secrets.token_hex(8), 0
        self._batch: dict[str, Any] | None = None  # told to that epoch's lead, and not answered
        self._epoch = self._known = 0  # of the lead that was told last, and of the one that answered last
        self._at = self._ages_at = float("-inf")  # of the last answer, and the last with ages; monotonic
        self._given: set[str] = set()  # jobs that are this one's by the lead's word, and not taken up yet
        self._rung, self._woken = set[str](), asyncio.Event()
        self._exchanging = asyncio.Lock()

    @property
    def hears(self) -> bool:
        """Whether the lead tells who gives signs of life."""
        return time.monotonic() - self._at < min(DEAF_S, self._lease_s / 2)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self._exchange_now_and_then(), self._ring())

    # Bells

    def rang(self, node: str) -> None:
        """There may be something new for that node."""
        self._rung.add(node)
        self._woken.set()

    async def _ring(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            nodes, self._rung = self._rung, set()
            lead = self._inside.lead()
            if lead is None:  # whoever leads next begins with asking
                continue
            try:
                await self._inside.ask(lead, "POST", "/inside/rang", {"nodes": sorted(nodes)})
            except Unanswered:
                self._rung |= nodes
                await asyncio.sleep(AGAIN_S)
                self._woken.set()

    # Counts, lines, signs of life

    async def _exchange_now_and_then(self) -> None:
        while True:
            try:
                await self.exchange()
                if self._given:
                    await self._coordinator.adopt(self._given)
            except Unanswered:
                if not self.hears:
                    self._coordinator.directory.clear(self._coordinator.operator_token)
            except ShoalError as error:
                log.error("what the lead tells is not taken up; trying again", error=error.message)
            await asyncio.sleep(min(EXCHANGE_S, self._lease_s / 4))

    async def write_counts(self) -> None:
        """Have the lead write the byte counts so far down. Without a lead they are behind."""
        try:
            await self.exchange()
        except Unanswered:
            log.info("byte counts are behind: no lead answers")

    async def flush_logs(self) -> None:
        """They go with the counts."""

    async def exchange(self) -> None:
        """Tell the lead, and learn from it. Raises `Unanswered`."""
        async with self._exchanging:
            lead = self._inside.lead()
            if lead is None:
                raise Unanswered
            fresh = lead.epoch != self._known or not self.hears
            reply = await self._inside.ask(lead, "POST", "/inside/exchange", self._telling(lead.epoch, fresh))
            if reply.status != 200:
                raise Unanswered
            self._batch = None
            await self._learn(reply.json(), fresh)
            self._known = lead.epoch

    def _telling(self, epoch: int, fresh: bool) -> dict[str, Any]:
        """What is told: the same as the last time if that was not answered. A new lead is not told again what an
        earlier one may have written: counts may be missing after a crash, but never doubled."""
        coordinator = self._coordinator
        if self._batch is not None and epoch != self._epoch:
            coordinator.logbook.take_in(self._batch["lines"])  # these are written once, however often they are told
            self._batch = None
        self._epoch = epoch
        if self._batch is None:
            rows, lines = coordinator.ledger.take(), coordinator.logbook.gather()
            few = _few(lines)
            coordinator.ledger.put_back(rows[ROWS_MAX:], [])
            coordinator.logbook.take_in(lines[few:])
            self._number += 1
            self._batch = {"number": self._number, "rows": rows[:ROWS_MAX], "lines": lines[:few]}
        wants = fresh or time.monotonic() - self._ages_at >= min(AGES_S, self._lease_s / 4)
        return {"name": coordinator.owner, "life": self._life, "wants_ages": wants, **self._batch}

    async def _learn(self, told: dict[str, Any], fresh: bool) -> None:
        coordinator, jobs = self._coordinator, set(self._coordinator.records)
        if fresh:  # what the lead has counted until now is in the database
            await coordinator.database.write(lambda c: coordinator.ledger.reload(c, jobs))
            coordinator.presence.spare()
        else:
            coordinator.ledger.learn(told["rows"])
        if told["ages"] is not None:
            coordinator.presence.learn(told["ages"])
            self._ages_at = time.monotonic()
        self._at = time.monotonic()
        self._given = set(told["jobs"]) - jobs


def _few(lines: list[dict[str, Any]]) -> int:
    """How many of these lines one exchange takes."""
    ends = accumulate(len(json.dumps(line)) + 1 for line in lines)
    return sum(end <= LINES_BYTES_MAX for end in ends)


class Acquainted:
    """An ASGI middleware around a deputy's application: whoever is unknown is looked up before he is asked in."""

    def __init__(self, app: App, coordinator: Coordinator) -> None:
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
        directory = self._coordinator.directory
        if secret and directory.find(secret) is None:
            async with self._coordinator.database.reader.connect() as connection:
                await connection.run_sync(directory.look_up, hashed(secret))
