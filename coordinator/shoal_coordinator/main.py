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

from shoal.core.errors import NotAllowed, Unreachable
from shoal.runtime import tracing
from shoal_coordinator.app import create_app, operator_token
from shoal_coordinator.certificates import tls_options
from shoal_coordinator.dispatch import Acquainted
from shoal_coordinator.express import Express
from shoal_coordinator.guard import App, Guard
from shoal_coordinator.held_bodies import HeldBodies
from shoal_coordinator.inside import Inside
from shoal_coordinator.ledger import Ledger
from shoal_coordinator.lives import Lives
from shoal_coordinator.memory import keep_big_blocks
from shoal_coordinator.metrics import Metrics
from shoal_coordinator.places import is_shared, server
from shoal_coordinator.protocol import MeteredProtocol
from shoal_coordinator.replica import STOP_S, Front, Replica
from shoal_coordinator.seat import Post, Seat
from shoal_coordinator.service import Coordinator
from shoal_coordinator.settings import LOOPBACK, Settings

log = structlog.get_logger()

KEEP_ALIVE_S = 75
GRACE_S = 10

Listens = Callable[[int], None]
"""Told the port as soon as requests are answered there."""


def ignored(_port: int) -> None:
    """A `Listens` of which nobody wants to know."""


def listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises `Unreachable` when the port is in use, with what to do."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise Unreachable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            code="port.in-use",
            hint=f"stop what uses it, or choose another port: --port {settings.port + 1}",
        ) from None
    return sock


def address(settings: Settings, sock: socket.socket) -> str:
    """The URL that people open."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "localhost") else settings.host  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{sock.getsockname()[1]}"


def run(settings: Settings, listens: Listens = ignored) -> int:
    """Serve until SIGINT (exit code 130) or SIGTERM (0). Raises a `ShoalError` for what can be known before."""
    if settings.host not in LOOPBACK and settings.tls_cert is None:
        log.warning("plain http beyond this machine", hint="set tls_cert and tls_key, or put a TLS proxy in front")
    if settings.tls_cert is not None and settings.tls_key is None:
        raise NotAllowed("tls_cert without tls_key", hint="give both, as PEM files")
    keep_big_blocks()
    tracing.configure("coordinator")
    with listen(settings) as sock:
        server = build(settings, listens)
        log.info("coordinator", url=address(settings, sock), data=str(settings.data))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[sock]))
    return 130 if server.interrupted else 0


def build(settings: Settings, listens: Listens = ignored) -> Server:
    """A server that is ready to `serve`."""
    metrics = Metrics()
    protocol = MeteredProtocol.bind(Ledger(), settings, metrics)

    def books(ledger: Ledger) -> None:
        protocol.ledger = ledger

    def make(ledger: Ledger, post: Post | None = None, inside: Inside | None = None) -> tuple[Coordinator, App]:
        coordinator = Coordinator(settings, ledger, operator_token(settings), post, inside, metrics)
        api = create_app(coordinator)
        told: App = Lives(HeldBodies(Express(api, coordinator), api, settings), coordinator)
        told = Acquainted(told, coordinator) if coordinator.owner else told
        return coordinator, Guard(told, settings, coordinator.steering)

    house: Alone | Replica
    if is_shared(settings.url):
        seat = Seat(server(settings.url), settings.data, settings.owner_lease_s)
        house = Replica(settings, seat, make, books, metrics)
        app: App = Front(house, settings)
    else:
        coordinator, app = make(protocol.ledger)
        house = Alone(coordinator)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        **tls_options(settings),
    )
    return Server(config, house, listens)


class Alone:
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


class Server(uvicorn.Server):
    """uvicorn with a coordinator inside: restored before the first connection, drained before the last ends."""

    def __init__(self, config: uvicorn.Config, house: Alone | Replica, listens: Listens) -> None:
        super().__init__(config)
        self.house, self._listens = house, listens
        self.interrupted = False

    @property
    def coordinator(self) -> Coordinator:
        """The one that answers here; there must be one."""
        found = self.house.coordinator
        assert found is not None
        return found

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Errors of the start are raised from `serve`, in our own words."""
        await self.house.start(sockets[0].getsockname()[1] if sockets else 0)
        gc.freeze()  # what was made until here stays to the end: no need to look at it at each collection
        await super().startup(sockets)
        for sock in sockets or ():
            self._listens(sock.getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let polls and streams go, answer what is in hand, close the journal."""
        self.house.drain()
        if isinstance(self.house, Replica):
            await self._hand_over(self.house)
        await super().shutdown(sockets)
        await self.house.stop()

    async def _hand_over(self, replica: Replica) -> None:
        """Others wait to take over: what is not answered in a moment is asked of them again."""
        for listening in self.servers:
            listening.close()
        end = asyncio.get_running_loop().time() + STOP_S
        while self.server_state.tasks and asyncio.get_running_loop().time() < end:
            await asyncio.wait(self.server_state.tasks, timeout=STOP_S)
        await replica.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Once is graceful, twice is now."""
        self.interrupted = sig == signal.SIGINT
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
