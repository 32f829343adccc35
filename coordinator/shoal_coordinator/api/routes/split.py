"""Split jobs: the exchange with nodes, as frames of `shoal.wire.split_codec`, and views."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request, Response

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.split_message import FromSplitNode, NoTurn
from shoal.core.split.part_state import DONE
from shoal.core.split.split_coordinator import SplitState
from shoal.runtime.http.server.body_limits import check_body
from shoal.wire import codec, split_codec
from shoal.wire.split_codec import SplitFrame
from shoal_coordinator.api.authentication import DashboardReader, Node, ReaderOrNode
from shoal_coordinator.api.dependencies import ByteCounts, Services, SplitJobs
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.api.routes.work import BODY, FRAME
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.node_protocol.held_polls import hold_poll
from shoal_coordinator.schemas.jobs import (
    JobState,
    SplitJobDetail,
    SplitJobList,
    SplitJobView,
    SplitNodeView,
    SplitVersionView,
)
from shoal_coordinator.telemetry.traffic import Spent, TrafficCounter

if TYPE_CHECKING:
    from shoal_coordinator.split.split_runner import SplitJobRunner

router = api_router(tags=["node"], responses=errors(401, 403, 404))


@router.get("/split")
async def list_split_jobs(_: DashboardReader, split_jobs: SplitJobs, traffic: ByteCounts) -> SplitJobList:
    """Return all split jobs, without their rounds."""
    return SplitJobList(split_jobs=[SplitJobView(**_summary(one, traffic)) for one in split_jobs.runners])


@router.get("/split/{job}")
async def show_split_job(
    job: str, request: Request, reader: ReaderOrNode, split_jobs: SplitJobs, traffic: ByteCounts
) -> SplitJobDetail:
    """Return a split job. A node sees no other nodes: their errors may tell something about their data."""
    runner, node = split_jobs.runner(job), reader.name if reader is not None and reader.role == "node" else ""
    found = SplitJobDetail(**_summary(runner, traffic), versions=_versions(runner, traffic))
    if not node:
        label(request, kind="dashboard")
        return found
    label(request, job, node=node)
    return found.model_copy(update={"nodes": [one for one in found.nodes if one.name == node], "versions": []})


def _summary(runner: SplitJobRunner, traffic: TrafficCounter) -> dict[str, Any]:
    """Return the fields of a view."""
    (up, down), about, job = runner.step_bytes, runner.about, runner.spec.name
    return {
        "name": job,
        "state": _state(runner),
        "id": about["id"],
        "spec": about["spec"],
        "form": runner.form,
        "forms": runner.forms,
        "merge_small": runner.merge_small,
        "round": runner.state.round,
        "ended": runner.state.ended,
        "nodes": _nodes(runner),
        "metrics": codec.plain(about["versions"][-1]["metrics"]) if about["versions"] else {},
        "step_up_bytes": up,
        "step_down_bytes": down,
        "up_bytes": traffic.totals[job, "up"],
        "down_bytes": traffic.totals[job, "down"],
    }


def _state(runner: SplitJobRunner) -> JobState:
    if runner.state.ended:
        return "done" if runner.state.ended == DONE else "failed"
    wanted = len(runner.spec.parties) or runner.spec.nodes
    return "waiting" if len(runner.state.nodes) < wanted else "running"


def _nodes(runner: SplitJobRunner) -> list[SplitNodeView]:
    """Return the nodes that take part, then the excluded ones."""
    state, batches = runner.state, runner.state.turn_batches
    joined = [SplitNodeView(name=one, turn_batches=batches.get(one), excluded="") for one in state.nodes]
    excluded = [*state.excluded.items()] if isinstance(state, SplitState) else []  # a copy: the job's thread may write
    return [*joined, *(SplitNodeView(name=one, turn_batches=None, excluded=why) for one, why in excluded)]


def _versions(runner: SplitJobRunner, traffic: TrafficCounter) -> list[SplitVersionView]:
    """Return the closed rounds. Bytes before the first one, of nodes that join, count with it."""
    rows = runner.about["versions"]
    spent = [Spent(0, 0), *traffic.spent(runner.spec.name, [one["number"] for one in rows])]
    return [
        SplitVersionView(
            **row | {"metrics": codec.plain(row["metrics"])},
            up_bytes=now.up - before.up,
            down_bytes=now.down - before.down,
        )
        for row, (before, now) in zip(rows, pairwise(spent), strict=True)
    ]


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
    wait_s: Annotated[
        float, Query(ge=0, le=300, description="longest time to wait for a turn, or for other nodes")
    ] = 0.0,
) -> Response:
    """Take one message of a node, and return the answer, which is durable before."""
    runner = split_jobs.runner(job)
    check_body(request.scope, split_codec.frame_bytes_max(runner.payload_bytes_max), "send the tensors of one batch")
    label(request, job, runner.state.round, node, "split")
    frame = split_codec.decode(await request.body(), runner.payload_bytes_max)
    message, payload = frame.message, frame.payload
    if frame.job != job or not isinstance(message, FromSplitNode) or message.node != node:
        raise InvalidPayload(f"a message of {node} about {job} is expected here", code="head.type")

    async def answer() -> Response | None:
        found = await runner.handle(message, payload)
        if found is None or isinstance(found.message, NoTurn):
            return None
        return Response(split_codec.encode(SplitFrame(job, *found)), media_type=codec.MEDIA_TYPE)

    found = await hold_poll(request, services, node, wait_s, answer)
    return found or Response(status_code=204)
