"""The pump of a `Peer`: a worker's, and what carrying on without the coordinator needs besides.

    Save Standing         durably, in the thread in which the machine has taken the event, before anything is told
    Tell                  a letter; what concerns the one who is being answered goes into the answer
    Tell Relay            what another is to carry to the coordinator, signed (`voice`)
    Send Knock, Join      are you there? and: here is what I carry. The answer is an event like any other
    Learned               the books; people
    an order to carry on  is fed when its model has come: the machine starts from that at once

The machine reads and writes models, so every event is taken in a thread, one after the other. What says who is there
never comes here (`peer.company`): a ping must not wait for a model.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shoal.core.algorithm import tree_slot
from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.core.failover import Decreed, Holds
from shoal.core.gossip import Gossip, Halt, Learned, Live, PeerEffect
from shoal.core.machine import HUB, Done, Memory, Note, Save, Send, Standing, Tell, Wake
from shoal.core.message import Fail, Join, Knock, Lease, Metrics, Order, OrderId, Ref, Report, Status, Stop
from shoal.core.peer_message import Declare, PeerMessage, Relay, Relayed
from shoal.core.tree import Slots, Tree, norm
from shoal.core.voices import Unheard
from shoal.peer_wire import body_of
from shoal.runtime.node_link import JobLease
from shoal.runtime.pump import Held, Ports, Pump, Watch
from shoal.runtime.store import FileSource
from shoal.runtime.threads import in_thread
from shoal.trust.papers import ModeRecord
from shoal.wire import plain
from shoal_edge_client.peering.beside import Beside
from shoal_edge_client.peering.checkpoints import Checkpoints
from shoal_edge_client.peering.circle import Circle
from shoal_edge_client.peering.detour import Detour
from shoal_edge_client.peering.grant import Fence
from shoal_edge_client.peering.jury import Heard, Jury
from shoal_edge_client.peering.offers import Kept
from shoal_edge_client.peering.part import Part
from shoal_edge_client.peering.porch import Porch
from shoal_edge_client.peering.voice import Voice
from shoal_edge_client.transport import HttpTransport
from shoal_peer.company import Ears
from shoal_peer.folder import Papers
from shoal_peer.link import Told

SWEEP_EVENTS = 16
"""How often bodies are removed that nobody names."""

PEERING_S = 5.0
"""How often the coordinator is told how this node does as a peer, beside each change of state."""


@dataclass
class Look:
    """A look at the machine between two events."""

    values: dict[str, Any] = field(default_factory=dict)


class PeerPump(Pump):
    """One job of a node that may carry on by itself. `weigh`, called in the lane: for how many examples it speaks."""

    def __init__(
        self, part: Part, ports: Ports, hub: HttpTransport, porch: Porch, jury: Jury, weigh: Callable[[], float]
    ) -> None:
        detour = Detour(part.spec.name, hub, self._lose)
        soon_s = min(ports.backoff.most_s, part.peer.failover.ttl_s / 3)  # another way may be found meanwhile
        ports = replace(ports, transport=detour, backoff=replace(ports.backoff, most_s=soon_s))
        super().__init__(part.spec.name, part.peer.worker, ports)
        self.part, self.peer, self.desk, self.hub, self.beside = part, part.peer, part.desk, hub, Beside()
        self._porch, self._jury, self._weigh = porch, jury, weigh
        kept = Kept(part.desk.folder, part.node, part.desk.bodies)
        ears = Ears(self._listen, self._see, self._shown_to_people, self._decreed, kept)
        self.circle = Circle(part.spec, part.node, part.boot, part.desk, porch, ears, at=ports.at)
        self.voice = Voice(part.peer, detour, self.circle, self._held_now, self.take, self._put, self.beside.do)
        self.fence = self.voice.fence = Fence(part.desk, self._deaf_to)
        self.checkpoints = Checkpoints(self.job, part.desk)
        self.peer.meter.crossed = self._crossed
        self._asking: Heard | None = None
        self._coming: Order | None = None
        self._coming_by = ""  # who has carried it
        self._bringing: asyncio.Task[None] | None = None
        self._sources: dict[Ref, FileSource] = {}
        self._fed_count = 0
        self._met: Tree | None = None  # a model that others' can be held against
        self._shown = ("", 0)
        self._latest: Metrics = {}
        self._news, self._calm = asyncio.Event(), asyncio.Event()

    # Seen from the agent

    @property
    def held(self) -> OrderId | None:
        coming = self._coming
        return coming.id if coming is not None else super().held

    @property
    def rev(self) -> int:
        coming = self._coming
        return coming.rev if coming is not None else super().rev

    async def take(self, event: Any) -> bool:
        order = event.message if isinstance(event, Relayed) else event
        if not isinstance(order, Order) or order.kind != "gossip":
            return await super().take(event)
        with self.desk.awaiting(order.body):
            if self._is_here(order.body):
                return await super().take(event)
        self._bring(order, event.node if isinstance(event, Relayed) else "")
        return True

    def _held_now(self) -> Held | None:
        """What a poll says of this job."""
        order = self.held
        return (*order, self.rev) if order is not None else None

    def lease(self, lease: JobLease) -> None:
        """The coordinator is there, as its answer to a poll says."""
        self._put(Lease(lease.term))
        if lease.roster > self.circle.version or self.circle.ages:
            self.beside.do("papers", self._fetch_papers)

    async def leave(self, *, work_s: float, answer_s: float) -> None:
        if self.peer.gossip is not None:
            work_s = 0.0  # what is being learned is learned again from the same model
            await self.take(Halt("leaving"))
            try:
                await asyncio.wait_for(self._calm.wait(), answer_s)
            except TimeoutError:
                self.log.info("leaving while exchanges are open: they are settled when this node is back")
        if self.circle.company is not None:
            await self.circle.company.leave()
        await super().leave(work_s=work_s, answer_s=answer_s)
        await self.voice.leave()

    async def run(self) -> str:
        self._loop = asyncio.get_running_loop()
        try:
            return await super().run()
        finally:
            self.circle.close()

    def _stop_all(self) -> None:
        super()._stop_all()
        self.beside.stop()
        if self._bringing is not None:
            self._bringing.cancel()

    # The machine

    async def _begin(self) -> Sequence[Any]:
        papers = await in_thread(self.circle.kept)
        if papers is not None:
            self._use(papers)
        self.beside.begin(self._group)
        self.beside.do("weight", self._find_weight)
        self.beside.do("peering", self._tell_for_ever)
        return self._alarmed(await in_thread(partial(self._fed, None)))

    async def _feed(self, event: Any) -> Sequence[Any]:
        self._asking = event if isinstance(event, Heard) else None
        what = event.event if isinstance(event, Heard) else event
        return self._alarmed(await in_thread(partial(self._fed, what)))

    def _alarmed(self, effects: Sequence[PeerEffect]) -> Sequence[PeerEffect]:
        """Set the alarm; what remains is news, if there is any."""
        for effect in effects:
            if isinstance(effect, Wake):
                self._wake(effect.at)
        return [effect for effect in effects if not isinstance(effect, Wake)]

    def _fed(self, event: Any) -> list[PeerEffect]:
        """In a thread: one event (None: the beginning), and on the disk what must not be forgotten of it."""
        peer = self.peer
        if isinstance(event, Look):
            self._look(event)
            self._measure()
            return []
        if isinstance(event, Declare) and (event := self._startable(event)) is None:
            return []
        if isinstance(event, Holds) and not self._is_here(event.model):
            return []  # a newer order has come, and it was swept away
        gossip = peer.gossip
        before = gossip.me.model if gossip is not None else None
        effects = peer.start(self.ports.clock()) if event is None else peer.on(event, self.ports.clock())
        self._book(event, gossip, before)
        self._keep(effects)
        if isinstance(event, Done):
            self.part.weight = self.part.weight or (event.result.weight if event.result is not None else 0.0)
            self.desk.adopted(event.result)
        bodies = [ref for effect in effects if isinstance(effect, Tell) and (ref := body_of(effect.body)) is not None]
        self._sources = {ref: self.desk.bodies.open(ref) for ref in bodies}
        self._fed_count += 1
        if self._fed_count % SWEEP_EVENTS == 0:
            self.desk.sweep(self._names())
        self._measure()
        return [effect for effect in effects if not isinstance(effect, Save)]

    def _startable(self, declared: Declare) -> Declare | None:
        """A declaration as it can be followed here: from the version that this node holds, if it lacks that model."""
        base = self.peer.base
        if self.peer.gossip is not None or self._is_here(declared.model):
            return declared
        return replace(declared, version=base.version, model=base.model) if base.model is not None else None

    def _book(self, event: Any, gossip: Gossip | None, before: Tree | None) -> None:
        after, books = self.peer.gossip, self.part.books
        if after is None:
            books.close()
        elif gossip is not after:
            books.begin(after.me.weight, after.me.model)
        elif isinstance(event, Done) and before is not None:
            books.learned(after.me.weight, before, after.me.model)

    def _keep(self, effects: Sequence[PeerEffect]) -> None:
        """Private memory first: whoever is back among workers starts from it."""
        saved = [effect.what for effect in effects if isinstance(effect, Save)]
        for what in saved:
            if isinstance(what, Memory):
                self.desk.memory(what.body)
        for what in saved:
            if isinstance(what, Standing):
                self.desk.keep(what.state, self.part.books.state())

    def _names(self) -> list[Ref]:
        """The bodies that the machine and what is under way still need."""
        worker, gossip = self.peer.worker, self.peer.gossip
        orders = [worker.order, gossip.order if gossip is not None else None, self._coming]
        refs = [ref for order in orders if order is not None for ref in (order.body, order.base)]
        refs += [worker.memory, worker.pending, getattr(worker.said, "body", None)]
        return [*self.peer.names(), *(ref for ref in refs if ref is not None)]

    def _measure(self) -> None:
        """See that there is a model to hold others' against, once they are known."""
        known = self.peer.gossip is not None or self.peer.base.model is not None
        if self._met is None and self.circle.company is not None and not self.circle.is_measured and known:
            self._met = self._own_model()

    def _own_model(self) -> Tree:
        if self.peer.gossip is not None:
            return self.peer.gossip.me.model
        assert self.peer.base.model is not None
        return tree_slot(self.desk.bodies.get(self.peer.base.model), "model")

    def _moved(self, moved: Any) -> None:
        self._loop.call_soon_threadsafe(self._put, moved)

    # Effects

    async def _carry_out(self, effects: Sequence[Any]) -> None:
        self._go_by()
        tells = [effect for effect in effects if isinstance(effect, Tell)]
        relayed = [effect.body.message for effect in tells if isinstance(effect.body, Relay)]
        told = [Send(HUB, said) for said in relayed if isinstance(said, Report | Fail | Status)]
        await super()._carry_out([*(effect for effect in effects if not isinstance(effect, Tell)), *told])
        self._post([effect for effect in tells if not isinstance(effect.body, Relay)])
        for said in relayed:
            self.voice.say(said)
        gossip = self.peer.gossip
        if gossip is not None and gossip.mixer.busy:
            self._calm.clear()
        else:
            self._calm.set()
        if (self.peer.state, self.peer.term) != self._shown:
            self._shown = self.peer.state, self.peer.term
            self.log.info(self.peer.state, term=self.peer.term, base=self.peer.base.version)
            self._news.set()
        if self._met is not None or self.circle.company is None:
            self._meet()
        if self.circle.papers is not None and self.checkpoints.is_due(self.peer.base.version):
            self.beside.do("manifest", self._have_vouched)

    def _go_by(self) -> None:
        """What is being delivered goes on by the way that the machine has chosen now."""
        turned, under_way = self.voice.follow(), self._delivery
        if turned and under_way is not None and isinstance(said := under_way.of, Report | Fail):
            under_way.stop()
            self._delivery = None
            self._deliver(said)

    def _lose(self, unheard: Unheard) -> None:
        """In any thread: what another was to carry was not answered."""
        self._loop.call_soon_threadsafe(self._put, unheard)

    def _post(self, tells: Sequence[Tell]) -> None:
        letters: defaultdict[str, list[Told]] = defaultdict(list)
        for effect in tells:
            ref = body_of(effect.body)
            letters[effect.to].append((effect.body, self._sources[ref] if ref is not None else None))
        if self._asking is not None:
            self._asking.told += letters.pop(self._asking.message.node, [])
        for to, told in letters.items():
            if self.circle.company is not None:
                self.circle.company.post(to, told)

    def _carry(self, effect: Any, kept: bool) -> None:
        match effect:
            case Send(body=Knock() as said):
                self.beside.do("knock", partial(self._knock, said.term))
            case Send(body=Join(away=away)) if away is not None:
                self.beside.do("join", partial(self._join, away))
            case Learned():
                self._latest = effect.metrics
                shown = {name: round(value, 4) for name, value in effect.metrics.items() if name == "train/loss"}
                self.log.info("learned", round=effect.round, **shown)
            case Note(kind="refusal") if self.circle.company is not None:
                self.circle.company.blame(effect)
            case _:
                super()._carry(effect, kept)

    # The coordinator

    async def _asked(self, what: str, call: Callable[[], Any]) -> Any:
        """Ask the coordinator once; None when nothing came of it."""
        try:
            return await in_thread(call)
        except NotAllowed:
            raise
        except ShoalError as error:
            self.log.debug("the coordinator was asked in vain", what=what, code=error.code, why=error.message)
            if isinstance(error, Refused) and error.code == "job.over":
                self._put(Stop(error.message))
        return None

    async def _knock(self, term: int) -> None:
        lease = await self._asked("knock", partial(self.hub.knock, self.job, term))
        if lease is not None:
            self._put(lease)

    async def _join(self, away: OrderId) -> None:
        found = await self._asked("join", partial(self.hub.join, self.job, away))
        if found is not None:
            await self.take(found)

    async def _fetch_papers(self) -> None:
        held = self.circle.version if not self.circle.ages else 0
        sealed = await self._asked("papers", partial(self.hub.papers, self.job, held))
        if sealed is None:
            return
        try:
            self._use(await in_thread(partial(self.circle.checked, sealed)))
            await in_thread(partial(self.circle.keep_papers, sealed))
        except (Refused, NotAllowed) as error:
            self.log.warning("the papers cannot be used", code=error.code, why=error.message, hint=error.hint)
            if self.circle.company is not None:
                self.circle.company.refuse(error.code, error.message, "the coordinator")

    async def _have_vouched(self) -> None:
        """Have the coordinator sign the versions that this node holds, one after the other."""
        while (papers := self.circle.papers) is not None and self.checkpoints.is_due(self.peer.base.version):
            version, model = self.peer.base.version, self.peer.base.model
            assert model is not None
            await self.checkpoints.seek(papers.charter, version, model, self.hub)

    def _use(self, papers: Papers) -> None:
        self.circle.take(papers)
        self.part.weight_max = papers.me.examples
        self.peer.population = len(papers.roster.peers)
        if self.circle.company is None:
            self._met = None  # measured at the next event

    def _meet(self) -> None:
        try:
            self.circle.open()
            company, carrier = self.circle.company, self._porch.carrier
            if company is not None and company.carriage is None and carrier is not None:
                company.carry_with(carrier, lambda: self.peer.voices.hears_directly(self.ports.clock()))
            if self._met is not None:
                self.circle.measure(self._met, lambda: norm(self._own_model()), self._moved)
        except Refused as error:
            self.log.error("no company", code=error.code, why=error.message, hint=error.hint)
            self.circle.close()
            self.circle.papers = None
        self._met = None

    async def _tell_for_ever(self) -> None:
        """Tell the coordinator how this node does, while it listens; and keep what was heard of whom."""
        while True:
            with suppress(TimeoutError):  # nothing has changed: it is told all the same
                async with asyncio.timeout(PEERING_S):
                    await self._news.wait()
            self._news.clear()
            company, look = self.circle.company, Look()
            if company is None:
                continue
            await self.take(look)
            told = {**look.values, "boot": self.part.boot, "peers": company.peers(), **company.refusals()}
            await self._asked("peering", partial(self.hub.peering, self.job, told))
            await in_thread(company.keep)

    def _look(self, look: Look) -> None:
        """In a thread, while the machine rests."""
        gossip = self.peer.gossip
        model = gossip.me.model if gossip is not None else None
        weight = gossip.me.weight if gossip is not None else 0.0
        look.values = {**self._about(), **self.part.books.shown(weight, model)}

    def _deaf_to(self, code: str, why: str) -> None:
        """The coordinator has said what must not be heard. In any thread."""
        if (company := self.circle.company) is not None:
            self._loop.call_soon_threadsafe(company.refuse, code, why, "the coordinator")

    # The others

    async def _listen(self, messages: Sequence[PeerMessage]) -> list[Told]:
        """What a peer says in one letter; what it is answered."""
        heard = await self._jury.heard(messages, self.circle.company)
        await asyncio.gather(*(self.take(one) for one in heard))
        return [told for one in heard for told in one.told]

    async def _decreed(self, record: ModeRecord) -> bool:
        """An operator's word, verified; whether the machine has followed it."""
        await self.take(Decreed(record.term, record.why or "an operator says so"))
        return self.peer.gossip is not None and self.peer.term == record.term

    def _see(self, live: frozenset[str]) -> None:
        self._put(Live(live, roster=self.circle.roster))

    def _crossed(self) -> int:
        return self.circle.company.ledger.crossed if self.circle.company is not None else 0

    def _about(self) -> dict[str, Any]:
        peer, gossip = self.peer, self.peer.gossip
        exchange_bytes = gossip.me.exchange_bytes if gossip is not None else 0
        return {
            "state": peer.state,
            "term": peer.term,
            "round": gossip.me.round if gossip is not None else 0,
            "weight": gossip.me.weight if gossip is not None else 0.0,
            "seen": dict(gossip.me.seen) if gossip is not None else {},
            "budget": peer.meter.shown(exchange_bytes),
            "metrics": plain(self._latest) if gossip is not None else {},
        }

    def _shown_to_people(self) -> dict[str, Any]:
        """The same, and from which version it carries on."""
        base, model = self.peer.base, self.peer.base.model
        return {**self._about(), "base": {"version": base.version, "sha256": model.digest} if model else None}

    # Work

    async def _find_weight(self) -> None:
        try:
            found = await self.ports.lane.run(self._weigh)
        except ShoalError as error:
            self.log.warning("the learner does not say for how many examples it speaks", why=error.message)
            return
        self.part.weight = self.part.weight or found

    def _is_here(self, ref: Ref | None) -> bool:
        return ref is None or self.desk.bodies.size(ref.digest) == ref.nbytes

    def _bring(self, order: Order, by: str) -> None:
        """Have the model of an order to carry on, before the machine hears of it. `by`: who has carried it."""
        known = self._coming
        self._coming, self._coming_by = order, by
        if known is not None and known.id == order.id and self._bringing is not None:
            return
        if self._bringing is not None:
            self._bringing.cancel()
        self._bringing = self._group.create_task(self._brought(order))

    async def _brought(self, order: Order) -> None:
        with self.desk.awaiting(order.body):
            try:
                await self._fetch(order.body, Watch())
            except NotAllowed:
                raise
            except ShoalError as error:  # the next poll brings what stands then
                self.log.warning("the model to carry on from has not come", code=error.code, why=error.message)
                self._coming = self._bringing = None
                return
            coming, self._coming, self._bringing = self._coming, None, None
            assert coming is not None
            await super().take(Relayed(self._coming_by, coming) if self._coming_by else coming)

    async def _fetch(self, ref: Ref | None, watch: Watch) -> Slots:
        """What came along with an order is kept in a file as well: from there this node could carry on."""
        slots = await super()._fetch(ref, watch)
        if ref is not None and not self._is_here(ref):
            await in_thread(partial(self.desk.bodies.put, slots))
        return slots

    async def _fetched(self, order: Order, slots: Slots, base: Slots) -> None:
        whole = await in_thread(partial(self.part.whole, order, slots, base)) if order.kind != "gossip" else None
        if whole is not None and self._is_here(whole):
            self._put(Holds(order.version, whole))

    async def _beat(self, order: Order, watch: Watch) -> None:
        if order.kind != "gossip":  # nobody has ordered that
            await super()._beat(order, watch)
