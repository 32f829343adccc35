"""Peers that mix while newcomers come in by their certificates, on one virtual clock.

Gatekeepers, keys and documents are the product's own, and so are the machines; the network is simulated.

Requests of unknown senders are refused. A peer that is refused as a stranger shows its certificate, at most once in
`AGAIN_S`. A gatekeeper's state is saved now and then, and a process that dies goes back to that.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.errors import NotAllowed, Refused
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.peer_message import PeerMessage
from shoal.mixing.pairwise import Pairwise
from shoal.peering.roster.join_certificate import AGAIN_S
from shoal.sim.hosts.gossip_world import GossipWorld
from shoal.sim.hosts.peers import GossipSetup
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.trust.envelope import SignedRequest, Signer
from shoal.trust.request_verifier import RequestVerifier
from tests.trust.job import CHARTER, DAY, NOW, cert, key, roster, sealed

OLD, NEW, LATE = "abc", "de", "f"
"""Members of the roster, holders of a certificate, and holders of an expired one."""

KEEP_S = 5.0
PATH, ENTER = "/p2p/digits", "/p2p/digits/join-by-certificate"


@dataclass
class Admission:
    """One peer's, in its present process; `kept` outlives that."""

    name: str
    verifier: RequestVerifier
    signer: Signer
    addresses: set[str] = field(default_factory=lambda: set(OLD))
    enter_at: dict[str, float] = field(default_factory=dict)


class JoiningWorld(GossipWorld):
    """A swarm whose gatekeepers check every peer."""

    def __init__(self, seed: int, conditions: PeerNetworkConditions, crashes: int) -> None:
        rng, names = Random(f"entering/{seed}"), OLD + NEW + LATE
        drain = TerminationRule(rng.randint(6, 9), convergence_tol=0.9)
        shared = GossipSetup(
            JobPlan(1, seed=seed), Algorithm(), Pairwise().mixer, {"model": toy_tree((1.0, 2.0, 3.0), 0)}, drain, seed
        )
        weights = {name: float(rng.choice((1, 10, 100))) for name in names}
        pace = {name: rng.choice((0.5, 1.0)) for name in names}
        learners = {name: ToyLearner(number) for number, name in enumerate(names, 1)}
        super().__init__(shared, learners, weights, pace, conditions=conditions, crashes=crashes)
        self.refused = Counter[tuple[str, str]]()
        self.entered = Counter[tuple[str, str]]()
        self.kept: dict[str, tuple[dict[str, Any], set[str]]] = {}
        self.admissions: dict[str, Admission] = {}
        self.taken = Counter[tuple[str, str]]()
        for name, peer in self.peers.items():
            if name not in OLD:
                peer.left = True
                self.clock.after(0.5 + 2.0 * rng.random(), self._come, name)
        self._asked = "", ""
        """(who is taking a request, whose that is): its answer needs no address."""
        self.clock.after(KEEP_S, self._keep_all)

    def _come(self, name: str) -> None:
        self.peers[name].left = False
        self.peers[name].start()

    def _admission(self, name: str) -> Admission:
        """That of the process which runs now."""
        number = max(1, self.peers[name].process.number)
        admission = self.admissions.get(name)
        if admission is None or admission.signer.process_number != number:
            signer = Signer(key(name), CHARTER, number)
            verifier, addresses = RequestVerifier(CHARTER, signer.key.peer_id), set(OLD)
            if name in self.kept:
                snapshot, addresses = self.kept[name]
                verifier = RequestVerifier.restore(CHARTER, signer.key.peer_id, snapshot)
            verifier.update_roster(sealed(roster()))
            admission = self.admissions[name] = Admission(name, verifier, signer, set(addresses))
        return admission

    def _keep_all(self) -> None:
        for name, admission in self.admissions.items():
            if self.peers[name].process.up and admission.signer.process_number == self.peers[name].process.number:
                self.kept[name] = admission.verifier.snapshot(), set(admission.addresses)
        self.clock.after(KEEP_S, self._keep_all)

    def live_peers(self, viewer: str) -> LivePeers:
        """Return the live peers that this one knows and can call."""
        there, admission = super().live_peers(viewer), self._admission(viewer)
        known = {peer.node for peer in admission.verifier.members()} & admission.addresses
        return LivePeers(there.nodes & known | {viewer}, there.absent & known)

    # Messages

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        admission = self._admission(source)
        if target in admission.addresses or self._asked == (source, target):
            digest = hashlib.sha256(repr(message).encode()).hexdigest()
            request = admission.signer.request(key(target).peer_id, "POST", PATH, "", digest)
            self.mesh.send(source, target, message, partial(self._arrives, source, target, request, digest))

    def _arrives(self, source: str, target: str, request: SignedRequest, digest: str, message: PeerMessage) -> None:
        if not self.peers[target].process.up:
            return
        verifier = self._admission(target).verifier
        try:
            assert verifier.admit(verifier.examine(request, NOW), digest, NOW) == source
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
        """No peer there knows it: it shows its certificate."""
        admission = self._admission(name)
        if not self.peers[name].process.up or self.clock.now < admission.enter_at.get(by, 0.0):
            return
        admission.enter_at[by] = self.clock.now + AGAIN_S
        shown = sealed(cert(name, not_after=NOW - 10 * DAY if name in LATE else NOW + DAY))
        digest = hashlib.sha256(shown).hexdigest()
        request = admission.signer.request(key(by).peer_id, "POST", ENTER, "", digest)
        self.mesh.send(name, by, shown, partial(self._enters, name, by, request, digest))

    def _enters(self, name: str, at: str, request: SignedRequest, digest: str, shown: bytes) -> None:
        if not self.peers[at].process.up:
            return
        admission = self._admission(at)
        try:
            assert admission.verifier.admit_certificate(shown, request, digest, NOW).node == name
        except (NotAllowed, Refused) as error:
            self.refused[name, error.code] += 1
            return
        self.entered[name, at] += 1
        admission.addresses.add(name)
        self.peers[at].update_live_peers()
