"""Synchronous averaging with neighbors: after each local round all peers take a weighted mean over their neighbors.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017, Algorithm 1 (D-PSGD), with a local round of the job's
algorithm in place of one gradient step:

    x_i  <-  sum_j W_ij x_j        over i and its neighbors j; W: see `shoal.core.mixing.topology`

With `target` "uniform" W is doubly stochastic: gossip alone leads to the *unweighted* mean of the models. With
"examples" W has the stationary distribution n_k / sum n_k, and leads to the sample-weighted mean; it converges more
slowly, because peers with many examples give little weight to those with few. Neither conserves the mean when an offer
is missing, as pairwise exchange does. Where filters round x_k to q_k, it is x_i <- x_i + sum_j W_ij (q_j - q_i).

Rounds of mixing are numbered as in Lamport's clock: a peer whose neighbors are ahead takes their number. It waits for
its neighbors' offers of its own round, but not for peers that are absent or past that round, and not longer than
`exchange_timeout_s`: a missing peer's weight goes to the peer itself. An offer is repeated until it is acknowledged. A
process that dies aborts the open round, and the model stays as it was after the local round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Interval

from shoal.core.errors import InvalidJob
from shoal.core.errors.ranges import NonNegativeInt, PositiveFloat
from shoal.core.gossip.counter_bounds import ROUND_LEAP, implausible
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.gossip.mixer import Mixing
from shoal.core.gossip.transfer import Transfer
from shoal.core.mixing.round_mixer import RoundMixer
from shoal.core.mixing.topology import Graph, complete, listeners, metropolis, one_peer, regular, ring, rows_of, torus
from shoal.core.model.aggregation import TreeSum
from shoal.core.model.tree import norm, sub
from shoal.core.model.tree_steps import towards
from shoal.core.protocol.machine import Effect, JobEvent, Tell
from shoal.core.protocol.message import BlobRef, ref_state
from shoal.core.protocol.peer_message import MixingMessage, ModelOffer, Received

GraphName = Literal["ring", "torus", "regular", "exponential", "complete"]


@dataclass(frozen=True)
class Neighbors(Mixing):
    """All peers mix in step, each with its neighbors on a graph of the live peers."""

    name: ClassVar[str] = "neighbors"
    title: ClassVar[str] = "Synchronous averaging with neighbors (D-PSGD, Lian et al. 2017)"
    supports_filters: ClassVar[bool] = True

    graph: GraphName = "regular"
    """Topology. `exponential`: one neighbor per round, 1, 2, 4, … places away (Ying et al. 2021)."""
    degree: Annotated[int, Interval(ge=2)] = 4
    """Degree of the random regular graph. Where none exists: one more, or all peers."""
    seed: NonNegativeInt = 0
    """Seed of the random regular graph."""
    target: Literal["uniform", "examples"] = "uniform"
    """Mean to which the models converge: `uniform`, or weighted by `examples`."""
    exchange_timeout_s: PositiveFloat = 30.0
    """Seconds to wait for the neighbors' models of the same round."""
    retransmit_s: PositiveFloat = 1.0
    """Seconds until an unacknowledged model is sent again; doubled each time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.graph not in get_args(GraphName):
            raise InvalidJob(f"neighbors: graph is {self.graph!r}", hint=f"use one of {', '.join(get_args(GraphName))}")
        if self.target not in {"uniform", "examples"}:
            raise InvalidJob(f"neighbors: target is {self.target!r}", hint='use "uniform" or "examples"')
        if self.graph == "exponential" and self.target == "examples":
            raise InvalidJob(
                "neighbors: one-way links cannot weight by examples", hint='use the graph "regular", or push_sum'
            )

    def mixer(self) -> NeighborsMixer:
        return NeighborsMixer(self)

    def links(self, nodes: tuple[str, ...], round_: int) -> Graph:
        """Return the graph of that round over these nodes; the nearest possible one where it does not exist."""
        count = len(nodes)
        match self.graph:
            case "exponential":
                return one_peer(nodes, round_)
            case "torus" if rows_of(count) > 1:
                return torus(nodes)
            case "ring" | "torus":
                return ring(nodes)
            case "regular" if self.degree < count - 1:
                return regular(nodes, self.degree + self.degree * count % 2, self.seed)
        return complete(nodes)


@dataclass
class NeighborRound:
    """The open round: the degree of each neighbor, and the offers received."""

    degrees: dict[str, int]
    degree: int
    until: float
    shown: BlobRef
    """Blob of this peer's offer."""
    received: dict[str, ModelOffer] = field(default_factory=dict)


class NeighborsMixer(RoundMixer[NeighborRound, str]):
    """Durable state: the number of the round, and the offer that neighbors may have missed."""

    def __init__(self, policy: Neighbors) -> None:
        super().__init__(policy.retransmit_s)
        self.policy = policy
        self.offer: ModelOffer | None = None
        self.refused = 0
        """Offers that must not be mixed."""
        self.early: dict[str, ModelOffer] = {}
        """The newest offer of each peer that is ahead."""
        self._to: tuple[str, ...] = ()
        self._drawn: tuple[object, Graph] = None, {}

    def begin_turn(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Offer the model to the listening peers."""
        return self._begin(max([self.round + 1, *(offer.round for offer in self.early.values())]), me, now)

    def _begin(self, round_: int, me: GossipState, now: float) -> list[Effect]:
        graph = self._graph(tuple(sorted({me.node, *me.peers.nodes})), round_)
        self.round, self._to = round_, tuple(sorted(listeners(graph, me.node)))
        self.offer = ModelOffer(me.node, round_, me.publish_model(), dict(me.counts.version_vector), me.weight)
        self._unacknowledged.clear()
        for to in self._to:
            self._unacknowledged.add(to, now)
        degrees = {node: len(graph[node]) for node in sorted(graph[me.node])}
        self.open = NeighborRound(degrees, len(graph[me.node]), now + self.policy.exchange_timeout_s, self.offer.blob)
        self.open.received = {node: one for node, one in self.early.items() if one.round == round_ and node in degrees}
        self.early = {node: one for node, one in self.early.items() if one.round > round_}
        return [*(Tell(to, self.offer) for to in self._to), *self.on_timer(me, now)]

    def _graph(self, nodes: tuple[str, ...], round_: int) -> Graph:
        """Return the graph, drawn once for each set of peers."""
        key = nodes, round_ if self.policy.graph == "exponential" else 0
        if self._drawn[0] != key:
            self._drawn = key, self.policy.links(nodes, round_)
        return self._drawn[1]

    def on_transfer(self, transfer: Transfer, me: GossipState, now: float) -> Sequence[Effect]:
        """Note the progress of an offer: it is not sent again, and the round waits for incoming ones."""
        if transfer.leaving and self.offer is not None and transfer.id == (me.node, self.round, 0):
            if transfer.nbytes < self.offer.blob.nbytes:
                self._unacknowledged.postpone(transfer.node, now)
        elif self.open is not None and transfer.id == (transfer.node, self.round, 0) and not transfer.leaving:
            self.open.until = max(self.open.until, now + self.policy.exchange_timeout_s)
        return self.on_timer(me, now)

    def on_timer(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Repeat unacknowledged offers; close the round when no more are expected."""
        effects: list[Effect] = []
        for to in self._unacknowledged.take_due(now):
            if to in me.peers.nodes and self.offer is not None:
                effects.append(Tell(to, self.offer))
            else:
                self._unacknowledged.drop(to)
        if self.open is not None and (now >= self.open.until or not self._missing(self.open, me)):
            effects += self._close(self.open, me, now)
        if not self._unacknowledged:
            self.offer = None
        self.alarm = min(self._unacknowledged.alarm, self.open.until if self.open is not None else inf)
        return effects

    def _missing(self, round_: NeighborRound, me: GossipState) -> bool:
        """Return whether an offer of this round may still come: from a live peer that is not past it."""
        return bool((round_.degrees.keys() & me.peers.nodes) - round_.received.keys() - self.early.keys())

    def _close(self, round_: NeighborRound, me: GossipState, now: float) -> list[Effect]:
        """Mix the offers received. If all neighbors are ahead, follow them without another local round."""
        self.open = None
        if not round_.received:
            ahead = [offer.round for node, offer in self.early.items() if node in me.peers.nodes]
            return self._begin(max(ahead), me, now) if ahead else []
        share = {node: self._share(round_, node, offer.weight / me.weight) for node, offer in round_.received.items()}
        mean, own = TreeSum(me.mixed.layout), me.published_model(round_.shown)
        mean.add(own, 1.0 - sum(share.values()), norm(own))
        for node, offer in sorted(round_.received.items()):
            theirs = me.open_model(offer.blob)
            mean.add(theirs, share[node], norm(theirs))
            me.record_distance(node, norm(sub(theirs, me.mixed)))
            me.counts.merge(offer.version_vector)
        mixed = mean.mean_onto()
        me.mixed = towards(me.mixed, own, mixed, 1.0) if me.filters else mixed
        return []

    def _share(self, round_: NeighborRound, node: str, ratio: float) -> float:
        if self.policy.graph == "exponential":
            return 0.5
        return metropolis(round_.degree, round_.degrees[node], ratio if self.policy.target == "examples" else 1.0)

    # Messages

    def on(self, message: MixingMessage, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle an offer or an acknowledgement."""
        effects: list[Effect] = []
        if isinstance(message, ModelOffer):
            effects = self._offered(message, me)
        elif isinstance(message, Received) and message.id == (me.node, self.round, 0):
            self._unacknowledged.drop(message.node)
        return [*effects, *self.on_timer(me, now)]

    def reject(self, message: MixingMessage, why: str, me: GossipState, now: float) -> Sequence[Effect]:
        """Leave an offer out of its round; its weight goes to this peer."""
        if isinstance(message, ModelOffer):
            return [*self._offered(message, me, why), *self.on_timer(me, now)]
        return self.on(message, me, now)

    def _offered(self, offer: ModelOffer, me: GossipState, why: str = "") -> list[Effect]:
        """Keep an offer of this round or a later one, and acknowledge it in any case."""
        node, answer = offer.node, Tell(offer.node, Received(me.node, (offer.node, offer.round, 0)))
        if offer.round > self.round + ROUND_LEAP:
            return [
                answer,
                implausible(node, f"is in mixing round {offer.round}; this peer is in {self.round}", me.local_rounds),
            ]
        if offer.round > self.round:
            self._unacknowledged.drop(node)
        elif self.open is None or offer.round < self.round or node in self.open.received:
            return [answer]
        why = why or me.share_fault(offer.blob, offer.weight)
        if why:
            self.refused += 1
            if self.open is not None and offer.round == self.round:
                self.open.degrees.pop(node, None)
            return [answer, JobEvent("refusal", f"its model was not mixed: {why}", me.local_rounds, node)]
        if offer.round > self.round:
            self.early[node] = max(offer, self.early.get(node, offer), key=lambda one: one.round)
        elif self.open is not None and node in self.open.degrees:
            self.open.received[node] = offer
        return [answer]

    # Stored state

    def state(self) -> dict[str, Any]:
        offer = self.offer
        if offer is None:
            return {"round": self.round}
        kept = [offer.node, ref_state(offer.blob), offer.version_vector, offer.weight]
        return {"round": self.round, "offer": kept, "to": list(self._to)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state; the open round is aborted, but neighbors may still wait for the offer."""
        self.round = state["round"]
        if "offer" in state:
            node, blob, seen, weight = state["offer"]
            self.offer, self._to = ModelOffer(node, self.round, BlobRef(*blob), seen, weight), tuple(state["to"])
            self._unacknowledged.add_due(self._to)
            self.alarm = 0.0

    def blob_refs(self) -> list[BlobRef]:
        kept = [*self.early.values(), *(self.open.received.values() if self.open is not None else ())]
        own = [self.open.shown] if self.open is not None else []
        return [*own, *(one.blob for one in [*kept, *([self.offer] if self.offer is not None else [])])]

    def counters(self) -> dict[str, int]:
        return {"round": self.round, "unheard": len(self._unacknowledged), "refused": self.refused}
