"""What a node says to a job, and what it is answered: the same whether it came by itself or was carried by another.

Answers are frames of `shoal.wire`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fastapi import Request, Response

from shoal import wire
from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.message import (
    Ack,
    Fail,
    Idle,
    Join,
    Kind,
    Knock,
    Lease,
    Leave,
    Message,
    Order,
    OrderId,
    Poll,
    Ref,
    Report,
    Status,
    Stop,
)
from shoal.core.roster import amendment
from shoal.runtime import tracing
from shoal_coordinator import failures, misfit
from shoal_coordinator.access import hear, label
from shoal_coordinator.blobs.bodies import asked
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.driver import Driver
from shoal_coordinator.failures import Failure
from shoal_coordinator.protocol import SCOPE_KEY
from shoal_coordinator.service import Coordinator
from shoal_coordinator.uploads import Form, check_limits

LEARNED: tuple[Kind, ...] = ("train", "gossip")
"""What is asked for when a report carries what a node has learned, and its weight."""

TERM_LEAP = 1000
"""Terms rise by one when nodes go away or a coordinator starts: no node that is right knows one so much higher."""


def framed(job: str, message: Message, payload: bytes = b"", protocol: int | None = None) -> Response:
    """A frame as a response, in our newest protocol unless another is named."""
    return Response(wire.encode(wire.Frame(job, message, payload), protocol), media_type=wire.MEDIA_TYPE)


def decoded(data: bytes, job: str, kind: type[Message]) -> wire.Frame:
    """The frame of those bytes. Raises `InvalidPayload` unless it is a message of that kind, of this job."""
    frame = wire.decode(data)
    if frame.job != job or not isinstance(frame.message, kind):
        raise InvalidPayload(f"a {kind.__name__.lower()} of job {job} is expected here", code="head.type")
    return frame


@dataclass(frozen=True)
class Hearing:
    """`node` says something to `job`, known to be its own word. `request`: whose bytes are booked for it; `since`: when
    that began, monotonic."""

    request: Request
    coordinator: Coordinator
    job: str
    node: str
    since: float = field(default_factory=time.monotonic)

    def _label(self, version: int, kind: str) -> None:
        label(self.request, self.job, version, self.node, kind)

    def framed(self, message: Message, payload: bytes = b"") -> Response:
        """An answer, in the protocol in which was asked: a node of an earlier release reads no newer one."""
        spoken = self.request.headers.get("shoal-protocol", "")
        return framed(self.job, message, payload, int(spoken) if spoken else None)

    def _driver(self) -> Driver | None:
        """The job's driver; None when it has ended. Raises `Refused` for a job that there is not."""
        driver = self.coordinator.record(self.job).driver
        return None if driver is None or driver.ended else driver

    # Reports

    async def report(self, body: Callable[[], Awaitable[bytes]]) -> Response:
        """Take a report, once and for all: when the acknowledgement goes out, it is durable and counts exactly once."""
        hear(self.request, self.coordinator, self.node)
        sent = tracing.parent_of(self.request.headers.get(tracing.HEADER, ""))
        with tracing.current.span("receive", sent, **{"shoal.job": self.job, "shoal.node": self.node}) as received:
            data = await body()
            with self.coordinator.metrics.counting_refusals():
                return await self._read(data, received)

    async def _read(self, data: bytes, received: str) -> Response:
        driver = self.coordinator.record(self.job).driver
        self._label(-1, "report")
        try:
            frame = decoded(data, self.job, Report)
        except InvalidPayload as error:
            order = driver.order_of(self.node) if driver is not None else None
            if driver is not None and order is not None:
                await self._show(driver, order, error)
            raise
        assert isinstance(frame.message, Report)
        tracing.current.note((self.job, self.node, frame.message.order), received)
        return await self.reported(frame.message, frame.payload)

    async def reported(self, said: Report, payload: bytes) -> Response:
        """The same, once its head is known to be right."""
        # the credential says who it is, not the body
        message = said if said.node == self.node else replace(said, node=self.node)
        crashpoint("report.received")
        driver = self._driver()
        if driver is None:
            self.coordinator.metrics.refused("job.ended")
            return self.framed(Ack(message.order, False, "the job has ended"))
        self._label(min(message.version, driver.hub.version), "report")
        await driver.settled()  # a hub that is being restored knows of no order, and one that breaks now of too many
        order, answer = driver.order_of(self.node), driver.hub.verdict(message)
        if answer is None:
            assert order is not None
            answer = await self._count(driver, order, message, payload)
            if answer.counted:
                self.coordinator.metrics.counted(self.job)
            else:
                self.coordinator.metrics.refused("report.refused")
        elif not answer.counted:
            self.coordinator.metrics.refused("order.superseded")
        crashpoint("report.answer")
        return self.framed(answer)

    async def _count(self, driver: Driver, order: Order, message: Report, payload: bytes) -> Ack:
        """Body, verdict, journal, hub. A refusal leaves everything as it was, except what people read."""
        body, expected = message.body, driver.expected(order.kind)
        doing = self.coordinator.presence.doing[driver.name, message.node]
        received = tracing.current.noted((driver.name, message.node, message.order), keep=True)
        asked_at, came = doing.asked(order.id), False  # before it counts: the next order may come before the answer
        driver.watches.begun(message.node, order.id, self.since)
        driver.watches.came(message.node, order.id)
        try:
            _fits(message, order)
            with driver.pinned(body.digest if body else ""):
                journaled = payload if body is not None and driver.uploads.journals(order.kind, payload) else None
                if body is not None and journaled is None:
                    with tracing.current.span("fsync", received):
                        came = await self._store(driver, body, expected, payload)
                with tracing.current.span("verify", received):
                    if body is not None and journaled is not None:
                        norm = await driver.uploads.weigh(body, expected, journaled)
                    else:
                        norm = await driver.uploads.admit(message, expected)
                    if order.kind in LEARNED:
                        check_limits(driver.spec.limits, message, norm)
                crashpoint("report.checked")
                answer = await driver.answer(replace(message, norm=norm), message.node, journaled)
        except InvalidPayload as error:
            if came and body is not None:
                driver.discard(body.digest)
            await self._show(driver, order, error)
            raise
        if answer.counted:
            driver.uploads.reported(message.node)
            weight = message.weight if order.kind in LEARNED else None
            doing.finish(order.id, asked_at, weight, wire.plain(message.metrics))
        return answer

    async def _store(self, driver: Driver, body: Ref | None, expected: Form | None, payload: bytes) -> bool:
        """Keep a report's body as a file, unless there is one; whether it was new."""
        if body is not None and payload and not await asked(driver.bodies, driver.bodies.has, body.digest):
            await driver.uploads.take_whole(body, expected, payload)
            return True
        return body is not None and driver.bodies.far and await driver.uploads.collect(self.node, body, expected)

    async def _show(self, driver: Driver, order: Order, error: InvalidPayload) -> None:
        """Show a refusal to people, unless the same was shown a moment ago."""
        doing = self.coordinator.presence.doing[driver.name, self.node]
        if doing.fail(error.message):
            with suppress(StorageFailed):  # a note more or less: the refusal itself is what the node must hear
                await driver.remark("refusal", f"{self.node}: {error.message}{doing.untold()}", self.node)
                await self._note_failure(failures.refused(order, error.message))

    async def _note_failure(self, failure: Failure) -> None:
        """Keep a failure that follows from no event of the journal."""
        now, coordinator = time.time(), self.coordinator
        for item in await coordinator.database.write(lambda c: failures.keep(c, self.job, now, failure)):
            coordinator.broadcast.tell(item)

    # In the middle of an order

    async def status(self, said: Status) -> None:
        """Take note of where the node is."""
        driver = self._driver()
        if driver is None:
            return
        self.coordinator.presence.doing[self.job, self.node].metrics.update(wire.plain(said.values))
        await driver.tell(replace(said, node=self.node))

    async def failure(self, said: Fail) -> Response:
        """Take note that an order cannot be done; the schedule decides who does it instead."""
        message = replace(said, node=self.node, error=said.error[:1000])
        driver = self._driver()
        if driver is None:
            return self.framed(Ack(message.order, False, "the job has ended"))
        await driver.settled()
        order = driver.order_of(self.node)
        if order is not None and order.id == message.order:  # else it is withdrawn already, and nobody's concern
            self.coordinator.presence.doing[self.job, self.node].fail(message.error)
        return self.framed(await driver.answer(message, self.node))

    # What stands

    async def knock(self, term: int) -> Lease:
        """The coordinator's term, above the one that was told. Raises `Refused`: the job has ended, a term too high."""
        driver = self._driver()
        self._label(-1, "knock")
        if driver is None:
            raise self._over()
        driver.check_gossip()
        await driver.settled()
        if term > driver.hub.boot + TERM_LEAP:
            raise Refused(
                f"term {term} is too far above the job's, which is {driver.hub.boot}",
                code="term.leap",
                hint="terms rise by one at a time; remove what the node keeps of this job",
            )
        if term >= driver.hub.boot:
            await driver.tell(Knock(self.node, term))
        return Lease(driver.hub.boot)

    async def join(self, away: OrderId | None) -> Response:
        """A node is back; what stands for it."""
        driver = self._driver()
        self._label(-1, "join")
        if driver is None:
            return self.framed(Stop(self._over().message))
        if away is not None:
            driver.check_gossip()
        hear(self.request, self.coordinator, self.node)
        self.coordinator.papers.take_part(self.job, self.node)
        await driver.tell(Join(self.node, away, self.coordinator.presence.about(self.node)))
        return await self._stands(driver)

    async def poll(self) -> Response:
        """What stands, at once."""
        driver = self._driver()
        if driver is None:
            return self.framed(Stop(self._over().message))
        hear(self.request, self.coordinator, self.node)
        await driver.settled()
        await self.seen(driver)
        return await self._stands(driver)

    async def seen(self, driver: Driver) -> bool:
        """Tell a hub of a node that it does not know to be there, with what that has said of itself; whether it was
        news."""
        presence = self.coordinator.presence
        if not driver.hub.knows(self.node):
            await driver.tell(Poll(self.node, presence.about(self.node)))
            return True
        member = driver.hub.roster.get(self.node)
        if member is None or member.about.held == presence.about(self.node).held:
            return False
        await driver.tell(presence.drain(self.node))  # the job was not there, or not to be told, when operators said so
        return True

    async def wait(self, mine: tuple[OrderId, int] | None, wait_s: float) -> Response:
        """What stands, as soon as it differs from what the node holds; a lease when nothing comes in that time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, self.coordinator.settings.poll_s_max)
        bell, exchange = self.coordinator.bells[self.node], self.request.scope.get(SCOPE_KEY)
        if exchange is not None:
            exchange.gone = bell.set  # a carrier that hangs up is not waited for
        hear(self.request, self.coordinator, self.node)
        with self.coordinator.presence.listening(self.node):
            while True:
                bell.clear()
                driver = self._driver()
                if driver is None:
                    return self.framed(Stop(self._over().message))
                await driver.settled()
                if await self.seen(driver):
                    await driver.settled()
                found, left = self.news(driver, mine), deadline - loop.time()
                closed = exchange is not None and exchange.closed
                if found is not None or left <= 0 or closed or not self.coordinator.ready:
                    return found or self.framed(Lease(driver.term))
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await bell.wait()

    def news(self, driver: Driver, mine: tuple[OrderId, int] | None) -> Response | None:
        """What stands, if the node does not know it: `mine` is the order that it holds, and in which form."""
        standing = driver.hub.standing(self.node)
        if isinstance(standing, Order) and (mine is None or (standing.id, standing.rev) > mine):
            return self.order(driver, standing, known=mine is not None and mine[0] == standing.id)
        if isinstance(standing, Stop) and standing.foreign and self.coordinator.presence.turn_away(self.node, self.job):
            self._label(driver.hub.version, "poll")
            why = misfit.named(driver.hub, self.node, self.coordinator.presence)
            return self.framed(Stop(why, foreign=True))
        if isinstance(standing, Idle) and mine is not None and _withdrawn(driver, self.node, mine[0]):
            self._label(driver.hub.version, "poll")
            return self.framed(standing)
        return None

    async def _stands(self, driver: Driver) -> Response:
        await driver.settled()
        standing = driver.hub.standing(self.node)
        return self.order(driver, standing) if isinstance(standing, Order) else self.framed(standing)

    def order(self, driver: Driver, order: Order, *, known: bool = False) -> Response:
        """An order, with its body if that is small; in short where the node has the order and it was only amended."""
        self._label(order.version, "order")
        self.coordinator.presence.doing[driver.name, order.node].begin(order.id)
        driver.watches.sent(order.node, order.id)
        payload = b""
        if not known and order.body is not None and order.body.nbytes <= wire.INLINE_BYTES_MAX:
            payload = driver.along(order.body)  # small, and just written: no thread is worth it
        crashpoint("order.answer")
        answer = self.framed(amendment(order) if known else order, payload)
        if tracing.current.on and (parent := tracing.current.round(self.job, order.version)):
            answer.headers[tracing.HEADER] = parent
        return answer

    async def leave(self) -> None:
        """The node goes from this job and hands its order back."""
        driver = self._driver()
        if driver is not None:
            await driver.tell(Leave(self.node))

    def _over(self) -> Refused:
        """That the job has ended, and why."""
        driver = self.coordinator.record(self.job).driver
        why = driver.hub.ends_after_round if driver is not None else ""
        return Refused(
            f"job {self.job} has ended{f': {why}' if why else ''}",
            code="job.over",
            hint="keep what was learned, if it is wanted, and stop",
        )


def held_order(text: str) -> tuple[OrderId, int]:
    """The order that a node holds, and in which form, of `BOOT.N` or `BOOT.N.REV`. Raises `InvalidPayload`."""
    parts = text.split(".")
    if not (len(parts) in (2, 3) and all(part.isdecimal() for part in parts) and len(text) < 40):
        raise InvalidPayload(f"held={text[:40]!r} is not BOOT.N.REV", code="request.invalid", hint="see /docs")
    boot, n, rev = (*map(int, parts), 0)[:3]
    return (boot, n), rev


def _withdrawn(driver: Driver, node: str, order: OrderId) -> bool:
    """Whether that order is in vain. (One that was answered is not: its acknowledgement is on the way.)"""
    member = driver.hub.roster.get(node)
    return member is None or member.answered is None or member.answered.order != order


def _fits(message: Report, order: Order) -> None:
    """Raise `InvalidPayload` unless a report has the form that its order asks for."""
    if message.version != order.version:
        raise InvalidPayload(
            f"a report on version {message.version}, but the order is of version {order.version}", code="head.version"
        )
    if message.body is None and order.kind != "evaluate":
        raise InvalidPayload("a model was asked for, but none came", code="payload.missing")
    if message.body is not None and order.kind == "evaluate":
        raise InvalidPayload("metrics were asked for, no model", code="payload.unwanted", hint="send no body")
