"""Requests that a peer relays for a node without a connection to the coordinator."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Query, Request, Response

from shoal.core.errors import InvalidPayload, NotAllowed, ShoalError
from shoal.core.protocol.message import (
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    Leave,
    Message,
    Poll,
    Report,
    TaskFailed,
    TaskStatus,
)
from shoal.core.protocol.peer_message import RelayRequest
from shoal.trust.codes import refusal
from shoal.trust.envelope import sha256
from shoal.wire import codec, peer_codec
from shoal_coordinator.api.authentication import Node
from shoal_coordinator.api.dependencies import Relays, Services
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http import problems
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.node_protocol.node_messages import NodeProtocolHandler, held_task
from shoal_coordinator.node_protocol.node_request import frame_response
from shoal_coordinator.node_protocol.report_pipeline import ReportPipeline

router = api_router(tags=["node"], responses=errors(401, 403, 404, 409, 426))

BATCH = {
    "requestBody": {
        "required": True,
        "content": {peer_codec.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class RelayParams(NamedTuple):
    """The parameters of a relayed request."""

    term: int
    incarnation: int
    wait_s: float
    held: str


async def _relay_params(
    term: Annotated[int, Query(ge=0, lt=2**63, description="the coordinator's, as the node knows it")],
    incarnation: Annotated[
        int, Query(ge=0, lt=2**53, description="which has that term, as the node knows it; 0: any")
    ] = 0,
    wait_s: Annotated[float, Query(ge=0, le=300, description="seconds that a Poll waits for something new")] = 0.0,
    held: Annotated[str, Query(max_length=64, description="the task in hand, which is not new: TERM.N.REVISION")] = "",
) -> RelayParams:
    return RelayParams(term, incarnation, wait_s, held)


@router.post(
    "/jobs/{job}/relay",
    response_class=Response,
    responses={200: {"description": "A frame, signed", "content": {codec.MEDIA_TYPE: {}}}},
    openapi_extra=BATCH,
)
async def relay_message(
    job: str,
    request: Request,
    carrier: Node,
    relays: Relays,
    services: Services,
    asked: Annotated[RelayParams, Depends(_relay_params)],
) -> Response:
    """Relay a signed message batch of another node. The coordinator signs the answer."""
    term, incarnation, wait_s, held = asked
    runner = services.jobs.job(job).runner or services.jobs.runner(job)  # that it has ended is an answer like any other
    runner.check_gossip()
    label(request, job, runner.hub.progress.version, carrier, "relay")  # until its sender is known
    claim = relays.verify_head(job, carrier, request)
    data = await request.body()
    place = 4 + peer_codec.head_bytes(data)
    node = relays.accept(claim, sha256(data[:place]))
    try:
        message, payload = _opened(job, data[4:place]), data[place:]
        _check_sender(message, node)
        handler = NodeProtocolHandler(request, services, job, node)
        present = frame_response(
            job, CoordinatorAlive(runner.gate.term)
        )  # the whole answer to a message for another term
        if term != runner.gate.term:
            answer = present
        elif incarnation not in (0, runner.gate.incarnation):
            raise refusal(
                "trust.term-forked",
                f"for incarnation {incarnation:x} of term {term}; this is {runner.gate.incarnation:x}",
            )
        elif isinstance(message, Poll) and wait_s:
            answer = await handler.wait_for_task(held_task(held) if held else None, wait_s)
        else:
            answer = await _heard(handler, message, payload)
    except ShoalError as error:
        answer = problems.of(error, request.url.path)
    label(request, job, runner.hub.progress.version, node, "relay")
    return await relays.sign(claim.signed, answer)


def _opened(job: str, head: bytes) -> Message:
    """Decode the message. Raises `InvalidPayload`."""
    batch = peer_codec.decode(head)
    said = batch.messages[0]
    if batch.job != job or len(batch.messages) != 1 or not isinstance(said, RelayRequest):
        raise InvalidPayload(f"a message batch of job {job} with one relay is expected here", code="head.type")
    return said.message


def _check_sender(message: Message, node: str) -> None:
    """Raise `NotAllowed` for a message whose node is not its signer."""
    if getattr(message, "node", node) != node:
        hint = "sign requests with your own key"
        raise NotAllowed(f"{node} speaks for another", code="relay.sender", hint=hint)


async def _heard(handler: NodeProtocolHandler, message: Message, payload: bytes) -> Response:  # noqa: PLR0911 - a line for each
    if payload and not isinstance(message, Report):
        raise InvalidPayload("only a report brings a body", code="payload.unwanted")
    match message:
        case Report():
            handler.services.presence.mark_alive(handler.node)
            with handler.services.metrics.counting_refusals():
                report = ReportPipeline(handler.request, handler.services, handler.job, handler.node, handler.since)
                return await report.accept_report(message, payload)
        case Poll():
            return await handler.handle_poll()
        case Join():
            return await handler.handle_join(message.gossip_rounds)
        case CoordinatorPing():
            return frame_response(handler.job, await handler.handle_ping(message.term))
        case TaskFailed():
            handler.services.presence.mark_alive(handler.node)
            return await handler.handle_failure(message)
        case TaskStatus():
            handler.services.presence.mark_alive(handler.node)
            await handler.handle_status(message)
            return Response()
        case Leave():
            await handler.handle_leave()
            return Response()
    raise InvalidPayload(f"a {message.type_name} is not for a node to say", code="head.type")
