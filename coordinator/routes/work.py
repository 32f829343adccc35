"""What nodes ask: the order that stands, and what to do with a report. Answers are frames of `shoal.wire`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from coordinator import views
from coordinator.access import Coord, Node, label, principal_of
from coordinator.crash import crashpoint
from coordinator.driver import Driver
from coordinator.problems import errors
from coordinator.protocol import SCOPE_KEY
from coordinator.service import Coordinator
from shoal import wire
from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.core.message import (
    Ack,
    Fail,
    Idle,
    Join,
    Kind,
    Knock,
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

router = APIRouter(tags=["node"], responses=errors(401, 403, 426))

BUSY_S = 2.0
"""How much longer a poll waits for a hub that is in the midst of something: nobody is told "nothing new" unheard."""

FRAME: dict[int | str, dict[str, Any]] = {
    200: {"description": "A frame: head length, JSON head, payload", "content": {wire.MEDIA_TYPE: {}}}
}
BODY = {
    "requestBody": {"required": True, "content": {wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


def _frame(job: str, message: Message, payload: bytes = b"") -> Response:
    return Response(wire.encode(wire.Frame(job, message, payload)), media_type=wire.MEDIA_TYPE)


LEARNED: tuple[Kind, ...] = ("train", "gossip")
"""What is asked for when a report carries what a node has learned, and its weight."""

TERM_LEAP = 1000
"""Terms rise by one when nodes go away or a coordinator starts: no node that is right knows one so much higher."""

Held = dict[str, tuple[OrderId, int]]
"""By job: the order in hand, and which form of it."""


def _held(texts: list[str]) -> Held:
    """`JOB:BOOT.N` or `JOB:BOOT.N.REV` of each order that the node works on."""
    held: Held = {}
    for text in texts:
        job, _, order = text.rpartition(":")
        parts = order.split(".")
        if not (len(parts) in (2, 3) and all(part.isdecimal() for part in parts) and len(order) < 40):
            raise InvalidPayload(f"held={text[:40]!r} is not JOB:BOOT.N.REV", code="request.invalid", hint="see /docs")
        boot, n, rev = (*map(int, parts), 0)[:3]
        held[job] = (boot, n), rev
    return held


@router.get("/work", responses={**FRAME, 204: {"description": "Nothing new in that time"}}, response_class=Response)
async def work(
    request: Request,
    node: Node,
    coordinator: Coord,
    wait_s: Annotated[float, Query(ge=0, le=300)] = 25.0,
    held: Annotated[list[str], Query(max_length=64, description="orders in hand: JOB:BOOT.N.REV")] = [],  # noqa: B006
    job: Annotated[list[str], Query(max_length=64, description="only these jobs")] = [],  # noqa: B006
) -> Response:
    """The order that stands for this node, as soon as it differs from what the node holds; a poll held open."""
    holds = _held(held)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait_s, coordinator.settings.poll_s_max)
    bell, exchange = coordinator.bells[node], request.scope.get(SCOPE_KEY)
    if exchange is not None:
        exchange.gone = bell.set  # a node that hangs up is not waited for
    _note_part(coordinator, node, set(job))
    label(request, _only_job(coordinator, node), node=node, kind="poll")
    with coordinator.presence.listening(node):
        while not (exchange is not None and exchange.closed):
            bell.clear()
            principal_of(request)  # raises when the credential was revoked meanwhile
            answer = await _news(request, coordinator, node, holds, set(job))
            if answer is not None:
                return _leased(coordinator, node, answer)
            unsure = bell.is_set() or any(not driver.rests(node) for driver in coordinator.running())
            left = deadline + (BUSY_S if unsure else 0.0) - loop.time()
            if left <= 0 or not coordinator.ready:
                break
            try:
                async with asyncio.timeout(left):
                    await bell.wait()
            except TimeoutError:
                break
    return _leased(coordinator, node, Response(status_code=204))


def _note_part(coordinator: Coordinator, node: str, only: set[str]) -> None:
    """Who polls for a job is one of those who carry it on, if he can be known."""
    for driver in coordinator.running():
        if driver.spec.gossip.allowed:
            coordinator.papers.take_part(driver.name, node, wanted=not only or driver.name in only)


def _leased(coordinator: Coordinator, node: str, answer: Response) -> Response:
    """An answer that also says, by job, in which term the coordinator is alive, and which roster it has signed."""
    leases = [
        f"{driver.name}={driver.term}.{held.roster.version}"
        for driver in coordinator.running()
        if node in coordinator.papers.peers(driver.name) and (held := coordinator.papers.held(driver.name)) is not None
    ]
    if leases:
        answer.headers["shoal-lease"] = ", ".join(leases)
    return answer


def _only_job(coordinator: Coordinator, node: str) -> str:
    """An empty poll's bytes belong to the node's job when there is just one."""
    parts = [driver.name for driver in coordinator.running() if driver.hub.roster.get(node) is not None]
    return parts[0] if len(parts) == 1 else ""


async def _news(request: Request, coordinator: Coordinator, node: str, holds: Held, only: set[str]) -> Response | None:
    """The first thing that the node does not know yet."""
    for driver in coordinator.running():
        if not driver.rests(node):  # what it says now may not have happened; the bell rings when it may be asked
            continue
        if only and driver.name not in only:
            member = driver.hub.roster.get(node)
            if member is not None and member.here:  # its hello made it one, but it takes no part
                await driver.tell(Leave(node))
            continue
        if not driver.hub.knows(node):
            await driver.tell(Poll(node))
            if not driver.rests(node):
                continue
        standing, mine = driver.hub.standing(node), holds.get(driver.name)
        if isinstance(standing, Order) and (mine is None or (standing.id, standing.rev) > mine):
            return await _order(
                request, coordinator, driver, standing, known=mine is not None and mine[0] == standing.id
            )
        if isinstance(standing, Idle) and mine is not None and _withdrawn(driver, node, mine[0]):
            label(request, driver.name, driver.hub.version, node, "poll")
            return _frame(driver.name, standing)
    for name in holds:
        record = coordinator.records.get(name)
        if record is None or record.driver is None or record.driver.ended:
            label(request, name if record else "", node=node, kind="poll")
            why = record.driver.hub.ends_after_round if record and record.driver else ""
            return _frame(name, Stop(why or ("the job has ended" if record else "there is no such job")))
    return None


def _withdrawn(driver: Driver, node: str, order: OrderId) -> bool:
    """Whether that order is in vain. (One that was answered is not: its acknowledgement is on the way.)"""
    member = driver.hub.roster.get(node)
    return member is None or member.answered is None or member.answered.order != order


async def _order(request: Request, coordinator: Coordinator, driver: Driver, order: Order, *, known: bool) -> Response:
    """An order, with its body if that is small; in short where the node has the order and it was only amended."""
    label(request, driver.name, order.version, order.node, "order")
    coordinator.presence.doing[driver.name, order.node].begin(order.id)
    payload = b""
    if not known and order.body is not None and order.body.nbytes <= wire.INLINE_BYTES_MAX:
        payload = driver.along(order.body)  # small, and just written: no thread is worth it
    crashpoint("order.answer")
    return _frame(driver.name, amendment(order) if known else order, payload)


def _decode(data: bytes, job: str, kind: type[Message]) -> wire.Frame:
    frame = wire.decode(data)
    if frame.job != job or not isinstance(frame.message, kind):
        raise InvalidPayload(f"a {kind.__name__.lower()} of job {job} is expected here", code="head.type")
    return frame


def _ended(coordinator: Coordinator, job: str) -> bool:
    driver = coordinator.record(job).driver
    return driver is None or driver.ended


@router.post("/jobs/{job}/reports", responses=FRAME | errors(404, 409), response_class=Response, openapi_extra=BODY)
async def report(job: str, request: Request, node: Node, coordinator: Coord) -> Response:
    """Take a report, once and for all: when the acknowledgement goes out, it is durable and counts exactly once."""
    coordinator.presence.heard(node)
    driver = coordinator.record(job).driver
    label(request, job, node=node, kind="report")
    try:
        frame = _decode(await request.body(), job, Report)
    except InvalidPayload as error:
        if driver is not None and driver.order_of(node) is not None:
            await _show(coordinator, driver, node, error)
        raise
    assert isinstance(frame.message, Report)
    message = replace(frame.message, node=node)  # the credential says who it is, not the body
    crashpoint("report.received")
    if driver is None or driver.ended:
        return _frame(job, Ack(message.order, False, "the job has ended"))
    label(request, job, min(message.version, driver.hub.version), node, "report")
    await driver.settled()  # a hub that is being restored knows of no order, and one that breaks now of too many
    order, answer = driver.order_of(node), driver.hub.verdict(message)
    if answer is None:
        assert order is not None
        answer = await _count(coordinator, driver, order, message, frame.payload)
    crashpoint("report.answer")
    return _frame(job, answer)


async def _count(coordinator: Coordinator, driver: Driver, order: Order, message: Report, payload: bytes) -> Ack:
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
        await _show(coordinator, driver, message.node, error)
        raise
    if answer.counted:
        doing = coordinator.presence.doing[driver.name, message.node]
        doing.finish(message.weight if order.kind in LEARNED else None, wire.plain(message.metrics))
    return answer


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


async def _show(coordinator: Coordinator, driver: Driver, node: str, error: InvalidPayload) -> None:
    """Show a refusal to people, unless the same was shown a moment ago."""
    if coordinator.presence.doing[driver.name, node].fail(error.message):
        with suppress(StorageFailed):  # a note more or less: the refusal itself is what the node must hear
            await driver.remark("refusal", f"{node}: {error.message}", node)


@router.post("/jobs/{job}/status", status_code=204, responses=errors(404), openapi_extra=BODY)
async def status(job: str, request: Request, node: Node, coordinator: Coord) -> None:
    """Where the node is in the middle of an order, if its algorithm has something to tell before it reports."""
    coordinator.presence.heard(node)
    driver = coordinator.record(job).driver
    label(request, job, driver.hub.version if driver else -1, node, "status")
    frame = _decode(await request.body(), job, Status)
    assert isinstance(frame.message, Status)
    if driver is None or driver.ended:
        return
    coordinator.presence.doing[job, node].metrics.update(wire.plain(frame.message.values))
    await driver.tell(replace(frame.message, node=node))


@router.post("/jobs/{job}/failures", responses=FRAME | errors(404, 409), response_class=Response, openapi_extra=BODY)
async def failure(job: str, request: Request, node: Node, coordinator: Coord) -> Response:
    """Take note that an order cannot be done; the schedule decides who does it instead."""
    coordinator.presence.heard(node)
    ended = _ended(coordinator, job)
    label(request, job, -1, node, "failure")
    frame = _decode(await request.body(), job, Fail)
    assert isinstance(frame.message, Fail)
    message = replace(frame.message, node=node, error=frame.message.error[:1000])
    if ended:
        return _frame(job, Ack(message.order, False, "the job has ended"))
    driver = coordinator.driver(job)
    await driver.settled()
    order = driver.order_of(node)
    if order is not None and order.id == message.order:  # else it is withdrawn already, and nobody's concern
        coordinator.presence.doing[job, node].fail(message.error)
    return _frame(job, await driver.answer(message, node))


@router.post("/jobs/{job}/knock", responses=errors(404, 409, 410))
async def knock(job: str, body: views.Knock, request: Request, node: Node, coordinator: Coord) -> views.Lease:
    """Whether the coordinator is there, asked by a node that carries on without it. No sign of life: it polls nothing.

    The term in the answer is above the one that was told. 410: the job has ended; a poll would say Stop.
    """
    ended = _ended(coordinator, job)
    label(request, job, node=node, kind="knock")
    if ended:
        raise _over(coordinator, job)
    driver = coordinator.driver(job)
    driver.check_gossip()
    await driver.settled()
    if body.term > driver.hub.boot + TERM_LEAP:
        raise Refused(
            f"term {body.term} is too far above the job's, which is {driver.hub.boot}",
            code="term.leap",
            hint="terms rise by one at a time; remove what the node keeps of this job",
        )
    if body.term >= driver.hub.boot:
        await driver.tell(Knock(node, body.term))
    return views.Lease(term=driver.hub.boot, ttl_s=driver.spec.gossip.ttl_s)


def _over(coordinator: Coordinator, job: str) -> Refused:
    """That a job has ended, and why."""
    driver = coordinator.record(job).driver
    why = driver.hub.ends_after_round if driver is not None else ""
    return Refused(
        f"job {job} has ended{f': {why}' if why else ''}",
        code="job.over",
        hint="keep what was learned, if it is wanted, and stop",
    )


@router.post("/jobs/{job}/join", responses=FRAME | errors(404, 409), response_class=Response)
async def join(job: str, body: views.Return, request: Request, node: Node, coordinator: Coord) -> Response:
    """A node is back, perhaps from a time without the coordinator: then all are asked to hand back what they have."""
    ended = _ended(coordinator, job)
    label(request, job, node=node, kind="join")
    if ended:
        return _frame(job, Stop(_over(coordinator, job).message))
    driver = coordinator.driver(job)
    if body.away is not None:
        driver.check_gossip()
    coordinator.presence.heard(node)
    coordinator.papers.take_part(job, node)
    await driver.tell(Join(node, body.away))
    await driver.settled()
    standing = driver.hub.standing(node)
    if isinstance(standing, Order):
        return await _order(request, coordinator, driver, standing, known=False)
    return _frame(job, standing)


@router.post("/beat", status_code=204, responses=errors(404))
async def beat(body: views.Beat, request: Request, node: Node, coordinator: Coord) -> None:
    """How far the node is with its order."""
    coordinator.presence.heard(node)
    if body.job not in coordinator.records:
        raise Refused(f"no job is called {body.job!r}", code="job.unknown", hint="poll for the order that stands")
    doing = coordinator.presence.doing[body.job, node]
    driver = coordinator.records[body.job].driver
    label(request, body.job, driver.hub.version if driver else -1, node, "beat")
    if doing.order is not None and f"{doing.order[0]}.{doing.order[1]}" == body.order:
        doing.progress = body.progress


@router.post("/leave", status_code=204)
async def leave(request: Request, node: Node, coordinator: Coord) -> None:
    """The node goes and hands its orders back."""
    label(request, _only_job(coordinator, node), node=node, kind="leave")
    await coordinator.tell_all(Leave(node))
    coordinator.presence.leases.forget(node)
