"""A coordinator among several on one PostgreSQL database: it is the lead, or a deputy that owns some of the jobs
(`shoal.core.owners`); and what is another's to answer it passes on.

`Tenure` (`shoal/core/tenure.py`) decides which; here is its shell. Each time that this process becomes the one or the
other it makes a whole new `Coordinator`, restored from the journal; when it is that no more, that is thrown away.
Nothing is ever answered from a memory that has grown old: `Front` looks before each answer whether the lease still is
its own.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.core.errors import NotAllowed, ShoalError
from shoal.core.owners import Owners
from shoal.core.tenure import Drop, Elsewhere, Here, Hold, Look, Take, Tenure
from shoal_coordinator import problems
from shoal_coordinator.access import hear_sender
from shoal_coordinator.app import operator_token
from shoal_coordinator.auth import hashed
from shoal_coordinator.forwarding import (
    Forwarder,
    Message,
    Receive,
    Scope,
    Send,
    Unanswered,
    accept,
    fingerprint,
    is_forwarded,
)
from shoal_coordinator.guard import App, refusal, with_headers
from shoal_coordinator.inside import Inside
from shoal_coordinator.keepsakes import TOKEN
from shoal_coordinator.ledger import Ledger
from shoal_coordinator.metrics import Metrics
from shoal_coordinator.protocol import SCOPE_KEY
from shoal_coordinator.replica_views import Collector, Standing
from shoal_coordinator.seat import Post, Seat, clock
from shoal_coordinator.service import Coordinator
from shoal_coordinator.settings import Settings

log = structlog.get_logger()

EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on
STOP_S = 1.0
"""So long requests in hand may take to be answered, before the database is left to another."""

HOLD_S = 3.0
"""So long a request waits for another lead where there is none, before it is answered with 503: less than it takes a
client to come again, and as long as a lead that ends in good order needs to hand over."""

Make = Callable[[Ledger, Post, Inside], tuple[Coordinator, App]]
"""Makes a coordinator, and the application in front of it."""

_JOB = re.compile(r"/api/v1/jobs/([^/]+)")
_READING = ("GET", "HEAD")
_OWN = ("/healthz", "/readyz", "/metrics")
"""What each answers for itself."""


@dataclass
class Owned:
    """What this process has while it is the lead, or a deputy."""

    coordinator: Coordinator
    app: App
    hold: Tenure | Hold
    epoch: int = 0
    secret: str = ""

    def has(self, job: str) -> bool:
        """Whether it answers for that job. One that has ended is the lead's."""
        record = self.coordinator.records.get(job)
        return record is not None and record.ended_at is None

    def hands_over(self, job: str) -> bool:
        """Whether that job has ended, and the lead may not know it yet: it must not miss a change."""
        record = self.coordinator.records.get(job)
        return record is not None and record.ended_at is not None


class Replica:
    """`start` returns when it is the owner and has restored everything, or knows that another is.

    `books`: called with the ledger in which the bytes of requests are booked from then on.
    """

    def __init__(
        self, settings: Settings, seat: Seat, make: Make, books: Callable[[Ledger], None], metrics: Metrics
    ) -> None:
        self.metrics = metrics
        self.settings, self.seat, self._make, self._books = settings, seat, make, books
        self.tenure = seat.tenure
        self.owned: Owned | None = None
        self.deputy: Owned | None = None
        self.owners = Owners()
        self.address = ""
        self.forwarder = Forwarder(self._lost)
        self._inside = Inside(self.forwarder, self._lead)
        self._woken, self._stopping = asyncio.Event(), False
        self.turn = asyncio.Event()
        """Set, and replaced by another, whenever somebody else may lead, or this process ends."""
        self.ends = False
        self._task: asyncio.Task[None] | None = None
        self._unfit_until = float("-inf")
        self._watching: asyncio.Task[None] | None = None
        self._seeing: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    # Life

    @property
    def coordinator(self) -> Coordinator | None:
        """What it leads with, if it does."""
        return self.owned.coordinator if self.owned is not None else None

    def _lead(self) -> Elsewhere | None:
        way = self.tenure.way(clock())
        return way if isinstance(way, Elsewhere) else None

    async def start(self, port: int) -> None:
        """`port`: where requests come in. Raises `ShoalError` for what keeps the first attempt from succeeding, unless
        it is another owner."""
        self.address = self.settings.advertise or self._address(port)
        self._task = asyncio.create_task(self._run(), name="replica")
        self._watching = asyncio.create_task(self._watch(), name="owners")
        settled = asyncio.create_task(self._settled.wait())
        await asyncio.wait({settled, self._task}, return_when=asyncio.FIRST_COMPLETED)
        settled.cancel()
        if self._task.done():
            self._watching.cancel()
            self.seat.close()
            await self._task

    def _address(self, port: int) -> str:
        """Where others reach this process, and by which certificate they know it."""
        host, cert = self.settings.host, self.settings.tls_cert
        host = self.seat.own_host() if host in EVERYWHERE else host
        address = f"{'https' if cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        return f"{address}#{fingerprint(cert.read_text(encoding='ascii'))}" if cert else address

    def drain(self) -> None:
        """Let polls and streams end."""
        self.ends = True
        self._take_turn()
        for owned in (self.owned, self.deputy):
            if owned is not None:
                owned.coordinator.drain()

    async def stop(self) -> None:
        """Let the database go, at once. Again: nothing."""
        if self._stopping:
            return
        self._stopping = True
        self._woken.set()
        if self._task is not None and self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._task, self._watching, return_exceptions=True)
        await self._resign()
        if self.owned is not None:
            await self._drop()
        self.forwarder.cut()
        self.seat.close()

    def _take_turn(self) -> None:
        self.turn.set()
        self.turn = asyncio.Event()

    def _lost(self, owner: Elsewhere) -> None:
        if owner == self._lead():
            self.tenure.shun(clock())

    async def _watch(self) -> None:
        """See who owns which job, again and again; the lead takes over what nobody owns any more."""
        while not self._stopping:
            await asyncio.sleep(self.tenure.look_s)
            seen = await asyncio.to_thread(self.seat.owners)
            if seen is None:
                continue
            self.owners = seen
            self._cut()
            if self.owned is not None and self.tenure.phase == "owner":
                self._seeing = asyncio.create_task(self.owned.coordinator.deputies.see(seen))
                await asyncio.wait({self._seeing})
                if not self._seeing.cancelled() and (error := self._seeing.exception()) is not None:
                    log.error("what deputies have left is not taken over; trying again", error=repr(error))

    def _cut(self) -> None:
        """Break off what is under way to who is gone."""
        lead = self._lead()
        self.forwarder.cut(but={*self.owners.live(clock()).values(), *([lead] if lead is not None else [])})

    async def _run(self) -> None:
        """Do what the tenure says, one thing after the other."""
        while not self._stopping:
            self._woken.clear()
            match self.tenure.next(clock()):
                case Look():
                    await self._look()
                case Take():
                    await self._take()
                case Drop():
                    await self._drop()
                    self.tenure.dropped(clock())
                case float() as until:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, until - clock())):
                            await self._woken.wait()

    async def _look(self) -> None:
        begun = clock()
        seen = await asyncio.to_thread(self.seat.look)
        if seen is None:
            if not self._settled.is_set():  # at the start: let whoever opens a database say what is wrong with it
                self.tenure.phase = "taking"
                await self._take()
                return
            self.tenure.missed(clock())
            return
        self.tenure.looked(begun, clock(), seen)
        self._take_turn()
        self._cut()
        if seen.left_s > 0 and seen.holder not in ("", self.seat.name):
            if not self._settled.is_set():
                await self._compare_tokens()
                log.info("standing by", owner=seen.address or seen.holder, epoch=seen.epoch)
            self._settled.set()
            await self._serve()

    async def _serve(self) -> None:
        """Be a deputy, if jobs can be owned here: their models must lie where all coordinators see them."""
        if self.deputy is not None and self.deputy.coordinator.database.fenced:
            await self._resign()
        if self.deputy is not None or not self.settings.blobs or self._lead() is None or clock() < self._unfit_until:
            return
        ledger = Ledger()
        try:
            coordinator, app = await asyncio.to_thread(self._make, ledger, self.seat.deputy, self._inside)
            coordinator.give_up = self._woken.set
            await coordinator.start()
        except Exception as error:  # noqa: BLE001 - tried again in a while
            log.warning("no jobs can be owned here", why=repr(error))
            self._unfit_until = clock() + self.seat.lease_s
            return
        deputy = Owned(coordinator, app, self.seat.deputy.hold, coordinator.database.epoch)
        coordinator.standing = self.standing
        try:
            deputy.secret = await coordinator.database.announce(self.address)
        except ShoalError as error:
            log.warning("the others do not know where this one is", error=error.message)
            await coordinator.stop()
            return
        self.deputy = deputy
        self._books(ledger)
        log.info("deputy", epoch=deputy.epoch, jobs=len(coordinator.records))

    async def _resign(self, *, keeps: bool = False) -> None:
        """Be a deputy no more. `keeps`: the lead must not take its jobs, which it takes along."""
        deputy, self.deputy = self.deputy, None
        if deputy is not None:
            await deputy.coordinator.stop(keeps=keeps)
            deputy.hold.fenced()

    async def _compare_tokens(self) -> None:
        """Raise `NotAllowed` unless operators have one token at the owner and here: else it would change when this one
        takes over."""
        theirs = await asyncio.to_thread(self.seat.keepsake, TOKEN)
        if theirs not in (None, hashed(operator_token(self.settings))):
            raise NotAllowed(
                "the operators' token here is not that of the coordinator that owns the database",
                code="replica.token",
                hint="give all of them the same operator_token; to change it, stop all of them",
            )

    async def _take(self) -> None:
        """Become the owner: everything anew from the journal."""
        ledger = Ledger()
        seen = self.tenure.seen
        await self._resign(keeps=True)
        try:
            if seen is None or seen.holder != self.seat.name:
                await asyncio.to_thread(self._forget_copies)
            coordinator, app = await asyncio.to_thread(self._make, ledger, self.seat.lead, self._inside)
            coordinator.give_up = self._woken.set
            await coordinator.start()
        except Exception as error:
            self.tenure.refused(clock())
            locked = isinstance(error, ShoalError) and error.code == "storage.locked"
            if not locked and not self._settled.is_set():
                raise
            log.info("not taken over", why=repr(error))
            return
        owned = self.owned = Owned(coordinator, app, self.tenure, coordinator.database.epoch)
        coordinator.standing = self.standing
        try:
            owned.secret = await coordinator.database.announce(self.address)
        except ShoalError as error:  # another was faster, or the database is gone: the tenure knows
            log.warning("the others do not know where this one is", error=error.message)
            await self._drop()
            self.tenure.refused(clock())
            return
        self._books(ledger)
        self.forwarder.cut()
        self.tenure.took(owned.epoch)
        self._take_turn()
        self._settled.set()
        log.info("owner", epoch=owned.epoch, address=self.address)

    def _forget_copies(self) -> None:
        """Copies of bodies of a store are a promise that the store has them; another owner may have deleted them."""
        shutil.rmtree(self.settings.data / "near", ignore_errors=True)

    async def _drop(self) -> None:
        owned, self.owned = self.owned, None
        if owned is None:
            return
        log.warning("not the owner any more", epoch=owned.epoch)
        if self._seeing is not None:  # it would wait for a database that is closed
            self._seeing.cancel()
            await asyncio.gather(self._seeing, return_exceptions=True)
        await owned.coordinator.stop()

    # What others want to know

    def standing(self) -> Standing:
        """How things are here."""
        seen, now = self.tenure.seen, clock()
        leads = self.owned is not None and self.tenure.phase == "owner"
        here, owned = self.owned or self.deputy, list(self.owners.jobs.values())
        return Standing(
            role="lead" if leads else "deputy" if self.deputy is not None else "standby",
            name=self.seat.name,
            address=self.address,
            epoch=self.tenure.epoch if leads else (seen.epoch if seen is not None else 0),
            owner=self.address if leads else (seen.address if seen is not None else ""),
            takeovers=self.tenure.takeovers,
            forwards=self.forwarder.count,
            failures=self.forwarder.failures,
            jobs=len(here.coordinator.running()) if here is not None else 0,
            deputies={way.address: owned.count(name) for name, way in self.owners.live(now).items()},
        )


class Front:
    """What uvicorn calls: whoever answers is asked. Nobody: 503, and when to come again."""

    def __init__(self, replica: Replica, settings: Settings) -> None:
        self._replica, self._settings = replica, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        holding = asyncio.timeout(HOLD_S)
        try:
            async with holding:
                while not await self._answered(holding, scope, receive, send):
                    turn = self._replica.turn
                    await turn.wait()
        except TimeoutError:
            if not holding.expired():
                raise
            await _say(with_headers(send, scope["path"]), _nobody(scope["path"]))

    async def _answered(self, holding: asyncio.Timeout, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request; False: nobody can now, and it may wait. Nothing of an answer is bounded by `holding`."""
        way = self._way(scope)
        waits = way is None and not (self._replica.ends or is_forwarded(scope) or scope["path"] in _OWN)
        if waits:
            return False
        deadline = holding.when()
        holding.reschedule(None)
        match way:
            case Owned() as owned:
                await self._answer(owned, scope, receive, send)
            case Elsewhere() as elsewhere:
                if not await self._pass_on(elsewhere, scope, receive, send):
                    holding.reschedule(deadline)
                    return False
            case None:
                sending = with_headers(send, scope["path"])
                await _say(sending, self._own(scope["path"], ready=False) or _nobody(scope["path"]))
        return True

    def _way(self, scope: Scope) -> Owned | Elsewhere | None:
        """Who answers: what is here, somebody else, or nobody now. Makes of what was passed on what was asked."""
        replica, now, path = self._replica, clock(), scope["path"]
        lead, owned, deputy = replica.tenure.way(now), replica.owned, replica.deputy
        passed_on = is_forwarded(scope)
        if deputy is not None and not (deputy.hold.holds(now) and (not passed_on or _accepts(deputy, scope))):
            deputy = None
        if passed_on and deputy is None and not (owned is not None and _accepts(owned, scope)):
            return None
        found = _JOB.match(path)
        job = found[1] if found is not None else ""
        own = path in _OWN and isinstance(lead, Elsewhere)  # without a lead it is not ready
        if deputy is not None and passed_on:
            return None if deputy.hands_over(job) and scope["method"] not in _READING else deputy
        if deputy is not None and (deputy.has(job) or own):
            return deputy
        if isinstance(lead, Here) and owned is not None:
            deputies = owned.coordinator.deputies
            return deputies.way(job) if job and deputies.owns(job) else owned
        if job in replica.owners.jobs and replica.owners.jobs[job] != replica.seat.name:
            return replica.owners.way(replica.owners.jobs[job], now)
        return lead if isinstance(lead, Elsewhere) else None

    async def _pass_on(self, way: Elsewhere, scope: Scope, receive: Receive, send: Send) -> bool:
        """Have another answer; False: it does not, and the request may wait for somebody who does."""
        sending = with_headers(send, scope["path"])
        refused = refusal(scope, self._settings)
        if refused is not None:
            await _say(sending, problems.raw(*refused, scope["path"]))
        elif (own := self._own(scope["path"], ready=True)) is not None:
            await _say(sending, own)
        else:
            if self._replica.owned is not None:  # the lead tells deputies which nodes are there
                hear_sender(Request(scope), self._replica.owned.coordinator)
            try:
                await self._replica.forwarder.forward(scope, receive, send, way)
            except Unanswered:
                if scope["method"] in _READING and not self._replica.ends:  # no body of it was read
                    scope[SCOPE_KEY].elsewhere = False
                    return False
                await _say(sending, _nobody(scope["path"]))
        return True

    async def _answer(self, owned: Owned, scope: Scope, receive: Receive, send: Send) -> None:
        """By this process, as long as it is the owner when the answer begins."""
        replica, stale = self._replica, False

        def here() -> bool:
            return owned in (replica.owned, replica.deputy) and owned.hold.holds(clock())

        async def sending(message: Message) -> None:
            nonlocal stale
            if message["type"] == "http.response.start" and not here():
                stale = True
                await _say(with_headers(send, scope["path"]), _nobody(scope["path"]))
            elif not stale:
                await send(message)

        await owned.app(scope, receive, sending)

    def _own(self, path: str, ready: bool) -> tuple[Message, Message] | None:
        """What a standby answers itself: how it is."""
        if path == "/healthz":
            return _json({"status": "ok"})
        if path == "/readyz":
            if ready:
                return _json({"status": "ready", "role": "standby"})
            return problems.raw(503, "no coordinator owns the database now", "not-ready", "in a moment one will", path)
        if path == "/metrics":
            registry = CollectorRegistry()
            registry.register(Collector(self._replica.standing))
            told = generate_latest(self._replica.metrics.registry) + generate_latest(registry)
            return _plain(told, CONTENT_TYPE_LATEST)
        return None


def _accepts(owned: Owned, scope: Scope) -> bool:
    return accept(scope, owned.epoch, owned.secret)


def _nobody(path: str) -> tuple[Message, Message]:
    text = "no coordinator owns the database at this moment; another is taking over"
    return problems.raw(503, text, "replica.no-owner", "ask again in a moment", path)


def _json(values: dict[str, Any]) -> tuple[Message, Message]:
    return _plain(json.dumps(values).encode(), "application/json")


def _plain(body: bytes, media_type: str) -> tuple[Message, Message]:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}, {
        "type": "http.response.body",
        "body": body,
    }


async def _say(send: Callable[[Message], Awaitable[None]], messages: tuple[Message, Message]) -> None:
    for message in messages:
        await send(message)
