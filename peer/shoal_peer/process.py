"""A peer's process from outside: its listener, signals and exit codes.

Ctrl-C, SIGINT    once: settle open exchanges, tell the peers, exit with 130; twice: exit at once
SIGTERM           the same, 0
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from shoal.memory import SHARE_HEAP, configure_malloc
from shoal.peering.http.peer_app import serve_peer
from shoal.runtime.durable_files import CrashPoint, no_crash, write_file
from shoal.runtime.http.server.serving import listen
from shoal.runtime.open_files import raise_limit
from shoal.runtime.threads import in_thread
from shoal_peer.mdns import MdnsDiscovery, MdnsRecord, own_addresses
from shoal_peer.peer_process import PeerSettings, StandalonePeer
from shoal_peer.peer_status import PeerObserver, PeerSummary

OK, INTERRUPTED = 0, 130
ADDRESS = "address"
"""File in a peer's state: where its process answers."""

OnListening = Callable[[str, int], None]
"""Told this peer's name and its port, as soon as requests are answered there."""


def run(
    settings: PeerSettings,
    host: str,
    port: int,
    watch: PeerObserver,
    listens: OnListening,
    *,
    at: CrashPoint = no_crash,
) -> tuple[int, PeerSummary]:
    """Take part until the peer is done or a signal arrives; return (exit code, summary). Raises `ShoalError`."""
    configure_malloc(SHARE_HEAP)
    return asyncio.run(_PeerProcess(settings, watch, at).main(host, port, listens))


class _PeerProcess:
    """One run of a peer."""

    def __init__(self, settings: PeerSettings, watch: PeerObserver, at: CrashPoint) -> None:
        self._node = StandalonePeer(settings, watch, at=at)
        self._stop = asyncio.Event()
        self._code = OK

    async def main(self, host: str, port: int, listens: OnListening) -> tuple[int, PeerSummary]:
        loop = asyncio.get_running_loop()
        raise_limit()
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, OK)):
            loop.add_signal_handler(number, partial(self._on_signal, code))
        with listen(host, port) as sock, self._node as node:
            stopping = asyncio.create_task(self._stop.wait())
            starting = asyncio.create_task(node.start())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
                await node.trainer.end()
                return self._code, node.empty_summary()
            await starting
            await in_thread(partial(save_address, node, host, sock.getsockname()[1]))
            async with serve_peer(node.group, sock), announce(node, host, sock.getsockname()[1]):
                running = asyncio.create_task(node.run())
                listens(node.group.documents.me.node, sock.getsockname()[1])
                over = asyncio.create_task(node.progress.done.wait())
                await asyncio.wait({running, over, stopping}, return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                stopping.cancel()
                if running.done():
                    await running  # it raises why
                summary = await node.leave()
                await running
        return self._code, summary

    def _on_signal(self, code: int) -> None:
        self._code = code
        if self._stop.is_set():
            self._node.trainer.close()
            os._exit(INTERRUPTED)
        self._stop.set()


def save_address(node: StandalonePeer, host: str, port: int) -> None:
    """Write the address of this process for commands on this machine. Raises `StorageFailed`."""
    here = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with
    url = f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"
    write_file(node.state.folder / ADDRESS, url.encode(), "address")


@asynccontextmanager
async def announce(node: StandalonePeer, host: str, port: int) -> AsyncIterator[None]:
    """Announce this peer on the network and look for others, if the settings ask for it. Raises `ShoalError`."""
    if not node.settings.lan:
        yield
        return
    loop, me = asyncio.get_running_loop(), node.group.documents.me

    def found(peer_id: str, url: str) -> None:
        loop.call_soon_threadsafe(node.group.on_discovered, peer_id, url)

    lan = MdnsDiscovery(
        MdnsRecord(node.group.documents.spec.name, me.node, me.peer_id, own_addresses(host), port), found
    )
    await in_thread(lan.__enter__)
    try:
        yield
    finally:
        await in_thread(lan.__exit__)
