"""Split jobs: the exchange with nodes, as frames of `shoal.wire.split_codec`, and a view."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.split_message import FromSplitNode, NoTurn, SplitPoll
from shoal.runtime.http.server.body_limits import check_body
from shoal.wire import codec, split_codec
from shoal.wire.split_codec import SplitFrame
from shoal_coordinator.api.authentication import Node, ReaderOrNode
from shoal_coordinator.api.dependencies import ByteCounts, Services, SplitJobs
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.api.routes.work import BODY, FRAME
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label, mark_alive
from shoal_coordinator.node_protocol.held_polls import hold_poll
from shoal_coordinator.schemas.jobs import SplitJobView, SplitVersionView

router = api_router(tags=["node"], responses=errors(401, 403, 404))


@router.get("/split/{job}")
async def show_split_job(
    job: str, request: Request, _: ReaderOrNode, split_jobs: SplitJobs, traffic: ByteCounts
) -> SplitJobView:
    """Return a split job."""
    label(request, job)
    runner = split_jobs.runner(job)
    (up, down), about = runner.step_bytes, runner.about
    return SplitJobView(
        id=about["id"],
        spec=about["spec"],
        form=runner.form,
        round=runner.state.round,
        ended=runner.state.ended,
        nodes=list(runner.state.nodes),
        step_up_bytes=up,
        step_down_bytes=down,
        up_bytes=traffic.totals[job, "up"],
        down_bytes=traffic.totals[job, "down"],
        versions=[
            SplitVersionView(number=one["number"], nodes=one["nodes"], metrics=codec.plain(one["metrics"]))
            for one in about["versions"]
        ],
    )


@router.post(
    "/split/{job}",
    responses={**FRAME, 204: {"description": "The message is for another position; send it again"}, **errors(409)},
    response_class=Response,
    openapi_extra=BODY,
)
async def exchange_split_frame(
    job: str,
    request: Request,
    node: Node,
    split_jobs: SplitJobs,
    services: Services,
    wait_s: Annotated[float, Query(ge=0, le=300, description="for a poll: longest time until a turn begins")] = 0.0,
) -> Response:
    """Take one message of a node, and return the answer, which is durable before."""
    runner = split_jobs.runner(job)
    check_body(request.scope, split_codec.frame_bytes_max(runner.payload_bytes_max), "send the tensors of one batch")
    label(request, job, runner.state.round, node, "split")
    frame = split_codec.decode(await request.body(), runner.payload_bytes_max)
    message, payload = frame.message, frame.payload
    if frame.job != job or not isinstance(message, FromSplitNode) or message.node != node:
        raise InvalidPayload(f"a message of {node} about {job} is expected here", code="head.type")
    mark_alive(request, services.presence, node)

    async def answer() -> Response | None:
        found = await runner.handle(message, payload)
        if found is None or isinstance(found.message, NoTurn):
            return None
        return Response(split_codec.encode(SplitFrame(job, *found)), media_type=codec.MEDIA_TYPE)

    is_poll = isinstance(message, SplitPoll)
    found = await (hold_poll(request, services, node, wait_s, answer) if is_poll else answer())
    return found or Response(status_code=204)
