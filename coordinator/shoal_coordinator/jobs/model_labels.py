"""Labels: names for one version of a job's model, such as "production".

A label names one version, which is kept as long as the label exists. Changes of labels are recorded as job events in
the same transaction.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import Connection, update

from shoal.core.errors import Refused
from shoal_coordinator.jobs.job_blobs import JobBlobs
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.models.retention import Retention
from shoal_coordinator.models.version_reader import VersionReader
from shoal_coordinator.storage.tables import jobs
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry import job_events
from shoal_coordinator.telemetry.event_bus import EventBus, Item

LABELS_MAX = 16


class ModelLabels:
    """Names such as "production" for one version of a job's model, whose model is kept while it has a label."""

    def __init__(
        self,
        registry: JobRegistry,
        blobs: JobBlobs,
        versions: VersionReader,
        retention: Retention,
        database: Database,
        event_bus: EventBus,
    ) -> None:
        self._registry, self._blobs, self._versions, self._retention = registry, blobs, versions, retention
        self._database, self._event_bus = database, event_bus

    def version_of(self, job: str, label: str) -> int:
        """Return the version that has a label. Raises `Refused` (404) if none has it."""
        labels = self._registry.job(job).labels
        if label not in labels:
            known = ", ".join(sorted(labels)) or "none"
            raise Refused(
                f"no version of {job} is called {label!r}", code="label.unknown", hint=f"labels of this job: {known}"
            )
        return int(labels[label]["version"])

    async def promote(self, job: str, label: str, number: int, why: str) -> None:
        """Give a version a label, which another version loses. Idempotent.

        Raises `Refused`: no such version (404), its model is no longer kept (410), too many labels.
        """
        self._registry.job(job)
        async with self._retention.lock:  # a model that is here now stays until the label is written
            row = await self._versions.version_row(job, number)
            if not await asyncio.to_thread(self._blobs.of(job).has, row.digest):
                raise Refused(
                    f"the model of version {number} is no longer kept",
                    code="model.gone",
                    hint=f"promote one that is: shoal models {job}",
                )
            labels = self._registry.job(job).labels
            before = labels.get(label, {}).get("version")
            if before is None and len(labels) >= LABELS_MAX:
                raise Refused(
                    f"job {job} has {LABELS_MAX} labels",
                    code="label.too-many",
                    hint=f"withdraw one: shoal demote {job}",
                )
            if before == number:
                return
            instead = f" instead of version {before}" if before is not None else ""
            kept = {"version": number, "at": time.time(), "why": why}
            await self._store(job, {**labels, label: kept}, f"version {number} is {label}{instead}", why, number)

    async def demote(self, job: str, label: str, why: str) -> None:
        """Delete a label. Raises `Refused` (404) if no version has it."""
        async with self._retention.lock:
            number = self.version_of(job, label)
            left = {one: kept for one, kept in self._registry.job(job).labels.items() if one != label}
            await self._store(job, left, f"version {number} is {label} no longer", why, number)

    async def _store(self, job: str, labels: dict[str, dict[str, Any]], text: str, why: str, number: int) -> None:
        """Write the labels and their job event in one transaction, and publish both."""
        row = update(jobs).where(jobs.c.name == job).values(labels=labels)
        event = job_events.job_event("state", text + (f": {why}" if why else ""), number)

        def write(connection: Connection) -> list[Item]:
            connection.execute(row)
            return job_events.add_feed_item(connection, job, "job_event", event)

        items = await self._database.write(write)
        self._registry.job(job).labels = labels
        for item in (*items, Item("job", job, {})):
            self._event_bus.publish(item)
