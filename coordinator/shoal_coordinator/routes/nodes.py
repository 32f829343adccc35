"""Nodes coming and going, and the browser's session."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response

from shoal import __version__
from shoal.core.errors import NotAllowed
from shoal.wire import PROTOCOLS, negotiate
from shoal_coordinator import auth, merging, node_detail, views
from shoal_coordinator.access import Coord, Node, Operator, Reader, label, principal_of
from shoal_coordinator.certificates import check_certificate
from shoal_coordinator.problems import errors

router = APIRouter()

WRONG_TOKEN_S = 0.5
"""Pause before a wrong token is answered, so that guessing is slow as well as hopeless."""


@router.post("/enrol", status_code=201, tags=["node"], responses=errors(401, 403, 409, 426))
async def enrol(
    body: views.Enrolment,
    request: Request,
    coordinator: Coord,
    idempotency_key: Annotated[
        str, Header(pattern="^[A-Za-z0-9_-]{22,128}$", description="random; the same again gets the same answer")
    ] = "",
) -> views.Enrolled:
    """A one-time token for a credential of the node's own."""
    protocol = negotiate(body.protocols)
    label(request, kind="enrol")
    check_certificate(request.scope, coordinator.settings, body.name)
    try:
        credential = await coordinator.admission.enrol(body.token, body.name, body.info, idempotency_key)
    except NotAllowed:
        await asyncio.sleep(WRONG_TOKEN_S)
        raise
    label(request, node=body.name, kind="enrol")  # no name of a stranger's goes into the books
    return views.Enrolled(credential=credential, name=body.name, protocol=protocol)


@router.post("/hello", tags=["node"], responses=errors(401, 403, 409, 426))
async def hello(body: views.Hello, request: Request, node: Node, coordinator: Coord) -> views.Welcome:
    """The node's process has started."""
    protocol = negotiate(body.protocols)
    label(request, node=node, kind="hello")
    await coordinator.admission.hello(node, body.info, body.peer.plain() if body.peer is not None else None)
    coordinator.presence.show_layout(node, body.layout)
    settings = coordinator.settings
    return views.Welcome(
        name=node,
        protocol=protocol,
        lease_s=settings.lease_s,
        beat_s=settings.beat_s,
        wait_s_max=settings.poll_s_max,
        targets=coordinator.blobs.direct,
    )


@router.get("/nodes", tags=["nodes"], responses=errors(401, 403))
async def nodes(
    request: Request,
    _: Reader,
    coordinator: Coord,
    after: Annotated[str, Query(max_length=63, description="only nodes whose names come after this")] = "",
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> views.Nodes:
    """Nodes that were enrolled and not removed, by name."""
    label(request, kind="dashboard")
    names = sorted(name for name in coordinator.presence.info if name > after)
    shown = names[:limit]
    more = shown[-1] if len(names) > limit else None
    return views.Nodes(nodes=await merging.shown(coordinator, shown, after), next=more)


@router.get("/nodes/{node}", tags=["nodes"], responses=errors(401, 403, 404))
async def one_node(node: str, request: Request, _: Reader, coordinator: Coord) -> views.NodeDetail:
    """A node: what it says of itself, its jobs, and when it came and went."""
    label(request, kind="dashboard")
    if node not in coordinator.presence.info:
        raise await coordinator.admission.unknown(node)
    found = await node_detail.look(coordinator, node)
    others = await coordinator.deputies.pages(f"/api/v1/nodes/{quote(node)}")
    return merging.node_detail(found, others, coordinator.deputies.jobs)


@router.put("/nodes/{node}/availability", tags=["nodes"], responses=errors(401, 403, 404))
async def availability(node: str, body: views.NodeAvailability, _: Operator, coordinator: Coord) -> views.Node:
    """Drain a node (it finishes what it does and is asked nothing more), block it (its orders are withdrawn at once),
    or make it active again. Its identity and memory stay."""
    await coordinator.admission.set_availability(node, body.availability)
    return (await merging.shown(coordinator, [node]))[0]


@router.delete("/nodes/{node}", status_code=204, tags=["nodes"], responses=errors(401, 403, 404))
async def remove(node: str, _: Operator, coordinator: Coord) -> None:
    """Revoke a node's credential, from its next request on."""
    await coordinator.admission.revoke(node)


@router.post("/session", status_code=204, tags=["session"], responses=errors(401))
async def sign_in(body: views.SignIn, request: Request, coordinator: Coord) -> Response:
    """Exchange a token for a cookie that scripts cannot read."""
    who = coordinator.directory.find(body.token.strip())
    if who is None or who.role == "node":
        await asyncio.sleep(WRONG_TOKEN_S)
        raise NotAllowed(
            f"{auth.kind_of(body.token.strip()) or 'this token'} signs nobody in",
            hint="operators: see operator.token in the coordinator's data folder",
        )
    secret, ttl_s = auth.new_secret("session"), coordinator.settings.session_ttl_s
    expires_at = min(time.time() + ttl_s, who.expires_at or float("inf"))
    await coordinator.database.write(lambda c: auth.add_session(c, secret, who.role, expires_at, body.token.strip()))
    coordinator.directory.admit(auth.hashed(secret), auth.Principal(who.role, "", expires_at))
    response = Response(status_code=204)
    secure = request.url.scheme == "https"
    age = int(expires_at - time.time())
    response.set_cookie(auth.COOKIE, secret, max_age=age, httponly=True, samesite="strict", secure=secure, path="/")
    return response


@router.get("/session", tags=["session"], responses=errors(401))
async def session(request: Request) -> views.Session:
    """Who the browser is signed in as; null: nobody (who may read all the same, where reading is open)."""
    label(request, kind="dashboard")
    who = principal_of(request)
    if who is not None and who.role != "node":
        return views.Session(role="operator" if who.role == "operator" else "viewer")
    return views.Session(role=None)


@router.delete("/session", status_code=204, tags=["session"], responses=errors(401, 403))
async def sign_out(request: Request, coordinator: Coord) -> Response:
    """Forget the session."""
    secret = request.cookies.get(auth.COOKIE, "")
    if secret and principal_of(request) is not None:
        coordinator.directory.forget(auth.hashed(secret))
        await coordinator.deputies.each("POST", "/inside/forget", {"secret_sha256": auth.hashed(secret)})
        await coordinator.database.write(lambda c: auth.end_session(c, secret))
    response = Response(status_code=204)
    response.delete_cookie(auth.COOKIE, path="/")
    return response


@router.get("/version", tags=["reference"])
async def version(request: Request) -> views.Release:
    """This release, and the protocols that it speaks."""
    label(request, kind="dashboard")
    return views.Release(version=__version__, protocols=list(PROTOCOLS))
