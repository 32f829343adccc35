"""Requests between coordinators of one database (`shoal_coordinator.cluster.rpc`); all others get 404."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from shoal.core.errors import Refused
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal_coordinator.api.dependencies import (
    KnownCredentials,
    NodePresence,
    NodeWakeups,
    Polls,
    Registrar,
    Routes,
    Services,
    Syncs,
)
from shoal_coordinator.cluster.follower_polls import LABEL
from shoal_coordinator.http.client_certificates import VOUCHED_KEY
from shoal_coordinator.node_protocol.node_messages import NodeProtocolHandler
from shoal_coordinator.node_protocol.task_polls import TaskPolls, held_tasks
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.schemas.nodes import HeartbeatRequest, NodeAvailability
from shoal_coordinator.schemas.values import NodeInfoJson

router = APIRouter(prefix="/internal", include_in_schema=False)


async def _vouched(request: Request) -> str:
    """Return the node that another coordinator has authenticated; empty: none."""
    found = request.scope.get(VOUCHED_KEY)
    if found is None:
        raise Refused(f"no such path: {request.url.path}", code="path.unknown", hint="see /docs")
    return str(found).removeprefix("node:")


Vouched = Annotated[str, Depends(_vouched)]


class EvictRequest(BaseModel):
    """Node whose credential is no longer valid. `removed`: it was removed; else it has another credential."""

    node: str = ""
    removed: bool = False
    secret_sha256: str = ""


class InfoRequest(BaseModel):
    """A node's description of itself."""

    info: NodeInfoJson


class PollState(BaseModel):
    """A node that polls: the tasks that it holds, and the jobs that it polls for."""

    node: str
    held: list[str]
    jobs: list[str]


class PollBatch(BaseModel):
    """The polls of many nodes."""

    polls: list[PollState]


class PendingNodes(BaseModel):
    """The nodes among them that have a new task."""

    nodes: list[str]


class WakeRequest(BaseModel):
    """Nodes for which a follower may have a new task."""

    nodes: list[str]


class SyncRequest(BaseModel):
    """Counts and log lines of a follower. `number`: of its exchanges in this process."""

    name: str
    process_id: str
    number: int
    wants_ages: bool
    rows: list[dict[str, Any]]
    lines: list[dict[str, Any]]


class SyncView(BaseModel):
    """The jobs that a follower owns, bytes counted for them at the leader, and seconds since each node was seen."""

    jobs: list[str] = Field(default_factory=list)
    rows: list[dict[str, Any]] = Field(default_factory=list)
    ages: dict[str, float] | None = None


# At a follower


@router.get("/work", response_class=Response)
async def work(
    request: Request,
    node: Vouched,
    presence: NodePresence,
    polls: Polls,
    held: Annotated[list[str], Query()] = [],  # noqa: B006
    job: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Response:
    """Return a node's new task, without waiting."""
    presence.mark_alive(node)
    holds = held_tasks(held)
    answer = await polls.take_answer(request, node, holds, set(job))
    if answer is None:
        return Response(status_code=204)
    counted_as = request.scope[SCOPE_KEY].label
    answer.headers[LABEL] = f"{counted_as.job} {counted_as.version} {counted_as.kind}"
    return answer


@router.post("/pending")
async def pending(body: PollBatch, request: Request, _: Vouched, presence: NodePresence, polls: Polls) -> PendingNodes:
    """Return the nodes among these with new tasks, which `work` fetches."""
    found = await asyncio.gather(*(_has_task(request, presence, polls, poll) for poll in body.polls))
    return PendingNodes(nodes=[poll.node for poll, has in zip(body.polls, found, strict=True) if has])


async def _has_task(request: Request, presence: Presence, polls: TaskPolls, poll: PollState) -> bool:
    presence.mark_alive(poll.node)
    holds = held_tasks(poll.held)
    return await polls.next_answer(request, poll.node, holds, set(poll.jobs)) is not None


@router.post("/hello", status_code=204)
async def hello(body: InfoRequest, node: Vouched, node_registry: Registrar) -> None:
    """Announce that a node's process has started."""
    await node_registry.introduce(node, body.info)


@router.post("/availability", status_code=204)
async def availability(body: NodeAvailability, node: Vouched, node_registry: Registrar) -> None:
    """Apply a node's availability."""
    await node_registry.apply_availability(node, body.availability)


@router.post("/leave", status_code=204)
async def leave(node: Vouched, node_registry: Registrar) -> None:
    """Announce that a node leaves."""
    await node_registry.leave(node)


@router.post("/heartbeat", status_code=204)
async def heartbeat(body: HeartbeatRequest, request: Request, node: Vouched, services: Services) -> None:
    """Record a node's progress."""
    NodeProtocolHandler(request, services, body.job, node).handle_heartbeat(body.task, body.progress)


@router.post("/evict", status_code=204)
async def evict(body: EvictRequest, _: Vouched, known: KnownCredentials, node_registry: Registrar) -> None:
    """Evict a credential, or a node, from memory."""
    if body.secret_sha256:
        known.forget(body.secret_sha256)
    if body.node:
        known.forget_node(body.node)
    if body.removed:
        await node_registry.forget(body.node)


# At the leader


@router.post("/wake", status_code=204)
async def wake(body: WakeRequest, _: Vouched, wakeups: NodeWakeups) -> None:
    """Wake the polls of these nodes."""
    for node in body.nodes:
        wakeups[node].set()


@router.post("/sync")
async def sync(body: SyncRequest, _: Vouched, presence: NodePresence, syncs: Syncs, routes: Routes) -> SyncView:
    """Store a follower's byte counts and log lines, and return the jobs it owns."""
    rows = await syncs.receive(body.name, body.process_id, body.number, body.rows, body.lines)
    ages = presence.ages() if body.wants_ages else None
    return SyncView(jobs=routes.jobs_of(body.name), rows=rows, ages=ages)
