"""At the lead: the deputies of its database. Who owns which job, what is asked of them, what they tell.

Nodes poll the lead, and the lead asks the deputies in their name; people ask the lead for lists, and it puts together
what each owner knows. What is about one job goes to its owner at once, whoever was asked (`replica.Front`).
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import structlog
from fastapi import Response
from sqlalchemy import select

from shoal.core.errors import StorageFailed
from shoal.core.owners import LEAD, Owners, chosen, evened
from shoal.core.tenure import Elsewhere
from shoal.runtime.sse import ServerEvent, parse
from shoal.spec import JobSpec
from shoal_coordinator import describe, tables, views
from shoal_coordinator import owners as rows
from shoal_coordinator.forwarding import Unanswered
from shoal_coordinator.inquiries import Inquiries, Poll
from shoal_coordinator.inside import OPERATOR, Inside, Reply
from shoal_coordinator.inside import node as as_node
from shoal_coordinator.seat import clock
from shoal_coordinator.stream import Item, Reader

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

log = structlog.get_logger()

SHUN_S = 1.0
"""A deputy that did not answer is not asked again for so long: nobody's poll waits for it twice."""

ANSWERS_MAX = 32
"""So many orders are fetched from deputies at a time; each may carry a model, and takes a connection."""

_UNDER_WAY = float("inf")
"""When a deputy became a job's owner that is about to: no rows that are read meanwhile say otherwise."""

UNREACHED = "the coordinator that owns it does not answer now"

LABEL = "shoal-label"
"""In a deputy's answer to a poll: the job, the version and the kind under which its bytes are booked."""


class Deputies:
    """None, where the coordinator is alone or no lead; `inside`: how they are asked."""

    def __init__(self, coordinator: Coordinator, inside: Inside | None) -> None:
        self._coordinator, self._inside = coordinator, inside
        self._owners = Owners()
        self._begun: dict[str, tuple[str, float]] = {}  # jobs that the rows did not name yet when they were read
        self._back: set[str] = set()  # jobs that are the lead's again, and not taken up yet
        self._shunned: dict[Elsewhere, float] = {}
        self._inquiries: dict[str, Inquiries] = {}  # by deputy
        self._unheard: defaultdict[str, set[str]] = defaultdict(set)  # by deputy: nodes for whom it gave no answer
        self._fetching = asyncio.Semaphore(ANSWERS_MAX)
        self._numbers: dict[str, tuple[str, int]] = {}  # by deputy: its life, and what it has told last
        self._settled = clock()  # since when nobody came or went, and no job has moved
        self._met: set[Elsewhere] = set()  # those that answered when the rows were read
        self._following: dict[Reader, list[asyncio.Task[None]]] = {}

    # Who owns what

    @property
    def jobs(self) -> dict[str, str]:
        """Jobs that deputies own, and those that are about to come back."""
        begun = {job: owner for job, (owner, _) in self._begun.items()}
        return {**dict.fromkeys(self._back, LEAD), **self._owners.jobs, **begun}

    def know(self, jobs: Mapping[str, str]) -> None:
        """At the start: these are deputies'. Who those are is seen in a moment."""
        self._owners = Owners(jobs=jobs)
        self._coordinator.ledger.share(jobs)

    def owns(self, job: str) -> bool:
        """Whether it is a deputy's, or was until a moment ago."""
        return job in self._owners.jobs or job in self._begun or job in self._back

    def way(self, job: str) -> Elsewhere | None:
        """Where a deputy's job is answered for; None when it is not at the moment."""
        return self._owners.way(self.jobs.get(job, LEAD), clock())

    def live(self) -> dict[str, Elsewhere]:
        """Deputies that answer."""
        return self._owners.live(clock())

    def choose(self, spec: JobSpec) -> str:
        """Who is to own a new job. One whose nodes may carry it on stays with the lead: every poll is to say that
        whoever leads it is there (`shoal-lease`)."""
        return LEAD if spec.gossip.allowed else chosen(self._loads())

    def _loads(self) -> dict[str, int]:
        """How many jobs each owns that run."""
        owned = list(self.jobs.values())
        return {LEAD: len(self._coordinator.running())} | {name: owned.count(name) for name in self.live()}

    async def see(self, owners: Owners) -> None:
        """The rows as they are now: take over from who is gone, take up what came back."""
        before = self.jobs
        self._owners = owners
        self._begun = {job: at for job, at in self._begun.items() if at[1] >= owners.asked}
        self._back |= before.keys() - self.jobs.keys()
        self._coordinator.ledger.share(self.jobs)
        for deputy in owners.lost():
            self._unheard.pop(deputy, None)  # its jobs come back, and all polls ask again
            if await self._coordinator.database.write(partial(rows.take_over, deputy=deputy)):
                log.warning("a deputy is gone; its jobs are taken over", deputy=deputy)
        if self._back:
            await self._take_up()
        self._meet()
        if clock() - self._settled >= self._coordinator.settings.owner_lease_s:  # one after the other, and not at once
            await self._even_out()

    def _meet(self) -> None:
        """See who has come and gone, of the deputies."""
        live = set(self.live().values())
        if live != self._met:
            for reader in list(self._following):
                for way in live - self._met:
                    self._follow(reader, way)
                if self._met - live:
                    reader.end()  # as above
            self._met, self._settled = live, clock()
            self._coordinator.bells.ring()

    async def _even_out(self) -> None:
        """Give a job to a deputy that owns fewer than the lead, if there is one."""
        to, running = evened(self._loads()), self._coordinator.running()
        free = [one for one in running if not one.spec.gossip.allowed and not one.restoring]
        if to == LEAD or not free:
            return
        job, self._settled = free[-1].name, clock()
        log.info("a job moves", job=job, to=to)
        self._begun[job] = to, _UNDER_WAY
        try:
            await self._coordinator.hand_over(job, to)
        finally:
            self._begun[job] = to, clock()

    async def _take_up(self) -> None:
        found = await self._coordinator.database.write(lambda c: rows.freed(c, self._back))
        for row in found:
            await self._coordinator.take_back(row)
            self._back.discard(row.name)
        if found:
            self._settled = clock()
            log.info("jobs came back", jobs=[row.name for row in found])
            self._coordinator.bells.ring()

    # What is asked of them

    async def _ask(
        self, way: Elsewhere, method: str, target: str, values: Any = None, who: str = OPERATOR
    ) -> Reply | None:
        """The answer; None when there is none."""
        if self._inside is None or self._shunned.get(way, 0.0) > clock():
            return None
        try:
            return await self._inside.ask(way, method, target, values, who=who)
        except Unanswered:
            self._shunned = {one: until for one, until in self._shunned.items() if until > clock()}
            self._shunned[way] = clock() + SHUN_S
            return None

    async def each(self, method: str, target: str, values: Any = None, who: str = OPERATOR) -> dict[str, Reply]:
        """Ask all that answer, at once; their answers, by name."""
        live = self.live()
        found = await asyncio.gather(*(self._ask(way, method, target, values, who) for way in live.values()))
        return {name: reply for name, reply in zip(live, found, strict=True) if reply is not None}

    async def pages(self, target: str) -> list[Any]:
        """What all that answer show there."""
        return [reply.json() for reply in (await self.each("GET", target)).values() if reply.status == 200]

    async def shown(self) -> list[views.Job]:
        """Their jobs. Of one whose owner does not answer there is little to tell."""
        pages = [views.Jobs.model_validate(page) for page in await self.pages("/api/v1/jobs")]
        found = {job.name: job for page in pages for job in page.jobs if job.name in self.jobs}
        missing = self.jobs.keys() - found
        if not missing:
            return list(found.values())
        query = select(tables.jobs).where(tables.jobs.c.name.in_(missing))
        async with self._coordinator.database.reader.connect() as connection:
            told = [describe.unread(row, "running", UNREACHED) for row in await connection.execute(query)]
        return [*found.values(), *(views.Job.model_validate(one["job"]) for one in told)]

    async def begin(self, owner: str, name: str, body: bytes) -> Response:
        """Have a deputy begin a job. Raises `StorageFailed` when it does not say whether it has."""
        way, self._begun[name] = self.live().get(owner), (owner, _UNDER_WAY)  # nodes may report before it answers
        try:
            reply = await self._ask(way, "POST", "/api/v1/jobs", body) if way is not None else None
        finally:
            self._begun.pop(name, None)
        if reply is None:
            raise StorageFailed("the coordinator that was to own the job does not answer", hint="see whether it exists")
        if reply.status == 201:
            self._begun[name] = owner, clock()
            self._coordinator.ledger.share(self.jobs)
            self._coordinator.bells.ring()
        return passed_on(reply)

    async def news(self, node: str, held: Sequence[str], jobs: Collection[str]) -> Reply | None:
        """The first thing that a node does not know yet of what deputies have for it."""
        live = self.live()
        if not live:  # as at most coordinators, with every poll
            return None
        turns, poll, owning = self._coordinator.turns, Poll(node, held, sorted(jobs)), set(self.jobs.values())
        for name in turns.deputies(node, [name for name in live if name in owning]):
            if await self._inquiry(name).has_news(poll):
                reply = await self._fetch(live[name], poll)
                if reply is not None and reply.status == 200:
                    turns.fetched(node, name)
                    return reply
        return None

    def _inquiry(self, name: str) -> Inquiries:
        if name not in self._inquiries:
            live = self.live()
            self._inquiries = {one: known for one, known in self._inquiries.items() if one in live}
            self._inquiries[name] = Inquiries(partial(self._inquire, name))
        return self._inquiries[name]

    async def _inquire(self, name: str, polls: list[Poll]) -> Collection[str]:
        """For which nodes a deputy has something new. When it does not answer, they ask again as soon as it speaks."""
        way, asked = self.live().get(name), {"polls": [poll._asdict() for poll in polls]}
        reply = await self._ask(way, "POST", "/inside/news", asked) if way is not None else None
        if reply is not None and reply.status == 200:
            return set(reply.json()["nodes"])
        self._unheard[name].update(poll.node for poll in polls)
        return ()

    async def _fetch(self, way: Elsewhere, poll: Poll) -> Reply | None:
        query = urlencode([*(("held", one) for one in poll.held), *(("job", one) for one in poll.jobs)])
        async with self._fetching:
            return await self._ask(way, "GET", f"/inside/work?{query}", who=as_node(poll.node))

    async def beat(self, job: str, node: str, values: Any) -> None:
        """Pass a node's word on how far it is on to the job's owner."""
        way = self.way(job)
        if way is not None:
            await self._ask(way, "POST", "/inside/beat", values, as_node(node))

    # What they tell

    def owned_by(self, name: str) -> list[str]:
        """The jobs of a deputy; not those that it begins, or is given, at this moment: it would begin them twice."""
        unsure = {job for job, (_, since) in self._begun.items() if since == _UNDER_WAY}
        return [job for job, owner in self.jobs.items() if owner == name and job not in unsure]

    async def told(self, name: str, life: str, number: int, rows: list[dict[str, Any]], lines: list[Any]) -> list[Any]:
        """A deputy's counts and lines; said twice, they are taken once. Returns what was counted here for its jobs."""
        coordinator = self._coordinator
        for node in self._unheard.pop(name, ()):  # it speaks, so it may answer too
            coordinator.bells[node].set()
        if self._numbers.get(name) != (life, number):
            self._numbers[name] = life, number
            coordinator.ledger.take_in(rows)
            coordinator.logbook.take_in(lines)
        await coordinator.books.write_counts()
        return coordinator.ledger.owe(self.owned_by(name))

    # Streams

    @contextmanager
    def following(self, reader: Reader, after: int | None) -> Iterator[None]:
        """While open, a browser's reader is told what deputies tell; `after`: since that event."""
        self._following[reader] = []
        for way in self._met:
            self._follow(reader, way, after)
        try:
            yield
        finally:
            for task in self._following.pop(reader):
                task.cancel()

    def _follow(self, reader: Reader, way: Elsewhere, after: int | None = None) -> None:
        if reader.job is None or self.way(reader.job) == way:
            self._following[reader].append(asyncio.create_task(self._pass_on(reader, way, after)))

    async def _pass_on(self, reader: Reader, way: Elsewhere, after: int | None) -> None:
        assert self._inside is not None
        begun = False
        target = "/api/v1/stream" + (f"?{urlencode({'job': reader.job})}" if reader.job is not None else "")
        headers = [(b"last-event-id", str(after).encode())] if after is not None else []
        while True:
            async with aclosing(self._inside.stream(way, target, *headers)) as pieces:
                async for event in _events(pieces):
                    if event.name == "hello" and begun:
                        reader.end()  # the browser comes again, and is told what it has missed
                    elif event.name not in ("hello", "ping"):
                        number = int(event.id) if event.id else None
                        reader.offer(Item(event.name, event.data["job"], {}, number, json.dumps(event.data)))
                    begun = True
            await asyncio.sleep(SHUN_S)


async def _events(pieces: AsyncIterable[bytes]) -> AsyncIterator[ServerEvent]:
    rest = b""
    async for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        for event in parse([block + b"\n\n" for block in blocks]):
            yield event


def passed_on(reply: Reply) -> Response:
    """A deputy's answer as this one's."""
    found = Response(reply.body, reply.status, media_type=reply.headers.get("content-type"))
    if "location" in reply.headers:
        found.headers["location"] = reply.headers["location"]
    return found
