"""What routes depend on: the coordinator, and who asks. A route without one of these is open to anybody, on purpose.

Dependencies are coroutines although they wait for nothing: FastAPI runs a plain function in a thread of its pool, which
costs more than all that these do. Nor do they depend on each other: each costs a request a quarter of what it does.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from shoal.core.errors import NotAllowed, Refused
from shoal.runtime.known_hosts import host_of, is_loopback
from shoal.runtime.relay import digest_of_body
from shoal.wire import PROTOCOLS
from shoal_coordinator.auth import COOKIE, Principal, Role
from shoal_coordinator.certificates import check_certificate
from shoal_coordinator.forwarding import VOUCHED_KEY
from shoal_coordinator.inside import OPERATOR
from shoal_coordinator.protocol import SCOPE_KEY, Exchange, Label
from shoal_coordinator.relays import MARK
from shoal_coordinator.service import Coordinator

_PROXIES = ("forwarded", "via", "x-real-ip")
"""Headers that proxies add, beside those that begin with X-Forwarded."""


def coordinator_of(request: Request) -> Coordinator:
    """The one coordinator of this process."""
    found: Coordinator = request.app.state.coordinator
    return found


async def _coordinator(request: Request) -> Coordinator:
    return coordinator_of(request)


def principal_of(request: Request) -> Principal | None:
    """Who asks: by bearer token, or by the browser's session cookie. None: nobody that we know."""
    coordinator = coordinator_of(request)
    vouched = request.scope.get(VOUCHED_KEY)
    if vouched is not None:
        return Principal("operator") if vouched == OPERATOR else Principal("node", vouched.removeprefix("node:"))
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if secret:
        found = coordinator.directory.find(secret.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise coordinator.directory.refusal(secret.strip())
        if found.role == "node":
            check_certificate(request.scope, coordinator.settings, found.name)
        return found
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        return None
    _refuse_foreign_sites(request)
    return coordinator.directory.find(cookie)


def anybody_may_read(request: Request) -> bool:
    """Return whether this request may read without a credential. Unless the setting says so, one that a proxy has
    passed on may not: who listens on loopback does not know who is behind it."""
    settings = coordinator_of(request).settings
    return settings.reading_is_open and (settings.open_reading is not None or not _came_through_proxy(request))


def _came_through_proxy(request: Request) -> bool:
    """Return whether a proxy shows: it says so in a header, passes on a foreign host, or speaks HTTP/1.0 (nginx)."""
    names = request.headers.keys()
    tells = any(name in _PROXIES or name.startswith("x-forwarded-") for name in names)
    local = is_loopback(host_of(request.headers.get("host", "localhost")))
    return tells or not local or request.scope["http_version"] == "1.0"


def _refuse_foreign_sites(request: Request) -> None:
    """A cookie is sent by the browser itself, so a change must come from our own pages."""
    if request.method in ("GET", "HEAD"):
        return
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc != request.headers.get("host"):
        raise NotAllowed("this request comes from another site", code="auth.forbidden", hint="use the dashboard itself")


def _permitted(request: Request, role: Role) -> Principal:
    """Who asks, if he may do what needs that role."""
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
    """Viewers and operators; anybody where reading is open."""
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


async def _reader_or_node(request: Request) -> Principal | None:
    """Nodes too: a node reads the job that it takes part in, to know its algorithm."""
    found = principal_of(request)
    return found if found is not None and found.role == "node" else await _reader(request)


async def _node(request: Request) -> str:
    return node_of(request)


def node_of(request: Request) -> str:
    """The name of the node that asks; it must speak a protocol that we speak."""
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
    """The node whose word a request on a body is: the one that asks, or a peer of the job that it asks for."""
    return speaker_of(request, await _node(request))


def speaker_of(request: Request, carrier: str) -> str:
    """The same, for the node whose credential came. Raises what `Relays` raises."""
    if MARK not in request.headers:
        return carrier
    relays, parts = coordinator_of(request).relays, request.path_params
    claim = relays.examine(parts["job"], carrier, request)
    return relays.admit(claim, digest_of_body(request.method, parts["digest"]))


def hear(request: Request, coordinator: Coordinator, node: str) -> None:
    """Take a request for a sign of life of the node, and so all bytes of it and of its answer that move from now on."""
    coordinator.presence.heard(node)
    exchange = request.scope.get(SCOPE_KEY)
    if isinstance(exchange, Exchange):
        exchange.heard = partial(coordinator.presence.heard, node)


def hear_sender(request: Request, coordinator: Coordinator) -> None:
    """Do the same for a request that another coordinator answers, if a node sends it."""
    secret = request.headers.get("authorization", "").partition(" ")[2].strip()
    who = coordinator.directory.find(secret) if secret else None
    if who is not None and who.role == "node":
        with suppress(NotAllowed):  # the one that answers refuses it
            check_certificate(request.scope, coordinator.settings, who.name)
            hear(request, coordinator, who.name)


def label(request: Request, job: str = "", version: int = -1, node: str = "", kind: str = "other") -> None:
    """Say what this request's bytes are to be booked under."""
    exchange = request.scope.get(SCOPE_KEY)
    if isinstance(exchange, Exchange):
        exchange.label = Label(job, version, node, kind)


Coord = Annotated[Coordinator, Depends(_coordinator)]
Node = Annotated[str, Depends(_node)]
Speaker = Annotated[str, Depends(_speaker)]
Operator = Annotated[Principal, Depends(_operator)]
Reader = Annotated[Principal | None, Depends(_reader)]
ReaderOrNode = Annotated[Principal | None, Depends(_reader_or_node)]
