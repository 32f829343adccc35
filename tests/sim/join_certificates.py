"""Peers that mix while newcomers come in by their certificates, on one virtual clock: doors, keys and papers are the
product's own, and so are the machines; what carries requests and answers is simulated.

Requests of somebody unknown are refused. Who is refused as a stranger shows its certificate, at most once in
`AGAIN_S`. What a door knows is kept now and then, and a process that dies goes back to that.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from shoal.core.algorithm import Algorithm
from shoal.core.drain import Drain
from shoal.core.errors import NotAllowed, Refused
from shoal.core.gossip import Live
from shoal.core.peer_message import PeerMessage
from shoal.core.plan import Plan
from shoal.mixing.pairwise import Pairwise
from shoal.sim.flock import Flock
from shoal.sim.mesh import Weather
from shoal.sim.peers import Shared
from shoal.sim.toys import ToyLearner, toy_tree
from shoal.trust.envelope import Request, Signer
from shoal.trust.gatekeeper import Gatekeeper
from shoal_peer.entry import AGAIN_S
from tests.trust.job import CHARTER, DAY, NOW, cert, key, roster, sealed

OLD, NEW, LATE = "abc", "de", "f"
"""Who is in the roster; who has a certificate; whose has run out."""

KEEP_S = 5.0
PATH, ENTER = "/p2p/digits", "/p2p/digits/enter"


@dataclass
class Door:
    """One peer's, in its present process; `kept` outlives that."""

    name: str
    gate: Gatekeeper
    signer: Signer
    addresses: set[str] = field(default_factory=lambda: set(OLD))
    enter_at: dict[str, float] = field(default_factory=dict)


class Town(Flock):
    """A flock at whose doors everybody is looked at."""

    def __init__(self, seed: int, weather: Weather, crashes: int) -> None:
        rng, names = Random(f"entering/{seed}"), OLD + NEW + LATE
        drain = Drain(rng.randint(6, 9), near=0.9)
        shared = Shared(
            Plan(1, seed=seed), Algorithm(), Pairwise().mixer, {"model": toy_tree((1.0, 2.0, 3.0), 0)}, drain, seed
        )
        weights = {name: float(rng.choice((1, 10, 100))) for name in names}
        pace = {name: rng.choice((0.5, 1.0)) for name in names}
        learners = {name: ToyLearner(number) for number, name in enumerate(names, 1)}
        super().__init__(shared, learners, weights, pace, weather=weather, crashes=crashes)
        self.refused = Counter[tuple[str, str]]()
        self.entered = Counter[tuple[str, str]]()
        self.kept: dict[str, tuple[dict[str, Any], set[str]]] = {}
        self.doors: dict[str, Door] = {}
        self.taken = Counter[tuple[str, str]]()
        for name, peer in self.peers.items():
            peer.there = partial(self._there_at, name)
            if name not in OLD:
                peer.left = True
                self.clock.after(0.5 + 2.0 * rng.random(), self._come, name)
        self._asked = "", ""
        """(who is taking a request, whose that is): its answer needs no address."""
        self.clock.after(KEEP_S, self._keep_all)

    def _come(self, name: str) -> None:
        self.peers[name].left = False
        self.peers[name].start()

    def _door(self, name: str) -> Door:
        """That of the process which runs now."""
        boot = max(1, self.peers[name].disk.boot)
        door = self.doors.get(name)
        if door is None or door.signer.boot != boot:
            mine = key(name)
            gate, addresses = Gatekeeper(CHARTER, mine.peer_id), set(OLD)
            if name in self.kept:
                snapshot, addresses = self.kept[name]
                gate = Gatekeeper.restore(CHARTER, mine.peer_id, snapshot)
            gate.take_roster(sealed(roster()))
            door = self.doors[name] = Door(name, gate, Signer(mine, CHARTER, boot), set(addresses))
        return door

    def _keep_all(self) -> None:
        for name, door in self.doors.items():
            if self.peers[name].up and door.signer.boot == self.peers[name].disk.boot:
                self.kept[name] = door.gate.snapshot(), set(door.addresses)
        self.clock.after(KEEP_S, self._keep_all)

    def _there_at(self, name: str) -> Live:
        """Who is there, of those that this one knows and can call."""
        there, known = (
            self._there(),
            {peer.node for peer in self._door(name).gate.members()} & self._door(name).addresses,
        )
        return Live(there.nodes & known | {name}, there.away & known)

    # What is said

    def _send(self, source: str, target: str, message: PeerMessage) -> None:
        door = self._door(source)
        if target in door.addresses or self._asked == (source, target):
            digest = hashlib.sha256(repr(message).encode()).hexdigest()
            request = door.signer.request(key(target).peer_id, "POST", PATH, "", digest)
            self.mesh.send(source, target, message, partial(self._arrives, source, target, request, digest))

    def _arrives(self, source: str, target: str, request: Request, digest: str, message: PeerMessage) -> None:
        if not self.peers[target].up:
            return
        gate = self._door(target).gate
        try:
            assert gate.admit(gate.examine(request, NOW), digest, NOW) == source
        except (NotAllowed, Refused) as error:
            self.refused[source, error.code] += 1
            if error.code == "trust.stranger":
                self.mesh.send(target, source, "stranger", partial(self._is_told, source, target))
            return
        self.taken[source, target] += 1
        self._asked = target, source
        self.peers[target].receive(message)
        self._asked = "", ""

    def _is_told(self, name: str, by: str, _: str) -> None:
        """Nobody knows it there: it shows its certificate."""
        door = self._door(name)
        if not self.peers[name].up or self.clock.now < door.enter_at.get(by, 0.0):
            return
        door.enter_at[by] = self.clock.now + AGAIN_S
        shown = sealed(cert(name, not_after=NOW - 10 * DAY if name in LATE else NOW + DAY))
        digest = hashlib.sha256(shown).hexdigest()
        request = door.signer.request(key(by).peer_id, "POST", ENTER, "", digest)
        self.mesh.send(name, by, shown, partial(self._enters, name, by, request, digest))

    def _enters(self, name: str, at: str, request: Request, digest: str, shown: bytes) -> None:
        if not self.peers[at].up:
            return
        door = self._door(at)
        try:
            assert door.gate.enter(shown, request, digest, NOW).node == name
        except (NotAllowed, Refused) as error:
            self.refused[name, error.code] += 1
            return
        self.entered[name, at] += 1
        door.addresses.add(name)
        self.peers[at].see()
