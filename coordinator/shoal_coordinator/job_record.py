"""One job as its coordinator holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.spec import JobSpec
from shoal_coordinator.driver import Driver
from shoal_coordinator.start import Start


@dataclass
class Record:
    """A job: live (with a driver), or ended (with the last view of it)."""

    spec: JobSpec
    created_at: float
    start: Start = field(default_factory=Start)
    driver: Driver | None = None
    ended_at: float | None = None
    summary: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
