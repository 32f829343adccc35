"""Dependencies of routes: the coordinator and the authenticated principal. A route without one of these is public.

Dependencies are coroutines although they wait for nothing: FastAPI runs a plain function in a thread of its pool,
which costs more than all that these do. They do not depend on each other, because each one costs a request a
quarter of what it does.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from shoal.core.errors import NotAllowed, Refused
from shoal.runtime.http.relay import digest_of_body
from shoal.runtime.http.server.allowed_hosts import host_of, is_loopback
from shoal.wire.codec import PROTOCOLS
from shoal_coordinator.api.dependencies import coordinator_of
from shoal_coordinator.cluster.rpc import OPERATOR
from shoal_coordinator.http.buffered_bodies import PERSON
from shoal_coordinator.http.client_certificates import VOUCHED_KEY, check_certificate
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.nodes.credentials import COOKIE, Principal, Role
from shoal_coordinator.peers.relay_auth import SIGNATURE_HEADER

_PROXIES = ("forwarded", "via", "x-real-ip")
"""Headers that proxies add, beside those that begin with X-Forwarded."""


def principal_of(request: Request) -> Principal | None:
    """Return the principal of a bearer token or session cookie; None if it is unknown."""
    coordinator = coordinator_of(request)
    vouched = request.scope.get(VOUCHED_KEY)
    if vouched is not None:
        return Principal("operator") if vouched == OPERATOR else Principal("node", vouched.removeprefix("node:"))
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if secret:
        found = coordinator.nodes.credentials.principal_of(secret.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise coordinator.nodes.credentials.rejection_of(secret.strip())
        if found.role == "node":
            check_certificate(request.scope, coordinator.settings, found.name)
        return found
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        return None
    _refuse_foreign_sites(request)
    return coordinator.nodes.credentials.principal_of(cookie)


def sender_of(request: Request) -> str | None:
    """Return the sender whose share of memory a request body takes; None for a sender without a credential."""
    found = principal_of(request)
    if found is None:
        return None
    return f"node {found.name}" if found.role == "node" else PERSON


def anybody_may_read(request: Request) -> bool:
    """Return whether this request may read without a credential. By default a request through a proxy may not, because
    its sender is unknown even on loopback."""
    settings = coordinator_of(request).settings
    return settings.allows_anonymous_read and (settings.anonymous_read is not None or not _came_through_proxy(request))


def _came_through_proxy(request: Request) -> bool:
    """Return whether a proxy shows: it says so in a header, passes on a foreign host, or speaks HTTP/1.0 (nginx)."""
    names = request.headers.keys()
    tells = any(name in _PROXIES or name.startswith("x-forwarded-") for name in names)
    local = is_loopback(host_of(request.headers.get("host", "localhost")))
    return tells or not local or request.scope["http_version"] == "1.0"


def _refuse_foreign_sites(request: Request) -> None:
    """Refuse a change by cookie from another site, because browsers send cookies by themselves."""
    if request.method in ("GET", "HEAD"):
        return
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc != request.headers.get("host"):
        raise NotAllowed("this request comes from another site", code="auth.forbidden", hint="use the dashboard itself")


def _permitted(request: Request, role: Role) -> Principal:
    """Return the principal if it may act in that role."""
    found = principal_of(request)
    if found is None:
        raise NotAllowed("no credential", code="auth.missing", hint="send Authorization: Bearer …, or sign in")
    if not found.may(role):
        text = f"this needs the role {role}, and the credential's is {found.role}"
        raise NotAllowed(text, code="auth.forbidden", hint="use a credential of that role")
    return found


async def _operator(request: Request) -> Principal:
    return _permitted(request, "operator")


async def _reader(request: Request) -> Principal | None:
    """Require a viewer or operator, unless anonymous reading is allowed."""
    found = principal_of(request)
    if found is not None and found.may("viewer"):
        return found
    if anybody_may_read(request):
        return found
    if found is None:
        raise NotAllowed("no credential", code="auth.missing", hint="sign in, or send Authorization: Bearer …")
    raise NotAllowed(
        "nodes may not read this", code="auth.forbidden", hint="use a viewer's or an operator's credential"
    )


async def _dashboard_reader(request: Request) -> Principal | None:
    """Require a reader, and count the request's bytes as the dashboard's: watching a job is none of its costs."""
    found = await _reader(request)
    label(request, kind="dashboard")
    return found


async def _reader_or_node(request: Request) -> Principal | None:
    """Require a viewer, an operator or a node, which reads its job to know the algorithm."""
    found = principal_of(request)
    return found if found is not None and found.role == "node" else await _reader(request)


async def _node(request: Request) -> str:
    return node_of(request)


def node_of(request: Request) -> str:
    """Return the name of the node that sends the request; its protocol version must be supported."""
    who = _permitted(request, "node")
    spoken = request.headers.get("shoal-protocol", "")
    if spoken and spoken not in map(str, PROTOCOLS):
        raise Refused(
            f"protocol {spoken[:20]}; this coordinator speaks {', '.join(map(str, PROTOCOLS))}",
            code="protocol.unknown",
            hint="install the same release of shoal on both sides",
        )
    return who.name


async def _speaker(request: Request) -> str:
    """Return the node that a request for a blob is for: its sender, or a peer of the job that it relays for."""
    return speaker_of(request, await _node(request))


def speaker_of(request: Request, carrier: str) -> str:
    """Return the same, given the sender's credential. Raises the errors of `RelayAuth`."""
    if SIGNATURE_HEADER not in request.headers:
        return carrier
    relays, parts = coordinator_of(request).peers.relay_auth, request.path_params
    claim = relays.verify_head(parts["job"], carrier, request)
    return relays.accept(claim, digest_of_body(request.method, parts["digest"]))


Node = Annotated[str, Depends(_node)]
Speaker = Annotated[str, Depends(_speaker)]
Operator = Annotated[Principal, Depends(_operator)]
Reader = Annotated[Principal | None, Depends(_reader)]
DashboardReader = Annotated[Principal | None, Depends(_dashboard_reader)]
ReaderOrNode = Annotated[Principal | None, Depends(_reader_or_node)]
