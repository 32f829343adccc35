"""Looks at how things stand, every few seconds, and keeps and tells of what `alerts` makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, RowMapping, delete, select, tuple_, update

from shoal.core.errors import StorageFailed
from shoal.runtime.store import FileBodies
from shoal.schedules.rounds import Rounds
from shoal_coordinator import misfit
from shoal_coordinator.alerts import Alarms, Condition, JobNow, Key, Limits, Now, conditions
from shoal_coordinator.database import Database
from shoal_coordinator.driver import Driver
from shoal_coordinator.headline import missed
from shoal_coordinator.presence import Presence
from shoal_coordinator.settings import Settings
from shoal_coordinator.stream import Broadcast, Item
from shoal_coordinator.tables import alerts, failures, versions
from shoal_coordinator.views import Job, iso
from shoal_coordinator.webhook import Webhook

log = structlog.get_logger()

KEPT = 1000
"""Newest alerts that are kept."""

JOBS_MAX = 50
"""Jobs that an alert names."""

RECENT_MAX = 200
"""Failures that are looked through for it."""

DIVERGED_S = 120.0
"""How long a refused report that was not finite counts."""


@dataclass(frozen=True)
class Around:
    """What a watch looks at, and whom it tells. `running`: the jobs that nodes can take part in."""

    database: Database
    broadcast: Broadcast
    presence: Presence
    bodies: FileBodies
    running: Callable[[], list[Driver]]
    concerns: Callable[[str], bool]
    """Whether alerts about that job, or about none (""), are raised and cleared here."""


class Watch:
    """One for a coordinator; `look` is called from its event loop."""

    def __init__(self, settings: Settings, around: Around) -> None:
        self._around = around
        self._limits = Limits(settings.alert_stalled_s, settings.alert_disk_bytes)
        self._alarms = Alarms()
        self._ran: dict[str, tuple[int, float]] = {}  # by job, a version and since when it is the newest
        secret = settings.alert_webhook_secret.get_secret_value()
        self.webhook = Webhook(settings.alert_webhook, secret) if settings.alert_webhook else None

    def load(self, connection: Connection) -> None:
        """Know what others have raised."""
        found = connection.execute(select(alerts).where(alerts.c.cleared_at.is_(None))).all()
        rows = [row for row in found if self._minds((row.kind, row.job, row.node))]
        self._alarms.open |= {(row.kind, row.job, row.node) for row in rows}
        self._around.presence.lost |= {row.node for row in rows if row.kind == "node-lost"}

    async def look(self) -> None:
        """Raise and clear."""
        now = time.monotonic()
        self._alarms.open = {key for key in self._alarms.open if self._minds(key)}
        jobs = self._going_on()
        bad = await self._bad_numbers(jobs) if jobs else {}
        state = Now(tuple(self._job(driver, now, bad) for driver in jobs), self._free_bytes())
        raised, cleared = self._alarms.look(conditions(state, self._limits, frozenset(self._alarms.open)), now)
        if not raised and not cleared:
            return
        try:
            rows = await self._around.database.write(lambda c: _keep(c, raised, cleared))
        except StorageFailed:  # the next look finds the same
            self._alarms.open = (self._alarms.open | set(cleared)) - {condition.key for condition in raised}
            raise
        for row in rows:
            self.tell(row)

    def _minds(self, key: Key) -> bool:
        """Whether that alert is raised and cleared here: of a lost node by every coordinator that runs a job of its."""
        return key[0] == "node-lost" or self._around.concerns(key[1])

    def tell(self, row: dict[str, Any]) -> None:
        """Let browsers know of an alert, and who is to be told elsewhere."""
        self._around.broadcast.tell(Item("alert", row["job"], row))
        word = "raised" if row["cleared_at"] is None else "cleared"
        log.warning("alert", what=word, kind=row["kind"], job=row["job"], about=row["node"], text=row["text"])
        if self.webhook is not None:
            self.webhook.tell({"event": word, **row})

    def tell_end(self, job: Job) -> None:
        """Let whoever is told elsewhere know that a job has ended: done, stopped or failed."""
        if self.webhook is not None:
            told = job.model_dump(mode="json", include={"state", "state_why", "version", "ended_at", "metrics", "best"})
            self.webhook.tell({"event": "job-ended", "job": job.name, **told})

    def _going_on(self) -> list[Driver]:
        """Jobs that should make progress: those that run, or have nodes and wait for an initial model."""
        found = [one for one in self._around.running() if not one.restoring and one.hub.paused_at is None]
        return [
            one for one in found if one.hub.phase == "running" or (one.hub.phase == "waiting" and one.hub.roster.here())
        ]

    def _free_bytes(self) -> int | None:
        if not self._around.concerns(""):
            return None
        try:
            return self._around.bodies.free_bytes()
        except StorageFailed:
            return None

    def _job(self, driver: Driver, now: float, bad: dict[str, str]) -> JobNow:
        hub, presence = driver.hub, self._around.presence
        name, schedule = driver.name, hub.schedule
        if self._ran.get(name, (-1, 0.0))[0] != hub.version:
            self._ran[name] = hub.version, now
        with_server = hub.mode == "server"
        got = quorum = 0
        if with_server and isinstance(schedule, Rounds) and hub.gathered.opened is not None:
            view = hub.look(driver.now())
            assert view.opened is not None
            if view.now > view.opened + schedule.deadline(view) and len(view.reports) < schedule.needs(view):
                got, quorum = len(view.reports), schedule.needs(view)
        return JobNow(
            name,
            waited_s=now - self._ran[name][1] if with_server else 0.0,
            usual_s=median(hub.seconds) if hub.seconds else None,
            lost=missed(hub, presence.lost),
            limited=tuple(sorted(hub.limited.items())),
            set_aside=() if hub.allowed(driver.now()) else tuple(one.node for one in hub.roster.set_aside()),
            foreign=tuple((node, misfit.named(hub, node, presence)) for node in sorted(hub.foreign)),
            got=got,
            quorum=quorum,
            diverged=bad.get(name, ""),
        )

    async def _bad_numbers(self, jobs: list[Driver]) -> dict[str, str]:
        """By job, what was not finite lately: a report that was refused for it, or a metric of its newest versions.

        The newest of all is only being measured: who trains on it says how good it is when he reports.
        """
        numbers = [(one.name, one.hub.version - back) for one in jobs for back in (0, 1)]
        newest = select(versions).where(tuple_(versions.c.job, versions.c.number).in_(numbers))
        lately = select(failures).order_by(failures.c.id.desc()).limit(RECENT_MAX)
        async with self._around.database.reader.connect() as connection:
            closed = (await connection.execute(newest)).all()
            failed = (await connection.execute(lately)).all()
        found = {
            row.job: f"a report of {row.node} was refused: {row.error[:200]}"
            for row in failed
            if row.at > time.time() - DIVERGED_S and "not finite" in row.error
        }
        for row in closed:
            for name, value in row.metrics.items():
                if isinstance(value, str):
                    found[row.job] = f"{name} of version {row.number} is {value}"
        return found


def _open(kind: str, job: str, node: str) -> ColumnElement[bool]:
    """The row of an alert that is not over."""
    mine = (alerts.c.kind == kind) & (alerts.c.job == job) & (alerts.c.node == node)
    return mine & alerts.c.cleared_at.is_(None)


def _keep(connection: Connection, raised: list[Condition], cleared: list[Key]) -> list[dict[str, Any]]:
    """Write down what was raised and cleared; the rows as they are then. Another coordinator may have raised it."""
    now, numbers = time.time(), []
    for condition in raised:
        if connection.execute(select(alerts.c.id).where(_open(*condition.key))).first() is not None:
            continue
        row = {"kind": condition.kind, "job": condition.job, "node": condition.node, "text": condition.text[:1000]}
        values = {"raised_at": now, "jobs": list(condition.jobs[:JOBS_MAX]), **row}
        numbers.append(connection.execute(alerts.insert().values(values).returning(alerts.c.id)).scalar_one())
    for key in cleared:
        gone = connection.execute(update(alerts).where(_open(*key)).values(cleared_at=now).returning(alerts.c.id))
        numbers += gone.scalars().all()
    over = select(alerts.c.id).order_by(alerts.c.id.desc()).offset(KEPT).limit(1).scalar_subquery()
    connection.execute(delete(alerts).where(alerts.c.id <= over, alerts.c.cleared_at.is_not(None)))
    rows = connection.execute(select(alerts).where(alerts.c.id.in_(numbers)).order_by(alerts.c.id)).mappings().all()
    return [shown(row) for row in rows]


def acknowledge(connection: Connection, number: int) -> dict[str, Any] | None:
    """Somebody has seen it; None: there is none of that number."""
    mine = alerts.c.id == number
    connection.execute(update(alerts).where(mine, alerts.c.seen_at.is_(None)).values(seen_at=time.time()))
    row = connection.execute(select(alerts).where(mine)).mappings().first()
    return shown(row) if row is not None else None


def shown(row: RowMapping) -> dict[str, Any]:
    """As the API has it."""
    return {**row, **{name: iso(row[name]) for name in ("raised_at", "cleared_at", "seen_at")}}
