"""Polls for tasks: the next answer for a node, over all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fastapi import Request, Response

from shoal.core.protocol.message import Stop
from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.node_protocol.fair_queue import FairQueue
from shoal_coordinator.node_protocol.held_polls import hold_poll
from shoal_coordinator.node_protocol.node_messages import NodeProtocolHandler, held_task
from shoal_coordinator.node_protocol.node_request import NodeServices
from shoal_coordinator.node_protocol.poll_decision import HeldTask
from shoal_coordinator.nodes.load_shedding import HEADER, LoadShedding
from shoal_coordinator.peers.relay_auth import RelayAuth

HeldTasks = dict[str, HeldTask]
"""By job: the task that a node holds, and its revision."""

FetchRemote = Callable[[Request, str, Sequence[str], set[str]], Awaitable[Response | None]]
"""Returns the next answer of another coordinator for a node: (request, node, held tasks, wanted jobs)."""


def held_tasks(texts: Sequence[str]) -> HeldTasks:
    """Parse `JOB:TERM.N` or `JOB:TERM.N.REVISION` of each task that a node holds."""
    split = [text.rpartition(":") for text in texts]
    return {job: held_task(task) for job, _, task in split}


class TaskPolls:
    """Handler of polls for tasks."""

    def __init__(
        self,
        services: NodeServices,
        fair_queue: FairQueue,
        load_shedding: LoadShedding,
        relay_auth: RelayAuth,
        fetch_remote: FetchRemote,
    ) -> None:
        self._services, self._fair_queue, self._load_shedding = services, fair_queue, load_shedding
        self._relay_auth, self._fetch_remote = relay_auth, fetch_remote

    async def answer(
        self,
        request: Request,
        node: str,
        wait_s: float,
        held: Sequence[str],
        wanted: Sequence[str],
        check_credential: Callable[[], object],
    ) -> Response:
        """Answer a poll whose parameters are within their limits.

        Args:
            check_credential: raises if the credential was revoked while the poll was open.
        """
        holds, only = held_tasks(held), set(wanted)
        began = asyncio.get_running_loop().time()
        running = self._services.jobs.running()
        self._note_participation(node, running, only)
        label(request, self.only_job(node), node=node, kind="poll")
        self._relay_auth.clear_relay(node)

        async def find_answer() -> Response | None:
            check_credential()
            return await self._next_of_all(request, node, held, holds, only)

        def is_unsure() -> bool:
            busy = any(not runner.gate.is_consistent(node) for runner in self._services.jobs.running())
            return self._services.wakeups[node].is_set() or busy

        answer = await hold_poll(request, self._services, node, wait_s, find_answer, is_unsure)
        if answer is None:
            answer = self._no_task(node, asyncio.get_running_loop().time() - began)
        return self._add_leases(node, answer)

    async def _next_of_all(
        self, request: Request, node: str, held: Sequence[str], holds: HeldTasks, only: set[str]
    ) -> Response | None:
        """Return the next answer of this coordinator or of a follower, in fair order."""
        followers_first = self._fair_queue.followers_first(node)
        answer = await self._fetch_remote(request, node, held, only) if followers_first else None
        if answer is None:
            answer = await self.take_answer(request, node, holds, only)
        if answer is None and not followers_first:
            answer = await self._fetch_remote(request, node, held, only)
        return answer

    async def take_answer(self, request: Request, node: str, holds: HeldTasks, only: set[str]) -> Response | None:
        """Return the next answer of this coordinator, and put its job last in the node's queue."""
        answer = await self.next_answer(request, node, holds, only)
        exchange = request.scope.get(SCOPE_KEY)
        if answer is not None and exchange is not None:
            self._fair_queue.served(node, exchange.label.job)
        return answer

    async def next_answer(self, request: Request, node: str, holds: HeldTasks, only: set[str]) -> Response | None:
        """Return the first answer of this coordinator's jobs that the node does not know yet."""
        services = self._services
        for runner in self._fair_queue.ordered_runners(node, services.jobs.running()):
            handler = NodeProtocolHandler(request, services, runner.name, node)
            is_wanted = not only or runner.name in only
            reply = await handler.decide(runner, holds.get(runner.name), is_wanted=is_wanted)
            found = handler.respond(runner, reply) if reply is not None else None
            if found is not None:
                return found
        return self._stop_for(request, node, holds)

    def _stop_for(self, request: Request, node: str, holds: HeldTasks) -> Response | None:
        """Return a Stop for the first held task whose job has ended or does not exist."""
        jobs = self._services.jobs
        for name in holds:
            record = jobs.records.get(name)
            if record is None and (jobs.has_recovered_jobs or jobs.may_be_remote(name)):
                continue  # a recovered job may be restored from what a node keeps
            if record is None or record.runner is None or record.runner.gate.has_ended:
                label(request, name if record else "", node=node, kind="poll")
                why = record.runner.hub.progress.ends_after_round if record and record.runner else ""
                return NodeProtocolHandler(request, self._services, name, node).frame(
                    Stop(why or ("the job has ended" if record else "there is no such job"))
                )
        return None

    def _no_task(self, node: str, held_s: float) -> Response:
        """Return 204, with the time to stay away if there are many nodes."""
        pause_s = self._load_shedding.pause_s(held_s)
        if not pause_s:
            return Response(status_code=204)
        self._services.presence.pause(node, pause_s)
        return Response(status_code=204, headers={HEADER: f"{pause_s:.2f}"})

    def _note_participation(self, node: str, running: Sequence[JobRunner], only: set[str]) -> None:
        """Note in which jobs the node is a peer: those that it polls for."""
        for runner in running:
            if runner.spec.gossip.allowed:
                wanted = (not only or runner.name in only) and node not in runner.hub.eligibility.foreign_models
                self._services.trust_documents.set_participation(runner.name, node, wanted=wanted)

    def _add_leases(self, node: str, answer: Response) -> Response:
        """Add the term and roster version of each job that the node is a peer of."""
        documents = self._services.trust_documents
        leases = [
            f"{runner.name}={runner.gate.term}.{current.roster.version}"
            for runner in self._services.jobs.running()
            if node in documents.peers(runner.name) and (current := documents.current(runner.name)) is not None
        ]
        if leases:
            answer.headers["shoal-term"] = ", ".join(leases)
        return answer

    def only_job(self, node: str) -> str:
        """Return the node's job if it has exactly one: an empty poll's bytes are counted there."""
        running = self._services.jobs.running()
        parts = [runner.name for runner in running if runner.hub.roster.get(node) is not None]
        return parts[0] if len(parts) == 1 else ""
