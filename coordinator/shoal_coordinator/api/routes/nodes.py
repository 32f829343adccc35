"""Nodes coming and going, and the browser's session."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Query, Request, Response

from shoal import __version__
from shoal.core.errors import NotAllowed
from shoal.wire.codec import PROTOCOLS, negotiate
from shoal_coordinator.api.authentication import DashboardReader, Node, Operator, principal_of
from shoal_coordinator.api.dependencies import (
    AppSettings,
    Blobs,
    Db,
    Followers,
    KnownCredentials,
    NodePresence,
    NodeViews,
    Presenter,
    Registrar,
    Routes,
)
from shoal_coordinator.api.routers import api_router
from shoal_coordinator.cluster import merge_views
from shoal_coordinator.http.client_certificates import check_certificate
from shoal_coordinator.http.problems import errors
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.nodes import credentials
from shoal_coordinator.peers.trust_documents import PeerContact
from shoal_coordinator.schemas.nodes import (
    CredentialView,
    EnrolmentRequest,
    HelloRequest,
    NodeAvailability,
    NodeDetail,
    NodeList,
    NodeView,
    ReleaseView,
    WelcomeView,
)
from shoal_coordinator.schemas.tokens import SessionView, SignInRequest

router = api_router()

WRONG_TOKEN_S = 0.5
"""Pause before a wrong token is answered, so that guessing is slow as well as hopeless."""


@router.post("/enrol", status_code=201, tags=["node"], responses=errors(401, 403, 409, 426))
async def enrol_node(
    body: EnrolmentRequest,
    request: Request,
    node_registry: Registrar,
    settings: AppSettings,
    idempotency_key: Annotated[
        str, Header(pattern="^[A-Za-z0-9_-]{22,128}$", description="random; the same again gets the same answer")
    ] = "",
) -> CredentialView:
    """Exchange a one-time token for a credential."""
    protocol = negotiate(body.protocols)
    label(request, kind="enrol")
    check_certificate(request.scope, settings, body.name)
    try:
        credential = await node_registry.enrol(body.token, body.name, body.info, idempotency_key)
    except NotAllowed:
        await asyncio.sleep(WRONG_TOKEN_S)
        raise
    label(request, node=body.name, kind="enrol")  # bytes are counted under the name only after enrolment
    return CredentialView(credential=credential, name=body.name, protocol=protocol)


@router.post("/hello", tags=["node"], responses=errors(401, 403, 409, 426))
async def send_hello(
    body: HelloRequest,
    request: Request,
    node: Node,
    job_blobs: Blobs,
    presence: NodePresence,
    node_registry: Registrar,
    settings: AppSettings,
) -> WelcomeView:
    """Announce that the node's process has started."""
    protocol = negotiate(body.protocols)
    label(request, node=node, kind="hello")
    await node_registry.hello(node, body.info, PeerContact.of(body.peer) if body.peer is not None else None)
    presence.store_layout(node, body.layout)
    return WelcomeView(
        name=node,
        protocol=protocol,
        lease_s=settings.lease_s,
        heartbeat_s=settings.heartbeat_s,
        wait_s_max=settings.poll_s_max,
        targets=job_blobs.store.direct,
    )


@router.get("/nodes", tags=["nodes"], responses=errors(401, 403))
async def list_nodes(
    _: DashboardReader,
    presenter: Presenter,
    presence: NodePresence,
    followers: Followers,
    after: Annotated[str, Query(max_length=63, description="only nodes whose names come after this")] = "",
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
) -> NodeList:
    """List enrolled nodes, by name."""
    names = sorted(name for name in presence.info if name > after)
    shown = names[:limit]
    more = shown[-1] if len(names) > limit else None
    return NodeList(nodes=await merge_views.merged_nodes(presenter, followers, shown, after), next=more)


@router.get("/nodes/{node}", tags=["nodes"], responses=errors(401, 403, 404))
async def show_node(
    node: str,
    _: DashboardReader,
    presenter_of_nodes: NodeViews,
    presence: NodePresence,
    node_registry: Registrar,
    followers: Followers,
    routes: Routes,
) -> NodeDetail:
    """Return a node, its jobs, and its connection history."""
    if node not in presence.info:
        raise await node_registry.unknown_node(node)
    found = await presenter_of_nodes.detail(node)
    others = await followers.get_all(f"/api/v1/nodes/{quote(node)}")
    return merge_views.merge_node_detail(found, others, routes.jobs)


@router.put("/nodes/{node}/availability", tags=["nodes"], responses=errors(401, 403, 404))
async def set_availability(
    node: str,
    body: NodeAvailability,
    _: Operator,
    presenter: Presenter,
    node_registry: Registrar,
    followers: Followers,
) -> NodeView:
    """Drain a node (it finishes what it does and is asked nothing more), block it (its tasks are withdrawn at once),
    or make it active again. Its identity and memory stay."""
    await node_registry.set_availability(node, body.availability)
    return (await merge_views.merged_nodes(presenter, followers, [node]))[0]


@router.delete("/nodes/{node}", status_code=204, tags=["nodes"], responses=errors(401, 403, 404))
async def remove_node(node: str, _: Operator, node_registry: Registrar) -> None:
    """Revoke a node's credential."""
    await node_registry.revoke(node)


@router.post("/session", status_code=204, tags=["session"], responses=errors(401))
async def sign_in(
    body: SignInRequest, request: Request, database: Db, known: KnownCredentials, settings: AppSettings
) -> Response:
    """Exchange a token for a session cookie that scripts cannot read."""
    who = known.principal_of(body.token.strip())
    if who is None or who.role == "node":
        await asyncio.sleep(WRONG_TOKEN_S)
        raise NotAllowed(
            f"{credentials.kind_of(body.token.strip()) or 'this token'} cannot sign in",
            hint="operators: see operator.token in the coordinator's data folder",
        )
    secret, ttl_s = credentials.new_secret("session"), settings.session_ttl_s
    expires_at = min(time.time() + ttl_s, who.expires_at or float("inf"))
    await database.write(lambda c: credentials.add_session(c, secret, who.role, expires_at, body.token.strip()))
    known.add(credentials.hash_secret(secret), credentials.Principal(who.role, "", expires_at))
    response = Response(status_code=204)
    secure = request.url.scheme == "https"
    age = int(expires_at - time.time())
    response.set_cookie(
        credentials.COOKIE, secret, max_age=age, httponly=True, samesite="strict", secure=secure, path="/"
    )
    return response


@router.get("/session", tags=["session"], responses=errors(401))
async def show_session(request: Request) -> SessionView:
    """Return the role of the browser's session; null: not signed in."""
    label(request, kind="dashboard")
    who = principal_of(request)
    if who is not None and who.role != "node":
        return SessionView(role="operator" if who.role == "operator" else "viewer")
    return SessionView(role=None)


@router.delete("/session", status_code=204, tags=["session"], responses=errors(401, 403))
async def sign_out(request: Request, database: Db, known: KnownCredentials, followers: Followers) -> Response:
    """End the session."""
    secret = request.cookies.get(credentials.COOKIE, "")
    if secret and principal_of(request) is not None:
        known.forget(credentials.hash_secret(secret))
        await followers.call_all("POST", "/internal/evict", {"secret_sha256": credentials.hash_secret(secret)})
        await database.write(lambda c: credentials.end_session(c, secret))
    response = Response(status_code=204)
    response.delete_cookie(credentials.COOKIE, path="/")
    return response


@router.get("/version", tags=["reference"])
async def show_version(request: Request) -> ReleaseView:
    """Return the release and its wire protocols."""
    label(request, kind="dashboard")
    return ReleaseView(version=__version__, protocols=list(PROTOCOLS))
