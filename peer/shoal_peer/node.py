"""The process of a peer: put together, started, brought to its end.

    papers and desk      read; another process over the same folder is refused
    the initial model    made by the training process from the job's seed, unless an earlier process has left a model
    listen, pump         requests are answered from here on
    rounds               local rounds, then meetings in which models only draw together, until they are one
    leave                nothing new; open exchanges are settled; some peers are told

A peer ends by itself when all have made their rounds and models are one (`shoal.core.drain`). For those that are silent
it waits a while.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import structlog

from shoal import peer_wire
from shoal.core.algorithm import tree_slot
from shoal.core.errors import InvalidJob, Refused, ShoalError
from shoal.core.gossip import Gossip, Holding, Learned
from shoal.core.machine import Note, Result, Work
from shoal.core.membership import CALLERS_PERIODS, Membership
from shoal.core.message import Metrics, Ref
from shoal.core.meter import Meter
from shoal.core.pace import Pace
from shoal.core.peer_message import PeerMessage
from shoal.core.tree import Tree
from shoal.runtime.store import CrashPoint, no_crash, write_file
from shoal.runtime.threads import in_thread
from shoal.runtime.training.process import Setup
from shoal.trust.envelope import Request as Signed
from shoal.trust.envelope import Signer
from shoal.trust.papers import schema_sha
from shoal_peer.admission import Admission
from shoal_peer.folder import Desk, Papers, check_job, read_papers
from shoal_peer.intake import Intake, Standard
from shoal_peer.jury import QUARANTINE, Gate, Quarantine, code_of, heeded
from shoal_peer.ledger import Ledger
from shoal_peer.link import Office, PeerLink, Told, address_of, wall_s
from shoal_peer.outbox import Outbox
from shoal_peer.pump import Ports, Pump
from shoal_peer.rosters import Rosters
from shoal_peer.status import Exchanges, Summary, Watch, needed_peers, node_status, waiting_lines
from shoal_peer.trainer import Trainer

TICK_S = 0.2
HOUSEKEEPING_S = 5.0
WAITING_AFTER_S = 3.0
"""Seconds until a peer tells for whom it waits: those that start together find each other sooner."""
TIMEOUT_SHARE = 0.4
"""Of a period of membership: until others are asked about one that does not answer."""


@dataclass(frozen=True)
class Settings:
    """How a peer runs here. `join`: addresses of peers, by name, that the roster does not know better."""

    folder: Path
    learner: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    threads: int = 0
    join: dict[str, str] = field(default_factory=dict)
    roster: Path | None = None
    lan: bool = False
    """Whether to announce oneself on the network, and to look for the others there."""
    books: bool = False
    bytes_per_hour: float = 0.0
    """This machine's own limit of bytes among peers, beside the job's; 0: none."""
    settle_s: float = 10.0
    """How long open exchanges are waited for when the peer leaves."""
    linger_s: float = 60.0
    """How long a peer that could go stays for those that are silent."""
    min_peers: int = 0
    """Peers to wait for before the first local round, this one included; 0: as the job says."""
    admission: Admission | None = None
    """The operator's folder, where this peer is to admit newcomers."""


class Node:
    """One peer's process, without its listener. Use it as a context manager, then `start`, `run`, `leave`."""

    carriage = None
    """There is no coordinator to pass anything on to."""

    def __init__(self, settings: Settings, watch: Watch, *, at: CrashPoint = no_crash) -> None:
        self.settings, self.watch = settings, watch
        self.papers: Papers = read_papers(settings.folder, settings.roster)
        self.desk = Desk(settings.folder, books=settings.books, at=at)
        self.log: Any = structlog.get_logger("peer.node").bind(node=self.papers.me.node)
        self.refused: dict[str, int] = {}
        """How many requests were refused, by code."""
        self.own: Metrics | None = None
        """Of the model that had learned all; None until then. A learner may measure nothing at all: {}."""
        self.latest: Metrics = {}
        self.phase = "starting"
        self.waiting: list[str] = []
        self.exchanges = Exchanges()
        self._ended, self._company = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.quarantine = Quarantine()
        self.rosters = Rosters(self, settings.admission)

    def __enter__(self) -> Self:
        self.desk.__enter__()
        papers, desk = self.papers, self.desk
        self.ledger = Ledger(desk.folder / "bytes.json")
        self.gate, self.gate_lock = desk.gatekeeper(papers), threading.Lock()
        self.signer = Signer(papers.key, papers.charter, desk.boot)
        self.trainer, self.judge = self._trainer("training"), self._trainer("judging")
        return self

    def __exit__(self, *_: object) -> None:
        self.trainer.close()
        self.judge.close()
        for task in self._tasks:
            task.cancel()
        if hasattr(self, "outbox"):
            self.outbox.close()
        self.desk.__exit__(None, None, None)

    def _trainer(self, folder: str) -> Trainer:
        """A training process, with a folder of its own below the state."""
        settings, papers, desk = self.settings, self.papers, self.desk
        setup = Setup(
            settings.learner or papers.spec.learner,
            desk.folder / folder,
            options={**papers.spec.options, **settings.options},
            device=settings.device,
            precision=settings.precision,
            threads=settings.threads,
        )
        return Trainer(setup, papers.spec.model_dump(mode="json"), desk.bodies, desk.made)

    # Put together

    async def start(self) -> None:
        """Everything that can go wrong before others are spoken to. Raises `ShoalError`."""
        spec, desk = self.papers.spec, self.desk
        algorithm = spec.build_algorithm()
        check_job(spec)
        if algorithm.needs:
            await self.trainer.check()
        state = desk.load()
        weight, slots = 1.0, {}
        if state is None:
            model, weight = await self._initial()
            slots = algorithm.init(model)
        rng = random.Random(f"{spec.seed}/{self.me}/{desk.boot}")
        meter = Meter(spec.gossip.budget(self.settings.bytes_per_hour), lambda: self.ledger.crossed)
        holding = Holding(self.me, desk.boot, weight, slots, desk.bodies, rng, meter=meter)
        holding.filters, holding.roster = spec.shown_through(), self.papers.roster_names
        mixer = spec.gossip.build_mixing().mixer()
        self.rounds = spec.gossip.rounds or spec.rounds
        drain = spec.gossip.build_drain(self.rounds, self.settings.linger_s) if self.rounds else None
        if state is None:
            self.gossip = Gossip(spec.plan(), algorithm, holding, mixer, drain=drain)
        else:
            if state["round"]:
                self._company.set()  # the others may have ended meanwhile
            self.gossip = Gossip.restore(spec.plan(), algorithm, holding, mixer, state, drain=drain)
        self.standard = Standard(spec.name, desk.bodies, holding.filters, awaited=desk.awaited)
        self.standard.expect(holding.model.layout, lambda: holding.norm)
        self._check_schema(holding.model)
        self.loss_gate = Gate(self._theirs, partial(self._measured, self.judge), spec.gossip.loss_gate)
        self._connect(rng)

    async def _initial(self) -> tuple[Tree, float]:
        """The model that all begin with, and this peer's weight."""
        ref, examples = await self.trainer.init(self.papers.spec.seed)
        await in_thread(partial(self.desk.bodies.adopt, self.desk.made.path(ref.digest), ref))
        most = self.papers.me.examples
        return tree_slot(self.desk.bodies.get(ref), "model"), min(examples, most) if most else examples

    def _check_schema(self, model: Tree) -> None:
        if schema_sha(model) != self.papers.charter.schema_sha:
            raise InvalidJob(
                f"{self.settings.learner or self.papers.spec.learner} makes another model than the charter's",
                code="peer.schema",
                hint="names, types and shapes must be those of the learner that `shoal peer new` was given",
            )

    def _connect(self, rng: random.Random) -> None:
        spec, papers = self.papers.spec, self.papers
        period_s = spec.gossip.period_s
        pace = Pace(period_s=period_s, timeout_s=TIMEOUT_SHARE * period_s)
        membership = Membership(self.me, rng=random.Random(rng.getrandbits(64)), pace=pace)
        self.outbox = Outbox(spec.gossip.patience_s, lambda: self.standard.body_bytes)
        self.links, self.mailbox = self.outbox.links, self.outbox.mailbox
        ports = Ports(self.desk, self.send, self._perform, time.monotonic, self)
        self.pump, loop = Pump(self.gossip, membership, ports), asyncio.get_running_loop()
        self.standard.moved = lambda transfer: _soon(loop, partial(self.pump.moved, transfer))
        self._office = Office(
            self.standard, self.signer, self.gate, self.gate_lock, self.ledger, wall_s, refuse=self.refuse
        )
        self.take_papers(papers)

    def take_papers(self, papers: Papers) -> None:
        """Go by this roster: link to who is new or has moved, and let go of who is out."""
        self.papers = papers
        listed = {peer.node: peer for peer in papers.others}
        for node in [node for node, link in self.links.items() if listed.get(node) != link.peer]:
            self.links.pop(node).close()
        for peer in papers.others:
            if peer.node not in self.links and (peer.urls or peer.node in self.settings.join):
                url = address_of(peer, self.settings.join)
                self.links[peer.node] = PeerLink(peer, url, self._office, self._heard)
        self._admit()

    def keep_roster(self, sealed: bytes) -> None:
        """Write a newer roster down for the next process. Raises `StorageFailed`."""
        write_file(self.settings.folder / "roster.json", sealed, "paper")

    def removed(self) -> None:
        """Leave: a newer roster does not name this peer."""
        self.noted(Note("warning", "a newer roster does not name this peer any more: it leaves", 0))
        self._ended.set()

    def live(self) -> list[str]:
        """Return the other peers that are there, by name."""
        return sorted(self.pump.membership.live())

    def _admit(self) -> None:
        """Tell membership who takes part, and who can be called."""
        ways = self.outbox.ways((peer.node for peer in self.papers.others), self.papers.me.inbound)
        self.pump.membership.admit(frozenset(peer.node for peer in self.papers.roster.peers), ways)

    def found(self, peer_id: str, url: str) -> None:
        """A peer seems to be there: whoever has no other address, or none that works, is called there from now on."""
        peer = next((one for one in self.papers.others if one.peer_id == peer_id), None)
        if peer is None or peer.node in self.settings.join:
            return
        link = self.links.get(peer.node)
        if link is not None and (link.url == url or not link.last_error):
            return
        if link is not None:
            link.close()
        self.links[peer.node] = PeerLink(peer, url, self._office, self._heard)
        self.log.info("found", peer=peer.node, url=url)
        self._admit()

    # A process

    @property
    def me(self) -> str:
        """The name of this peer."""
        return self.papers.me.node

    @property
    def min_peers(self) -> int:
        """Return the number of peers that this machine's person asked for, or 0."""
        return self.settings.min_peers

    @property
    def finished(self) -> bool:
        """Whether it has made its local rounds. It goes on mixing until models are one, see `shoal.core.drain`."""
        return self.gossip.finished

    async def run(self) -> None:
        """Pump until `stop`, or until all is done. Raises `ShoalError` when going on is senseless."""
        self.phase = "learning"
        self._patient_until = time.monotonic() + WAITING_AFTER_S
        house = asyncio.create_task(self._housekeeping())
        rosters = asyncio.create_task(self.rosters.run())
        try:
            await self.pump.run()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        finally:
            house.cancel()
            rosters.cancel()

    async def over(self) -> None:
        """Wait until this peer is not needed any more."""
        await self._ended.wait()

    async def leave(self) -> Summary:
        """Begin nothing new, settle what is open, say goodbye."""
        finished = self.finished
        drawn = await self._measured(self.trainer) if finished else {}
        self.phase = "leaving"
        settled = await self.pump.halt("leaving", self.settings.settle_s)
        await self.trainer.end()
        await self.judge.end()
        await self.pump.leave()
        await self.outbox.collected(CALLERS_PERIODS * self.papers.spec.gossip.period_s)
        self.pump.stop()
        await in_thread(self._keep)
        seen = {node: min(count, self.rounds or count) for node, count in self.gossip.me.seen.items()}
        traffic = self.ledger.totals()
        return Summary(
            self.me, self.gossip.me.round, finished, settled, self.own or {}, drawn, seen, traffic, self.gossip.one
        )

    async def _perform(self, work: Work) -> Result:
        """Do an order, as soon as there is company to learn with."""
        await self._company.wait()
        return await self.trainer.perform(work)

    def nothing(self) -> Summary:
        """What came of a part that was ended before it began."""
        return Summary(self.me, 0, False, True, {}, {}, {}, self.ledger.totals())

    async def _housekeeping(self) -> None:
        """Sums and windows to the disk; and whether it is over."""
        kept = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            self._look_for_company()
            if self.finished and self.own is None:
                self.phase = "drawing near"
                self.own = await self._measured(self.trainer)
            if self.gossip.drained and self.own is not None:
                self.phase = "done"
                self._ended.set()
            if time.monotonic() - kept >= HOUSEKEEPING_S:
                await in_thread(self._keep)
                kept = time.monotonic()

    def _look_for_company(self) -> None:
        """Let local rounds begin as soon as enough peers are there; until then tell the missing ones."""
        if self._company.is_set():
            return
        if 1 + len(self.pump.membership.live()) >= needed_peers(self):
            self._company.set()
        lines = [] if self._company.is_set() else waiting_lines(self)
        if lines != self.waiting and (not lines or time.monotonic() >= self._patient_until):
            self.waiting = lines
            self.watch.waiting(lines)

    def _keep(self) -> None:
        self.ledger.keep()
        with self.gate_lock:
            snapshot = self.gate.snapshot()
        self.desk.keep_gate(snapshot)

    async def _measured(self, trainer: Trainer) -> Metrics:
        """What the learner says about the present model; nothing, where it fails."""
        model = self.gossip.me.model
        try:
            return await self._evaluated(trainer, lambda: model)
        except ShoalError as error:
            self.log.warning("not evaluated", why=error.message, hint=error.hint)
            return {}

    async def _theirs(self, shown: Ref) -> Metrics:
        """What it says about a model that another has shown. Raises `ShoalError`."""
        return await self._evaluated(self.judge, partial(self.gossip.me.opened, shown))

    async def _evaluated(self, trainer: Trainer, opened: Callable[[], Tree]) -> Metrics:
        def put() -> Ref:
            model = opened()
            ref = self.desk.bodies.put({"model": model})
            self.desk.awaited.hold(ref.digest)
            return self.desk.bodies.put({"model": model})  # it may have been swept away in between

        ref = await in_thread(put)
        try:
            return await trainer.evaluate(ref)
        finally:
            self.desk.awaited.release([ref.digest])

    # What others say

    async def hear(self, messages: Sequence[PeerMessage], intake: Intake) -> list[Told]:
        """Take what a peer says; what it is answered, with what has been waiting for it."""
        try:
            heard = heeded(messages, self.quarantine.nodes)
            told = await self.pump.hear(heard, await self._declined(heard))
        finally:
            intake.release()
        for message in (*messages, *(message for message, _ in told)):
            self.exchanges.note(messages[0].node, message)
        return [*told, *self.outbox.take(messages[0].node)]

    async def _declined(self, messages: Sequence[PeerMessage]) -> dict[int, str]:
        """Which of these are to be declined, by their places, and why."""
        if messages[0].node in self.quarantine.nodes:
            return dict.fromkeys(range(len(messages)), QUARANTINE)
        if not self.papers.spec.gossip.loss_gate:
            return {}
        found = {}
        for place, message in enumerate(messages):
            if peer_wire.body_of(message) is None:
                continue
            why = await self.loss_gate.fault(message, self.gossip.me.round)
            if why:
                found[place] = why
                self.refuse("peer.loss", why, message.node)
        return found

    def _heard(self, messages: Sequence[PeerMessage], intake: Intake) -> None:
        """What a peer has answered may lead to more."""
        self._spawn(self._go_on(messages, intake))

    async def _go_on(self, messages: Sequence[PeerMessage], intake: Intake) -> None:
        told = await self.hear(messages, intake)
        if told:
            await self.send(messages[0].node, told)

    def post(self, to: str, told: Sequence[Told]) -> None:
        """Send what an answer had no room for."""
        self._spawn(self.send(to, told))

    async def send(self, to: str, told: Sequence[Told]) -> None:
        """Send to a peer, or let it wait until that one calls."""
        await self.outbox.send(to, told)

    def _spawn(self, call: Any) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # For people

    def learned(self, effect: Learned) -> None:
        self.latest = effect.metrics
        self.watch.round(effect, len(self.pump.membership.live()))

    def noted(self, note: Note) -> None:
        if note.kind == "refusal":
            self.refuse(code_of(note), note.text, note.node)
        self.watch.note(note.text)

    def refuse(self, code: str, why: str, sender: str) -> None:
        """Something was refused: count it, and say it."""
        self.refused[code] = self.refused.get(code, 0) + 1
        self.log.warning("refused", code=code, why=why, sender=sender)
        if code == "trust.stranger":
            self.rosters.knocked()
        if sender in self.outbox.reached and self.quarantine.note(sender, code):
            self.pump.shun(sender)
            self.noted(Note("warning", f"{sender} is in quarantine: {code} again and again", 0, sender))

    @property
    def kept(self) -> None:
        """There is no coordinator that anything could be kept for."""
        return

    async def enter(self, request: Signed, text: bytes) -> bytes:
        """Nobody signs certificates here. Raises `Refused`."""
        hint = "have its operator sign a newer roster (shoal peer new), and bring that"
        raise Refused("this job has no coordinator that certifies", code="peer.no-certificates", hint=hint)

    async def decree(self, sealed: bytes) -> None:
        """There is nothing to be decreed. Raises `Refused`."""
        hint = "its peers run it by themselves, always"
        raise Refused("this job has no coordinator to go away from", code="mode.no-server", hint=hint)

    def status(self) -> dict[str, Any]:
        """Return its state, as JSON values."""
        return node_status(self)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have it called in the loop, from any thread, if that still runs: a call that is under way may outlive it."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What made everything end."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
