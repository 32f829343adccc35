"""What a node says to a job, and what it is answered: the same whether it came by itself or was carried by another.

Answers are frames of `shoal.wire`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from fastapi import Request, Response

from coordinator.access import label
from coordinator.crash import crashpoint
from coordinator.driver import Driver
from coordinator.service import Coordinator
from shoal import wire
from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.message import (
    Ack,
    Fail,
    Join,
    Kind,
    Knock,
    Lease,
    Leave,
    Message,
    Order,
    OrderId,
    Poll,
    Report,
    Status,
    Stop,
)
from shoal.core.roster import amendment

LEARNED: tuple[Kind, ...] = ("train", "gossip")
"""What is asked for when a report carries what a node has learned, and its weight."""

TERM_LEAP = 1000
"""Terms rise by one when nodes go away or a coordinator starts: no node that is right knows one so much higher."""


def framed(job: str, message: Message, payload: bytes = b"") -> Response:
    """A frame as a response."""
    return Response(wire.encode(wire.Frame(job, message, payload)), media_type=wire.MEDIA_TYPE)


def decoded(data: bytes, job: str, kind: type[Message]) -> wire.Frame:
    """The frame of those bytes. Raises `InvalidPayload` unless it is a message of that kind, of this job."""
    frame = wire.decode(data)
    if frame.job != job or not isinstance(frame.message, kind):
        raise InvalidPayload(f"a {kind.__name__.lower()} of job {job} is expected here", code="head.type")
    return frame


@dataclass(frozen=True)
class Hearing:
    """`node` says something to `job`, known to be its own word. `request`: whose bytes are booked for it."""

    request: Request
    coordinator: Coordinator
    job: str
    node: str

    def _label(self, version: int, kind: str) -> None:
        label(self.request, self.job, version, self.node, kind)

    def _driver(self) -> Driver | None:
        """The job's driver; None when it has ended. Raises `Refused` for a job that there is not."""
        driver = self.coordinator.record(self.job).driver
        return None if driver is None or driver.ended else driver

    # Reports

    async def report(self, data: bytes) -> Response:
        """Take a report, once and for all: when the acknowledgement goes out, it is durable and counts exactly once."""
        self.coordinator.presence.heard(self.node)
        driver = self.coordinator.record(self.job).driver
        self._label(-1, "report")
        try:
            frame = decoded(data, self.job, Report)
        except InvalidPayload as error:
            if driver is not None and driver.order_of(self.node) is not None:
                await self._show(driver, error)
            raise
        assert isinstance(frame.message, Report)
        return await self.reported(frame.message, frame.payload)

    async def reported(self, said: Report, payload: bytes) -> Response:
        """The same, once its head is known to be right."""
        message = replace(said, node=self.node)  # the credential says who it is, not the body
        crashpoint("report.received")
        driver = self._driver()
        if driver is None:
            return framed(self.job, Ack(message.order, False, "the job has ended"))
        self._label(min(message.version, driver.hub.version), "report")
        await driver.settled()  # a hub that is being restored knows of no order, and one that breaks now of too many
        order, answer = driver.order_of(self.node), driver.hub.verdict(message)
        if answer is None:
            assert order is not None
            answer = await self._count(driver, order, message, payload)
        crashpoint("report.answer")
        return framed(self.job, answer)

    async def _count(self, driver: Driver, order: Order, message: Report, payload: bytes) -> Ack:
        """Body, verdict, journal, hub. A refusal leaves everything as it was, except what people read."""
        body, expected = message.body, driver.expected(order.kind)
        came = False
        try:
            _fits(message, order)
            with driver.pinned(body.digest if body else ""):
                if body is not None and payload and not driver.bodies.has(body.digest):
                    await driver.uploads.take_whole(message.node, body, expected, payload)
                    came = True
                limits = driver.spec.limits if order.kind in LEARNED else None
                norm = await driver.uploads.admit(message, expected, limits)
                crashpoint("report.checked")
                answer = await driver.answer(replace(message, norm=norm), message.node)
        except InvalidPayload as error:
            if came and body is not None:
                driver.discard(body.digest)
            await self._show(driver, error)
            raise
        if answer.counted:
            doing = self.coordinator.presence.doing[driver.name, message.node]
            doing.finish(message.weight if order.kind in LEARNED else None, wire.plain(message.metrics))
        return answer

    async def _show(self, driver: Driver, error: InvalidPayload) -> None:
        """Show a refusal to people, unless the same was shown a moment ago."""
        if self.coordinator.presence.doing[driver.name, self.node].fail(error.message):
            with suppress(StorageFailed):  # a note more or less: the refusal itself is what the node must hear
                await driver.remark("refusal", f"{self.node}: {error.message}", self.node)

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
            return framed(self.job, Ack(message.order, False, "the job has ended"))
        await driver.settled()
        order = driver.order_of(self.node)
        if order is not None and order.id == message.order:  # else it is withdrawn already, and nobody's concern
            self.coordinator.presence.doing[self.job, self.node].fail(message.error)
        return framed(self.job, await driver.answer(message, self.node))

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
            return framed(self.job, Stop(self._over().message))
        if away is not None:
            driver.check_gossip()
        self.coordinator.presence.heard(self.node)
        self.coordinator.papers.take_part(self.job, self.node)
        await driver.tell(Join(self.node, away))
        return await self._stands(driver)

    async def poll(self) -> Response:
        """What stands, at once."""
        driver = self._driver()
        if driver is None:
            return framed(self.job, Stop(self._over().message))
        self.coordinator.presence.heard(self.node)
        await driver.settled()
        if not driver.hub.knows(self.node):
            await driver.tell(Poll(self.node))
        return await self._stands(driver)

    async def _stands(self, driver: Driver) -> Response:
        await driver.settled()
        standing = driver.hub.standing(self.node)
        return self.order(driver, standing) if isinstance(standing, Order) else framed(self.job, standing)

    def order(self, driver: Driver, order: Order, *, known: bool = False) -> Response:
        """An order, with its body if that is small; in short where the node has the order and it was only amended."""
        self._label(order.version, "order")
        self.coordinator.presence.doing[driver.name, order.node].begin(order.id)
        payload = b""
        if not known and order.body is not None and order.body.nbytes <= wire.INLINE_BYTES_MAX:
            payload = driver.along(order.body)  # small, and just written: no thread is worth it
        crashpoint("order.answer")
        return framed(driver.name, amendment(order) if known else order, payload)

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
