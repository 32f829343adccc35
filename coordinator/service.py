"""The coordinator itself: its jobs, its nodes, and the tasks that run beside the requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Row, null, select, update

from coordinator import auth, beginnings, describe, keepsakes, ledger, papers, quarters, readmission
from coordinator.auth import Directory
from coordinator.blobs.places import reach
from coordinator.crash import crashpoint
from coordinator.database import Database
from coordinator.driver import Driver, Services, Start
from coordinator.evaluator import Evaluator
from coordinator.journal import merge_metrics
from coordinator.ledger import Ledger
from coordinator.logbook import Logbook
from coordinator.manifests import Given, Manifests
from coordinator.papers import Contact, Papers
from coordinator.peers import Peers
from coordinator.presence import Presence
from coordinator.relays import Relays
from coordinator.replica_views import Standing
from coordinator.retention import Retention
from coordinator.seat import Seat
from coordinator.settings import Settings
from coordinator.steering import Steering
from coordinator.stream import Broadcast, Item
from coordinator.tables import jobs, nodes, versions
from coordinator.watch import Around, Watch
from shoal.core.errors import InvalidJob, NotAllowed, Refused, ShoalError, StorageFailed
from shoal.core.machine import Event, Lost
from shoal.core.message import Join, Ref
from shoal.core.selection import of_info
from shoal.runtime.store import FileBodies
from shoal.spec import JobSpec, parse_job

log = structlog.get_logger()

TICK_S, LOGS_S, WATCH_S = 0.5, 1.0, 2.0


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


class Coordinator:
    """Everything that outlives a request. `start` and `stop` frame it; requests come from the event loop.

    `seat`: at a database that it shares with others; then it owns all this only for as long as the lease is its own.
    """

    def __init__(self, settings: Settings, ledger: Ledger, operator_token: str, seat: Seat | None = None) -> None:
        self.settings, self.ledger, self._seat = settings, ledger, seat
        self._operator_token = operator_token
        self.blobs = reach(settings)
        self.starts = self.bodies_of(".start")  # initial models, before their jobs; no job can be called so
        self.directory = Directory()
        self.broadcast = Broadcast()
        self.logbook = Logbook(settings)
        self.presence = Presence(settings.lease_s)
        self.steering = Steering(settings.arrivals_per_s, lambda: len(self.presence.leases))
        self.papers = Papers(settings.data, lambda job, node: self.presence.doing[job, node].weight)
        self.relays, self.readmissions = Relays(self.papers), Relays(self.papers)  # each with windows of its own
        self.peers, self.manifests = Peers(self.relays.carrier), Manifests()
        self.records: dict[str, Record] = {}
        self._beginning: set[str] = set()
        self.bells: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
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
        self.database = await asyncio.to_thread(Database, self.settings.url, self.settings.data, self._seat)
        try:
            await self._begin_all()
        except BaseException:
            await self._end_all()
            raise

    async def _begin_all(self) -> None:
        self.evaluator = Evaluator(self._evaluated)
        self.retention = Retention(self.database, self.settings)
        await self.database.write(lambda c: self.directory.load(c, self._operator_token))
        await self.database.write(self.ledger.load)
        if self._seat is not None:
            await self.database.write(lambda c: keepsakes.share(c, self.settings.data))
            await self.database.write(lambda c: keepsakes.keep_token(c, auth.hashed(self._operator_token)))
        await self.database.write(self.papers.load)
        for row in await self.database.write(lambda c: c.execute(select(nodes).where(~nodes.c.revoked)).all()):
            self.presence.joined_at[row.name] = row.joined_at
            self.presence.info[row.name] = row.info
            with suppress(Refused):  # one that said so before tags were looked at
                self.presence.tell(row.name, row.info)
        for row in await self.database.write(lambda c: c.execute(select(jobs)).all()):
            await self._take_up(row)
        await self.retention.sweep_starts(self.starts)
        logging.getLogger().addHandler(self.logbook.own)
        around = Around(self.database, self.broadcast, self.presence, self.starts, self.running)
        self.watch = Watch(self.settings, around)
        await self.database.write(self.watch.load)
        beside = {"tick": self._tick(), "flush": self._flush(), "logs": self._write_logs(), "watch": self._watch()}
        if self.watch.webhook is not None:
            beside["webhook"] = self.watch.webhook.run()
        self._tasks = [asyncio.create_task(work, name=name) for name, work in beside.items()]
        self.ready = True
        log.info("ready", jobs=len(self.records), data=str(self.settings.data))

    async def _take_up(self, row: Row[Any]) -> None:
        """A job of the database: go on with it, or show how it ended, or why this release cannot run it."""
        start = beginnings.start_of(row.start)
        try:
            spec = parse_job(row.spec)
            over = row.ended_at, row.summary, tuple(row.tags), row.labels
            record = Record(spec, row.created_at, start, None, *over)
        except InvalidJob as error:
            log.error("this release cannot run the job", job=row.name, why=error.message)
            over = row.ended_at, row.summary or describe.failed(row, error.message), tuple(row.tags), row.labels
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
        self.ring()

    async def stop(self) -> None:
        """Finish what is in hand, write the last counts."""
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.watch.webhook is not None:
            self.watch.webhook.close()
        await self._end_all()

    async def _end_all(self) -> None:
        for driver in self.drivers():
            await driver.stop()
        self.evaluator.stop()
        logging.getLogger().removeHandler(self.logbook.own)
        if not self.database.fenced:  # else the counts are another's now
            try:
                await self.write_counts()
                await self.flush_logs()
            except StorageFailed as error:
                log.error("the last byte counts and log lines were not written", error=repr(error))
        await self.database.close()

    async def _drive(self, record: Record, start: Start) -> Driver:
        bodies = self.bodies_of(record.spec.name)
        driver = Driver(record.spec, start, bodies, Services(self.database, self.broadcast, self.settings, self.bells))
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
        return self.blobs.bodies(job, self.settings.data / "near" / job, crashpoint)

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

    def record(self, name: str) -> Record:
        """A job by name. Raises `Refused` (404) when there is none."""
        record = self.records.get(name)
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
        if spec.name in self.records or spec.name in self._beginning:
            raise Refused(
                f"a job called {spec.name} exists",
                code="job.exists",
                hint='give the job another name = "…" in its file',
            )
        self._beginning.add(spec.name)
        try:
            record = await self._begin(spec, start, given, hold)
        finally:
            self._beginning.discard(spec.name)
        self.ring()
        self.broadcast.tell(Item("job", spec.name, {}))
        return record

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
        values["start"] = beginnings.start_row(begins)
        adding = partial(beginnings.add_job, values=values, begins=begins, given=given, hold=hold)
        known = await self.database.write(adding)
        if given is not None:
            crashpoint("restore.committed")
            self.papers.go_on(given.papers, known)
            for node in known:
                self.presence.introduce(node)
        await self._drive(record, begins)
        return record

    async def tag(self, name: str, tags: tuple[str, ...]) -> None:
        """Give a job these tags instead of those that it had."""
        record = self.record(name)
        row = update(jobs).where(jobs.c.name == name).values(tags=list(tags))
        await self.database.write(lambda c: c.execute(row))
        record.tags = tags
        self.broadcast.tell(Item("job", name, {}))

    def ring(self) -> None:
        """Wake every open poll: there may be something new for it."""
        for bell in self.bells.values():
            bell.set()

    # Nodes

    async def enrol(self, token: str, name: str, info: dict[str, Any], key: str = "") -> str:
        """A credential for a one-time token; see `auth.enrol`. Raises `Refused` for tags or hours that are none."""
        of_info(info)
        credential = await self.database.write(lambda c: auth.enrol(c, token, name, info, key))
        crashpoint("enrol.committed")
        self.directory.admit(auth.hashed(credential), auth.Principal("node", name))
        self.presence.tell(name, info)
        self.presence.joined_at[name] = time.time()
        self.presence.heard(name)
        return credential

    async def readmit(self, job: str, node: str, secret_sha256: str) -> None:
        """A peer of that job has shown its key, and made this credential. Raises what `readmission.readmit` raises."""
        peer = self.papers.peers(job)[node]
        await self.database.write(lambda c: readmission.readmit(c, node, peer.pub, secret_sha256))
        crashpoint("readmission.committed")
        self.directory.admit(secret_sha256, auth.Principal("node", node))
        self.presence.heard(node)
        log.info("back by its own key", node=node, job=job)

    async def hello(self, node: str, info: dict[str, Any], contact: Contact | None = None) -> None:
        """A node's process has started: it joins every running job anew. `contact`: how it takes part in gossip.

        Raises `Refused` for a key that it may not show, and for tags or hours that are none.
        """
        about = of_info(info)
        async with self.papers.showing:  # or two nodes could show one key at once
            self.papers.check(node, contact)
            shown = contact.row() if contact is not None else null()
            row = update(nodes).where(nodes.c.name == node, ~nodes.c.revoked)
            row = row.values(info=info, seen_at=time.time(), peer=shown)
            if not (await self.database.write(lambda c: c.execute(row).rowcount)):
                raise NotAllowed(f"{node} has been removed by an operator", hint="enrol again with a new token")
            if self.papers.show(node, contact):
                self.ledger.begin_anew(node)
        self.presence.tell(node, info)
        self.presence.heard(node)
        await self.tell_all(Join(node, about=about))

    async def tell_all(self, event: Event, only: set[str] | None = None) -> None:
        """Tell the running jobs (or `only` these) of a node's coming or going. None waits for another's disk."""
        for driver in self.running():
            if only is not None and driver.name not in only:
                continue
            if driver.restoring:
                driver.leave_word(event)
            else:
                await driver.tell(event)

    async def revoke(self, node: str) -> None:
        """Take a node's credential away, at once, and its orders with it."""
        if not await self.database.write(partial(_outlaw, node=node)):
            raise Refused(f"no node is called {node!r}", code="node.unknown", hint="see `shoal nodes list`")
        self.directory.forget_node(node)
        self.presence.forget(node)
        self.papers.revoke(node)
        await self.tell_all(Lost(node, "removed by an operator"))
        self.bells[node].set()  # its open poll ends

    # Beside the requests

    async def _tick(self) -> None:
        """Leases, housekeeping, and what browsers are told at intervals."""
        teller = describe.Teller(self)
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
                await self.retention.tidy(self.drivers())
                await teller.tell()
            except Exception as error:
                if not self.database.fenced:
                    log.error("tick failed", error=repr(error), exc_info=error)

    async def _look_after_peers(self) -> None:
        """Sign what has changed of who takes part, and keep how they do."""
        for driver in self.running():
            self.peers.sample(driver.name, self.papers.peers(driver.name))
            try:
                await self.papers.renew(driver, self.database)
            except ShoalError as error:
                log.error("papers not signed; trying again", job=driver.name, error=repr(error))

    async def _lose_the_silent(self) -> None:
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

    async def _conclude(self, record: Record, driver: Driver) -> None:
        """A job has ended: keep the last view of it. Nobody is told of the end before it is on the disk."""
        ended_at = time.time()
        job = await describe.job(self, replace(record, ended_at=ended_at))
        people = describe.job_nodes(self, driver)
        summary = {"job": job.model_dump(mode="json"), "nodes": [n.model_dump(mode="json") for n in people]}
        row = update(jobs).where(jobs.c.name == driver.name).values(ended_at=ended_at, summary=summary)
        await self.database.write(lambda c: c.execute(row))
        record.ended_at, record.summary = ended_at, summary
        self.broadcast.tell(Item("job", driver.name, {}))

    async def _evaluated(self, job: str, number: int, metrics: dict[str, Any]) -> None:
        """The held-out evaluation of a version has come."""
        await self.database.write(lambda c: merge_metrics(c, job, number, metrics))
        record = self.records.get(job)
        if record is not None and record.driver is not None:
            await record.driver.publish("metrics", {"number": number, "metrics": metrics})

    async def _watch(self) -> None:
        """See whether somebody must be told of something."""
        while True:
            try:
                await self.watch.look()
            except Exception as error:
                log.error("the watch failed", error=repr(error), exc_info=error)
            await asyncio.sleep(WATCH_S)

    async def _write_logs(self) -> None:
        """Write log lines down, once a second, and tell those who follow them. What cannot be written is lost."""
        while True:
            await asyncio.sleep(LOGS_S)
            try:
                await self.flush_logs()
            except StorageFailed as error:
                log.error("log lines not written", error=repr(error))

    async def flush_logs(self) -> None:
        """Write down what waits; on return, all that was taken before is written."""
        async with self.logbook.writing:
            rows = self.logbook.gather()
            if not rows:
                return
            flushed = await self.database.write(partial(self.logbook.write, rows=rows))
            for job in flushed.jobs:
                self.broadcast.tell(Item("logs", job, {"last": flushed.last}))

    async def _flush(self) -> None:
        """Write the byte counts down, now and then."""
        while True:
            await asyncio.sleep(self.settings.traffic_flush_s)
            try:
                await self.write_counts()
            except StorageFailed as error:
                log.error("byte counts not written; trying again", error=repr(error))

    async def write_counts(self) -> None:
        """Write the byte counts so far down, so that the database answers with all of them."""
        rows, marks = self.ledger.take(), self.ledger.take_marks()
        try:
            await self.database.write(partial(_add_counts, rows=rows, marks=marks))
        except Exception:
            self.ledger.put_back(rows, marks)
            raise

    async def version_row(self, job: str, number: int) -> Any:
        """The row of a closed version. Raises `Refused` (404)."""
        query = select(versions).where(versions.c.job == job, versions.c.number == number)
        async with self.database.reader.connect() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise Refused(f"job {job} has no version {number}", code="model.unknown", hint="see GET …/versions")
        return row


def _add_counts(connection: Connection, rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
    """What has crossed, by job and by time."""
    ledger.add_rows(connection, rows, marks)
    quarters.add(connection, rows, time.time())


def _outlaw(connection: Connection, node: str) -> bool:
    """Take a node's credential and its key away, in one transaction; False when there is no such node."""
    papers.outlaw(connection, node)
    return auth.revoke(connection, node)
