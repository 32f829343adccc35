"""From the state of things to what the API shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, select

from shoal.core.hub import Hub
from shoal.core.message import Order
from shoal.core.tree import Tree
from shoal.core.words import counted
from shoal_coordinator import headline, history, peer_views, views
from shoal_coordinator.jump import JUMP
from shoal_coordinator.ledger import Spent
from shoal_coordinator.measure_views import Best, Provisional
from shoal_coordinator.stream import Item
from shoal_coordinator.tables import versions
from shoal_coordinator.views import iso

if TYPE_CHECKING:
    from shoal_coordinator.driver import Driver
    from shoal_coordinator.job_record import Record
    from shoal_coordinator.service import Coordinator
    from shoal_coordinator.start import Start


ETA_FACTOR, ETA_LEAST_S = 3.0, 5.0
"""A version that takes so many times as long as the last ones, and so many seconds, says when nothing will end."""


async def job(coordinator: Coordinator, record: Record) -> views.Job:
    """A job as it stands."""
    (found,) = await jobs(coordinator, [record])
    return found


async def jobs(coordinator: Coordinator, records: Sequence[Record]) -> list[views.Job]:
    """Jobs as they stand. Of those that have ended the last view was kept; one query is for all others."""
    live = [record.spec.name for record in records if record.driver is not None and record.summary is None]
    known: dict[str, history.Summary] = {}
    if live:
        async with coordinator.database.reader.connect() as connection:
            for row in await connection.execute(history.summaries(live)):
                known[row.name] = history.summary(row)
    return [_shown(coordinator, record, known.get(record.spec.name, history.Summary())) for record in records]


def _shown(coordinator: Coordinator, record: Record, known: history.Summary) -> views.Job:
    if record.summary is None:
        assert record.driver is not None
        return _job(coordinator, record, record.driver, known)
    found = views.Job.model_validate({**record.summary["job"], "tags": record.tags, "labels": labelled(record)})
    totals = coordinator.ledger.totals  # nodes of a job that has ended may ask for it still
    found.up_bytes, found.down_bytes = totals[record.spec.name, "up"], totals[record.spec.name, "down"]
    return found


def labelled(record: Record) -> dict[str, int]:
    """The version that each label names."""
    return {label: kept["version"] for label, kept in record.labels.items()}


async def named(coordinator: Coordinator, names: Sequence[str]) -> list[views.Job]:
    """Jobs of these names, whoever owns them. Raises `Refused` (404) for one that is not there."""
    others = [name for name in names if coordinator.deputies.owns(name) and name not in coordinator.records]
    records = [coordinator.record(name) for name in names if name not in others]
    known = {view.name: view for view in await jobs(coordinator, records)}
    if others:
        known |= {view.name: view for view in await coordinator.deputies.shown()}
    return [known[name] for name in names]


def unread(row: Row[Any], state: views.JobState, why: str) -> dict[str, Any]:
    """What can be shown of a job that cannot be run or asked for, as it is kept of jobs that have ended."""
    spec = row.spec if isinstance(row.spec, dict) else {}
    names = {what: str(dict(spec.get(what) or {}).get("name", "")) for what in ("algorithm", "schedule")}
    job = views.Job(
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


def rebuilt(start: Start) -> peer_views.Rebuilt | None:
    """Where a job goes on from, if another coordinator has led it before."""
    return peer_views.Rebuilt(node=start.node, version=start.version, term=start.term + 1) if start.term else None


def rebuilt_text(start: Start) -> str:
    """The same in a sentence, and what is lost."""
    whose = f"what {start.node} had kept" if start.node else "what a node had kept"
    text = f"rebuilt from {whose} at version {start.version}, term {start.term + 1}"
    return f"{text}; earlier versions, measurements and byte counts are not known here"


def _is_open(driver: Driver) -> bool:
    """Whether versions come as they like, so that their number tells nothing."""
    return driver.hub.schedule.anchored and not driver.spec.rounds


def _progress(coordinator: Coordinator, driver: Driver) -> float:
    """How far a job is: by its versions, or, where those come as they like, by what its nodes have told."""
    hub = driver.hub
    if driver.ended or not _is_open(driver):
        return 1.0 if hub.phase == "done" else min(1.0, hub.version / hub.plan.versions)
    shares = [1.0 if m.finished else _share(coordinator, driver, m.node) for m in hub.roster.here()]
    return sum(shares) / max(1, len(shares))


def _share(coordinator: Coordinator, driver: Driver, node: str) -> float:
    """How far a node is with its work; where one order follows another before it is told, what its last report says."""
    doing = coordinator.presence.doing[driver.name, node]
    told = {name: value for name, value in doing.metrics.items() if isinstance(value, int | float)}  # "NaN" is a text
    reported = driver.hub.algorithm.trained(told) if _is_open(driver) else None
    return max(doing.progress or 0.0, reported or 0.0)


def _job(coordinator: Coordinator, record: Record, driver: Driver, known: history.Summary) -> views.Job:
    hub, spec = driver.hub, record.spec
    members = hub.roster.here()
    selection, chooses = hub.plan.selection, hub.plan.selection.restricts or hub.roster.held
    return views.Job(
        name=spec.name,
        title=spec.title or spec.name,
        state=_state(record, driver),
        state_why=driver.trouble or _why(hub),
        headline=_headline(coordinator, driver, known),
        algorithm=driver.hub.algorithm.name,
        schedule=driver.hub.schedule.name,
        mode=hub.mode,
        mode_since=iso(driver.mode_since),
        version=hub.version,
        versions=None if _is_open(driver) else hub.plan.versions,
        progress=_progress(coordinator, driver),
        idle=hub.idle and not driver.restoring,
        eta_s=None if _is_open(driver) else _eta(driver),
        nodes=sum(not selection.excludes(m.candidate) for m in members) if chooses else len(members),
        members=len(members),
        busy=sum(1 for member in members if member.order is not None),
        created_at=iso(record.created_at),
        started_at=iso(known.started_at),
        ended_at=iso(record.ended_at),
        model=_model(hub),
        metrics=known.metrics,
        measured=known.measured,
        provisional=None if known.measured is None else provisional(driver, known.measured, known.metrics),
        best=_best(known),
        rebuilt=rebuilt(record.start),
        up_bytes=coordinator.ledger.totals[driver.name, "up"],
        down_bytes=coordinator.ledger.totals[driver.name, "down"],
        spec=spec.model_dump(mode="json"),
        changed=hub.changed,
        awaited=hub.awaited,
        tags=list(record.tags),
        labels=labelled(record),
    )


def _headline(coordinator: Coordinator, driver: Driver, known: history.Summary) -> str:
    found = headline.facts(driver, known, coordinator.presence.lost, coordinator.peers.now(driver.name))
    return headline.headline(found)


def _best(known: history.Summary) -> Best | None:
    """The best version so far, and how many nodes say so."""
    if known.best is None:
        return None
    return Best(accuracy=known.best[0], version=known.best[1], nodes=known.best_nodes)


def provisional(driver: Driver | None, number: int, metrics: dict[str, Any]) -> Provisional | None:
    """How many of the nodes that measure a version have; None: its metrics are complete, or no node's.

    A round that has closed waits for nobody. Where versions are made of a few reports each, one that rested on half of
    the nodes or fewer stays a part.
    """
    hub = driver.hub if driver is not None else None
    is_open = driver is not None and hub is not None and not driver.ended and number >= hub.version
    asked, reported = history.asked(metrics), history.nodes_behind(metrics)
    if asked is None or not (is_open or history.is_part(metrics)):
        asked = len(hub.gathered.heard_of) if is_open and hub is not None else 0
    return Provisional(reported=reported, asked=asked) if reported is not None and reported < asked else None


def _state(record: Record, driver: Driver) -> views.JobState:
    hub = driver.hub
    if hub.paused_at is not None:
        return "paused"
    if hub.phase == "done" and record.ended_at is None:
        return "evaluating"  # at the coordinator: the held-out data
    return hub.phase


def _why(hub: Hub) -> str:
    """Why a job is in its state: the reason alone, since the state stands beside it wherever it is shown."""
    if hub.phase in ("done", "stopped"):
        return hub.ends_after_round
    if hub.ends_after_round:
        return f"stops after this round: {hub.ends_after_round}"
    if hub.paused_at is not None:
        return hub.paused_why
    if hub.phase == "running" and hub.mode != "server" and not hub.idle:
        return _where(hub)
    next_one = f"{'version' if hub.schedule.anchored else 'round'} {hub.version + 1}: "
    return f"{next_one if hub.phase == 'running' else ''}{hub.waits}"


def _where(hub: Hub) -> str:
    """Who has the job while its nodes carry it on."""
    if hub.mode == "away":
        away = sum(1 for member in hub.roster.here() if _is_away(member.order))
        return f"{counted(away, 'node')} carry on from version {hub.version}" if away else "for a node"
    asked = len(hub.gathered.asked)
    return f"{len(hub.gathered.reports)} of {counted(asked, 'node')} have handed back"


def _is_away(order: Order | None) -> bool:
    """Whether a node carries on without the coordinator."""
    return order is not None and order.kind == "gossip"


def _eta(driver: Driver) -> float | None:
    """Seconds until the last version, at the pace of the last ones; None where nothing goes on at that pace."""
    hub = driver.hub
    if hub.phase != "running" or hub.mode != "server" or not hub.seconds or hub.paused_at is not None or hub.idle:
        return None
    mean_s, opened = sum(hub.seconds) / len(hub.seconds), hub.gathered.opened
    if opened is not None and driver.now() - opened > max(ETA_FACTOR * mean_s, ETA_LEAST_S):
        return None
    return (hub.plan.versions - hub.version) * mean_s


def _model(hub: Hub) -> views.Model | None:
    model = hub.slots.get("model")
    if hub.model is None or not isinstance(model, Tree):
        return None
    return views.Model(digest=hub.model.digest, bytes=hub.model.nbytes, parameters=model.layout.elements)


def version(driver: Driver | None, row: Row[Any], start: float, before: Spent, until: Spent) -> views.Version:
    """Return a closed version; `before`, `until`: what had crossed when the version before it and it were made.

    `driver`: the job's, while it has one.
    """
    return views.Version(
        number=row.number,
        digest=row.digest,
        bytes=row.nbytes,
        why=row.why,
        opened_at=iso(row.closed_at - (row.closed - row.opened)),
        closed_at=iso(row.closed_at),
        elapsed_s=row.closed - start,
        seconds=row.closed - row.opened,
        reports=len(row.reports),
        asked=row.asked,
        weight=row.weight,
        metrics=row.metrics,
        provisional=provisional(driver, row.number, row.metrics),
        numbers=row.numbers,
        up_bytes=until.up - before.up if row.number else 0,
        down_bytes=until.down - before.down if row.number else 0,
        total_bytes=sum(until) if row.number else 0,
    )


async def version_list(coordinator: Coordinator, name: str, after: int, points: int) -> list[views.Version]:
    """Closed versions after a number, thinned to about `points`: the first, the last and marked ones stay."""
    query = select(versions).where(versions.c.job == name).order_by(versions.c.number)
    async with coordinator.database.reader.connect() as connection:
        rows = (await connection.execute(query)).all()
    if not rows:
        return []
    start = rows[0].closed
    spent = coordinator.ledger.spent(name, [row.number for row in rows])
    found = [one for one in zip(rows, [spent[0], *spent], spent, strict=False) if one[0].number > after]
    if points and len(found) > points:
        picked = {round(i * (len(found) - 1) / max(1, points - 1)) for i in range(points)}
        found = [one for index, one in enumerate(found) if index in picked or _is_marked(one[0])]
    record = coordinator.records.get(name)
    driver = record.driver if record is not None else None
    return [version(driver, row, start, before, until) for row, before, until in found]


def _is_marked(row: Row[Any]) -> bool:
    """Whether a number is not finite, or models began to drift apart faster: no thinning may hide that."""
    return JUMP in row.numbers or any(isinstance(value, str) for value in row.metrics.values())


def job_nodes(coordinator: Coordinator, driver: Driver) -> list[views.JobNode]:
    """The nodes of a job."""
    return [_job_node(coordinator, driver, member.node) for member in driver.hub.roster.all()]


def _job_node(coordinator: Coordinator, driver: Driver, node: str) -> views.JobNode:
    presence, member = coordinator.presence, driver.hub.roster[node]
    doing, silent = presence.doing[driver.name, node], presence.silent_s(node)
    order = member.order
    return views.JobNode(
        name=node,
        state=_node_state(coordinator, driver, node),
        progress=_share(coordinator, driver, node) if order is not None else None,
        order=f"{order.id[0]}.{order.id[1]}" if order is not None else None,
        version=order.version if order is not None else None,
        reports=doing.reports,
        weight=doing.weight,
        seconds=doing.seconds,
        metrics=doing.metrics,
        losses=list(doing.losses),
        away=_is_away(order),
        left_out=driver.hub.plan.selection.excludes(member.candidate),
        deadlines_missed=member.deadlines.count("-"),
        deadlines=len(member.deadlines),
        resting=order is None and not driver.ended and _rests(driver, node),
        up_bytes=coordinator.ledger.of_node[driver.name, node, "up"],
        down_bytes=coordinator.ledger.of_node[driver.name, node, "down"],
        last_seen_s=silent,
        failures=doing.failures,
        last_error=doing.last_error,
        info=presence.info.get(node, {}),
    )


def _rests(driver: Driver, node: str) -> bool:
    return driver.hub.schedule.rests(driver.hub.numbers, node, driver.now())


def _node_state(coordinator: Coordinator, driver: Driver, node: str) -> Any:
    member = driver.hub.roster[node]
    if not member.here:
        return "gone"
    if coordinator.presence.is_stale(node):
        return "stale"
    order = member.order  # once: a version that closes now withdraws it
    if order is None:
        return "idle"
    return "evaluating" if order.kind == "evaluate" else "training"


def node(coordinator: Coordinator, name: str) -> views.Node:
    """A node that was enrolled and not revoked."""
    presence = coordinator.presence
    parts = [d for d in coordinator.running() if (m := d.hub.roster.get(name)) is not None and m.here]
    silent = presence.silent_s(name)
    if silent is None or silent > presence.lease_s:
        state = "gone"
    elif presence.is_stale(name):
        state = "stale"
    else:
        state = "training" if any(d.hub.roster[name].order is not None for d in parts) else "online"
    mine = [presence.doing[job, name] for job in coordinator.records if (job, name) in presence.doing]
    book, jobs = coordinator.ledger.of_node, ("", *coordinator.records, *coordinator.deputies.jobs)
    up, down = (sum(book.get((job, name, way), 0) for job in jobs) for way in ("up", "down"))
    failed = max((doing for doing in mine if doing.last_error), key=lambda doing: doing.last_error_at, default=None)
    return views.Node.model_validate(
        {
            "reports": sum(doing.reports for doing in mine),
            "up_bytes": up,
            "down_bytes": down,
            "failures": sum(doing.failures for doing in mine),
            "last_error": failed.last_error if failed is not None else None,
            "name": name,
            "state": state,
            "availability": presence.held.get(name, "active"),
            "jobs": [driver.name for driver in parts],
            "last_seen_s": silent,
            "joined_at": iso(presence.joined_at.get(name, 0.0)),
            "info": presence.info[name],
        }
    )


AT_ONCE = 100
"""Nodes that are looked at without a pause in which requests are answered."""


class Teller:
    """Tells browsers what changes without an event: nodes and byte counts, each only when it differs."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._told: dict[tuple[str, str], str] = {}

    async def tell(self) -> None:
        """Send what differs from what was sent last."""
        if not self._coordinator.broadcast.has_readers:
            self._told.clear()
            return
        for driver in self._coordinator.drivers():
            await self._tell_nodes(driver)
            self._tell_peers(driver)
            totals = self._coordinator.ledger.totals
            data = {"up_bytes": totals[driver.name, "up"], "down_bytes": totals[driver.name, "down"]}
            if self._is_new((driver.name, ""), data):
                self._coordinator.broadcast.tell(Item("traffic", driver.name, data))
            share = {"progress": round(_progress(self._coordinator, driver), 2)} if _is_open(driver) else {}
            now = {"why": _why(driver.hub), "idle": driver.hub.idle, "ends": _eta(driver) is not None, **share}
            now |= {"headline": "" if driver.restoring else self._headline(driver)}
            if self._is_new((driver.name, "now"), now):
                self._coordinator.broadcast.tell(Item("job", driver.name, {}))

    def _headline(self, driver: Driver) -> str:
        return _headline(self._coordinator, driver, history.Summary())

    async def _tell_nodes(self, driver: Driver) -> None:
        fresh = []
        for place, member in enumerate(driver.hub.roster.all()):
            if place % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)  # requests come first: of tens of thousands all take a second and more
            data = _job_node(self._coordinator, driver, member.node).model_dump(mode="json")
            silent = data["last_seen_s"]
            if self._is_new(
                (driver.name, member.node), data | {"last_seen_s": None if silent is None else silent // 5}
            ):
                fresh.append(data)
        if fresh:
            self._coordinator.broadcast.tell(Item("nodes", driver.name, {"nodes": fresh}))

    def _tell_peers(self, driver: Driver) -> None:
        """Peers that have told something since, or that a new roster names."""
        coordinator, job = self._coordinator, driver.name
        held = coordinator.papers.held(job)
        if held is None:
            return
        version, told = held.roster.version, coordinator.peers.told(job)
        words = {
            name: {"heard": told[name].heard if name in told else 0.0, "by": coordinator.relays.carrier(job, name)}
            for name in coordinator.papers.peers(job)
        }
        fresh = {name for name, word in words.items() if self._is_new((job, f"peer {name}"), word)}
        if self._is_new((job, "roster"), {"version": version}) or fresh:
            rows = coordinator.peers.news(job, coordinator.papers.peers(job), fresh)
            news = peer_views.PeersNews(job=job, roster=version, peers=rows, now=coordinator.peers.now(job))
            coordinator.broadcast.tell(Item("peers", job, news.model_dump(mode="json")))

    def _is_new(self, key: tuple[str, str], data: dict[str, Any]) -> bool:
        text = json.dumps(data, sort_keys=True)
        if self._told.get(key) == text:
            return False
        self._told[key] = text
        return True
