"""Evaluation of the alert rules every few seconds; results are stored and published."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, RowMapping, delete, select, tuple_, update

from shoal.core.errors import StorageFailed
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import free_bytes
from shoal.schedules.rounds import Rounds
from shoal_coordinator.alerts.alert_rules import AlertLimits, AlertRules, Condition, JobCondition, Key, Now, conditions
from shoal_coordinator.alerts.webhook import Webhook
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.presenters.headline import missing_nodes
from shoal_coordinator.schemas.jobs import JobView
from shoal_coordinator.schemas.values import iso
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.tables import alerts, failures, versions
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.event_bus import EventBus, Item
from shoal_coordinator.updates import layout_mismatch

log = structlog.get_logger()

ALERTS_KEPT = 1000
"""Newest alerts that are kept."""

JOBS_MAX = 50
"""Jobs that an alert names."""

FAILURES_READ_MAX = 200
"""Newest failures that are searched for values that are not finite."""

DIVERGED_S = 120.0
"""Time in seconds for which a refused report that was not finite counts."""


ERROR_CHARACTERS_MAX = 200
"""Characters of a refused report's failure that an alert shows."""


@dataclass(frozen=True)
class AlertServices:
    """Dependencies of the alert loop. `running`: the jobs that nodes can take part in."""

    database: Database
    event_bus: EventBus
    presence: Presence
    blobs: FileBlobs
    running: Callable[[], list[JobRunner]]
    is_responsible: Callable[[str], bool]
    """Predicate: whether alerts about this job, or about no job (""), are raised and cleared here."""


class AlertLoop:
    """Evaluates the alert rules and stores the result. Call `evaluate` from the event loop."""

    def __init__(self, settings: Settings, services: AlertServices) -> None:
        self._services = services
        self._limits = AlertLimits(settings.alert_stalled_s, settings.alert_disk_bytes)
        self._rules = AlertRules()
        self._newest_since: dict[str, tuple[int, float]] = {}  # by job, a version and since when it is the newest
        secret = settings.alert_webhook_secret.get_secret_value()
        self.webhook = Webhook(settings.alert_webhook, secret) if settings.alert_webhook else None

    def load(self, connection: Connection) -> None:
        """Load the open alerts that other coordinators have raised."""
        found = connection.execute(select(alerts).where(alerts.c.cleared_at.is_(None))).all()
        rows = [row for row in found if self._is_responsible((row.kind, row.job, row.node))]
        self._rules.open |= {(row.kind, row.job, row.node) for row in rows}
        self._services.presence.lost |= {row.node for row in rows if row.kind == "node-lost"}

    async def evaluate(self) -> None:
        """Evaluate the rules; store and publish alerts that are raised or cleared."""
        now = time.monotonic()
        self._rules.open = {key for key in self._rules.open if self._is_responsible(key)}
        jobs = self._active_runners()
        diverged = await self._diverged(jobs) if jobs else {}
        state = Now(tuple(self._job(runner, now, diverged) for runner in jobs), self._free_bytes())
        raised, cleared = self._rules.update(conditions(state, self._limits, frozenset(self._rules.open)), now)
        if not raised and not cleared:
            return
        try:
            rows = await self._services.database.write(lambda c: _store(c, raised, cleared))
        except StorageFailed:  # the next evaluation finds the same
            self._rules.open = (self._rules.open | set(cleared)) - {condition.key for condition in raised}
            raise
        for row in rows:
            self.publish(row)

    def _is_responsible(self, key: Key) -> bool:
        """Return whether the alert is raised and cleared here; for a lost node, by each coordinator that runs one of
        its jobs."""
        return key[0] == "node-lost" or self._services.is_responsible(key[1])

    def publish(self, row: dict[str, Any]) -> None:
        """Publish an alert to browsers and to the webhook."""
        self._services.event_bus.publish(Item("alert", row["job"], row))
        change = "raised" if row["cleared_at"] is None else "cleared"
        log.warning("alert", what=change, kind=row["kind"], job=row["job"], about=row["node"], text=row["text"])
        if self.webhook is not None:
            self.webhook.enqueue({"event": change, **row})

    def publish_end(self, job: JobView) -> None:
        """Send the end of a job to the webhook: done, stopped or failed."""
        if self.webhook is not None:
            summary = job.model_dump(
                mode="json", include={"state", "state_why", "version", "ended_at", "metrics", "best"}
            )
            self.webhook.enqueue({"event": "job-ended", "job": job.name, **summary})

    def _active_runners(self) -> list[JobRunner]:
        """Return the jobs that should make progress: those that run, or have nodes and wait for an initial model."""
        found = [
            runner
            for runner in self._services.running()
            if not runner.gate.is_restoring and runner.hub.progress.paused_at is None
        ]
        return [
            runner
            for runner in found
            if runner.hub.progress.phase == "running"
            or (runner.hub.progress.phase == "waiting" and runner.hub.roster.present_members())
        ]

    def _free_bytes(self) -> int | None:
        if not self._services.is_responsible(""):
            return None
        try:
            return free_bytes(self._services.blobs.folder)
        except StorageFailed:
            return None

    def _job(self, runner: JobRunner, now: float, diverged: dict[str, str]) -> JobCondition:
        hub, presence = runner.hub, self._services.presence
        name, schedule = runner.name, hub.settings.schedule
        if self._newest_since.get(name, (-1, 0.0))[0] != hub.progress.version:
            self._newest_since[name] = hub.progress.version, now
        with_server = hub.progress.mode == "server"
        stopped = hub.roster.members_set_aside() if with_server and hub.state.is_idle else []
        got = quorum = 0
        if with_server and isinstance(schedule, Rounds) and hub.state.round.opened_at is not None:
            view = hub.state.make_view(runner.clock.now())
            reports, needed = len(view.round.reporters), schedule.needs(view)
            if view.now > hub.state.round.opened_at + schedule.deadline(view) and reports < needed:
                got, quorum = reports, needed
        return JobCondition(
            name,
            waited_s=now - self._newest_since[name][1] if with_server else 0.0,
            usual_s=median(hub.progress.round_seconds) if hub.progress.round_seconds else None,
            lost=missing_nodes(hub, presence.lost),
            limited=tuple(sorted(hub.state.bounded_nodes.items())),
            set_aside=tuple((one.node, one.error) for one in stopped),
            waits_for=hub.progress.waiting_for if with_server and hub.state.is_idle else "",
            foreign=tuple(
                (node, layout_mismatch.mismatch_reason(hub, node, presence))
                for node in sorted(hub.eligibility.foreign_models)
            ),
            is_deserted=with_server and not hub.eligibility.askable_members(runner.clock.now()),
            got=got,
            quorum=quorum,
            diverged=diverged.get(name, ""),
        )

    async def _diverged(self, jobs: list[JobRunner]) -> dict[str, str]:
        """Return values that were not finite, by job: of refused reports, or metrics of the newest versions.

        The newest version is excluded, because its nodes report its metrics with their next update.
        """
        numbers = [(runner.name, runner.hub.progress.version - back) for runner in jobs for back in (0, 1)]
        newest = select(versions).where(tuple_(versions.c.job, versions.c.number).in_(numbers))
        lately = select(failures).order_by(failures.c.id.desc()).limit(FAILURES_READ_MAX)
        async with self._services.database.reader.connect() as connection:
            closed = (await connection.execute(newest)).all()
            failed = (await connection.execute(lately)).all()
        found = {
            row.job: f"a report of {row.node} was refused: {row.error[:ERROR_CHARACTERS_MAX]}"
            for row in failed
            if row.at > time.time() - DIVERGED_S and "not finite" in row.error
        }
        for row in closed:
            for name, value in row.metrics.items():
                if isinstance(value, str):
                    found[row.job] = f"{name} of version {row.number} is {value}"
        return found


def _open(kind: str, job: str, node: str) -> ColumnElement[bool]:
    """Return the condition that selects an open alert."""
    here = (alerts.c.kind == kind) & (alerts.c.job == job) & (alerts.c.node == node)
    return here & alerts.c.cleared_at.is_(None)


def _store(connection: Connection, raised: list[Condition], cleared: list[Key]) -> list[dict[str, Any]]:
    """Store raised and cleared alerts; return their rows. Another coordinator may have raised one already."""
    now, numbers = time.time(), []
    for condition in raised:
        if connection.execute(select(alerts.c.id).where(_open(*condition.key))).first() is not None:
            continue
        row = {"kind": condition.kind, "job": condition.job, "node": condition.node, "text": condition.text[:1000]}
        values = {"raised_at": now, "jobs": list(condition.jobs[:JOBS_MAX]), **row}
        numbers.append(connection.execute(alerts.insert().values(values).returning(alerts.c.id)).scalar_one())
    for key in cleared:
        closed = connection.execute(update(alerts).where(_open(*key)).values(cleared_at=now).returning(alerts.c.id))
        numbers += closed.scalars().all()
    over = select(alerts.c.id).order_by(alerts.c.id.desc()).offset(ALERTS_KEPT).limit(1).scalar_subquery()
    connection.execute(delete(alerts).where(alerts.c.id <= over, alerts.c.cleared_at.is_not(None)))
    rows = connection.execute(select(alerts).where(alerts.c.id.in_(numbers)).order_by(alerts.c.id)).mappings().all()
    return [alert_row(row) for row in rows]


def acknowledge(connection: Connection, number: int) -> dict[str, Any] | None:
    """Store that an operator has seen an alert; return None if there is no such alert."""
    here = alerts.c.id == number
    connection.execute(
        update(alerts).where(here, alerts.c.acknowledged_at.is_(None)).values(acknowledged_at=time.time())
    )
    row = connection.execute(select(alerts).where(here)).mappings().first()
    return alert_row(row) if row is not None else None


def alert_row(row: RowMapping) -> dict[str, Any]:
    """Return an alert as the API returns it, with times as text."""
    return {**row, **{name: iso(row[name]) for name in ("raised_at", "cleared_at", "acknowledged_at")}}
