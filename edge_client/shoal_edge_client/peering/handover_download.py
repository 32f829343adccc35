"""The blobs of tasks, stored so that the node could continue from them, and the model of a gossip task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, ShoalError
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef, Task
from shoal.core.protocol.peer_message import RelayResponse
from shoal.runtime.task_execution import BlobFetcher
from shoal.runtime.threads import in_thread
from shoal.runtime.worker_ports import CancelToken, Spawn, WorkerPorts
from shoal_edge_client.peering.node_state import NodeState


class StoringFetcher(BlobFetcher):
    """A fetcher that stores each blob in a file as well, also one that came with its task."""

    def __init__(self, job: str, ports: WorkerPorts, state: NodeState) -> None:
        super().__init__(job, ports)
        self._state = state

    async def fetch(self, ref: BlobRef | None, cancel: CancelToken) -> Slots:
        slots = await super().fetch(ref, cancel)
        if ref is not None and self._state.blobs.size(ref.digest) != ref.nbytes:
            await in_thread(partial(self._state.blobs.put, slots))
        return slots


UNACKNOWLEDGED_PAUSE_S = 0.05
"""Seconds before a task is submitted again that came while a report was unacknowledged."""


class HandoverDownload:
    """The download of a gossip task's model. `submit` passes the task to the machine when the model is here.

    `has_pending_memory` returns whether a report with private memory is unacknowledged: until then, the machine ignores
    other tasks.
    """

    def __init__(
        self,
        blobs: StoringFetcher,
        state: NodeState,
        submit: Callable[[Task | RelayResponse], Awaitable[Any]],
        spawn: Spawn,
        has_pending_memory: Callable[[], bool],
    ) -> None:
        self._blobs, self._state, self._submit, self._spawn = blobs, state, submit, spawn
        self._has_pending_memory = has_pending_memory
        self.task: Task | None = None
        """The task whose model is being fetched. Any thread may read it."""
        self._relay = ""
        self._download: asyncio.Task[None] | None = None
        self.log: Any = structlog.get_logger("shoal.pump")

    def start(self, task: Task, relay: str) -> None:
        """Fetch the model of a task, unless that is under way. `relay`: the peer that brought the task, if any."""
        known, self.task, self._relay = self.task, task, relay
        if known is not None and known.id == task.id and self._download is not None:
            return
        if self._download is not None:
            self._download.cancel()
        self._download = self._spawn(self._run(task))

    async def _run(self, task: Task) -> None:
        with self._state.holds.holding(task.blob):
            try:
                await self._blobs.fetch(task.blob, CancelToken())
            except NotAllowed:
                raise
            except ShoalError as error:  # the next poll brings the task that stands then
                self.log.warning("the model to continue from is missing", code=error.code, why=error.message)
                self.task = self._download = None
                return
            await self._pass_on()
            self.task = self._download = None

    async def _pass_on(self) -> None:
        """Submit the task until the machine takes it, or ignores it for good."""
        blocked = True
        while blocked:
            assert self.task is not None
            blocked = self._has_pending_memory()
            await self._submit(RelayResponse(self._relay, self.task) if self._relay else self.task)
            blocked = blocked or self._has_pending_memory()
            await asyncio.sleep(UNACKNOWLEDGED_PAUSE_S if blocked else 0.0)
