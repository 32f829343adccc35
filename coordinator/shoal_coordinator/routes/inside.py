"""What coordinators of one database say to each other (`shoal_coordinator.inside`). Nobody else is heard here."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from shoal.core.errors import Refused
from shoal_coordinator import views
from shoal_coordinator.access import Coord
from shoal_coordinator.deputies import LABEL
from shoal_coordinator.forwarding import VOUCHED_KEY
from shoal_coordinator.protocol import SCOPE_KEY
from shoal_coordinator.routes.work import Caller, Held, heard_beat, held_orders, news, news_in_turn
from shoal_coordinator.service import Coordinator

router = APIRouter(prefix="/inside", include_in_schema=False)


async def _vouched(request: Request) -> str:
    """Whom another coordinator vouches for: a node's name, or nobody's."""
    found = request.scope.get(VOUCHED_KEY)
    if found is None:
        raise Refused(f"no such path: {request.url.path}", code="path.unknown", hint="see /docs")
    return str(found).removeprefix("node:")


Vouched = Annotated[str, Depends(_vouched)]


class Gone(BaseModel):
    """Who may not ask any more. `removed`: the node is none any more; else it has another credential."""

    node: str = ""
    removed: bool = False
    secret_sha256: str = ""


class About(BaseModel):
    """What a node says of itself."""

    info: views.Info


class Asks(BaseModel):
    """A node that polls: which orders it holds, and which jobs it wants to hear of."""

    node: str
    held: list[str]
    jobs: list[str]


class Inquiry(BaseModel):
    """Many of them."""

    polls: list[Asks]


class Awaited(BaseModel):
    """The nodes among them for which there is something new."""

    nodes: list[str]


class Rang(BaseModel):
    """Nodes for which a deputy may have something new."""

    nodes: list[str]


class Tidings(BaseModel):
    """What a deputy has counted and logged. `number`: of its exchanges in this life."""

    name: str
    life: str
    number: int
    wants_ages: bool
    rows: list[dict[str, Any]]
    lines: list[dict[str, Any]]


class Heard(BaseModel):
    """The jobs that a deputy owns, and what the lead has counted for them; since when nodes are silent, in seconds."""

    jobs: list[str] = Field(default_factory=list)
    rows: list[dict[str, Any]] = Field(default_factory=list)
    ages: dict[str, float] | None = None


# At a deputy


@router.get("/work", response_class=Response)
async def work(
    request: Request,
    node: Vouched,
    coordinator: Coord,
    held: Annotated[list[str], Query()] = [],  # noqa: B006
    job: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Response:
    """What is new for a node, at once."""
    coordinator.presence.heard(node)
    holds: Held = held_orders(held)
    answer = await news_in_turn(Caller(request, coordinator, node), holds, set(job))
    if answer is None:
        return Response(status_code=204)
    told = request.scope[SCOPE_KEY].label
    answer.headers[LABEL] = f"{told.job} {told.version} {told.kind}"
    return answer


@router.post("/news")
async def many_news(body: Inquiry, request: Request, _: Vouched, coordinator: Coord) -> Awaited:
    """For whom there is something new; it is fetched by `work`. Side by side: who is heard for the first time joins."""
    found = await asyncio.gather(*(_has_news(request, coordinator, asks) for asks in body.polls))
    return Awaited(nodes=[asks.node for asks, has in zip(body.polls, found, strict=True) if has])


async def _has_news(request: Request, coordinator: Coordinator, asks: Asks) -> bool:
    coordinator.presence.heard(asks.node)
    caller, holds = Caller(request, coordinator, asks.node), held_orders(asks.held)
    return await news(caller, coordinator.running(), holds, set(asks.jobs)) is not None


@router.post("/hello", status_code=204)
async def hello(body: About, node: Vouched, coordinator: Coord) -> None:
    """A node's process has started."""
    await coordinator.admission.greet(node, body.info)


@router.post("/availability", status_code=204)
async def availability(body: views.NodeAvailability, node: Vouched, coordinator: Coord) -> None:
    """Operators have drained a node, blocked it, or let it be asked again."""
    await coordinator.admission.hold(node, body.availability)


@router.post("/leave", status_code=204)
async def leave(node: Vouched, coordinator: Coord) -> None:
    """A node goes."""
    await coordinator.admission.leave(node)


@router.post("/beat", status_code=204)
async def beat(body: views.Beat, request: Request, node: Vouched, coordinator: Coord) -> None:
    """How far a node is."""
    heard_beat(request, coordinator, node, body)


@router.post("/forget", status_code=204)
async def forget(body: Gone, _: Vouched, coordinator: Coord) -> None:
    """Somebody may not ask any more."""
    if body.secret_sha256:
        coordinator.directory.forget(body.secret_sha256)
    if body.node:
        coordinator.directory.forget_node(body.node)
    if body.removed:
        await coordinator.admission.drop(body.node)


# At the lead


@router.post("/rang", status_code=204)
async def rang(body: Rang, _: Vouched, coordinator: Coord) -> None:
    """Polls of these nodes are to ask again."""
    for node in body.nodes:
        coordinator.bells[node].set()


@router.post("/exchange")
async def exchange(body: Tidings, _: Vouched, coordinator: Coord) -> Heard:
    """Take a deputy's counts and lines, and tell it what concerns it."""
    rows = await coordinator.deputies.told(body.name, body.life, body.number, body.rows, body.lines)
    ages = coordinator.presence.ages() if body.wants_ages else None
    return Heard(jobs=coordinator.deputies.owned_by(body.name), rows=rows, ages=ages)
