"""Run a coordinator: uvicorn with our protocol, our limits and our log."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from shoal.core.errors import NotAllowed
from shoal.memory import KEEP_BIG_BLOCKS, configure_malloc
from shoal.runtime.http.server.serving import listen, uvicorn_config
from shoal.runtime.observability import tracing
from shoal_coordinator.api.app import create_app
from shoal_coordinator.api.authentication import sender_of
from shoal_coordinator.api.fast_path import FastPath
from shoal_coordinator.cluster.follower import CredentialLookup
from shoal_coordinator.cluster.leader_proxy import LeaderProxy
from shoal_coordinator.cluster.replica import Replica
from shoal_coordinator.cluster.rpc import Rpc
from shoal_coordinator.composition.coordinator import Coordinator
from shoal_coordinator.http.buffered_bodies import BufferedBodies
from shoal_coordinator.http.client_certificates import tls_options
from shoal_coordinator.http.connections import CoordinatorConnections
from shoal_coordinator.http.request_limits import RequestLimits
from shoal_coordinator.node_protocol.incarnation_header import IncarnationHeader
from shoal_coordinator.nodes.credentials import operator_token
from shoal_coordinator.settings import LOOPBACK, Settings
from shoal_coordinator.storage.backends import is_shared, server
from shoal_coordinator.storage.lease_store import LeaseHolder, LeaseStore
from shoal_coordinator.telemetry.metrics import Metrics
from shoal_coordinator.telemetry.traffic import TrafficCounter

log = structlog.get_logger()

GRACE_S = 10
STOP_S = 1.0
"""Seconds for open requests to be answered before the database is released to another coordinator."""

OnListening = Callable[[int], None]
"""Told the port as soon as requests are answered there."""


def ignore_port(_port: int) -> None:
    """Ignore the port; the default `OnListening`."""


def address(settings: Settings, sock: socket.socket) -> str:
    """Return the URL for people."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{sock.getsockname()[1]}"


def bind(settings: Settings) -> socket.socket:
    """Return the socket that the coordinator answers on. Raises `Unreachable` if its port is in use."""
    return listen(settings.host, settings.port, f"port: --port {settings.port + 1}")


def run(settings: Settings, on_listening: OnListening = ignore_port) -> int:
    """Serve until SIGINT (exit code 130) or SIGTERM (0). Raises a `ShoalError` for what can be known before."""
    if settings.host not in LOOPBACK and settings.tls_cert is None:
        log.warning("plain http beyond this machine", hint="set tls_cert and tls_key, or put a TLS proxy in front")
    if settings.tls_cert is not None and settings.tls_key is None:
        raise NotAllowed("tls_cert without tls_key", hint="give both, as PEM files")
    configure_malloc(KEEP_BIG_BLOCKS)
    tracing.configure("coordinator")
    with bind(settings) as sock:
        server = build(settings, on_listening)
        log.info("coordinator", url=address(settings, sock), data=str(settings.data))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[sock]))
    return 130 if server.interrupted else 0


def build(settings: Settings, on_listening: OnListening = ignore_port) -> CoordinatorServer:
    """Return a server that is ready to `serve`."""
    metrics = Metrics()
    connections = CoordinatorConnections(TrafficCounter(), settings, metrics)

    def set_traffic(traffic: TrafficCounter) -> None:
        connections.traffic = traffic

    def make(
        traffic: TrafficCounter, lease_holder: LeaseHolder | None = None, rpc: Rpc | None = None
    ) -> tuple[Coordinator, ASGIApp]:
        coordinator = Coordinator(settings, traffic, operator_token(settings), lease_holder, rpc, metrics)
        api = create_app(coordinator)
        inner: ASGIApp = BufferedBodies(FastPath(api), api, settings, sender_of)
        inner = IncarnationHeader(inner, coordinator.jobs)
        inner = CredentialLookup(inner, coordinator.cluster.parts) if coordinator.jobs.owner else inner
        return coordinator, RequestLimits(inner, settings, coordinator.nodes.load_shedding.pause_s)

    host: SingleCoordinator | Replica
    if is_shared(settings.url):
        store = LeaseStore(server(settings.url), settings.data, settings.leader_lease_s)
        host = Replica(settings, store, make, set_traffic)
        app: ASGIApp = LeaderProxy(host, settings, metrics)
    else:
        coordinator, app = make(connections.traffic)
        host = SingleCoordinator(coordinator)
    config = uvicorn_config(app, connections, grace_s=GRACE_S, **tls_options(settings))
    return CoordinatorServer(config, host, on_listening)


class SingleCoordinator:
    """The only coordinator of its database."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    async def start(self, port: int) -> None:
        """Restore everything. `port`: where requests come in."""
        await self.coordinator.start()

    def drain(self) -> None:
        """Let polls and streams end."""
        self.coordinator.drain()

    async def stop(self) -> None:
        """Close the journal."""
        await self.coordinator.stop()


class CoordinatorServer(uvicorn.Server):
    """uvicorn with a coordinator: restored before the first connection, drained before the last ends."""

    def __init__(self, config: uvicorn.Config, host: SingleCoordinator | Replica, on_listening: OnListening) -> None:
        super().__init__(config)
        self.host, self._on_listening = host, on_listening
        self.interrupted = False

    @property
    def coordinator(self) -> Coordinator:
        """The one that answers here; there must be one."""
        found = self.host.coordinator
        assert isinstance(found, Coordinator)
        return found

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; errors are kept and raised by `serve`."""
        await self.host.start(sockets[0].getsockname()[1] if sockets else 0)
        gc.freeze()  # these objects live to the end: skip them in later collections
        await super().startup(sockets)
        for sock in sockets or ():
            self._on_listening(sock.getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let polls and streams go, answer what is in hand, close the journal."""
        self.host.drain()
        if isinstance(self.host, Replica):
            await self._hand_over(self.host)
        await super().shutdown(sockets)
        await self.host.stop()

    async def _hand_over(self, replica: Replica) -> None:
        """Stop listening, finish open requests for up to `STOP_S` seconds, and release the lease."""
        for listening in self.servers:
            listening.close()
        end = asyncio.get_running_loop().time() + STOP_S
        while self.server_state.tasks and asyncio.get_running_loop().time() < end:
            await asyncio.wait(self.server_state.tasks, timeout=STOP_S)
        await replica.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End gracefully at the first signal, at once at the second."""
        self.interrupted = sig == signal.SIGINT
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
