"""The way to the coordinator for one job: this node's own, or through the peer that its machine has chosen.

The state machine names the relay (`CoordinatorReachability.relay`) and gets an event for each relayed request that was
not answered (`RelayFailed`): then it chooses another. The node tries its own connection all the while, by the agent's
polls and by pings. An upload that was begun on one route is completed on the other, after a question how much of it the
coordinator has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from shoal.core.errors import InvalidPayload, Unreachable
from shoal.core.failover.coordinator_reachability import RelayFailed
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import (
    Ack,
    BlobRef,
    CoordinatorPing,
    Join,
    Message,
    Report,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.runtime.worker_ports import HeldTask, IsCancelled
from shoal.wire.payload import ByteSource
from shoal_edge_client.peering.relay.relayed_client import RelayedClient, RelayUnanswered
from shoal_edge_client.transport import HttpTransport, TaskTransport

T = TypeVar("T")

_DAMAGED = {"blob.missing", "blob.short", "blob.digest", "payload.digest"}
"""Codes of a body that came damaged, or that the coordinator misses though it was delivered: the relay's fault."""


class RelayRoute:
    """`shoal.runtime.worker_ports.Transport` for one job. `lost` may be called in any thread."""

    def __init__(self, job: str, own: HttpTransport, lost: Callable[[RelayFailed], None]) -> None:
        self._job, self._own, self._lost = job, own, lost
        self._relayed: TaskTransport | None = None
        self._client: RelayedClient | None = None

    @property
    def relay(self) -> str:
        """Return the name of the relay in use; empty without one."""
        client = self._client
        return client.relay_name if client is not None else ""

    def use(self, client: RelayedClient | None) -> None:
        """Use this relay; None: the direct route. Call it in the event loop."""
        before, self._client = self._client, client
        self._relayed = None
        if client is not None:
            self._relayed = TaskTransport(client, self._own.blobs, leave_s=self._own.leave_s)
        if before is not None:
            before.abort()

    def _call(self, call: Callable[[TaskTransport], T]) -> T:
        relayed, client = self._relayed, self._client
        if relayed is None or client is None:
            return call(self._own)
        try:
            return call(relayed)
        except (Unreachable, InvalidPayload) as error:
            if not isinstance(error, RelayUnanswered) and error.code not in _DAMAGED:
                raise
            if client is self._client:  # else it was given up, and broke off for that
                self._lost(RelayFailed(client.relay_name, error.message, getattr(error, "pause_s", 0.0)))
            raise (
                error if isinstance(error, RelayUnanswered) else RelayUnanswered(client.relay_name, error)
            ) from error

    # Transport

    def poll(self, held: Mapping[str, HeldTask]) -> tuple[str, Message] | None:
        return self._own.poll(held)

    def inline_blob(self, job: str, ref: BlobRef) -> Slots | None:
        carried = self._relayed
        found = carried.inline_blob(job, ref) if carried is not None else None
        return found if found is not None else self._own.inline_blob(job, ref)

    def fetch_blob(self, job: str, ref: BlobRef, cancelled: IsCancelled) -> Slots:
        return self._call(lambda way: way.fetch_blob(job, ref, cancelled))

    def report(self, job: str, report: Report, blob: ByteSource | None, cancelled: IsCancelled) -> Ack:
        def deliver(way: TaskTransport) -> Ack:
            if way is not self._own:
                way.mark_resumed(job, report.task)  # skip the bytes that arrived by another way
            return way.report(job, report, blob, cancelled)

        if self._relayed is not None:
            self._own.mark_resumed(job, report.task)
        return self._call(deliver)

    def fail(self, job: str, failure: TaskFailed) -> Ack:
        return self._call(lambda way: way.fail(job, failure))

    def status(self, job: str, status: TaskStatus) -> None:
        self._call(lambda way: way.status(job, status))

    def heartbeat(self, job: str, task: TaskId, fraction: float) -> None:
        if self._relayed is None:  # a poll that is held open is sign of life enough
            self._own.heartbeat(job, task, fraction)

    def leave(self) -> None:
        if self._relayed is not None:
            self._call(lambda way: way.leave())

    # Through the relay only

    def ask(self, message: Message, wait_s: float = 0.0, held: HeldTask | None = None) -> Message | None:
        """Return the coordinator's answer to a ping, a join or a poll; None without a relay. Blocks.

        A poll waits `wait_s` seconds for a task that differs from `held`.
        """

        def call(way: TaskTransport) -> Message:
            match message:
                case CoordinatorPing(term=term):
                    return way.ping(self._job, term)
                case Join(gossip_rounds=gossip_rounds):
                    return way.join(self._job, gossip_rounds)
            assert isinstance(way.client, RelayedClient)
            return way.decode_frame(way.client.poll(wait_s, held))[1]

        return self._call(call) if self._relayed is not None else None
