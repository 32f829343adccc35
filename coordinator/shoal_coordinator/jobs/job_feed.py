"""The feed of a job: what followed from its events, written for people and published to browsers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from shoal.core.errors import StorageFailed
from shoal.core.protocol.machine import JobEventKind, ModelVersion
from shoal.runtime.observability import tracing
from shoal_coordinator.jobs import hub_gate, journal
from shoal_coordinator.jobs.hub_gate import HubGate
from shoal_coordinator.jobs.journal import AppliedEntry
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry import job_events
from shoal_coordinator.telemetry.event_bus import EventBus, Item
from shoal_coordinator.telemetry.metrics import Metrics


class JobFeed:
    """The rows that people read about a job, and its events for browsers."""

    def __init__(self, job: str, gate: HubGate, database: Database, event_bus: EventBus, metrics: Metrics) -> None:
        self._job, self._gate, self._database, self._event_bus, self._metrics = job, gate, database, event_bus, metrics
        self.pending: list[AppliedEntry] = []
        """Entries whose effects are not written yet."""
        self._written = asyncio.Event()  # set each time that nothing is pending
        self.closed_versions: list[ModelVersion] = []
        """Versions whose rows are written, and that were not evaluated yet."""
        self.mode_since: float | None = None
        """Time of the last change of mode (s since 1970)."""

    async def load(self) -> None:
        """Read what is not part of the hub's state."""
        self.mode_since = await self._database.write(lambda c: job_events.mode_changed_at(c, self._job))

    def note_modes(self, applied: Sequence[AppliedEntry]) -> None:
        """Note the time of the last change of mode."""
        self.mode_since = max((one.entry.at for one in applied if one.changes_mode), default=self.mode_since)

    async def write(self) -> list[AppliedEntry]:
        """Write the effects of pending entries, and publish them. Raises `StorageFailed`: they are still pending."""
        mine, began_ns = list(self.pending), tracing.now_ns()
        items = await self._database.write(lambda c: journal.project_effects(c, self._job, mine))
        crashpoint("runner.projected")
        self.pending.clear()
        self._written.set()
        self.closed_versions += self._metrics.closed(self._job, [v for one in mine for v in one.versions], began_ns)
        self.publish_items(items)
        if any(one.state is not None or one.job_events for one in mine):
            self._event_bus.publish(Item("job", self._job, {}))
        return mine

    async def wait_written(self) -> None:
        """Wait until nothing is pending. Raises `StorageFailed` after `SETTLE_S`."""
        await self._gate.wait_consistent()
        if self.pending:
            self._written.clear()
            try:
                await asyncio.wait_for(self._written.wait(), hub_gate.SETTLE_S)
            except TimeoutError:
                text = f"job {self._job} is behind: {self._gate.trouble}"
                raise StorageFailed(text, hint="ask again soon") from None

    async def record_event(self, kind: JobEventKind, text: str, node: str = "") -> None:
        """Add a job event that follows from no event of the journal."""
        await self.publish("job_event", job_events.job_event(kind, text, self._gate.hub.progress.version, node))

    async def publish(self, topic: str, data: dict[str, Any]) -> None:
        """Add an item to the feed, and publish it."""
        self.publish_items(await self._database.write(lambda c: job_events.add_feed_item(c, self._job, topic, data)))

    def publish_items(self, items: Sequence[Item]) -> None:
        """Publish items that are written already."""
        for item in items:
            self._event_bus.publish(item)
