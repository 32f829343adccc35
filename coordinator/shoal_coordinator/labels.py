"""Labels: names by which people ask for one version of a job's model, such as "production".

A label names one version, which is kept for as long as it does. What is done to labels is written among the job's notes
in the same transaction.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, update

from shoal.core.errors import Refused
from shoal_coordinator import journal
from shoal_coordinator.stream import Item
from shoal_coordinator.tables import jobs

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

LABELS_MAX = 16


def named(coordinator: Coordinator, job: str, label: str) -> int:
    """The version that a label names. Raises `Refused` (404) where there is no such label."""
    labels = coordinator.record(job).labels
    if label not in labels:
        known = ", ".join(sorted(labels)) or "none"
        raise Refused(
            f"no version of {job} is called {label!r}", code="label.unknown", hint=f"labels of this job: {known}"
        )
    return int(labels[label]["version"])


async def promote(coordinator: Coordinator, job: str, label: str, number: int, why: str) -> None:
    """Let a label name a version, instead of another that it may have named. Twice is once.

    Raises `Refused`: no such version (404), its model is no longer kept (410), too many labels.
    """
    coordinator.record(job)
    async with coordinator.retention.clearing:  # what is here now stays until the label is written down
        row = await coordinator.version_row(job, number)
        if not await asyncio.to_thread(coordinator.bodies_of(job).has, row.digest):
            raise Refused(
                f"the model of version {number} is no longer kept",
                code="model.gone",
                hint=f"promote one that is: shoal models {job}",
            )
        labels = coordinator.record(job).labels
        before = labels.get(label, {}).get("version")
        if before is None and len(labels) >= LABELS_MAX:
            raise Refused(
                f"job {job} has {LABELS_MAX} labels", code="label.too-many", hint=f"withdraw one: shoal demote {job}"
            )
        if before == number:
            return
        instead = f" instead of version {before}" if before is not None else ""
        text = f"version {number} is {label}{instead}"
        kept = {"version": number, "at": time.time(), "why": why}
        await _write(coordinator, job, {**labels, label: kept}, text + (f": {why}" if why else ""), number)


async def withdraw(coordinator: Coordinator, job: str, label: str, why: str) -> None:
    """Let a label name nothing more. Raises `Refused` (404) where there is no such label."""
    async with coordinator.retention.clearing:
        number = named(coordinator, job, label)
        left = {one: kept for one, kept in coordinator.record(job).labels.items() if one != label}
        text = f"version {number} is {label} no longer"
        await _write(coordinator, job, left, text + (f": {why}" if why else ""), number)


async def _write(coordinator: Coordinator, job: str, labels: dict[str, dict[str, Any]], text: str, number: int) -> None:
    """Keep these labels and the note, and tell everybody."""
    row = update(jobs).where(jobs.c.name == job).values(labels=labels)

    def write(connection: Connection) -> list[Item]:
        connection.execute(row)
        return journal.tell_aside(connection, job, "note", journal.note("state", text, number))

    items = await coordinator.database.write(write)
    coordinator.record(job).labels = labels
    for item in (*items, Item("job", job, {})):
        coordinator.broadcast.tell(item)
