"""The others of a job, as one peer has them.

    papers       whose word counts, and who takes part: the charter and the newest roster
    gate         who says a request, and that it was never heard before
    membership   who is there
    links        the ways to them

What they say about who is there is answered here, at once; everything else goes to the peer's machine (`Ears`).
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import structlog

from shoal.core.errors import Refused, ShoalError, StorageFailed
from shoal.core.machine import Effect, Note, Tell, Timer
from shoal.core.membership import CALLERS_PERIODS, Membership
from shoal.core.pace import Pace
from shoal.core.peer_message import Bulletin, MembershipMessage, PeerMessage, Relay, Relayed
from shoal.runtime.address import parse
from shoal.runtime.store import CrashPoint, no_crash, storing, write_file
from shoal.trust.envelope import Request as Signed
from shoal.trust.envelope import Signer, sha256
from shoal.trust.papers import ModeRecord, Peer, unseal
from shoal_peer.carriage import Carriage, Carrier
from shoal_peer.entry import Entry, read_entry
from shoal_peer.folder import Papers, gatekeeper
from shoal_peer.intake import Intake, Standard
from shoal_peer.jury import Quarantine, code_of, heeded
from shoal_peer.ledger import STRANGER, Ledger
from shoal_peer.link import Office, PeerLink, Told, wall_s
from shoal_peer.outbox import Outbox
from shoal_peer.status import Exchanges
from shoal_peer.words import Kept

TIMEOUT_SHARE = 0.4
"""Of a period of membership: until others are asked about one that does not answer."""


@dataclass(frozen=True)
class Ears:
    """The peer's machine. `hear`: what it answers to messages of one peer; `live`: who is there and can be called."""

    hear: Callable[[Sequence[PeerMessage]], Awaitable[list[Told]]]
    live: Callable[[frozenset[str]], None]
    about: Callable[[], dict[str, Any]]
    """How the machine does, as JSON values."""
    decreed: Callable[[ModeRecord], Awaitable[bool]]
    """An operator's word on how the job runs, verified; whether the machine has followed it."""
    kept: Kept | None = None
    """What is kept for a coordinator that loses its disk."""


class Company:
    """`peer.app.Resident`. `folder`: where windows and byte counts are kept. Made and used in the event loop.

    Raises `StorageFailed`, and what the roster in the papers is refused with.
    """

    rosters = None
    """The coordinator keeps them."""

    def __init__(
        self,
        papers: Papers,
        folder: Path,
        boot: int,
        standard: Standard,
        ears: Ears,
        *,
        at: CrashPoint = no_crash,
    ) -> None:
        self.papers, self.boot, self.standard, self._ears, self._at = papers, boot, standard, ears, at
        self.log: Any = structlog.get_logger("peer.company").bind(job=standard.job)
        self._folder = folder
        self.ledger = Ledger(folder / "bytes.json")
        self._before = self.ledger.totals()
        self.gate, self.gate_lock = gatekeeper(folder / "gate.json", papers), threading.Lock()
        self.signer = Signer(papers.key, papers.charter, boot)
        urls = papers.me.urls
        entry = Entry(papers.certificate, urls).text() if papers.certificate else b""
        self._office = Office(standard, self.signer, self.gate, self.gate_lock, self.ledger, wall_s, entry, self.refuse)
        self._entered = self._let_in_before()
        """By name, whom certificates have let in, here or in an earlier process, and who has said where to call it."""
        period_s = papers.spec.gossip.period_s
        self.membership = Membership(
            papers.me.node,
            rng=random.Random(f"{papers.spec.seed}/{papers.me.node}/{boot}/members"),
            pace=Pace(period_s=period_s, timeout_s=TIMEOUT_SHARE * period_s),
        )
        self.outbox = Outbox(papers.spec.gossip.patience_s, lambda: standard.body_bytes)
        self.links = self.outbox.links
        self.refused: Counter[str] = Counter()
        self.quarantine = Quarantine()
        self.exchanges = Exchanges()
        self._live: frozenset[str] = frozenset()
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.carriage: Carriage | None = None
        self._connect()

    def _let_in_before(self) -> dict[str, Peer]:
        """Whom an earlier process has let in, and the roster does not name, with the addresses that they have shown."""
        path = self._folder / "entered.json"
        with storing(path):
            text = path.read_bytes() if path.exists() else b"{}"
        try:
            shown = {peer_id: tuple(parse(url).url for url in urls) for peer_id, urls in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError, ShoalError) as error:
            raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint="remove it") from None
        listed = self.papers.roster_names
        return {
            peer.node: replace(peer, urls=shown[peer.peer_id], inbound=bool(shown[peer.peer_id]))
            for peer in self.gate.members()
            if peer.node not in listed and peer.peer_id in shown
        }

    def _connect(self) -> None:
        """Links and membership as the roster has it."""
        with self.gate_lock:
            members = {peer.node: peer for peer in self.gate.members()}
        self._entered = {
            node: peer
            for node, peer in self._entered.items()
            if node not in self.papers.roster_names and node in members and peer.peer_id == members[node].peer_id
        }
        others = {**self._entered, **{peer.node: peer for peer in self.papers.others}}
        for node, link in list(self.links.items()):
            if others.get(node) != link.peer:
                self.links.pop(node).close()
        for node, peer in others.items():
            if peer.urls and node not in self.links:
                self.links[node] = PeerLink(peer, peer.urls[0], self._office, self._heard)
        ways = self.outbox.ways(members.keys() - {self.papers.me.node}, self.papers.me.inbound)
        self.membership.admit(frozenset({self.papers.me.node, *members}), ways)

    def start(self) -> None:
        """Say hello."""
        self._members(self.membership.start(time.monotonic()))

    def carry_with(self, carrier: Carrier, has_way: Callable[[], bool]) -> None:
        """Pass on what others say to the coordinator, while this node has a way there. Raises `StorageFailed`."""
        ledger = Ledger(self._folder / "carried.json")
        self.carriage = Carriage(self.papers, carrier, ledger, has_way)
        self._carried_before = ledger.totals()

    def take_papers(self, papers: Papers) -> None:
        """A newer roster has come. Raises `Refused` for an older one."""
        with self.gate_lock:
            self.gate.take_roster(papers.sealed_roster)
        self.papers = papers
        if self.carriage is not None:
            self.carriage.take_roster(papers.sealed_roster)
        self._connect()
        self._look_around()

    async def leave(self) -> None:
        """Tell some that this peer goes."""
        tells = _tells(self.membership.leave())
        await asyncio.gather(*(self.outbox.send(to, [(body, None)]) for to, body in tells))
        await self.outbox.collected(CALLERS_PERIODS * self.papers.spec.gossip.period_s)

    def close(self) -> None:
        """Let go of everything. Windows and counts are kept by `keep`."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        self.outbox.close()

    def keep(self) -> None:
        """Write down what was heard of whom, and the bytes. Raises `StorageFailed`."""
        self.ledger.keep()
        if self.carriage is not None:
            self.carriage.ledger.keep()
        with self.gate_lock:
            snapshot = self.gate.snapshot()
        shown = {peer.peer_id: list(peer.urls) for peer in list(self._entered.values())}
        write_file(self._folder / "entered.json", json.dumps(shown).encode(), "entered", self._at)
        write_file(self._folder / "gate.json", json.dumps(snapshot).encode(), "gate", self._at)

    # What others say

    async def hear(self, messages: Sequence[PeerMessage], intake: Intake) -> list[Told]:
        """Take what a peer says in one letter; what it is answered."""
        try:
            said: list[Told] = []
            rest: list[PeerMessage] = []  # words for the coordinator are not here: they come by `peer.carriage`
            for message in heeded(messages, self.quarantine.nodes) if not self._closed else ():
                if isinstance(message, MembershipMessage):
                    said += self._members(self.membership.on(message, time.monotonic()), message.node)
                elif not isinstance(message, Relay | Relayed) and not self._is_idle_offer(message):
                    self.exchanges.note(message.node, message)
                    rest.append(message)
            if rest:
                told = await self._ears.hear(rest)
                for message, _ in told:
                    self.exchanges.note(rest[0].node, message)
                said += told
            return [*said, *self.outbox.take(messages[0].node)]
        finally:
            intake.release()

    def _is_idle_offer(self, message: PeerMessage) -> bool:
        """Return whether a peer hears the coordinator but can carry nothing there, as it cannot be called."""
        return isinstance(message, Bulletin) and message.hears and message.node in self.outbox.callers

    async def enter(self, request: Signed, text: bytes) -> bytes:
        """A newcomer shows its certificate: it is verified here, with nobody to ask. Raises `NotAllowed`, `Refused`."""
        entry = read_entry(text)
        with self.gate_lock:
            peer = self.gate.enter(entry.certificate, request, sha256(text), wall_s())
        if peer.node not in self.papers.roster_names:
            self._entered[peer.node] = replace(peer, urls=entry.urls, inbound=bool(entry.urls))
            self._connect()
            self._look_around()
            self.log.info("a newcomer is in, by its certificate", peer=peer.node, urls=list(entry.urls))
        return self.papers.sealed_roster

    async def decree(self, sealed: bytes) -> None:
        """Take an operator's word, whoever brings it. Raises `NotAllowed`, `Refused`."""
        record = unseal(sealed, ModeRecord, self.papers.charter)
        if record.mode == "server":
            raise Refused(
                "a job comes back when its coordinator does",
                code="mode.server",
                hint=f"ask the coordinator: shoal switch {self.standard.job} server",
            )
        if not await self._ears.decreed(record):
            raise Refused(
                f"not followed: this node hears its coordinator, is away already, or knows of term {record.term}",
                code="mode.not-now",
                hint="look at its state and term: GET /p2p/JOB/status; while the coordinator answers, ask that",
            )
        self.log.info("an operator has sent the job away", term=record.term, why=record.why)

    @property
    def kept(self) -> Kept | None:
        """What is kept here for a coordinator that loses its disk."""
        return self._ears.kept

    def _heard(self, messages: Sequence[PeerMessage], intake: Intake) -> None:
        """What a peer has answered may lead to more."""
        self._spawn(self._go_on(messages, intake))

    async def _go_on(self, messages: Sequence[PeerMessage], intake: Intake) -> None:
        told = await self.hear(messages, intake)
        if told:
            await self.outbox.send(messages[0].node, told)

    def refuse(self, code: str, why: str, sender: str) -> None:
        """Something was refused: count it, and say it."""
        self.refused[code] += 1
        self.log.warning("refused", code=code, why=why, sender=sender)
        if sender != STRANGER and self.quarantine.note(sender, code):
            self.log.warning("in quarantine: nothing is begun with it any more", peer=sender, code=code)
            self._look_around()

    def blame(self, note: Note) -> None:
        """Count what a machine has refused, and say it."""
        self.refuse(code_of(note), note.text, note.node)

    # What others are told

    def post(self, to: str, told: Sequence[Told]) -> None:
        """Send to a peer; one that cannot be called gets it when it calls."""
        for message, _ in told:
            self.exchanges.note(to, message)
        self._spawn(self.outbox.send(to, told))

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            call.close()
            return
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Who is there

    def _members(self, effects: Sequence[Effect], sender: str = "") -> list[Told]:
        """Carry the effects of membership out; what `sender` is answered."""
        answer: list[Told] = []
        for to, body in _tells(effects):
            if to == sender:
                answer.append((body, None))
            else:
                self._spawn(self.outbox.send(to, [(body, None)]))
        for effect in effects:
            if isinstance(effect, Note) and effect.kind == "refusal":
                self.blame(effect)
            elif isinstance(effect, Note):
                self.log.info(effect.text)
        self._look_around()
        return answer

    def _look_around(self) -> None:
        live = (self.membership.within_reach() & self.outbox.reached) - self.quarantine.nodes
        if live != self._live:
            self._live = live
            self._ears.live(live)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.membership.alarm < inf and not self._closed:
            after_s = max(0.0, self.membership.alarm - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(after_s, self._ring)

    def _ring(self) -> None:
        self._members(self.membership.on(Timer(), time.monotonic()))

    # For people

    def peers(self) -> dict[str, dict[str, Any]]:
        """What one knows of each other peer, as JSON values. Bytes and exchanges are of this process."""
        found = {}
        for held in self.membership.beliefs():
            link = self.links.get(held.node)
            rtt_s = link.rtt_s if link is not None else None
            found[held.node] = {
                "state": held.state,
                "exchanges": self.exchanges.counts[held.node],
                **_since(self.ledger, self._before, held.node),
                **self._passed_on(held.node),
                **({"rtt_ms": round(1000 * rtt_s, 3)} if rtt_s is not None else {}),
            }
        return found

    def _passed_on(self, node: str) -> dict[str, int]:
        """What went through this node for that one, here and there."""
        if self.carriage is None:
            return {}
        return {"carried": sum(_since(self.carriage.ledger, self._carried_before, node).values())}

    @property
    def roster(self) -> frozenset[str]:
        """The names of everybody who is admitted."""
        return frozenset({self.papers.me.node, *(held.node for held in self.membership.beliefs())})

    def refusals(self) -> dict[str, Any]:
        """What was refused, by code, and with whom nothing is begun because of it; as JSON values."""
        return {"refused": dict(self.refused), "quarantine": sorted(self.quarantine.nodes)}

    def status(self) -> dict[str, Any]:
        """How it goes, as JSON values."""
        about = {"job": self.standard.job, "node": self.papers.me.node, "boot": self.boot}
        return {
            **about,
            **self._ears.about(),
            "peers": self.peers(),
            "last_exchange_s": self.exchanges.ages_s(),
            "mailbox": self.outbox.shown(),
            **self.refusals(),
        }


def _tells(effects: Sequence[Effect]) -> list[tuple[str, PeerMessage]]:
    return [(effect.to, effect.body) for effect in effects if isinstance(effect, Tell)]


def _since(ledger: Ledger, before: dict[str, dict[str, int]], node: str) -> dict[str, int]:
    """Bytes that crossed to and from a node since then."""
    totals = ledger.totals()
    return {way: totals[way].get(node, 0) - before[way].get(node, 0) for way in ("sent", "received")}
