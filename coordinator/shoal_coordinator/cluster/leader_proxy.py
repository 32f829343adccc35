"""The ASGI application that passes a request to the coordinator that answers it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from fastapi import Request
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.core.cluster.leader_lease import (
    LocalLeader,
    RemoteLeader,
)
from shoal.core.errors import NotAllowed
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal.runtime.http.server.problem_documents import closing_messages
from shoal_coordinator.cluster.host import ClusterHost
from shoal_coordinator.cluster.replica import ActiveCoordinator, Replica
from shoal_coordinator.cluster.reverse_proxy import (
    Message,
    Receive,
    Scope,
    Send,
    Unanswered,
    accept,
    is_forwarded,
)
from shoal_coordinator.http import problems
from shoal_coordinator.http.client_certificates import check_certificate
from shoal_coordinator.http.request_limits import refusal, with_headers
from shoal_coordinator.node_protocol.byte_labels import mark_alive
from shoal_coordinator.schemas.replicas import ReplicaCollector
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.lease_store import clock
from shoal_coordinator.telemetry.metrics import Metrics

HOLD_S = 3.0
"""Seconds for which a request waits for a leader before it is answered with 503: less than clients wait before they
retry, and enough for a leader that ends in good order to hand over."""


_JOB = re.compile(r"/api/v1/jobs/([^/]+)")
_READING = ("GET", "HEAD")
_OWN = ("/healthz", "/readyz", "/metrics")
"""Paths that each coordinator answers for itself."""


class LeaderProxy:
    """The ASGI application of a replica. Without a coordinator that answers: 503 with `Retry-After`."""

    def __init__(self, replica: Replica, settings: Settings, metrics: Metrics) -> None:
        self._replica, self._settings, self._metrics = replica, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        holding = asyncio.timeout(HOLD_S)
        try:
            async with holding:
                while not await self._try_answer(holding, scope, receive, send):
                    changed = self._replica.changed
                    await changed.wait()
        except TimeoutError:
            if not holding.expired():
                raise
            await _send_all(with_headers(send, scope["path"]), _no_leader(scope["path"]))

    async def _try_answer(self, holding: asyncio.Timeout, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request; return False if it may wait for a coordinator. `holding` does not bound the answer."""
        route = self._route(scope)
        waits = route is None and not (self._replica.is_stopping or is_forwarded(scope) or scope["path"] in _OWN)
        if waits:
            return False
        deadline = holding.when()
        holding.reschedule(None)
        match route:
            case ActiveCoordinator() as active:
                await self._answer(active, scope, receive, send)
            case RemoteLeader() as remote:
                if not await self._forward(remote, scope, receive, send):
                    holding.reschedule(deadline)
                    return False
            case None:
                sending = with_headers(send, scope["path"])
                await _send_all(sending, self._own_status(scope["path"], ready=False) or _no_leader(scope["path"]))
        return True

    def _route(self, scope: Scope) -> ActiveCoordinator | RemoteLeader | None:
        """Return the coordinator that answers, if there is one now. Unwrap a forwarded request."""
        replica, now, path = self._replica, clock(), scope["path"]
        leader, active, follower = replica.lease.way(now), replica.leading, replica.following
        forwarded = is_forwarded(scope)
        if follower is not None and not (follower.lease.holds(now) and (not forwarded or _accepts(follower, scope))):
            follower = None
        if forwarded and follower is None and not (active is not None and _accepts(active, scope)):
            return None
        found = _JOB.match(path)
        job = found[1] if found is not None else ""
        own = path in _OWN and isinstance(leader, RemoteLeader)  # without a leader it is not ready
        if follower is not None and forwarded:
            return None if follower.is_handing_over(job) and scope["method"] not in _READING else follower
        if follower is not None and (follower.owns(job) or own):
            return follower
        if isinstance(leader, LocalLeader) and active is not None:
            followers = active.coordinator.cluster.routes
            return followers.route(job) if job and followers.owns(job) else active
        if job in replica.owner_reader.owners.jobs and replica.owner_reader.owners.jobs[job] != replica.store.name:
            return replica.owner_reader.owners.way(replica.owner_reader.owners.jobs[job], now)
        return leader if isinstance(leader, RemoteLeader) else None

    async def _forward(self, route: RemoteLeader, scope: Scope, receive: Receive, send: Send) -> bool:
        """Forward a request; return False if the other does not answer and the request may wait."""
        sending = with_headers(send, scope["path"])
        refused = refusal(scope, self._settings)
        if refused is not None:
            await _send_all(sending, closing_messages(refused))
        elif (own := self._own_status(scope["path"], ready=True)) is not None:
            await _send_all(sending, own)
        else:
            if self._replica.leading is not None:  # the leader tells followers which nodes are there
                _mark_sender_alive(Request(scope), self._replica.leading.coordinator)
            try:
                await self._replica.forwarder.forward(scope, receive, send, route)
            except Unanswered:
                if scope["method"] in _READING and not self._replica.is_stopping:  # no body of it was read
                    scope[SCOPE_KEY].remote = False
                    return False
                await _send_all(sending, _no_leader(scope["path"]))
        return True

    async def _answer(self, active: ActiveCoordinator, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in this process, if it still leads or follows when the answer begins."""
        replica, stale = self._replica, False

        def here() -> bool:
            return active in (replica.leading, replica.following) and active.lease.holds(clock())

        async def sending(message: Message) -> None:
            nonlocal stale
            if message["type"] == "http.response.start" and not here():
                stale = True
                await _send_all(with_headers(send, scope["path"]), _no_leader(scope["path"]))
            elif not stale:
                await send(message)

        await active.app(scope, receive, sending)

    def _own_status(self, path: str, ready: bool) -> tuple[Message, Message] | None:
        """Return a standby's own answer about its health."""
        if path == "/healthz":
            return _json({"status": "ok"})
        if path == "/readyz":
            if ready:
                return _json({"status": "ready", "role": "standby"})
            return problems.raw(503, "no coordinator owns the database now", "not-ready", "in a moment one will", path)
        if path == "/metrics":
            registry = CollectorRegistry()
            registry.register(ReplicaCollector(self._replica.status))
            text = generate_latest(self._metrics.registry) + generate_latest(registry)
            return _ok(text, CONTENT_TYPE_LATEST)
        return None


def _mark_sender_alive(request: Request, host: ClusterHost) -> None:
    """Take a request that another coordinator answers as a sign of life, if a node sends it."""
    secret = request.headers.get("authorization", "").partition(" ")[2].strip()
    sender = host.nodes.credentials.principal_of(secret) if secret else None
    if sender is not None and sender.role == "node":
        with suppress(NotAllowed):  # the coordinator that answers refuses it
            check_certificate(request.scope, host.settings, sender.name)
            mark_alive(request, host.nodes.presence, sender.name)


def _accepts(active: ActiveCoordinator, scope: Scope) -> bool:
    return accept(scope, active.term, active.secret)


def _no_leader(path: str) -> tuple[Message, Message]:
    text = "no coordinator owns the database at this moment; another is taking over"
    return problems.raw(503, text, "replica.no-leader", "ask again in a moment", path)


def _json(values: dict[str, Any]) -> tuple[Message, Message]:
    return _ok(json.dumps(values).encode(), "application/json")


async def _send_all(send: Callable[[Message], Awaitable[None]], messages: tuple[Message, Message]) -> None:
    for message in messages:
        await send(message)


def _ok(body: bytes, media_type: str) -> tuple[Message, Message]:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}, {
        "type": "http.response.body",
        "body": body,
    }
