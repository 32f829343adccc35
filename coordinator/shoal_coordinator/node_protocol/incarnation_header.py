"""The header `Shoal-Incarnation: JOB=TERM.INCARNATION, …` of answers about jobs that may fail over to gossip.

The incarnation is a random number of the process, journaled at its start (`Restarted`). Two coordinators, one a copy of
the other, may have the same term; nodes obey the one that they heard first
(`shoal.core.failover.failover.IncarnationGrant`). So every answer that a node may act on has the header, refusals too.
Answers to relayed requests have it in their signed part. Answers to unauthenticated requests do not have it.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Send

from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.jobs.job_runner import JobRunner

HEADER = b"shoal-incarnation"
_WORK = "/api/v1/work"
_ABOUT_JOB = re.compile(
    r"/api/v1/jobs/([^/]+)/(?:reports|failures|status|ping|join|trust|manifest|peer-status|blobs/[^/]+)"
)


class IncarnationHeader:
    """An ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, registry: JobRegistry) -> None:
        self._app, self._registry = app, registry

    async def __call__(self, scope: MutableMapping[str, object], receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] != 401:
                text = header_text(self._of(str(scope["path"])))
                message["headers"] = [*message["headers"], *([(HEADER, text)] if text else [])]
            await send(message)

        await self._app(scope, receive, sending if scope["type"] == "http" else send)

    def _of(self, path: str) -> Sequence[JobRunner]:
        """Return the jobs that an answer on this path is about."""
        if path == _WORK:
            return self._registry.running()
        found = _ABOUT_JOB.fullmatch(path)
        record = self._registry.records.get(found[1]) if found is not None else None
        return [record.runner] if record is not None and record.runner is not None else []


def header_text(runners: Sequence[JobRunner]) -> bytes:
    """Return the header's text for these jobs; empty if no job needs it."""
    incarnations = [
        f"{one.name}={one.gate.term}.{one.gate.incarnation}"
        for one in runners
        if one.spec.gossip.allowed and one.gate.incarnation
    ]
    return ", ".join(incarnations).encode()
