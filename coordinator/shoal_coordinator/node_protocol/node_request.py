"""A request of a node about a job, and the framing of its response (`shoal.wire.codec`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import Request, Response

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import (
    Message,
)
from shoal.wire import codec
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.node_protocol.byte_labels import label
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.nodes.wakeups import Wakeups
from shoal_coordinator.peers.trust_documents import TrustDocuments
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.event_bus import EventBus
from shoal_coordinator.telemetry.metrics import Metrics


def frame_response(job: str, message: Message, payload: bytes = b"", protocol: int | None = None) -> Response:
    """Return a message as a framed response, by default in the newest protocol version."""
    return Response(codec.encode(codec.Frame(job, message, payload), protocol), media_type=codec.MEDIA_TYPE)


def decode_frame(data: bytes, job: str, kind: type[Message]) -> codec.Frame:
    """Decode a frame. Raises `InvalidPayload` unless it holds a message of this kind and job."""
    frame = codec.decode(data)
    if frame.job != job or not isinstance(frame.message, kind):
        raise InvalidPayload(f"a {kind.type_name} of job {job} is expected here", code="head.type")
    return frame


@dataclass(frozen=True)
class NodeServices:
    """The parts that answer requests of nodes."""

    jobs: JobRegistry
    presence: Presence
    wakeups: Wakeups
    trust_documents: TrustDocuments
    database: Database
    event_bus: EventBus
    metrics: Metrics
    settings: Settings
    is_ready: Callable[[], bool]
    """Returns False while the coordinator stops: open polls end then."""


@dataclass(frozen=True)
class NodeRequest:
    """An authenticated request of `node` about `job`, sent by itself or through a relay.

    `request` counts the bytes; `since` is when it began (monotonic seconds).
    """

    request: Request
    services: NodeServices
    job: str
    node: str
    since: float = field(default_factory=time.monotonic)

    def _label(self, version: int, kind: str) -> None:
        label(self.request, self.job, version, self.node, kind)

    def frame(self, message: Message, payload: bytes = b"") -> Response:
        """Encode a message in the protocol version of the request."""
        spoken = self.request.headers.get("shoal-protocol", "")
        return frame_response(self.job, message, payload, int(spoken) if spoken else None)

    def _runner(self) -> JobRunner | None:
        """Return the job's runner, or None if it has ended. Raises `Refused` for an unknown job."""
        runner = self.services.jobs.job(self.job).runner
        return None if runner is None or runner.gate.has_ended else runner
