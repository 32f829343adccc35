"""Views of jobs, their versions and nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from sqlalchemy import Row, select

from shoal.core.errors.phrases import counted
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Task
from shoal.core.server.hub import Hub
from shoal.core.server.roster import RosterMember
from shoal_coordinator.jobs.hub_replay import JobStart
from shoal_coordinator.jobs.job_registry import JobRecord, JobRegistry
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.models import version_history
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.peers.peer_status import PeerStatuses
from shoal_coordinator.presenters import headline
from shoal_coordinator.schemas.jobs import BaseModelInfo, JobState, JobView, ModelInfo, VersionView
from shoal_coordinator.schemas.nodes import JobNode, NodeView
from shoal_coordinator.schemas.peers import RestoredFrom
from shoal_coordinator.schemas.values import BestVersion, ProvisionalAccuracy, iso
from shoal_coordinator.storage.tables import versions
from shoal_coordinator.storage.writer import Database
from shoal_coordinator.telemetry.divergence_detector import DRIFT_FACTOR
from shoal_coordinator.telemetry.traffic import Spent, TrafficCounter

ETA_FACTOR, ETA_LEAST_S = 3.0, 5.0
"""No estimate is shown once a version takes `ETA_FACTOR` times as long as the last ones, and `ETA_LEAST_S` seconds."""


def labeled(record: JobRecord) -> dict[str, int]:
    """Return the version that each label names."""
    return {label: kept["version"] for label, kept in record.labels.items()}


def fallback_view(row: Row[Any], state: JobState, why: str) -> dict[str, Any]:
    """Return the view of a job whose file this release cannot read, from the stored view of ended jobs."""
    spec = row.spec if isinstance(row.spec, dict) else {}
    names = {what: str(dict(spec.get(what) or {}).get("name", "")) for what in ("algorithm", "schedule")}
    job = JobView(
        name=row.name,
        title=str(spec.get("title") or row.name),
        state=state,
        state_why=why,
        **names,
        version=0,
        versions=0,
        progress=0.0,
        eta_s=None,
        nodes=0,
        busy=0,
        created_at=iso(row.created_at),
        started_at=None,
        ended_at=None,
        model=None,
        metrics={},
        best=None,
        up_bytes=0,
        down_bytes=0,
        spec=spec,
    )
    return {"job": job.model_dump(mode="json"), "nodes": []}


def restored_from(start: JobStart) -> RestoredFrom | None:
    """Return where a job continues from, if another coordinator led it before."""
    return RestoredFrom(node=start.node, version=start.version, term=start.term + 1) if start.term else None


def is_open_ended(runner: JobRunner) -> bool:
    """Return whether the number of versions is open, so that it does not measure progress."""
    return runner.hub.settings.schedule.relative_to_reference and not runner.spec.rounds


def _best(known: version_history.VersionSummary) -> BestVersion | None:
    """Return the best version so far, and the number of nodes that measured it."""
    if known.best is None:
        return None
    return BestVersion(accuracy=known.best[0], version=known.best[1], nodes=known.best_nodes)


def provisional(runner: JobRunner | None, number: int, metrics: dict[str, Any]) -> ProvisionalAccuracy | None:
    """Return how many of the nodes that measure a version have reported; None if its metrics are complete or no node's.

    A closed round is complete. Where few reports make a version, a version measured by at most half of the nodes
    remains provisional.
    """
    hub = runner.hub if runner is not None else None
    is_open = runner is not None and hub is not None and not runner.gate.has_ended and number >= hub.progress.version
    asked, reported = version_history.nodes_asked(metrics), version_history.nodes_measured(metrics)
    if asked is None or not (is_open or version_history.is_partial(metrics)):
        asked = len(hub.state.round.involved) if is_open and hub is not None else 0
    return ProvisionalAccuracy(reported=reported, asked=asked) if reported is not None and reported < asked else None


def _state(record: JobRecord, runner: JobRunner) -> JobState:
    hub = runner.hub
    if hub.progress.paused_at is not None:
        return "paused"
    if hub.progress.phase == "done" and record.ended_at is None:
        return "evaluating"  # at the coordinator: the held-out data
    return hub.progress.phase


def state_reason(hub: Hub) -> str:
    """Return why a job is in its state, without the state itself."""
    if hub.progress.phase in ("done", "stopped"):
        return hub.progress.ends_after_round
    if hub.progress.ends_after_round:
        return f"stops after this round: {hub.progress.ends_after_round}"
    if hub.progress.paused_at is not None:
        return hub.progress.paused_why
    if hub.progress.phase == "running" and hub.progress.mode != "server" and not hub.state.is_idle:
        return _gossip_progress(hub)
    unit = "version" if hub.settings.schedule.relative_to_reference else "round"
    has_next = hub.progress.phase == "running" and hub.progress.version < hub.settings.plan.versions
    return f"{f'{unit} {hub.progress.version + 1}: ' if has_next else ''}{hub.progress.waiting_for}"


def _gossip_progress(hub: Hub) -> str:
    """Return a text on the nodes that continue the job."""
    if hub.progress.mode == "gossip":
        gossiping = sum(1 for member in hub.roster.present_members() if _is_gossiping(member.task))
        return (
            f"{counted(gossiping, 'node')} carry on from version {hub.progress.version}" if gossiping else "for a node"
        )
    asked = len(hub.state.round.asked)
    return f"{len(hub.state.round.reports)} of {counted(asked, 'node')} have handed back"


def _is_gossiping(task: Task | None) -> bool:
    """Return whether a node's task is gossip."""
    return task is not None and task.kind == "gossip"


def seconds_left(runner: JobRunner) -> float | None:
    """Return the seconds until the last version at the pace of the last ones; None if that pace does not hold."""
    hub = runner.hub
    if (
        hub.progress.phase != "running"
        or hub.progress.mode != "server"
        or not hub.progress.round_seconds
        or hub.progress.paused_at is not None
        or hub.state.is_idle
    ):
        return None
    mean_s, opened = sum(hub.progress.round_seconds) / len(hub.progress.round_seconds), hub.state.round.opened_at
    if opened is not None and runner.clock.now() - opened > max(ETA_FACTOR * mean_s, ETA_LEAST_S):
        return None
    return (hub.settings.plan.versions - hub.progress.version) * mean_s


def _model(hub: Hub) -> ModelInfo | None:
    model = hub.store.slots.get("model")
    if hub.store.model is None or not isinstance(model, Tree):
        return None
    return ModelInfo(digest=hub.store.model.digest, bytes=hub.store.model.nbytes, parameters=model.layout.elements)


def _base_model(record: JobRecord, members: Sequence[RosterMember]) -> BaseModelInfo | None:
    digest, base = record.spec.base_model, record.start.base
    if not digest:
        return None
    models = [member.node_info.model for member in members]
    nodes = sum(model is not None and model.base_model == digest for model in models)
    return BaseModelInfo(digest=digest, bytes=base.nbytes if base is not None else None, nodes=nodes)


def version(runner: JobRunner | None, row: Row[Any], start: float, before: Spent, until: Spent) -> VersionView:
    """Return a closed version; `before`, `until`: what had crossed when the version before it and it were made.

    `runner`: the job's, while it has one.
    """
    return VersionView(
        number=row.number,
        digest=row.digest,
        bytes=row.nbytes,
        why=row.why,
        opened_at=iso(row.closed_at - (row.closed_s - row.opened_s)),
        closed_at=iso(row.closed_at),
        elapsed_s=row.closed_s - start,
        seconds=row.closed_s - row.opened_s,
        reports=len(row.reports),
        asked=row.asked,
        weight=row.weight,
        metrics=row.metrics,
        provisional=provisional(runner, row.number, row.metrics),
        numbers=row.numbers,
        up_bytes=until.up - before.up if row.number else 0,
        down_bytes=until.down - before.down if row.number else 0,
        total_bytes=sum(until) if row.number else 0,
    )


def _is_marked(row: Row[Any]) -> bool:
    """Return whether a version must survive thinning, because of concept drift or a value that is not finite."""
    return DRIFT_FACTOR in row.numbers or any(isinstance(value, str) for value in row.metrics.values())


def _is_backed_off(runner: JobRunner, node: str) -> bool:
    return runner.hub.settings.schedule.is_backed_off(runner.hub.progress.numbers, node, runner.clock.now())


class RemoteJobs(Protocol):
    """The jobs that other coordinators own."""

    @property
    def jobs(self) -> dict[str, str]:
        """Return their owners, by job."""
        ...

    def owns(self, job: str) -> bool:
        """Return whether another coordinator owns a job."""
        ...


class JobPresenter:
    """Views of jobs, their nodes and versions."""

    def __init__(
        self,
        database: Database,
        registry: JobRegistry,
        presence: Presence,
        traffic: TrafficCounter,
        peer_statuses: PeerStatuses,
        remote: RemoteJobs,
        remote_views: Callable[[], Awaitable[list[JobView]]],
    ) -> None:
        self._database, self._registry, self._presence = database, registry, presence
        self._traffic, self._peer_statuses = traffic, peer_statuses
        self._remote, self.remote_views = remote, remote_views

    async def job(self, record: JobRecord) -> JobView:
        """Return the view of a job."""
        (found,) = await self.jobs([record])
        return found

    async def jobs(self, records: Sequence[JobRecord]) -> list[JobView]:
        """Return the views of jobs. Ended ones are stored; one query serves all others."""
        live = [record.spec.name for record in records if record.runner is not None and record.summary is None]
        known: dict[str, version_history.VersionSummary] = {}
        if live:
            async with self._database.reader.connect() as connection:
                for row in await connection.execute(version_history.summaries(live)):
                    known[row.name] = version_history.summary(row)
        return [self._view(record, known.get(record.spec.name, version_history.VersionSummary())) for record in records]

    def _view(self, record: JobRecord, known: version_history.VersionSummary) -> JobView:
        if record.summary is None:
            assert record.runner is not None
            return self._job(record, record.runner, known)
        found = JobView.model_validate({**record.summary["job"], "tags": record.tags, "labels": labeled(record)})
        totals = self._traffic.totals  # nodes of a job that has ended may ask for it still
        found.up_bytes, found.down_bytes = totals[record.spec.name, "up"], totals[record.spec.name, "down"]
        return found

    async def named(self, names: Sequence[str]) -> list[JobView]:
        """Return jobs by name, whichever coordinator owns them. Raises `Refused` (404) for an unknown one."""
        others = [name for name in names if self._remote.owns(name) and name not in self._registry.records]
        records = [self._registry.job(name) for name in names if name not in others]
        known = {view.name: view for view in await self.jobs(records)}
        if others:
            known |= {view.name: view for view in await self.remote_views()}
        return [known[name] for name in names]

    def progress(self, runner: JobRunner) -> float:
        """Return a job's progress, by its versions or, if their number is open, by its nodes' local rounds."""
        hub = runner.hub
        if runner.gate.has_ended or not is_open_ended(runner):
            return 1.0 if hub.progress.phase == "done" else min(1.0, hub.progress.version / hub.settings.plan.versions)
        shares = [1.0 if m.is_finished else self._share(runner, m.node) for m in hub.roster.present_members()]
        return sum(shares) / max(1, len(shares))

    def _share(self, runner: JobRunner, node: str) -> float:
        """Return a node's progress from 0 to 1: of its task, or of its last report."""
        activity = self._presence.activity[runner.name, node]
        numbers = {
            name: value for name, value in activity.metrics.items() if isinstance(value, int | float)
        }  # "NaN" is a text
        reported = runner.hub.settings.algorithm.training_progress(numbers) if is_open_ended(runner) else None
        return max(activity.progress or 0.0, reported or 0.0)

    def _job(self, record: JobRecord, runner: JobRunner, known: version_history.VersionSummary) -> JobView:
        hub, spec = runner.hub, record.spec
        members = hub.roster.present_members()
        selection, chooses = hub.settings.plan.selection, hub.settings.plan.selection.restricts or hub.roster.drained
        return JobView(
            name=spec.name,
            title=spec.title or spec.name,
            state=_state(record, runner),
            state_why=runner.gate.trouble or state_reason(hub),
            headline=self.headline(runner, known),
            algorithm=runner.hub.settings.algorithm.name,
            schedule=runner.hub.settings.schedule.name,
            mode=hub.progress.mode,
            mode_since=iso(runner.feed.mode_since),
            version=hub.progress.version,
            versions=None if is_open_ended(runner) else hub.settings.plan.versions,
            progress=self.progress(runner),
            idle=hub.state.is_idle and not runner.gate.is_restoring,
            eta_s=None if is_open_ended(runner) else seconds_left(runner),
            nodes=sum(not selection.describe_exclusion(m.candidate) for m in members) if chooses else len(members),
            members=len(members),
            busy=sum(1 for member in members if member.task is not None),
            created_at=iso(record.created_at),
            started_at=iso(known.started_at),
            ended_at=iso(record.ended_at),
            model=_model(hub),
            base_model=_base_model(record, members),
            metrics=known.metrics,
            metrics_version=known.metrics_version,
            provisional=None
            if known.metrics_version is None
            else provisional(runner, known.metrics_version, known.metrics),
            best=_best(known),
            restored_from=restored_from(record.start),
            up_bytes=self._traffic.totals[runner.name, "up"],
            down_bytes=self._traffic.totals[runner.name, "down"],
            spec=spec.model_dump(mode="json"),
            settings_changed=hub.settings.changed,
            settings_pending=hub.settings.pending,
            tags=list(record.tags),
            labels=labeled(record),
        )

    def headline(self, runner: JobRunner, known: version_history.VersionSummary) -> str:
        point, refusing = self._peer_statuses.current_point(runner.name), self._peer_statuses.refusing(runner.name)
        return headline.headline(headline.job_facts(runner, known, self._presence.lost, point, refusing))

    async def version_list(self, name: str, after: int, points: int) -> list[VersionView]:
        """Return closed versions after a number, thinned to about `points`; first, last and marked ones stay."""
        query = select(versions).where(versions.c.job == name).order_by(versions.c.number)
        async with self._database.reader.connect() as connection:
            rows = (await connection.execute(query)).all()
        if not rows:
            return []
        start = rows[0].closed_s
        spent = self._traffic.spent(name, [row.number for row in rows])
        found = [one for one in zip(rows, [spent[0], *spent], spent, strict=False) if one[0].number > after]
        if points and len(found) > points:
            picked = {round(i * (len(found) - 1) / max(1, points - 1)) for i in range(points)}
            found = [one for index, one in enumerate(found) if index in picked or _is_marked(one[0])]
        record = self._registry.records.get(name)
        runner = record.runner if record is not None else None
        return [version(runner, row, start, before, until) for row, before, until in found]

    def job_nodes(self, runner: JobRunner) -> list[JobNode]:
        """Return the nodes of a job."""
        return [self.job_node(runner, member.node) for member in runner.hub.roster.all_members()]

    def job_node(self, runner: JobRunner, node: str) -> JobNode:
        presence, member = self._presence, runner.hub.roster[node]
        activity, silent = presence.activity[runner.name, node], presence.silent_s(node)
        task = member.task
        return JobNode(
            name=node,
            state=self._node_state(runner, node),
            progress=self._share(runner, node) if task is not None else None,
            task=f"{task.id[0]}.{task.id[1]}" if task is not None else None,
            version=task.version if task is not None else None,
            reports=activity.reports,
            weight=activity.weight,
            seconds=activity.seconds,
            metrics=activity.metrics,
            losses=list(activity.losses),
            is_gossiping=_is_gossiping(task),
            excluded_text=runner.hub.settings.plan.selection.describe_exclusion(member.candidate),
            deadlines_missed=member.history.deadlines.count("-"),
            deadlines=len(member.history.deadlines),
            resting=task is None and not runner.gate.has_ended and _is_backed_off(runner, node),
            up_bytes=self._traffic.of_node[runner.name, node, "up"],
            down_bytes=self._traffic.of_node[runner.name, node, "down"],
            last_seen_s=silent,
            failures=activity.failures,
            last_error=activity.last_error,
            info=presence.info.get(node, {}),
        )

    def _node_state(self, runner: JobRunner, node: str) -> Any:
        member = runner.hub.roster[node]
        if not member.is_present:
            return "gone"
        if self._presence.is_stale(node):
            return "stale"
        task = member.task  # once: a version that closes now withdraws it
        if task is None:
            return "idle"
        return "evaluating" if task.kind == "evaluate" else "training"

    def node(self, name: str) -> NodeView:
        """Return the view of an enrolled node."""
        presence = self._presence
        parts = [d for d in self._registry.running() if (m := d.hub.roster.get(name)) is not None and m.is_present]
        silent = presence.silent_s(name)
        if silent is None or silent > presence.lease_s:
            state = "gone"
        elif presence.is_stale(name):
            state = "stale"
        else:
            state = "training" if any(d.hub.roster[name].task is not None for d in parts) else "online"
        mine = [presence.activity[job, name] for job in self._registry.records if (job, name) in presence.activity]
        bytes_of_node, jobs = self._traffic.of_node, ("", *self._registry.records, *self._remote.jobs)
        up, down = (sum(bytes_of_node.get((job, name, direction), 0) for job in jobs) for direction in ("up", "down"))
        failed = max(
            (activity for activity in mine if activity.last_error),
            key=lambda activity: activity.last_error_at,
            default=None,
        )
        return NodeView.model_validate(
            {
                "reports": sum(activity.reports for activity in mine),
                "up_bytes": up,
                "down_bytes": down,
                "failures": sum(activity.failures for activity in mine),
                "last_error": failed.last_error if failed is not None else None,
                "name": name,
                "state": state,
                "availability": presence.availability.get(name, "active"),
                "jobs": [runner.name for runner in parts],
                "last_seen_s": silent,
                "joined_at": iso(presence.joined_at.get(name, 0.0)),
                "info": presence.info[name],
            }
        )
