"""What nodes ask: the order that stands, and what to do with a report. Answers are frames of `shoal.wire`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from shoal import wire
from shoal.core.errors import Refused
from shoal.core.message import Fail, Leave, OrderId, Status, Stop
from shoal_coordinator import views
from shoal_coordinator.access import Coord, Node, hear, label, principal_of
from shoal_coordinator.deputies import LABEL, passed_on
from shoal_coordinator.driver import Driver
from shoal_coordinator.hearing import Hearing, decoded, held_order
from shoal_coordinator.problems import errors
from shoal_coordinator.protocol import SCOPE_KEY
from shoal_coordinator.service import Coordinator
from shoal_coordinator.steering import HEADER

router = APIRouter(tags=["node"], responses=errors(401, 403, 426))

BUSY_S = 2.0
"""How much longer a poll waits for a hub that is in the midst of something: nobody is told "nothing new" unheard."""

FRAME: dict[int | str, dict[str, Any]] = {
    200: {"description": "A frame: head length, JSON head, payload", "content": {wire.MEDIA_TYPE: {}}}
}
BODY = {
    "requestBody": {"required": True, "content": {wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


Held = dict[str, tuple[OrderId, int]]
"""By job: the order in hand, and which form of it."""


class Caller(NamedTuple):
    """Who polls, and where."""

    request: Request
    coordinator: Coordinator
    node: str


def held_orders(texts: list[str]) -> Held:
    """`JOB:BOOT.N` or `JOB:BOOT.N.REV` of each order that the node works on."""
    split = [text.rpartition(":") for text in texts]
    return {job: held_order(order) for job, _, order in split}


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
    return await answer_poll(request, coordinator, node, wait_s, held, job)


async def answer_poll(
    request: Request, coordinator: Coordinator, node: str, wait_s: float, held: list[str], job: list[str]
) -> Response:
    """The answer to a poll whose parameters are within their limits."""
    holds, only = held_orders(held), set(job)
    loop = asyncio.get_running_loop()
    came = loop.time()
    deadline = came + min(wait_s, coordinator.settings.poll_s_max)
    bell, exchange = coordinator.bells[node], request.scope.get(SCOPE_KEY)
    if exchange is not None:
        exchange.gone = bell.set  # a node that hangs up is not waited for
    running = coordinator.running()
    _note_part(coordinator, node, running, only)
    label(request, _only_job(running, node), node=node, kind="poll")
    coordinator.relays.found(node)
    hear(request, coordinator, node)
    with coordinator.presence.listening(node):
        while not (exchange is not None and exchange.closed):
            bell.clear()
            principal_of(request)  # raises when the credential was revoked meanwhile
            running = coordinator.running()
            answer = await _in_turn(Caller(request, coordinator, node), held, holds, only)
            if answer is not None:
                return _leased(coordinator, node, running, answer)
            unsure = bell.is_set() or any(not driver.rests(node) for driver in running)
            left = deadline + (BUSY_S if unsure else 0.0) - loop.time()
            if left <= 0 or not coordinator.ready:
                break
            try:
                async with asyncio.timeout(left):
                    await bell.wait()
            except TimeoutError:
                break
    return _leased(coordinator, node, running, _paused(coordinator, node, loop.time() - came))


async def _in_turn(caller: Caller, held: list[str], holds: Held, only: set[str]) -> Response | None:
    """What is new here, or at a deputy; whose turn it is, is asked first."""
    coordinator = caller.coordinator
    first = coordinator.turns.deputies_first(caller.node)
    answer = await _from_deputies(caller, held, only) if first else None
    if answer is None:
        answer = await news_in_turn(caller, holds, only)
    return await _from_deputies(caller, held, only) if answer is None and not first else answer


async def news_in_turn(caller: Caller, holds: Held, only: set[str]) -> Response | None:
    """What is new here, of the job whose turn it is; the next time it comes last."""
    coordinator, node = caller.coordinator, caller.node
    answer = await news(caller, coordinator.turns.drivers(node, coordinator.running()), holds, only)
    exchange = caller.request.scope.get(SCOPE_KEY)
    if answer is not None and exchange is not None:
        coordinator.turns.gave(node, exchange.label.job)
    return answer


async def _from_deputies(caller: Caller, held: list[str], only: set[str]) -> Response | None:
    request, coordinator, node = caller
    reply = await coordinator.deputies.news(node, held, only)
    if reply is None:
        return None
    job, version, kind = reply.headers[LABEL].split(" ")
    label(request, job, int(version), node, kind)
    return passed_on(reply)


def _paused(coordinator: Coordinator, node: str, held_s: float) -> Response:
    """Nothing new; and when to come again, where there are many who do."""
    pause_s = coordinator.steering.pause_s(held_s)
    if not pause_s:
        return Response(status_code=204)
    coordinator.presence.pause(node, pause_s)
    return Response(status_code=204, headers={HEADER: f"{pause_s:.2f}"})


def _note_part(coordinator: Coordinator, node: str, running: Sequence[Driver], only: set[str]) -> None:
    """Who polls for a job is one of those who carry it on, if he can be known."""
    for driver in running:
        if driver.spec.gossip.allowed:
            wanted = (not only or driver.name in only) and node not in driver.hub.foreign
            coordinator.papers.take_part(driver.name, node, wanted=wanted)


def _leased(coordinator: Coordinator, node: str, running: Sequence[Driver], answer: Response) -> Response:
    """An answer that also says, by job, in which term the coordinator is alive, and which roster it has signed."""
    leases = [
        f"{driver.name}={driver.term}.{held.roster.version}"
        for driver in running
        if node in coordinator.papers.peers(driver.name) and (held := coordinator.papers.held(driver.name)) is not None
    ]
    if leases:
        answer.headers["shoal-lease"] = ", ".join(leases)
    return answer


def _only_job(running: Sequence[Driver], node: str) -> str:
    """An empty poll's bytes belong to the node's job when there is just one."""
    parts = [driver.name for driver in running if driver.hub.roster.get(node) is not None]
    return parts[0] if len(parts) == 1 else ""


async def news(caller: Caller, running: Sequence[Driver], holds: Held, only: set[str]) -> Response | None:
    """The first thing that the node does not know yet."""
    coordinator, node = caller.coordinator, caller.node
    for driver in running:
        if not driver.rests(node):  # what it says now may not have happened; the bell rings when it may be asked
            continue
        if only and driver.name not in only:
            member = driver.hub.roster.get(node)
            if member is not None and member.here:  # its hello made it one, but it takes no part
                await driver.tell(Leave(node))
            continue
        hearing = Hearing(caller.request, coordinator, driver.name, node)
        if await hearing.seen(driver) and not driver.rests(node):
            continue
        found = hearing.news(driver, holds.get(driver.name))
        if found is not None:
            return found
    for name in holds:
        record = coordinator.records.get(name)
        if record is None and (coordinator.was_rebuilt or coordinator.is_elsewhere(name)):
            continue  # of a rebuilt one too: it may be given what a node has kept
        if record is None or record.driver is None or record.driver.ended:
            label(caller.request, name if record else "", node=node, kind="poll")
            why = record.driver.hub.ends_after_round if record and record.driver else ""
            return Hearing(caller.request, coordinator, name, node).framed(
                Stop(why or ("the job has ended" if record else "there is no such job"))
            )
    return None


@router.post("/jobs/{job}/reports", responses=FRAME | errors(404, 409), response_class=Response, openapi_extra=BODY)
async def report(job: str, request: Request, node: Node, coordinator: Coord) -> Response:
    """Take a report, once and for all: when the acknowledgement goes out, it is durable and counts exactly once."""
    return await Hearing(request, coordinator, job, node).report(request.body)


@router.post("/jobs/{job}/status", status_code=204, responses=errors(404), openapi_extra=BODY)
async def status(job: str, request: Request, node: Node, coordinator: Coord) -> None:
    """Where the node is in the middle of an order, if its algorithm has something to tell before it reports."""
    hear(request, coordinator, node)
    driver = coordinator.record(job).driver
    label(request, job, driver.hub.version if driver else -1, node, "status")
    frame = decoded(await request.body(), job, Status)
    assert isinstance(frame.message, Status)
    await Hearing(request, coordinator, job, node).status(frame.message)


@router.post("/jobs/{job}/failures", responses=FRAME | errors(404, 409), response_class=Response, openapi_extra=BODY)
async def failure(job: str, request: Request, node: Node, coordinator: Coord) -> Response:
    """Take note that an order cannot be done; the schedule decides who does it instead."""
    hear(request, coordinator, node)
    coordinator.record(job)
    label(request, job, -1, node, "failure")
    frame = decoded(await request.body(), job, Fail)
    assert isinstance(frame.message, Fail)
    return await Hearing(request, coordinator, job, node).failure(frame.message)


@router.post("/jobs/{job}/knock", responses=errors(404, 409, 410))
async def knock(job: str, body: views.Knock, request: Request, node: Node, coordinator: Coord) -> views.Lease:
    """Whether the coordinator is there, asked by a node that carries on without it. No sign of life: it polls nothing.

    The term in the answer is above the one that was told. 410: the job has ended; a poll would say Stop.
    """
    lease = await Hearing(request, coordinator, job, node).knock(body.term)
    return views.Lease(term=lease.term, ttl_s=coordinator.driver(job).spec.gossip.ttl_s)


@router.post("/jobs/{job}/join", responses=FRAME | errors(404, 409), response_class=Response)
async def join(job: str, body: views.Return, request: Request, node: Node, coordinator: Coord) -> Response:
    """A node is back, perhaps from a time without the coordinator: then all are asked to hand back what they have."""
    return await Hearing(request, coordinator, job, node).join(body.away)


@router.post("/beat", status_code=204, responses=errors(404))
async def beat(body: views.Beat, request: Request, node: Node, coordinator: Coord) -> None:
    """How far the node is with its order."""
    if coordinator.deputies.owns(body.job):
        hear(request, coordinator, node)
        label(request, body.job, -1, node, "beat")
        await coordinator.deputies.beat(body.job, node, body.model_dump())
    else:
        heard_beat(request, coordinator, node, body)


def heard_beat(request: Request, coordinator: Coordinator, node: str, body: views.Beat) -> None:
    """Take note of it. Raises `Refused` for a job that there is not."""
    hear(request, coordinator, node)
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
    label(request, _only_job(coordinator.running(), node), node=node, kind="leave")
    await coordinator.admission.leave(node)
