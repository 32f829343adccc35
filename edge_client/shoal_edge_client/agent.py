"""One node: who it is, what it polls, and a pump for each job that it takes part in.

    enter     load the learner, enrol or take the credential, say hello
    serve     take up reports that an earlier process could not deliver; hold a poll open, always, also while it trains;
              hand what comes to the job's pump
    leave     end the poll, let answers through, hand orders back

Training is done, or awaited (`workshop`), by one thread, one order at a time over all jobs; every request has a thread
to itself. What ends the client by itself: its credential was revoked (`NotAllowed`), the coordinator refuses its polls
(`Refused`), the jobs that it was named have all ended.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from shoal.core.capability import CODE
from shoal.core.errors import InvalidJob, NotAllowed, Refused, ShoalError, Unreachable
from shoal.core.learner import Learner
from shoal.core.message import Idle, Message, Order, OrderId, Stop
from shoal.core.worker import Worker
from shoal.extras import not_installed
from shoal.runtime.address import parse
from shoal.runtime.backoff import Backoff, patiently
from shoal.runtime.node_link import JobLease, NodeLink, Welcome
from shoal.runtime.pump import Begin, Held, Ports, Pump
from shoal.runtime.store import CrashPoint, no_crash
from shoal.runtime.threads import Lane, in_thread
from shoal.spec import parse_job
from shoal_edge_client.identity import Identity, State
from shoal_edge_client.info import info
from shoal_edge_client.settings import EdgeSettings
from shoal_edge_client.spool import Spool
from shoal_edge_client.trainer import Trainer, Unable
from shoal_edge_client.transport import HttpTransport
from shoal_edge_client.workshop import Workshop, workshop

if TYPE_CHECKING:
    from shoal_edge_client.peering.node import Peering

LANE_S = 2.0
"""Seconds that a cancelled training may take to notice, before the process ends without it."""
FRUITLESS_S_MAX = 2.0
"""Longest pause between polls that are answered at once and say nothing new."""
OVER = {"done", "stopped", "failed"}
ASSUMED = Welcome("", lease_s=15.0, beat_s=2.0, wait_s_max=25.0)
"""What a coordinator that does not answer would have said."""
UNKNOWN = "auth.unknown"
"""The coordinator knows nobody who could have been let in again by his key: its disk may be lost."""
POLLS_PER_TTL = 3
"""A poll is over three times in the time after which the coordinator's silence would be suspicious."""


def _unheeded(lease: JobLease) -> None:
    """Who only works need not know."""


@dataclass
class _Job:
    """A job that this node takes part in."""

    spool: Spool
    pump: Pump
    task: asyncio.Task[None]
    ttl_s: float = inf
    """After how long a coordinator's silence is suspicious."""
    lease: Callable[[JobLease], None] = _unheeded
    """Told that the coordinator is there."""
    last: OrderId | None = None
    """The order in hand, or the last one: who names it to the coordinator is told at once when the job ends."""

    def held(self) -> Held | None:
        """What a poll says of this job. Any thread may ask."""
        rev, order = self.pump.rev, self.pump.held
        self.last = order or self.last
        return self.last if self.last is None or not rev else (*self.last, rev)


class Agent:
    """A node's process. `learner`: an object, or None to load the one that the settings name."""

    def __init__(self, settings: EdgeSettings, learner: Learner | None = None, *, at: CrashPoint = no_crash) -> None:
        self.settings, self._learner, self._at = settings, learner, at
        self.lane = Lane("shoal-training")
        self.state = State(settings.folder, parse(settings.url), at)
        self.backoff = Backoff(most_s=settings.backoff_s, give_up_s=settings.give_up_s)
        self.link, self.polls = self._open(), self._open()
        self.log: Any = structlog.get_logger("edge_client")
        self.name = settings.node
        self.jobs: dict[str, _Job] = {}
        self.ended: set[str] = set()
        self.refused: dict[str, str] = {}  # jobs whose model is another than the learner's, and how it differs
        self._leaving: asyncio.Event | None = None
        self._work_s, self._lane_s = 0.0, LANE_S
        self._polling: asyncio.Task[None] | None = None
        self.peering: Peering | None = None
        self.workshop: Workshop | None = None
        self._unmet: dict[str, dict[str, Any]] = {}  # jobs taken up before the coordinator answered, by their pages

    def _open(self) -> NodeLink:
        settings = self.settings
        return NodeLink(settings.url, **settings.trust)

    # The life of a process

    async def run(self) -> bool:
        """Take part until told to leave (False), or until the named jobs have ended (True). Raises `ShoalError`."""
        self._leaving = asyncio.Event()
        with self.state:
            serving = asyncio.create_task(self._live())
            leaving = asyncio.create_task(self._leaving.wait())
            try:
                await asyncio.wait({serving, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    await serving
                    return True
                await self._leave(serving)
                return False
            finally:
                leaving.cancel()
                await self._close(serving)

    def leave(self, *, work_s: float = 0.0) -> None:
        """Begin to end in good order; `work_s`: how long the work in hand may still take. In the loop's thread only."""
        self._work_s = work_s
        if self._leaving is not None:
            self._leaving.set()

    def abandon(self) -> None:
        """Wait for nothing any more; the task that runs this is about to be cancelled."""
        self._lane_s = 0.0

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to."""
        return self._leaving is not None and self._leaving.is_set()

    async def _live(self) -> None:
        await self._enter()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                if self.peering is not None:
                    group.create_task(self.peering.porch.serve())
                await self._take_up()
                self._polling = group.create_task(self._poll())
        except BaseExceptionGroup as errors:
            _reraise(errors)

    async def _leave(self, serving: asyncio.Task[None]) -> None:
        if self._polling is None:  # not even there yet
            return
        self._polling.cancel()
        self.polls.abort()
        pumps = [job.pump for job in self.jobs.values()]
        answer_s = self.settings.answer_s
        await asyncio.gather(*(pump.leave(work_s=self._work_s, answer_s=answer_s) for pump in pumps))
        if self.peering is not None:
            self.peering.porch.close()
        try:
            await in_thread(self._transport.leave)
            self.log.info("left; orders were handed back")
        except ShoalError as error:
            self.log.warning("left, but the coordinator has not heard of it", why=error.message)
        await asyncio.wait({serving}, timeout=answer_s)

    async def _close(self, serving: asyncio.Task[None]) -> None:
        """Let go of everything, whatever state it is in."""
        serving.cancel()
        await asyncio.wait({serving})
        for link in (self.polls, self.link):
            link.abort()
            link.close()
        if self.peering is not None:
            self.peering.close()
        if self.workshop is not None:
            self.workshop.close()
        await self.lane.rest(self._lane_s)
        self.lane.close()

    # Entering

    async def _enter(self) -> None:
        self.workshop = workshop(self.settings, self._learner, self.state.folder / "training")
        await self.lane.run(self.workshop.open)
        self.peering = self._be_a_peer() if self.settings.peer_listen else None
        welcome = await self._be_welcome()
        if self.peering is not None:
            self.peering.readmission.has_token = False  # from here on it is waited for
        self.name = welcome.name
        structlog.contextvars.bind_contextvars(node=self.name)
        self._wait_s = min(self.settings.wait_s, welcome.wait_s_max)
        self._beat_s = welcome.beat_s
        self._transport = HttpTransport(
            self.link,
            self.polls,
            lambda job: self.jobs[job].spool.bodies,
            wait_s=self._wait_s,
            leave_s=max(1.0, self.settings.answer_s),
            jobs=tuple(self.settings.jobs),
        )
        self.log.info("joined", url=self.settings.url, device=self._info()["device"])

    def _be_a_peer(self) -> Peering:
        """Listen to other nodes."""
        try:
            from shoal_edge_client.peering.node import Peering
        except ModuleNotFoundError as error:
            raise not_installed(error, "peer", "peer_listen", "leave peer_listen empty") from None
        return Peering(self.settings, self.state, (self.link, self.polls), self._open, self._info(), self._at)

    async def _be_welcome(self) -> Welcome:
        """Be known to the coordinator; or be known to it from before, and needed by others while it does not answer."""
        known, token = self.state.identity(), self.settings.token.get_secret_value()
        if known is None:
            return await self._hello(await self._enrol(token))
        pages: dict[str, dict[str, Any]] = {}
        if self.peering is not None:
            pages = await in_thread(self.peering.pages)
        try:
            return await self._hello(known, once=bool(pages))
        except Unreachable as error:
            failure: ShoalError = error
        except NotAllowed as error:
            if not token:
                raise
            self.log.warning("the old credential is not good any more: enrolling anew with the token")
            try:
                return await self._hello(await self._enrol(token))
            except NotAllowed:  # a token of old; but a coordinator that is being rebuilt will know the node again
                if error.code != UNKNOWN:
                    raise
                failure = error
        if not pages:
            raise failure
        self.log.warning("the coordinator does not answer: going on with what is known", why=failure.message)
        self._unmet = pages
        return replace(ASSUMED, name=known.name)

    def _info(self) -> dict[str, Any]:
        device = (self.workshop.device if self.workshop is not None else "") or self.settings.device
        looks = self.workshop.looks if self.workshop is not None else {}
        return info(device, self.settings.tags, self.settings.hours, looks.get("model"))

    async def _hello(self, known: Identity, *, once: bool = False) -> Welcome:
        self.link.credential = self.polls.credential = known.credential
        contact = self.peering.porch.contact() if self.peering is not None else None
        layout = self.workshop.looks.get("layout") if self.workshop is not None else None
        call = partial(self.link.hello, self._info(), contact, layout)
        welcome = await in_thread(call) if once else await patiently(self._patience, call)
        if self.link.warning:
            self.log.warning(self.link.warning)
        return welcome

    async def _enrol(self, token: str) -> Identity:
        if not token:
            raise NotAllowed(
                f"this node is not known at {self.settings.url} yet",
                code="auth.missing",
                hint="an operator makes a token with `shoal token create`; give it with --token",
            )
        limits_s = filter(None, (self.settings.enrol_timeout_s, self.settings.give_up_s))
        self.link.credential, limit_s = "", min(limits_s, default=0.0)
        call = partial(self._enrol_once, token, self.state.enrolment_key(token))
        credential, name = await patiently(replace(self.backoff, give_up_s=limit_s), call)
        self.state.keep(identity := Identity(self.state.url, name, credential))
        self.log.info("enrolled", node=name)
        return identity

    def _enrol_once(self, token: str, key: str) -> tuple[str, str]:
        """Enrol; blocks. Raises `ShoalError`; `Unreachable` says that this node is not enrolled yet."""
        try:
            return self.link.enrol(token, self.settings.node, self._info(), key)
        except Unreachable as error:
            error.message = f"not enrolled yet: {error.message}"
            error.args = (error.message,)  # the log of the tries shows these
            raise

    # Serving

    async def _take_up(self) -> None:
        """Go on with what an earlier process was at."""
        for name, page in self._unmet.items():
            await self._take_part(name, page)
        if not self._unmet:
            await self._look_around()

    async def _meet(self) -> None:
        """The coordinator did not answer when this process began: be welcome now, and see what has become of jobs."""
        known = self.state.identity()
        assert known is not None
        welcome = await self._hello(known)
        self._wait_s, self._beat_s = min(self.settings.wait_s, welcome.wait_s_max), welcome.beat_s
        self._keep_pace()
        pages, self._unmet = self._unmet, {}
        for name, page in pages.items():
            try:
                found = await patiently(self._patience, partial(self._transport.job, name))
            except Refused as error:  # a coordinator that is being rebuilt may be given it yet
                self.log.warning("the coordinator does not know the job", job=name, why=error.message)
                continue
            if found.get("created_at") != page["created_at"]:
                await self._route(name, Stop("another job has its name now"))
        await self._look_around()

    async def _look_around(self) -> None:
        """Deliver what an earlier process could not, carry on what it did, and see that the named jobs are there."""
        for name in await in_thread(self.state.jobs):
            if name not in self.jobs and await in_thread(partial(self._is_wanted, name)):
                try:
                    await self._begin(name)
                except Refused as error:
                    self.log.warning("a report is kept, but not delivered", job=name, why=error.message)
        for name in self.settings.jobs:
            if name not in self.jobs:
                found = await patiently(self.backoff, partial(self._transport.job, name))
                if found.get("state") in OVER:
                    self.log.info("the job has ended already", job=name)
                    self.ended.add(name)

    def _is_wanted(self, name: str) -> bool:
        """Whether an earlier process has left something of that job to be done."""
        if self.peering is not None and self.peering.is_away(name):
            return True
        return self.state.spool(name).load().said is not None

    @property
    def _patience(self) -> Backoff:
        """Where a coordinator's silence says something, its return must be seen soon."""
        most_s = min([self.backoff.most_s, *(job.ttl_s / POLLS_PER_TTL for job in self.jobs.values())])
        return replace(self.backoff, most_s=most_s)

    @property
    def _pause_s_max(self) -> float:
        """The longest silence that no job takes for the coordinator's."""
        return min((job.ttl_s / POLLS_PER_TTL for job in self.jobs.values()), default=inf)

    def _keep_pace(self) -> None:
        """Hold polls open no longer than any job allows."""
        shortest = min((job.ttl_s for job in self.jobs.values()), default=inf)
        self._transport.wait_s = min(self._wait_s, shortest / POLLS_PER_TTL)

    async def _poll(self) -> None:
        """Hold a poll open, for as long as there is something to wait for."""
        if self._unmet:
            await self._meet()
        fruitless = 0
        while not (self.settings.jobs and self.ended.issuperset(self.settings.jobs)):
            tries, started = 0, time.monotonic()

            def once() -> tuple[str, Message] | None:
                nonlocal tries
                tries += 1
                held = {name: job.held() for name, job in list(self.jobs.items())}
                return self._transport.poll({name: order for name, order in held.items() if order is not None})

            found = await patiently(self._patience, once)
            for lease in self._transport.leases:
                if self._is_peer_in(lease.job):
                    await self._begin(lease.job)  # without an order yet; but others may need it, or it them
                if lease.job in self.jobs:
                    self.jobs[lease.job].lease(lease)
            if tries > 1 or found is None:
                await self._look_again()
            if found is None:
                await asyncio.sleep(min(self._transport.pause_s, self._pause_s_max))
            news = await self._route(*found) if found else time.monotonic() - started > FRUITLESS_S_MAX
            fruitless = 0 if news else fruitless + 1
            if fruitless:
                await asyncio.sleep(random.uniform(0.5, 1.0) * min(0.05 * 2.0 ** min(fruitless, 9), FRUITLESS_S_MAX))
        if self.peering is not None:
            self.peering.porch.close()
        for name in set(self.settings.jobs) & self.refused.keys():
            raise InvalidJob(f"no part in job {name}: {self.refused[name]}", code="learner.model")

    def _is_peer_in(self, name: str) -> bool:
        """Whether this node should be among the peers of a job, and is not yet."""
        wanted = not self.settings.jobs or name in self.settings.jobs
        return self.peering is not None and wanted and name not in self.jobs and name not in self.ended

    async def _route(self, name: str, message: Message) -> bool:
        """Give a message to its job's pump; False when it changed nothing."""
        if isinstance(message, Stop) and message.foreign:
            if self.refused.get(name) != message.why:
                self.log.error("this node takes no part in the job", job=name, why=message.why)
            self.refused[name] = message.why
            self.ended.add(name)
        if name not in self.jobs and isinstance(message, Order):
            await self._begin(name)
        if name not in self.jobs:
            return False
        job = self.jobs[name]
        news = await job.pump.take(message)
        if isinstance(message, Idle):
            job.last = None
        if job.pump.stopped:
            await job.task
        return news

    async def _look_again(self) -> None:
        """After a break, and now and then: the answer that said a job had ended may have been lost."""
        alive = {lease.job for lease in self._transport.leases}
        for name in [name for name, job in self.jobs.items() if job.pump.held is None and name not in alive]:
            try:
                found = await patiently(self.backoff, partial(self._transport.job, name))
            except Refused as error:
                self.log.debug("cannot look whether a job has ended", job=name, why=error.message)
                continue
            if found.get("state") in OVER:
                await self._route(name, Stop(str(found.get("state_why") or "the job has ended")))

    # Jobs

    async def _begin(self, name: str) -> None:
        """Take part in a job."""
        found = await patiently(self.backoff, partial(self._transport.job, name))
        if found.get("state") in OVER:
            await in_thread(self.state.spool(name).forget)
            self.ended.add(name)
        else:
            await self._take_part(name, found)

    async def _take_part(self, name: str, found: Mapping[str, Any]) -> None:
        """Take part in the job that this page shows."""
        desk = self.peering.desk_for(name, found) if self.peering is not None else None
        spool = desk or self.state.spool(name)
        await in_thread(partial(spool.belongs_to, str(found.get("created_at"))))
        kept = await in_thread(spool.load)
        worker = Worker(self.name, memory=kept.memory)
        if kept.said is not None:
            self.log.info("taking up an unsent report", job=name)
            worker.resume(kept.said, kept.pending)
            self._transport.resumed(name, kept.said.order)
        ports = Ports(
            transport=self._transport,
            keep=spool,
            begin=self._work(name, found, spool),
            lane=self.lane,
            clock=time.monotonic,
            backoff=self.backoff,
            beat_s=self._beat_s,
            at=self._at,
            tracebacks=self.settings.send_tracebacks,
        )
        self.ended.discard(name)
        if desk is None or self.peering is None:
            pump = Pump(name, worker, ports)
            self.jobs[name] = _Job(spool, pump, self._group.create_task(self._see_through(name, spool, pump)))
            return
        assert self.workshop is not None
        peer = await in_thread(partial(self.peering.pump, found, worker, ports, self._transport, self.workshop))
        task = self._group.create_task(self._see_through(name, spool, peer))
        self.jobs[name] = _Job(spool, peer, task, ttl_s=peer.peer.failover.ttl_s, lease=peer.lease)
        self._keep_pace()

    def _work(self, name: str, found: Mapping[str, Any], spool: Spool) -> Begin:
        """What does the job's orders."""
        assert self.workshop is not None
        try:
            begin = self.workshop.job(parse_job(found["spec"]))
        except (InvalidJob, KeyError) as error:
            text, hint = "its plan is not shown", "install the same release"
            if isinstance(error, InvalidJob):
                text, hint = error.message, error.hint if error.code == CODE else hint
            self.log.error("this node cannot run the job", job=name, why=text, hint=hint)
            return Unable(InvalidJob(f"this node cannot run the job: {text}", hint=hint))
        return Trainer(name, begin, spool, self.state.note_error, self._at)

    async def _see_through(self, name: str, spool: Spool, pump: Pump) -> None:
        """Pump a job to its end."""
        why = await pump.run()
        if self.is_leaving:
            return
        self.log.info("job ended", job=name, why=why)
        await in_thread(spool.forget)
        self.ended.add(name)
        del self.jobs[name]
        self._keep_pace()


def _reraise(errors: BaseExceptionGroup[BaseException]) -> NoReturn:
    """One error in the place of a group: the first of the tree's, or else the first."""
    flat: list[BaseException] = []
    groups: list[BaseException] = [errors]
    while groups:
        one = groups.pop(0)
        if isinstance(one, BaseExceptionGroup):
            groups += one.exceptions
        else:
            flat.append(one)
    raise next((one for one in flat if isinstance(one, ShoalError)), flat[0]) from errors
