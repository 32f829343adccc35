"""Runs that have ended, put into the database as a coordinator would have left them: seen from its next start on."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from sqlalchemy import insert

from shoal_coordinator.presenters.job_presenter import fallback_view
from shoal_coordinator.storage.tables import jobs, versions
from tests.support.coordinator import Inside

ENDED = "2026-01-02T03:04:05.000Z"


def keep_run(running: Inside, name: str, accuracies: list[Any], **spec: Any) -> None:
    """A run whose versions have these accuracies; None: that one was not measured."""
    now = time.time()
    job = {"name": name, "spec": {"name": name, **spec}, "created_at": now}
    summary = fallback_view(SimpleNamespace(**job), "done", "")  # type: ignore[arg-type]
    summary["job"] |= {"state": "done", "ended_at": ENDED, "version": max(0, len(accuracies) - 1)}
    rows = [
        {"job": name, "number": number, "seq": number, "digest": f"{number:064x}", "nbytes": 1, "why": ""}
        | {"opened_s": float(number), "closed_s": 2.0 * number, "closed_at": now, "asked": 1, "weight": 1.0}
        | {"metrics": {} if value is None else {"eval/accuracy": value, "eval/loss": 1.0}}
        | {"reports": [], "numbers": {}}
        for number, value in enumerate(accuracies)
    ]

    def write(connection: Any) -> None:
        connection.execute(insert(jobs), {**job, "ended_at": now, "summary": summary})
        if rows:
            connection.execute(insert(versions), rows)

    async def written() -> None:
        await running.coordinator.database.write(write)

    running.call(written())
