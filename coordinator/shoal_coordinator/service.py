"""The coordinator itself: its jobs, its nodes, and the tasks that run beside the requests."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Row, Select, select, update

from shoal.core.errors import InvalidJob, Refused, ShoalError, StorageFailed
from shoal.core.machine import Event, Lost
from shoal.core.message import Ref
from shoal.core.owners import LEAD
from shoal.runtime.store import FileBodies
from shoal.spec import JobSpec, parse_job
from shoal_coordinator import auth, beginnings, describe, history, keepsakes, owners
from shoal_coordinator.admission import Admission
from shoal_coordinator.auth import Directory
from shoal_coordinator.bells import Bells
from shoal_coordinator.blobs.places import reach
from shoal_coordinator.books import Books
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.database import Database
from shoal_coordinator.deputies import Deputies
from shoal_coordinator.dispatch import Dispatch
from shoal_coordinator.driver import Driver
from shoal_coordinator.evaluator import Evaluator
from shoal_coordinator.inside import Inside
from shoal_coordinator.job_record import Record
from shoal_coordinator.journal import merge_metrics
from shoal_coordinator.ledger import Ledger
from shoal_coordinator.logbook import Logbook
from shoal_coordinator.manifests import Given, Manifests
from shoal_coordinator.metrics import Metrics
from shoal_coordinator.papers import Papers
from shoal_coordinator.peers import Peers
from shoal_coordinator.presence import Presence
from shoal_coordinator.relays import Relays
from shoal_coordinator.repeats import Repeating
from shoal_coordinator.replica_views import Standing
from shoal_coordinator.retention import Retention
from shoal_coordinator.seat import Post
from shoal_coordinator.services import Services
from shoal_coordinator.settings import Settings
from shoal_coordinator.start import Start
from shoal_coordinator.steering import Steering
from shoal_coordinator.stream import Broadcast, Item
from shoal_coordinator.system_metrics import SystemMetrics
from shoal_coordinator.tables import jobs, nodes, versions
from shoal_coordinator.turns import Turns
from shoal_coordinator.unreported import NodeBytes
from shoal_coordinator.watch import Around, Watch

log = structlog.get_logger()

TICK_S, WATCH_S = 0.5, 2.0

HANDED_S = 5.0
"""So long a deputy still answers for a job that has ended: then all know that the lead does."""


class Coordinator:
    """Everything that outlives a request. `start` and `stop` frame it; requests come from the event loop.

    `post`: at a database that it shares with others; then it owns all this only for as long as the lease is its own.
    `inside`: how it speaks with them. As a deputy, it has some of the jobs, and nodes and people by the lead's leave.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        operator_token: str,
        post: Post | None = None,
        inside: Inside | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings, self.ledger, self._post = settings, ledger, post
        self.metrics = metrics or Metrics()
        self.operator_token = operator_token
        self.owner = post.owner if post is not None else LEAD
        self.blobs = reach(settings)
        self.starts = self.bodies_of(".start")  # initial models, before their jobs; no job can be called so
        self.directory = Directory()
        self.broadcast = Broadcast()
        self.logbook = Logbook(settings)
        self.system_metrics = SystemMetrics(settings.system_metrics_age_s)
        self.presence = Presence(settings.lease_s)
        self.turns = Turns()
        self.node_bytes = NodeBytes(settings.node_bytes_max)
        self.steering = Steering(settings.arrivals_per_s, lambda: len(self.presence.leases))
        self.papers = Papers(settings.data, lambda job, node: self.presence.doing[job, node].weight)
        self.relays, self.readmissions = Relays(self.papers), Relays(self.papers)  # each with windows of its own
        self.peers, self.manifests = Peers(self.relays.carrier), Manifests()
        self.records: dict[str, Record] = {}
        self._beginning: set[str] = set()
        self.deputies = Deputies(self, inside)
        self._dispatch = Dispatch(self, inside) if self.owner and inside is not None else None
        self.admission = Admission(self)
        self.bells = Bells(self._dispatch.rang if self._dispatch is not None else None)
        self.ready = False
        self.give_up: Callable[[], None] = self.drain
        """Called when another coordinator has taken the database over: whoever serves this one ends it."""
        self.standing: Callable[[], Standing] | None = None
        """How things are with it among others on the same database; None: it is alone."""
        self.started_at = time.time()
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    async def start(self) -> None:
        """Open the database, restore every job, begin to tick. What cannot be begun leaves nothing behind."""
        self.database = await asyncio.to_thread(Database, self.settings.url, self.settings.data, self._post)
        self.database.committed = self.metrics.commits.observe
        try:
            await self._begin_all()
        except BaseException:
            await self._end_all()
            raise

    async def _begin_all(self) -> None:
        self.evaluator = Evaluator(self._evaluated)
        self.retention = Retention(self.database, self.settings, self.ledger)
        logged = self.logbook, self.system_metrics
        own = Books(self.database, self.ledger, *logged, self.broadcast, self.settings.traffic_flush_s)
        self.books = self._dispatch or own
        await self.database.write(lambda c: self.directory.load(c, self.operator_token))
        await self.database.write(self.ledger.load)
        if self._post is not None:
            await self._come_in(self._post)
        await self.database.write(self.papers.load)
        for row in await self.database.write(lambda c: c.execute(select(nodes).where(~nodes.c.revoked)).all()):
            self.presence.take_up(row)
        rows = await self.database.write(lambda c: c.execute(select(jobs)).all())
        self.deputies.know({row.name: row.owner for row in rows if row.owner != self.owner and not self.owner})
        for row in [row for row in rows if row.owner == self.owner]:
            await self._take_up(row)
        if not self.owner:
            await self.retention.sweep_starts(self.starts)
        logging.getLogger().addHandler(self.logbook.own)
        around = Around(self.database, self.broadcast, self.presence, self.starts, self.running, self._concerns)
        self.watch = Watch(self.settings, around)
        await self.database.write(self.watch.load)
        beside = {"tick": self._tick(), "books": self.books.run(), "watch": self._watch()}
        if self.watch.webhook is not None:
            beside["webhook"] = self.watch.webhook.run()
        self._tasks = [asyncio.create_task(work, name=name) for name, work in beside.items()]
        self.ready = True
        log.info("ready", jobs=len(self.records), data=str(self.settings.data))

    async def _come_in(self, post: Post) -> None:
        """Have what all coordinators of a database have alike; the lead says what that is."""
        await self.database.write(lambda c: keepsakes.share(c, self.settings.data))
        if post.is_lead:
            await self.database.write(lambda c: keepsakes.keep_token(c, auth.hashed(self.operator_token)))
            await self.database.write(lambda c: owners.bring(c, post.seat.name))

    async def take_back(self, row: Row[Any]) -> None:
        """Another's job is this one's now."""
        await asyncio.to_thread(shutil.rmtree, self.settings.data / "near" / row.name, ignore_errors=True)
        await self._take_up(row)
        await self.database.write(self.watch.load)
        self.broadcast.tell(Item("job", row.name, {}))

    async def adopt(self, names: set[str]) -> None:
        """At a deputy: these jobs are its own now, unless that is over already."""
        query = select(jobs).where(jobs.c.name.in_(names), jobs.c.owner == self.owner, jobs.c.ended_at.is_(None))
        for row in await self.database.write(lambda c: c.execute(query).all()):
            if self.knows(row.name) or row.name in self._beginning:
                continue
            await self.take_back(row)
            await self.database.write(partial(self.ledger.reload, jobs={row.name}))
            for member in self.driver(row.name).hub.roster.here():
                self.bells[member.node].set()

    async def hand_over(self, name: str, deputy: str) -> None:
        """Let a deputy own a job from now on. Raises `StorageFailed`; the job is stopped then, to be taken up again."""
        record = self.records.pop(name)
        assert record.driver is not None
        await record.driver.stop()
        await self.database.write(partial(owners.give, job=name, deputy=deputy))
        crashpoint("owner.given")

    async def _take_up(self, row: Row[Any]) -> None:
        """A job of the database: go on with it, or show how it ended, or why this release cannot run it."""
        start = beginnings.start_of(row.start)
        try:
            spec = parse_job(row.spec)
            over = row.ended_at, row.summary, tuple(row.tags), row.labels
            record = Record(spec, row.created_at, start, None, *over)
        except InvalidJob as error:
            log.error("this release cannot run the job", job=row.name, why=error.message)
            over = (
                row.ended_at,
                row.summary or describe.unread(row, "failed", error.message),
                tuple(row.tags),
                row.labels,
            )
            self.records[row.name] = Record(JobSpec(name=row.name), row.created_at, start, None, *over)
            return
        if row.ended_at is None:
            await self._drive(record, start)
        else:
            self.records[row.name] = record

    def drain(self) -> None:
        """Let polls and streams end; what is in hand is still answered."""
        self.ready = False
        self.broadcast.end()
        self.bells.ring()

    async def stop(self, *, keeps: bool = False) -> None:
        """Finish what is in hand, write the last counts. `keeps`: nobody else is to own it before the lease ends."""
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.watch.webhook is not None:
            self.watch.webhook.close()
        await self._end_all(keeps=keeps)

    async def _end_all(self, *, keeps: bool = False) -> None:
        for driver in self.drivers():
            await driver.stop()
        self.evaluator.stop()
        logging.getLogger().removeHandler(self.logbook.own)
        if not self.database.fenced:  # else the counts are another's now
            try:
                await self.books.write_counts()
                await self.books.flush_logs()
            except StorageFailed as error:
                log.error("the last byte counts and log lines were not written", error=repr(error))
        await self.database.close(keeps=keeps)

    async def _drive(self, record: Record, start: Start) -> Driver:
        bodies = self.bodies_of(record.spec.name)
        services = Services(self.database, self.broadcast, self.settings, self.bells, self.node_bytes, self.metrics)
        driver = Driver(record.spec, start, bodies, services)
        record.driver = driver
        self.records[driver.name] = record
        await self.retention.sweep(bodies)  # first: a restoration may need the room
        await driver.start()
        await self.retention.clear(driver)
        await self._measure_newest(record.spec, driver)
        return driver

    async def _measure_newest(self, spec: JobSpec, driver: Driver) -> None:
        """Make up for a held-out evaluation of the newest version that a crash has prevented."""
        if spec.held_out is None:
            return
        query = select(versions).where(versions.c.job == spec.name).order_by(versions.c.number.desc()).limit(1)
        row = await self.database.write(lambda c: c.execute(query).first())
        if row is not None and not any(name.startswith("held_out/") for name in row.metrics):
            self.evaluator.add(spec, row.number, Ref(row.digest, row.nbytes), driver.bodies)

    def bodies_of(self, job: str) -> FileBodies:
        """Each job has its own folder of bodies, so that clearing away after one never touches another."""
        return self.blobs.bodies(job, self.settings.data / "near" / job, self.metrics.step)

    # Jobs

    def drivers(self) -> list[Driver]:
        return [record.driver for record in self.records.values() if record.driver is not None]

    def running(self) -> list[Driver]:
        """Jobs that nodes can take part in, oldest first."""
        return [driver for driver in self.drivers() if not driver.ended]

    @property
    def was_rebuilt(self) -> bool:
        """Whether it goes on with a job that another coordinator has led: it does not know all that nodes know."""
        return any(record.start.term for record in self.records.values())

    def knows(self, name: str) -> bool:
        """Whether there is a job of that name."""
        return name in self.records or self.deputies.owns(name)

    def is_elsewhere(self, name: str) -> bool:
        """Whether another coordinator may know a job that this one does not."""
        return name not in self.records and (bool(self.owner) or self.deputies.owns(name))

    def record(self, name: str) -> Record:
        """A job by name. Raises `Refused` (404) when there is none."""
        record = self.records.get(name)
        if record is None and self.owner:  # the lead has said that it is here, or will be
            raise StorageFailed(f"job {name} is moving to this coordinator, or from it", hint="ask again in a moment")
        if record is None:
            known = ", ".join(sorted(self.records)[:5]) or "none yet"
            raise Refused(f"no job is called {name!r}", code="job.unknown", hint=f"jobs here: {known}")
        return record

    def driver(self, name: str) -> Driver:
        """A job that has not ended."""
        record = self.record(name)
        if record.driver is None or record.driver.ended:
            raise Refused(
                f"job {name} has ended",
                code="job.ended",
                hint="its model and metrics stay; start another with `shoal run`",
            )
        return record.driver

    async def create(self, spec: JobSpec, start: Ref | None, given: Given | None, hold: bool) -> Record:
        """Begin a job, or go on with one of another coordinator's; `hold`: it is paused before any node is told of it.

        Raises `Refused` when its name is taken.
        """
        with self.claimed(spec.name):
            record = await self._begin(spec, start, given, hold)
        self.bells.ring()
        self.broadcast.tell(Item("job", spec.name, {}))
        return record

    @contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Nobody else begins a job of that name meanwhile. Raises `Refused` when there is one."""
        if self.knows(name) or name in self._beginning:
            raise Refused(
                f"a job called {name} exists",
                code="job.exists",
                hint='give the job another name = "…" in its file',
            )
        self._beginning.add(name)
        try:
            yield
        finally:
            self._beginning.discard(name)

    async def _begin(self, spec: JobSpec, start: Ref | None, given: Given | None, hold: bool) -> Record:
        """Check what can be checked, write the job down, and only then let it be seen."""
        if spec.held_out is not None:
            await asyncio.to_thread(self.evaluator.check, spec)
        if start is not None:
            await asyncio.to_thread(beginnings.share, self.bodies_of(spec.name), self.starts, start)
        begins = Start(start)
        if given is not None:
            begins = Start(start, given.manifest.version, given.term, given.told.node)
        record = Record(spec, (given.told.created_at if given is not None else None) or time.time(), begins)
        values = {"name": spec.name, "spec": spec.model_dump(mode="json"), "created_at": record.created_at}
        values |= {"start": beginnings.start_row(begins), "owner": self.owner}
        adding = partial(beginnings.add_job, values=values, begins=begins, given=given, hold=hold)
        known = await self.database.write(adding)
        if given is not None:
            crashpoint("restore.committed")
            self.papers.go_on(given.papers, known)
            for node in known:
                self.presence.introduce(node)
        await self._drive(record, begins)
        return record

    def forget_job(self, name: str) -> None:
        """Keep nothing in memory of a job that was removed: another may get its name."""
        for part in (self.ledger, self.papers, self.peers, self.manifests, self.retention):
            part.forget(name)

    async def tag(self, name: str, tags: tuple[str, ...]) -> None:
        """Give a job these tags instead of those that it had."""
        record = self.record(name)
        row = update(jobs).where(jobs.c.name == name).values(tags=list(tags))
        await self.database.write(lambda c: c.execute(row))
        record.tags = tags
        self.broadcast.tell(Item("job", name, {}))

    async def tell_all(self, event: Event, only: set[str] | None = None) -> None:
        """Tell the running jobs (or `only` these) of a node's coming or going. None waits for another's disk."""
        for driver in self.running():
            if only is not None and driver.name not in only:
                continue
            if driver.restoring:
                driver.leave_word(event)
            else:
                await driver.tell(event)

    # Beside the requests

    async def _tick(self) -> None:
        """Leases, housekeeping, and what browsers are told at intervals."""
        teller, failing = describe.Teller(self), Repeating("tick failed")
        while True:
            await asyncio.sleep(TICK_S)
            if self.database.fenced:
                self.give_up()
                return
            self.steering.measure()
            try:
                await self._lose_the_silent()
                await self._after_versions()
                await self._look_after_peers()
                await self.retention.tidy(self.drivers(), self.deputies.jobs)
                await teller.tell()
                failing.worked()
            except Exception as error:  # noqa: BLE001 - the next tick may do better
                if not self.database.fenced:
                    failing.failed(error)

    async def _look_after_peers(self) -> None:
        """Sign what has changed of who takes part, and keep how they do."""
        for driver in self.running():
            self.peers.sample(driver.name, self.papers.peers(driver.name))
            try:
                await self.papers.renew(driver, self.database)
            except ShoalError as error:
                log.error("papers not signed; trying again", job=driver.name, error=repr(error))

    async def _lose_the_silent(self) -> None:
        if self._dispatch is not None and not self._dispatch.hears:
            return  # nobody says who is there
        running = [driver for driver in self.running() if not driver.restoring]
        spare_s = self.steering.burden().pause_s_max  # an earlier process may have sent them away
        for driver in running:
            for member in driver.hub.roster.here():
                self.presence.expect(member.node, spare_s)
        for node in self.presence.expired():
            for driver in running:
                found = driver.hub.roster.get(node)
                if found is not None and found.here:
                    await driver.tell(Lost(node, f"no sign of life for {self.settings.lease_s:g} s"))

    async def _after_versions(self) -> None:
        """What follows from closed versions: evaluation, clearing away, the end of a job."""
        for record in list(self.records.values()):
            driver = record.driver
            if driver is None:
                continue
            closed, driver.closed = driver.closed, []
            for version in closed:
                self.evaluator.add(record.spec, version.number, version.model, driver.bodies)
            if closed:
                await self.retention.after(driver, closed)
            waiting = driver.behind or self.evaluator.busy(record.spec.name)
            if driver.ended and record.ended_at is None and not waiting:
                try:
                    await self._conclude(record, driver)
                except StorageFailed as error:
                    log.error("end of job not written; trying again", job=driver.name, error=repr(error))
            if self.owner and record.ended_at is not None and time.time() - record.ended_at > HANDED_S:
                del self.records[driver.name]
                await driver.stop()

    async def _conclude(self, record: Record, driver: Driver) -> None:
        """A job has ended: keep the last view of it. Nobody is told of the end before it is on the disk."""
        ended_at = time.time()
        await self.database.write(lambda c: history.complete(c, driver.name))
        job = await describe.job(self, replace(record, ended_at=ended_at))
        nodes = [node.model_dump(mode="json") for node in describe.job_nodes(self, driver)]
        summary = {"job": job.model_dump(mode="json"), "nodes": nodes}
        row = update(jobs).where(jobs.c.name == driver.name).values(ended_at=ended_at, summary=summary, owner=LEAD)
        await self.database.write(lambda c: c.execute(row))
        record.ended_at, record.summary = ended_at, summary
        self.watch.tell_end(job)
        self.broadcast.tell(Item("job", driver.name, {}))

    async def _evaluated(self, job: str, number: int, metrics: dict[str, Any]) -> None:
        """The held-out evaluation of a version has come."""
        record = self.records.get(job)
        if record is not None and record.driver is not None:  # else another measures it again
            await self.database.write(lambda c: merge_metrics(c, job, number, metrics))
            await record.driver.publish("metrics", {"number": number, "metrics": metrics})

    def _concerns(self, job: str) -> bool:
        return job in self.records or (not job and not self.owner)

    async def _watch(self) -> None:
        """See whether somebody must be told of something."""
        failing = Repeating("the watch failed")
        while True:
            try:
                await self.watch.look()
                failing.worked()
            except Exception as error:  # noqa: BLE001 - the next look may do better
                failing.failed(error)
            await asyncio.sleep(WATCH_S)

    async def version_row(self, job: str, number: int) -> Any:
        """The row of a closed version. Raises `Refused` (404)."""
        row = await self.first_version(job, select(versions).where(versions.c.number == number))
        if row is None:
            hint = "see GET …/versions; of old rounds only some are kept"
            raise Refused(f"job {job} has no version {number}", code="model.unknown", hint=hint)
        return row

    async def first_version(self, job: str, query: Select[Any]) -> Any:
        """The first row of a query on a job's versions; None: none. Waits for what was shown before it is written."""
        mine, driver = query.where(versions.c.job == job).limit(1), self.record(job).driver
        async with self.database.reader.connect() as connection:
            row = (await connection.execute(mine)).first()
        if row is None and driver is not None:
            await driver.written()
            async with self.database.reader.connect() as connection:
                row = (await connection.execute(mine)).first()
        return row
