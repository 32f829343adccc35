"""Requests of nodes: polls, reports, failures, pings. Answers are frames (`shoal.wire`)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Query, Request, Response

from shoal.core.protocol.message import TaskFailed, TaskStatus
from shoal.wire import codec
from shoal_coordinator.api.authentication import Node, principal_of
from shoal_coordinator.api.dependencies import (
    JobsOfFollowers,
    NodePresence,
    Polls,
    Registrar,
    Registry,
    Routes,
    Services,
)
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label, mark_alive
from shoal_coordinator.node_protocol.node_messages import NodeProtocolHandler
from shoal_coordinator.node_protocol.node_request import decode_frame
from shoal_coordinator.node_protocol.report_pipeline import ReportPipeline
from shoal_coordinator.schemas.nodes import CoordinatorPingRequest, HeartbeatRequest, LeaseView, RejoinRequest

router = api_router(tags=["node"], responses=errors(401, 403, 426))

FRAME: dict[int | str, dict[str, Any]] = {
    200: {"description": "A frame: head length, JSON head, payload", "content": {codec.MEDIA_TYPE: {}}}
}
BODY = {
    "requestBody": {"required": True, "content": {codec.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get("/work", responses={**FRAME, 204: {"description": "Nothing new in that time"}}, response_class=Response)
async def poll_task(
    request: Request,
    node: Node,
    polls: Polls,
    wait_s: Annotated[float, Query(ge=0, le=300)] = 25.0,
    held: Annotated[list[str], Query(max_length=64, description="tasks in hand: JOB:TERM.N.REVISION")] = [],  # noqa: B006
    job: Annotated[list[str], Query(max_length=64, description="only these jobs")] = [],  # noqa: B006
) -> Response:
    """Poll for the node's task. The request is held open until the task differs from those in `held`."""
    return await polls.answer(request, node, wait_s, held, job, partial(principal_of, request))


@router.post("/jobs/{job}/reports", responses=FRAME | errors(404, 409), response_class=Response, openapi_extra=BODY)
async def send_report(job: str, request: Request, node: Node, services: Services) -> Response:
    """Accept a report. It is durable before the acknowledgement and counts exactly once."""
    return await ReportPipeline(request, services, job, node).handle_report(request.body)


@router.post("/jobs/{job}/status", status_code=204, responses=errors(404), openapi_extra=BODY)
async def report_task_status(
    job: str, request: Request, node: Node, registry: Registry, presence: NodePresence, services: Services
) -> None:
    """Report the status of a task in progress, for algorithms that need it."""
    mark_alive(request, presence, node)
    runner = registry.job(job).runner
    label(request, job, runner.hub.progress.version if runner else -1, node, "status")
    frame = decode_frame(await request.body(), job, TaskStatus)
    assert isinstance(frame.message, TaskStatus)
    await NodeProtocolHandler(request, services, job, node).handle_status(frame.message)


@router.post("/jobs/{job}/failures", responses=FRAME | errors(404, 409), response_class=Response, openapi_extra=BODY)
async def report_task_failure(
    job: str, request: Request, node: Node, registry: Registry, presence: NodePresence, services: Services
) -> Response:
    """Report that a task failed. The schedule decides about a replacement."""
    mark_alive(request, presence, node)
    registry.job(job)
    label(request, job, -1, node, "failure")
    frame = decode_frame(await request.body(), job, TaskFailed)
    assert isinstance(frame.message, TaskFailed)
    return await NodeProtocolHandler(request, services, job, node).handle_failure(frame.message)


@router.post("/jobs/{job}/ping", responses=errors(404, 409, 410))
async def ping_coordinator(
    job: str, body: CoordinatorPingRequest, request: Request, node: Node, registry: Registry, services: Services
) -> LeaseView:
    """Ping the coordinator from a node in gossip mode. Does not renew the node's lease.

    The term in the answer is above the node's. 410: the job has ended.
    """
    lease = await NodeProtocolHandler(request, services, job, node).handle_ping(body.term)
    return LeaseView(term=lease.term, ttl_s=registry.runner(job).spec.gossip.coordinator_timeout_s)


@router.post("/jobs/{job}/join", responses=FRAME | errors(404, 409), response_class=Response)
async def rejoin_job(job: str, body: RejoinRequest, request: Request, node: Node, services: Services) -> Response:
    """Rejoin a job. If the node trained by gossip, all nodes are asked to hand their models back."""
    return await NodeProtocolHandler(request, services, job, node).handle_join(body.gossip_rounds)


@router.post("/heartbeat", status_code=204, responses=errors(404))
async def send_heartbeat(
    body: HeartbeatRequest,
    request: Request,
    node: Node,
    presence: NodePresence,
    routes: Routes,
    follower_jobs: JobsOfFollowers,
    services: Services,
) -> None:
    """Report the progress of a task."""
    if routes.owns(body.job):
        mark_alive(request, presence, node)
        label(request, body.job, -1, node, "heartbeat")
        await follower_jobs.forward_heartbeat(body.job, node, body.model_dump())
    else:
        NodeProtocolHandler(request, services, body.job, node).handle_heartbeat(body.task, body.progress)


@router.post("/leave", status_code=204)
async def leave_jobs(request: Request, node: Node, node_registry: Registrar, polls: Polls) -> None:
    """Leave all jobs; the node's tasks are withdrawn."""
    label(request, polls.only_job(node), node=node, kind="leave")
    await node_registry.leave(node)
