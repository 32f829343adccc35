"""The process of a node: it connects, polls, and hands what comes to the pump of each job.

    start     load the learner, enrol or use the saved credential, say hello
    serve     deliver reports that an earlier process could not; keep a poll open, also while the node trains; pass each
              answer to its job's pump
    leave     end the poll, let reports through, return the tasks

One thread trains, or awaits the training process (`trainer_backend`): one task at a time over all jobs. Each request
has a thread of its own. The agent ends by itself when its credential is revoked (`NotAllowed`), when the coordinator
refuses its polls (`Refused`), and when all jobs that the settings name have ended.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import structlog

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.protocol.message import Message
from shoal.extras import not_installed
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.error_groups import reraise_first
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.node_client import NodeWelcome
from shoal.runtime.http.retry import call_with_retries
from shoal.runtime.threads import SerialExecutor, in_thread
from shoal_edge_client.edge_jobs import EdgeJob, EdgeJobs
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.session import CoordinatorSession
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.training.base_models import BaseModels
from shoal_edge_client.training.trainer_backend import trainer_backend
from shoal_edge_client.transport import HttpTransport

CANCEL_GRACE_S = 2.0
"""Seconds that a cancelled training may take to notice, before the process ends without it."""
IDLE_PAUSE_S_MAX = 2.0
"""Longest pause between polls that are answered at once and change nothing."""


class Agent:
    """The process of a node. `learner`: an object, or None to load the one that the settings name. `ends_with_jobs`: if
    the settings name no jobs, end with those that the node has taken part in."""

    def __init__(
        self,
        settings: EdgeSettings,
        learner: Learner | None = None,
        *,
        at: CrashPoint = no_crash,
        ends_with_jobs: bool = False,
    ) -> None:
        self._learner, self._at, self._ends_with_jobs = learner, at, ends_with_jobs
        self.executor = SerialExecutor("shoal-training")
        self.state = StateFolder(settings.folder, parse(settings.url), at)
        self.session = CoordinatorSession(settings, self.state)
        self.jobs: dict[str, EdgeJob] = {}
        self.log = self.session.log
        self._leaving = asyncio.Event()
        self._train_s, self._executor_s = 0.0, CANCEL_GRACE_S
        self._edge_jobs: EdgeJobs | None = None
        self._polling: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Take part until told to leave (False), or until the named jobs have ended (True). Raises `ShoalError`."""
        with self.state:
            serving = asyncio.create_task(self._serve())
            leaving = asyncio.create_task(self._leaving.wait())
            try:
                await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    await serving
                    return True
                await self._leave(serving)
                return False
            finally:
                leaving.cancel()
                await self._close(serving)

    def leave(self, *, train_s: float = 0.0) -> None:
        """Start to shut down. `train_s`: seconds that a running task may still take. Call it in the event loop."""
        self._train_s = train_s
        if self._edge_jobs is not None:
            self._edge_jobs.is_leaving = True
        self._leaving.set()

    def abandon(self) -> None:
        """Stop waiting for running work; the caller is about to cancel `run`."""
        self._executor_s = 0.0

    @property
    def is_leaving(self) -> bool:
        """Return whether the shutdown has begun."""
        return self._leaving.is_set()

    async def _serve(self) -> None:
        welcome, resumed = await self._start()
        transport = HttpTransport(
            self.session.client,
            lambda job: self.jobs[job].spool.blobs,
            max(1.0, self.session.settings.shutdown_upload_s),
            self.session.polls,
            wait_s=min(self.session.settings.poll_wait_s, welcome.wait_s_max),
            jobs=tuple(self.session.settings.jobs),
        )
        try:
            async with asyncio.TaskGroup() as group:
                if self.session.peering is not None:
                    group.create_task(self.session.peering.listener.serve())
                jobs = EdgeJobs(self.jobs, self.session, transport, self.executor, group, welcome, self._at)
                self._edge_jobs, jobs.end_node = jobs, self._ends_with_jobs
                for name, description in resumed.items():
                    await jobs.run(name, description)
                if not resumed:
                    await jobs.join_known()
                self._polling = group.create_task(self._poll(jobs, transport, resumed))
        except BaseExceptionGroup as errors:
            reraise_first(errors)

    async def _start(self) -> tuple[NodeWelcome, dict[str, dict[str, Any]]]:
        """Open the trainer and the listener, and connect. Return what `CoordinatorSession.connect` does."""
        session = self.session
        session.backend = trainer_backend(session.settings, self._learner, self.state.folder / "training")
        await self.executor.run(session.backend.open)
        limit = session.settings.base_bytes_max
        session.bases = BaseModels(self.state.folder / "bases", session.backend, limit, self._at)
        await self.executor.run(session.bases.restore)
        if session.settings.peer_listen:
            self._open_peering()
        welcome, resumed = await session.connect()
        if session.peering is not None:
            session.peering.reenrolment.has_token = False  # from here on it is waited for
        structlog.contextvars.bind_contextvars(node=welcome.name)
        self.log.info("joined", url=session.settings.url, device=session.node_info()["device"])
        return welcome, resumed

    def _open_peering(self) -> None:
        """Start to listen for other nodes."""
        try:
            from shoal_edge_client.peering.edge_peering import EdgePeering
        except ModuleNotFoundError as error:
            raise not_installed(error, "peer", "peer_listen", "leave peer_listen empty") from None
        session = self.session
        clients = (session.client, session.polls)
        session.peering = EdgePeering(
            session.settings, self.state, clients, session.open_client, session.node_info(), self._at
        )

    async def _poll(self, jobs: EdgeJobs, transport: HttpTransport, resumed: Mapping[str, Mapping[str, Any]]) -> None:
        """Poll until the named jobs have ended."""
        if resumed:
            await self._connect_late(jobs, resumed)
        empty_polls = 0
        while not jobs.are_over:
            tries, started = 0, time.monotonic()

            def once() -> tuple[str, Message] | None:
                nonlocal tries
                tries += 1
                return transport.poll(jobs.held())

            found = await call_with_retries(jobs.backoff, once)
            for lease in transport.leases:
                await jobs.on_lease(lease)
            if tries > 1 or found is None:
                await jobs.check_ended()
            if found is None:
                await asyncio.sleep(min(transport.pause_s, jobs.pause_s_max))
            changed = await jobs.dispatch(*found) if found else time.monotonic() - started > IDLE_PAUSE_S_MAX
            empty_polls = 0 if changed else empty_polls + 1
            if empty_polls:
                await asyncio.sleep(random.uniform(0.5, 1.0) * min(0.05 * 2.0 ** min(empty_polls, 9), IDLE_PAUSE_S_MAX))
        if self.session.peering is not None:
            self.session.peering.listener.close()
        for name in set(self.session.settings.jobs) & jobs.refused.keys():
            raise InvalidJob(f"no part in job {name}: {jobs.refused[name]}", code="learner.model")

    async def _connect_late(self, jobs: EdgeJobs, resumed: Mapping[str, Mapping[str, Any]]) -> None:
        """Say hello to a coordinator that did not answer at the start, and check what became of the resumed jobs."""
        known = self.state.identity()
        assert known is not None
        jobs.welcome = await self.session.hello(known, jobs.backoff)
        jobs.update_poll_wait()
        await jobs.check_resumed(resumed)
        await jobs.join_known()

    async def _leave(self, serving: asyncio.Task[None]) -> None:
        if self._polling is None:  # it has not connected yet
            return
        self._polling.cancel()
        self.session.polls.abort()
        upload_s = self.session.settings.shutdown_upload_s
        pumps = [job.pump for job in self.jobs.values()]
        await asyncio.gather(*(pump.leave(train_s=self._train_s, upload_s=upload_s) for pump in pumps))
        if self.session.peering is not None:
            self.session.peering.listener.close()
        try:
            await in_thread(lambda: self.session.client.leave(max(1.0, upload_s)))
            self.log.info("left; the tasks were returned")
        except ShoalError as error:
            self.log.warning("left, but the coordinator did not answer", why=error.message)
        await asyncio.wait({serving}, timeout=upload_s)

    async def _close(self, serving: asyncio.Task[None]) -> None:
        """Release all connections, processes and threads, in any state."""
        serving.cancel()
        await asyncio.wait({serving})
        self.session.close()
        await self.executor.wait_idle(self._executor_s)
        self.executor.close()
