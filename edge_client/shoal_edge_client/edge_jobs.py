"""The jobs of one node: each has a pump, which runs until the job ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from shoal.core.algorithm.capability import CODE
from shoal.core.client.worker import Worker
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed, Refused, StorageFailed
from shoal.core.model.model_form import base_name
from shoal.core.protocol.message import BlobRef, Message, NoTask, Stop, Task, TaskId
from shoal.core.scheduling.selection import join_names
from shoal.jobs.spec import parse_job
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import CrashPoint
from shoal.runtime.http.node_client import JobLease, NodeWelcome
from shoal.runtime.http.retry import Backoff, call_with_retries
from shoal.runtime.threads import SerialExecutor, in_thread
from shoal.runtime.worker_ports import HeldTask, JobPump, StartTask, WorkerPorts
from shoal.runtime.worker_pump import WorkerPump
from shoal_edge_client.session import CoordinatorSession
from shoal_edge_client.spool import Spool
from shoal_edge_client.training.trainer import EdgeTrainer, UnusableLearner
from shoal_edge_client.transport import HttpTransport

ENDED_STATES = {"done", "stopped", "failed"}
POLLS_PER_TIMEOUT = 3
"""Polls that end within the time after which a job suspects the coordinator."""


def _ignore_lease(lease: JobLease) -> None:
    """Ignore leases: a plain worker needs none."""


@dataclass
class EdgeJob:
    """A job that this node takes part in."""

    spool: Spool
    pump: JobPump
    running: asyncio.Task[None]
    timeout_s: float = inf
    """Seconds of silence after which the job suspects the coordinator."""
    on_lease: Callable[[JobLease], None] = _ignore_lease
    """Called when the coordinator has shown that it is alive."""
    last_task: TaskId | None = None
    """The task in hand, or the last one: a node that names it in a poll is told at once when the job ends."""

    def held(self) -> HeldTask | None:
        """Return the task that a poll reports for this job. Any thread may call."""
        fetching = self.pump.fetching
        if fetching is not None:  # not the last task yet: if it is dropped, the coordinator must send it again
            return fetching
        revision, task = self.pump.revision, self.pump.held
        self.last_task = task or self.last_task
        return self.last_task if self.last_task is None or not revision else (*self.last_task, revision)


class EdgeJobs:
    """The jobs of a node. `running`: those with a pump, by name; `ended`: those that are over for this node;
    `refused`: why the coordinator has excluded this node, by job."""

    def __init__(
        self,
        running: dict[str, EdgeJob],
        session: CoordinatorSession,
        transport: HttpTransport,
        executor: SerialExecutor,
        group: asyncio.TaskGroup,
        welcome: NodeWelcome,
        at: CrashPoint,
    ) -> None:
        self.running, self.welcome = running, welcome
        self.ended: set[str] = set()
        self.refused: dict[str, str] = {}
        self.is_leaving = False
        """True if the node shuts down: then pumps end before their jobs."""
        self.end_node = False
        """True if a node whose settings name no jobs ends with those that it has taken part in."""
        self._session, self._transport, self._executor, self._group, self._at = session, transport, executor, group, at
        self._log = session.log

    @property
    def are_over(self) -> bool:
        """Return whether the jobs that the settings name have all ended."""
        if self.end_node and not self._session.settings.jobs:
            return not self.running and bool(self.ended - self.refused.keys())
        names = self._session.settings.jobs
        return bool(names) and self.ended.issuperset(names)

    @property
    def pause_s_max(self) -> float:
        """Return the longest pause between polls, in seconds, that no job takes for the coordinator's failure."""
        return min((job.timeout_s for job in self.running.values()), default=inf) / POLLS_PER_TIMEOUT

    @property
    def backoff(self) -> Backoff:
        """Return the back-off for requests, within the timeouts of all jobs."""
        return replace(self._session.backoff, most_s=min(self._session.backoff.most_s, self.pause_s_max))

    def held(self) -> dict[str, HeldTask]:
        """Return the tasks that a poll reports. Any thread may call."""
        held = {name: job.held() for name, job in list(self.running.items())}
        return {name: task for name, task in held.items() if task is not None}

    def update_poll_wait(self) -> None:
        """Limit how long polls stay open to what the coordinator, the settings and every job allow."""
        longest = min(self._session.settings.poll_wait_s, self.welcome.wait_s_max)
        self._transport.wait_s = min(longest, self.pause_s_max)

    async def join_known(self) -> None:
        """Deliver saved reports, continue jobs that were in mode gossip, and check that the named jobs exist."""
        for name in await in_thread(self._session.state.jobs):
            if name not in self.running and await in_thread(partial(self._has_unfinished_work, name)):
                try:
                    await self._join(name)
                except Refused as error:
                    self._log.warning("a report is kept, but not delivered", job=name, why=error.message)
        for name in self._session.settings.jobs:
            if name not in self.running:
                found = await self._describe(name)
                if found.get("state") in ENDED_STATES:
                    self._log.info("the job has ended already", job=name)
                    self.ended.add(name)

    def _has_unfinished_work(self, name: str) -> bool:
        """Return whether an earlier process left a report, or a job in mode gossip; blocks."""
        peering = self._session.peering
        if peering is not None and peering.was_gossiping(name):
            return True
        return self._session.state.spool(name).load().report is not None

    async def check_resumed(self, resumed: Mapping[str, Mapping[str, Any]]) -> None:
        """Stop the jobs resumed without the coordinator whose names belong to other jobs now."""
        for name, description in resumed.items():
            try:
                found = await call_with_retries(self.backoff, partial(self._transport.job, name))
            except Refused as error:  # a coordinator that is being restored may know it later
                self._log.warning("the coordinator does not know the job", job=name, why=error.message)
                continue
            if found.get("created_at") != description["created_at"]:
                await self.dispatch(name, Stop("another job has its name now"))

    async def on_lease(self, lease: JobLease) -> None:
        """Handle a sign of life of the coordinator in a job that its nodes may continue; join the job's peers."""
        named = self._session.settings.jobs
        wanted = self._session.peering is not None and (not named or lease.job in named)
        if wanted and lease.job not in self.running and lease.job not in self.ended:
            await self._join(lease.job)  # without a task yet, but its peers may need this node
        if lease.job in self.running:
            self.running[lease.job].on_lease(lease)

    async def dispatch(self, name: str, message: Message) -> bool:
        """Pass a message to its job's pump; return whether it changed anything."""
        if isinstance(message, Stop) and message.model_differs:
            why = await self._take_base(name)
            if why is None:
                return True
            message = replace(message, why=message.why + why)
            if self.refused.get(name) != message.why:
                self._log.error("this node takes no part in the job", job=name, why=message.why)
            self.refused[name] = message.why
            self.ended.add(name)
        if name not in self.running and isinstance(message, Task):
            await self._join(name)
        if name not in self.running:
            return False
        job = self.running[name]
        changed = await job.pump.submit(message)
        if isinstance(message, NoTask):
            job.last_task = None
        if job.pump.stopped:
            await job.running
        return changed

    async def _take_base(self, name: str) -> str | None:
        """Load the base model of a job whose model differs from the learner's, and tell the coordinator.

        Return None if that was done; else why not, as the end of a sentence: "" if the job offers none.
        """
        bases, known = self._session.bases, self._session.state.identity()
        ref = bases.wanted(await self._describe(name)) if bases is not None else None
        if bases is None or known is None:
            return ""
        if ref is None:
            return bases.give_up(name, self.running)
        text = f"; it cannot take the job's {base_name(ref.digest)}"
        if others := ({*self.running, bases.job} - self.ended) - {name, ""}:
            return f"{text} while it works for {join_names(sorted(others))}"
        self._log.info("fetching the job's base model", job=name, digest=ref.digest, bytes=ref.nbytes)
        try:
            await call_with_retries(self._session.backoff, partial(bases.fetch, name, ref, self._download))
            await self._executor.run(partial(bases.load, name, ref))
        except (InvalidJob, InvalidPayload, LearnerFailed, Refused, StorageFailed) as error:
            return f"{text}: {error.message}" + (f" ({error.hint})" if error.hint else "")
        self._log.info("the learner has the job's base model", job=name, digest=ref.digest)
        self.welcome = await self._session.hello(known, self.backoff)
        return None

    def _download(self, job: str, blobs: FileBlobs, ref: BlobRef) -> None:
        self._transport.fetch_into(blobs, job, ref, lambda: self.is_leaving)

    async def check_ended(self) -> None:
        """Ask for the state of idle jobs: the answer that said that one had ended may have been lost, or the job may
        have ended before this node had a task of it."""
        alive = {lease.job for lease in self._transport.leases}
        idle = [name for name, job in self.running.items() if job.pump.held is None and job.pump.fetching is None]
        waiting = set(self._session.settings.jobs) - self.running.keys() - self.ended
        for name in [*(name for name in idle if name not in alive), *sorted(waiting)]:
            try:
                found = await self._describe(name)
            except Refused as error:
                self._log.debug("cannot see whether a job has ended", job=name, why=error.message)
                continue
            if found.get("state") in ENDED_STATES:
                await self.dispatch(name, Stop(str(found.get("state_why") or "the job has ended")))
                self.ended.add(name)

    async def _describe(self, name: str) -> dict[str, Any]:
        return await call_with_retries(self._session.backoff, partial(self._transport.job, name))

    async def _join(self, name: str) -> None:
        """Take part in a job, unless it has ended."""
        found = await self._describe(name)
        if found.get("state") in ENDED_STATES:
            await in_thread(self._session.state.spool(name).forget)
            self.ended.add(name)
        else:
            await self.run(name, found)

    async def run(self, name: str, found: Mapping[str, Any]) -> None:
        """Start the pump of a job from its description."""
        peering, backend = self._session.peering, self._session.backend
        assert backend is not None
        peer_state = peering.state_for(name, found) if peering is not None else None
        spool = peer_state or self._session.state.spool(name)
        await in_thread(partial(spool.bind_to_job, str(found.get("created_at"))))
        worker = await self._load_worker(name, spool)
        ports = self._ports(name, found, spool)
        self.ended.discard(name)
        if peer_state is None or peering is None:
            pump: JobPump = WorkerPump(name, worker, ports)
            self.running[name] = EdgeJob(spool, pump, self._group.create_task(self._run_pump(name, spool, pump)))
            return
        peer = await in_thread(partial(peering.create_pump, found, worker, ports, self._transport, backend))
        running = self._group.create_task(self._run_pump(name, spool, peer))
        timeout_s = peer.peer.failover.coordinator_timeout_s
        self.running[name] = EdgeJob(spool, peer, running, timeout_s=timeout_s, on_lease=peer.on_lease)
        self.update_poll_wait()

    async def _load_worker(self, name: str, spool: Spool) -> Worker:
        """Return the state machine of a job, with the report that an earlier process could not deliver."""
        kept = await in_thread(spool.load)
        worker = Worker(self.welcome.name, memory=kept.memory)
        if kept.report is not None:
            self._log.info("taking up an unsent report", job=name)
            worker.restore_answer(kept.report, kept.pending_memory)
            self._transport.mark_resumed(name, kept.report.task)
        return worker

    def _ports(self, name: str, found: Mapping[str, Any], spool: Spool) -> WorkerPorts:
        return WorkerPorts(
            transport=self._transport,
            state=spool,
            start_task=self._task_factory(name, found, spool),
            executor=self._executor,
            clock=time.monotonic,
            backoff=self._session.backoff,
            heartbeat_s=self.welcome.heartbeat_s,
            at=self._at,
            tracebacks=self._session.settings.send_tracebacks,
        )

    def _task_factory(self, name: str, found: Mapping[str, Any], spool: Spool) -> StartTask:
        """Return the function that starts this job's tasks, or one that refuses them if the job cannot be run."""
        assert self._session.backend is not None
        try:
            start = self._session.backend.task_starter(parse_job(found["spec"]))
        except (InvalidJob, KeyError) as error:
            text, hint = "its job file is not shown", "install the same release"
            if isinstance(error, InvalidJob):
                text, hint = error.message, error.hint if error.code == CODE else hint
            self._log.error("this node cannot run the job", job=name, why=text, hint=hint)
            return UnusableLearner(InvalidJob(f"this node cannot run the job: {text}", hint=hint))
        return EdgeTrainer(name, start, spool, self._session.state.save_traceback, self._at)

    async def _run_pump(self, name: str, spool: Spool, pump: JobPump) -> None:
        """Run a job's pump to its end."""
        why = await pump.run()
        if self.is_leaving:
            return
        self._log.info("job ended", job=name, why=why)
        await in_thread(spool.forget)
        self.ended.add(name)
        if self._session.bases is not None:
            self._session.bases.release(name)
        del self.running[name]
        self.update_poll_wait()
