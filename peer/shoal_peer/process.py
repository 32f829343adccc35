"""A peer's process from outside: its listener, signals and exit codes.

Ctrl-C, SIGINT    once: open exchanges are settled, others are told, 130; twice: now
SIGTERM           the same, 0
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from shoal.runtime.open_files import raise_limit
from shoal.runtime.store import CrashPoint, no_crash, write_file
from shoal.runtime.threads import in_thread
from shoal_peer.app import serving
from shoal_peer.lan import Announced, Lan, own_addresses
from shoal_peer.listening import listen
from shoal_peer.node import Node, Settings
from shoal_peer.status import Summary, Watch

OK, INTERRUPTED = 0, 130
ADDRESS = "address"
"""File in a peer's state: where its process answers."""

Listens = Callable[[str, int], None]
"""Told this peer's name and its port, as soon as requests are answered there."""


def run(
    settings: Settings, host: str, port: int, watch: Watch, listens: Listens, *, at: CrashPoint = no_crash
) -> tuple[int, Summary]:
    """Take part until it is over or a signal comes: (exit code, what came of it). Raises `ShoalError`."""
    return asyncio.run(_Process(settings, watch, at).main(host, port, listens))


class _Process:
    """One run of a peer."""

    def __init__(self, settings: Settings, watch: Watch, at: CrashPoint) -> None:
        self._node = Node(settings, watch, at=at)
        self._told = asyncio.Event()
        self._code = OK

    async def main(self, host: str, port: int, listens: Listens) -> tuple[int, Summary]:
        loop = asyncio.get_running_loop()
        raise_limit()
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, OK)):
            loop.add_signal_handler(number, partial(self._signalled, code))
        with listen(host, port) as sock, self._node as node:
            told = asyncio.create_task(self._told.wait())
            starting = asyncio.create_task(node.start())
            await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
                await node.trainer.end()
                return self._code, node.nothing()
            await starting
            await in_thread(partial(note_address, node, host, sock.getsockname()[1]))
            async with serving(node, sock), announced(node, host, sock.getsockname()[1]):
                running = asyncio.create_task(node.run())
                listens(node.me, sock.getsockname()[1])
                over = asyncio.create_task(node.over())
                await asyncio.wait({running, over, told}, return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                told.cancel()
                if running.done():
                    await running  # it raises why
                summary = await node.leave()
                await running
        return self._code, summary

    def _signalled(self, code: int) -> None:
        self._code = code
        if self._told.is_set():
            self._node.trainer.close()
            os._exit(INTERRUPTED)
        self._told.set()


def note_address(node: Node, host: str, port: int) -> None:
    """Write down where this process answers, for commands on this machine. Raises `StorageFailed`."""
    here = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with
    url = f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"
    write_file(node.desk.folder / ADDRESS, url.encode(), "address")


@asynccontextmanager
async def announced(node: Node, host: str, port: int) -> AsyncIterator[None]:
    """Let others on this network know where it is, and look for them, if it is to. Raises `ShoalError`."""
    if not node.settings.lan:
        yield
        return
    loop, me = asyncio.get_running_loop(), node.papers.me

    def found(peer_id: str, url: str) -> None:
        loop.call_soon_threadsafe(node.found, peer_id, url)

    lan = Lan(Announced(node.papers.spec.name, me.node, me.peer_id, own_addresses(host), port), found)
    await in_thread(lan.__enter__)
    try:
        yield
    finally:
        await in_thread(lan.__exit__)
