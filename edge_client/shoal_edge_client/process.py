"""A node's process from outside: signals, the log, and exit codes.

Ctrl-C, SIGINT    once: what is ready is delivered, the order is handed back, 130; twice: now
SIGTERM           the work in hand has `work_s` to be done and delivered, the order is handed back, 0
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from shoal.core.learner import Learner
from shoal.runtime import logs, tracing
from shoal.runtime.node_link import NodeLink
from shoal.runtime.open_files import raise_limit
from shoal.runtime.store import CrashPoint, no_crash
from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.shipping import Shipping
from shoal_edge_client.system import Probe, SystemReporter

OK, INTERRUPTED = 0, 130


def run(settings: EdgeSettings, learner: Learner | None = None, *, at: CrashPoint = no_crash) -> int:
    """Take part until the named jobs have ended or a signal comes; the exit code. Raises `ShoalError`."""
    if not structlog.is_configured():
        logs.configure("edge", level=settings.log_level, form=settings.log_form, node=settings.node)
    tracing.configure("edge")
    process = _Process(settings, learner, at)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is not threading.main_thread():
            return asyncio.run(process.main(signals=False))
        with _handlers_kept():
            return asyncio.run(process.main(signals=True))
    return process.beside()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Signals are handled afterwards as they were before: a loop that closes leaves Python's own handlers behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reporting(settings: EdgeSettings, agent: Agent) -> list[Shipping | SystemReporter]:
    """What shows people something of this node, beside its work."""

    def open_link() -> NodeLink:
        return NodeLink(settings.url, **settings.trust)

    def credential() -> str:
        return agent.link.credential

    found: list[Shipping | SystemReporter] = []
    if settings.send_logs != "off":
        found.append(Shipping(settings.send_logs, open_link, credential))
    if settings.system_metrics_s:
        found.append(SystemReporter(Probe(settings.folder), settings.system_metrics_s, open_link, credential))
    return found


class _Process:
    """One run of an agent."""

    def __init__(self, settings: EdgeSettings, learner: Learner | None, at: CrashPoint) -> None:
        self._settings = settings
        self._agent = Agent(settings, learner, at=at)
        self._reporting = _reporting(settings, self._agent)
        self._code = OK
        self._loop: asyncio.AbstractEventLoop | None = None
        self._now: asyncio.Event | None = None
        self._log: Any = structlog.get_logger("edge_client")

    async def main(self, *, signals: bool) -> int:
        """In an event loop: run the agent, and listen to signals where this is the main thread."""
        raise_limit()  # other nodes may connect to this one
        self._loop, self._now = asyncio.get_running_loop(), asyncio.Event()
        if signals:
            self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
            self._loop.add_signal_handler(signal.SIGTERM, self._terminated)
        for one in self._reporting:
            one.begin()
        try:
            return await self._see_through()
        finally:
            for one in self._reporting:
                one.end()

    async def _see_through(self) -> int:
        """Run the agent to its end, or until that is to be now."""
        assert self._now is not None
        running = asyncio.create_task(self._agent.run())
        now = asyncio.create_task(self._now.wait())
        await asyncio.wait({running, now}, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        if not running.done():
            self._agent.abandon()
            self._die_hard()
            return INTERRUPTED
        ended = await running
        if self._agent.lane.busy:
            self._die_hard()
        return OK if ended else self._code

    def _die_hard(self) -> None:
        """The learner is still at it, maybe deep in C++, where the interpreter's end would crash: end before that."""

        def end() -> None:
            if self._agent.lane.busy:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(self._code)

        atexit.register(end)

    def _interrupted(self) -> None:
        self._code = INTERRUPTED
        assert self._now is not None
        if self._agent.is_leaving:
            self._now.set()
            return
        self._log.info("handing my orders back; Ctrl-C again ends at once")
        self._agent.leave()

    def _terminated(self) -> None:
        if not self._agent.is_leaving:
            self._log.info("ending", seconds_for_work=self._settings.work_s)
            self._agent.leave(work_s=self._settings.work_s)

    def beside(self) -> int:
        """Where a loop runs in this thread already (a notebook): in another thread, which Ctrl-C tells to leave."""
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(asyncio.run(self.main(signals=False)))
            except BaseException as error:  # noqa: BLE001 - it is raised where `join` was called
                outcome.append(error)

        thread = threading.Thread(target=work, name="shoal-edge", daemon=True)
        thread.start()
        while thread.is_alive():
            try:
                thread.join(0.2)
            except KeyboardInterrupt:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._interrupted)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return int(outcome[0])
