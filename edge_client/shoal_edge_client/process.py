"""A node's process from outside: signals, the log, and exit codes.

Ctrl-C, SIGINT    once: what is ready is delivered, the task is handed back, 130; twice: now
SIGTERM           the work in hand has `shutdown_train_s` seconds to be done and delivered, the task is handed back, 0;
                  under torchrun, which starts the node again: now
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob
from shoal.extras import not_installed
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.observability import logs, tracing
from shoal.runtime.open_files import raise_limit
from shoal.runtime.training.child import follow
from shoal.runtime.training.site.group import end_teller, rank_here, ranks_of_torchrun
from shoal_edge_client.agent import Agent
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.telemetry.log_shipping import LogShipper
from shoal_edge_client.telemetry.system_metrics import SystemProbe, SystemReporter

if TYPE_CHECKING:
    from shoal_edge_client.split.split_agent import SplitAgent

OK, INTERRUPTED = 0, 130


def run(settings: EdgeSettings, learner: Learner | None = None, *, at: CrashPoint = no_crash) -> int:
    """Take part until the named jobs have ended or a signal arrives; return the exit code. Raises `ShoalError`.

    torchrun starts several processes for one node: rank 0 takes part, the others only train with it.
    """
    if ranks_of_torchrun() > 1 and (settings.split_job or settings.trainer in ("thread", "command")):
        hint = 'leave split_job and trainer out, or start it without torchrun: trainer = "command" has processes = N'
        raise InvalidJob("this node cannot train in the processes of torchrun", code="learner.processes", hint=hint)
    if rank_here():
        follow()
    tell_end = end_teller()
    code = _take_part(EdgeProcess(settings, learner, at))
    if code == OK:
        tell_end()
    return code


def _take_part(process: EdgeProcess) -> int:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is not threading.main_thread():
            return asyncio.run(process.main(signals=False))
        with _handlers_kept():
            return asyncio.run(process.main(signals=True))
    return process.run_in_thread()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the signal handlers afterwards: an event loop that closes resets them to Python's own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _agent(settings: EdgeSettings, learner: Learner | None, at: CrashPoint, ends_with_jobs: bool) -> Agent | SplitAgent:
    """Return the agent for the jobs that the settings name."""
    if not settings.split_job:
        return Agent(settings, learner, at=at, ends_with_jobs=ends_with_jobs)
    try:
        from shoal_edge_client.split.split_agent import SplitAgent
    except ModuleNotFoundError as error:
        raise not_installed(error, "torch", "split_job") from None
    return SplitAgent(settings, learner, at=at)


def _reporters(settings: EdgeSettings, agent: Agent | SplitAgent) -> list[LogShipper | SystemReporter]:
    """Return the reporters of logs and system metrics that the settings ask for."""

    def open_client() -> NodeClient:
        return NodeClient(settings.url, **settings.trust)

    def credential() -> str:
        return agent.session.credential

    def cards() -> frozenset[str] | None:
        backend = agent.session.backend
        found = frozenset() if backend is None else backend.compute.cards
        if found is None and settings.trainer == "command":
            return frozenset()  # not all cards of this machine: the training may run on another one
        return found

    found: list[LogShipper | SystemReporter] = []
    if settings.send_logs != "off":
        found.append(LogShipper(settings.send_logs, open_client, credential))
    if settings.system_metrics_s:
        probe = SystemProbe(settings.folder, cards)
        found.append(SystemReporter(probe, settings.system_metrics_s, open_client, credential))
    return found


class EdgeProcess:
    """One run of an agent, with the log that the settings ask for. `ends_with_jobs`: as for `Agent`."""

    def __init__(
        self, settings: EdgeSettings, learner: Learner | None, at: CrashPoint, *, ends_with_jobs: bool = False
    ) -> None:
        if not structlog.is_configured():
            logs.configure("edge", level=settings.log_level, form=settings.log_form, node=settings.node)
        tracing.configure("edge")
        self._settings = settings
        self._agent = _agent(settings, learner, at, ends_with_jobs)
        self._reporting = _reporters(settings, self._agent)
        self._code = OK
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end_now: asyncio.Event | None = None
        self._has_loop = threading.Event()
        self._log: Any = structlog.get_logger("edge_client")

    async def main(self, *, signals: bool) -> int:
        """Run the agent in an event loop, and handle signals in the main thread."""
        self._loop, self._end_now = asyncio.get_running_loop(), asyncio.Event()
        self._has_loop.set()
        raise_limit()  # other nodes may connect to this one
        if signals:
            self._loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
            self._loop.add_signal_handler(signal.SIGTERM, self._on_terminate)
        for one in self._reporting:
            one.start()
        try:
            return await self._run_agent()
        finally:
            for one in self._reporting:
                one.stop()

    async def _run_agent(self) -> int:
        """Run the agent to its end, or until a second signal."""
        assert self._end_now is not None
        running = asyncio.create_task(self._agent.run())
        now = asyncio.create_task(self._end_now.wait())
        await asyncio.wait({running, now}, return_when=asyncio.FIRST_COMPLETED)
        now.cancel()
        if not running.done():
            self._agent.abandon()
            self._exit_at_end()
            return INTERRUPTED
        ended = await running
        if self._agent.executor.busy:
            self._exit_at_end()
        return OK if ended else self._code

    def _exit_at_end(self) -> None:
        """Exit without the interpreter's teardown if the learner still runs, perhaps in C++, where teardown would
        crash."""

        def end() -> None:
            if self._agent.executor.busy:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(self._code)

        atexit.register(end)

    def _on_interrupt(self) -> None:
        self._code = INTERRUPTED
        assert self._end_now is not None
        if self._agent.is_leaving:
            self._end_now.set()
            return
        self._log.info("handing my tasks back; Ctrl-C again ends at once")
        self._agent.leave()

    def _on_terminate(self) -> None:
        if ranks_of_torchrun() > 1:  # it starts all processes again, which do the task again
            assert self._end_now is not None
            self._end_now.set()
        elif not self._agent.is_leaving:
            self._log.info("ending", seconds_for_work=self._settings.shutdown_train_s)
            self._agent.leave(train_s=self._settings.shutdown_train_s)

    def leave(self, *, train_s: float) -> None:
        """Begin to shut down, from another thread than that of `main`; see `Agent.leave`."""
        self._has_loop.wait()
        with suppress(RuntimeError):  # it has ended
            assert self._loop is not None
            self._loop.call_soon_threadsafe(partial(self._agent.leave, train_s=train_s))

    def run_in_thread(self) -> int:
        """Run in another thread, for callers with a running loop (a notebook); Ctrl-C makes it leave."""
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
                    self._loop.call_soon_threadsafe(self._on_interrupt)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return int(outcome[0])
