"""Listening sockets, and the settings of uvicorn that coordinators and peers share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from shoal.core.errors import Unreachable
from shoal.runtime.http.server.metered_protocol import ServerConnections

KEEP_ALIVE_S = 75


def listen(host: str, port: int, instead: str = "address with --listen") -> socket.socket:
    """Return a bound socket. Raises `Unreachable` if the port is in use; `instead`: what else to choose.

    Its protocol is named, because asyncio turns Nagle's algorithm off only for sockets whose protocol it knows, and the
    accepted ones inherit it: else the second segment of an answer waits 40 ms for the first to be acknowledged.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        text, hint = (
            f"cannot listen on {host}:{port}: {error.strerror}",
            f"stop what uses it, or choose another {instead}",
        )
        raise Unreachable(text, code="port.in-use", hint=hint) from None
    return sock


def uvicorn_config(app: ASGIApp, connections: ServerConnections, *, grace_s: int, **tls: Any) -> uvicorn.Config:
    """Return uvicorn's settings. `grace_s`: seconds for requests to end after a stop."""
    return uvicorn.Config(
        app,
        http=connections.protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
        **tls,
    )


class _EmbeddedServer(uvicorn.Server):
    """A server in an event loop of ours; the process handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve(
    app: ASGIApp, connections: ServerConnections, sock: socket.socket, *, grace_s: int
) -> AsyncIterator[None]:
    """Answer requests while the block runs."""
    server = _EmbeddedServer(uvicorn_config(app, connections, grace_s=grace_s))
    sock.listen(connections.limit.most)  # no connection is refused from here on, though uvicorn has yet to start
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
