"""What a node says through another, when its own way to the coordinator is broken."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from shoal import peer_wire, wire
from shoal.core.errors import InvalidPayload, NotAllowed, ShoalError
from shoal.core.message import Fail, Join, Knock, Lease, Leave, Message, Poll, Report, Status
from shoal.core.peer_message import Relay
from shoal.trust.codes import refusal
from shoal.trust.envelope import sha256
from shoal_coordinator import problems
from shoal_coordinator.access import Coord, Node, label
from shoal_coordinator.hearing import Hearing, framed, held_order
from shoal_coordinator.problems import errors

router = APIRouter(tags=["node"], responses=errors(401, 403, 404, 409, 426))

LETTER = {
    "requestBody": {
        "required": True,
        "content": {peer_wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(
    "/jobs/{job}/relay",
    response_class=Response,
    responses={200: {"description": "A frame, signed", "content": {wire.MEDIA_TYPE: {}}}},
    openapi_extra=LETTER,
)
async def relay(
    job: str,
    request: Request,
    carrier: Node,
    coordinator: Coord,
    term: Annotated[int, Query(ge=0, lt=2**63, description="the coordinator's, as the node knows it")],
    life: Annotated[int, Query(ge=0, lt=2**53, description="which has that term, as the node knows it; 0: any")] = 0,
    wait_s: Annotated[float, Query(ge=0, le=300, description="a Poll waits so long for something new")] = 0.0,
    held: Annotated[str, Query(max_length=64, description="the order in hand, which is not new: BOOT.N.REV")] = "",
) -> Response:
    """A node's word in the hands of another: a letter that it has signed. So is the answer, by the coordinator."""
    driver = coordinator.record(job).driver or coordinator.driver(job)  # that it has ended is an answer like any other
    driver.check_gossip()
    label(request, job, driver.hub.version, carrier, "relay")  # until it is known whose word it is
    claim = coordinator.relays.examine(job, carrier, request)
    data = await request.body()
    place = 4 + peer_wire.head_bytes(data)
    node = coordinator.relays.admit(claim, sha256(data[:place]))
    try:
        message, payload = _opened(job, data[4:place]), data[place:]
        _check_sender(message, node)
        hearing = Hearing(request, coordinator, job, node)
        present = framed(job, Lease(driver.term))  # all the answer to what was said to another life of the coordinator
        if term != driver.term:
            answer = present
        elif life not in (0, driver.life):
            raise refusal("trust.lease-forked", f"for boot {life:x} of term {term}; this is boot {driver.life:x}")
        elif isinstance(message, Poll) and wait_s:
            answer = await hearing.wait(held_order(held) if held else None, wait_s)
        else:
            answer = await _heard(hearing, message, payload)
    except ShoalError as error:
        answer = problems.of(error, request.url.path)
    label(request, job, driver.hub.version, node, "relay")
    return await coordinator.relays.sign(claim.signed, answer)


def _opened(job: str, head: bytes) -> Message:
    """What is said. Raises `InvalidPayload`."""
    letter = peer_wire.decode(head)
    said = letter.messages[0]
    if letter.job != job or len(letter.messages) != 1 or not isinstance(said, Relay):
        raise InvalidPayload(f"a letter of job {job} with one relay is expected here", code="head.type")
    return said.message


def _check_sender(message: Message, node: str) -> None:
    """Raise `NotAllowed` for a message in the name of another than has signed it."""
    if getattr(message, "node", node) != node:
        hint = "sign what you say with your own key"
        raise NotAllowed(f"{node} speaks for another", code="relay.sender", hint=hint)


async def _heard(hearing: Hearing, message: Message, payload: bytes) -> Response:  # noqa: PLR0911 - a line for each
    if payload and not isinstance(message, Report):
        raise InvalidPayload("only a report brings a body", code="payload.unwanted")
    match message:
        case Report():
            hearing.coordinator.presence.heard(hearing.node)
            with hearing.coordinator.metrics.counting_refusals():
                return await hearing.reported(message, payload)
        case Poll():
            return await hearing.poll()
        case Join():
            return await hearing.join(message.away)
        case Knock():
            return framed(hearing.job, await hearing.knock(message.term))
        case Fail():
            hearing.coordinator.presence.heard(hearing.node)
            return await hearing.failure(message)
        case Status():
            hearing.coordinator.presence.heard(hearing.node)
            await hearing.status(message)
            return Response()
        case Leave():
            await hearing.leave()
            return Response()
    raise InvalidPayload(f"a {type(message).__name__.lower()} is not for a node to say", code="head.type")
