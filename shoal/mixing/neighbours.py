"""Synchronous averaging with neighbours: after each local round everybody takes a weighted mean over its neighbours.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017, Algorithm 1 (D-PSGD), with a local round of the job's
algorithm in place of one gradient step:

    x_i  <-  sum_j W_ij x_j        over i and its neighbours j; W: see `shoal.core.topology`

With `target` "uniform" W is doubly stochastic: gossip alone leads to the *unweighted* mean of the models. With
"examples" W has the stationary distribution n_k / sum n_k, and leads to the sample-weighted mean; large peers then
hardly listen to small ones, so it takes longer. Neither keeps the mean where it was when an offer is missing, which
pairwise exchange does. Where filters round what others see of x_k, q_k, it is x_i <- x_i + sum_j W_ij (q_j - q_i).

Rounds of mixing are numbered as in Lamport's clock: a peer whose neighbours are further takes their number. It waits
for its neighbours' offers of its own round, but not for who is not there, who is past that round, or for longer than
`patience_s`: the weight of one who is missing goes to the peer itself. An offer is sent again until it is answered.
A process that dies gives up the round that was open, and the model stays as it was after the local round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, ClassVar, Literal, get_args

from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.gossip import Holding, Mixing
from shoal.core.machine import Effect, Note, Tell
from shoal.core.message import Ref, ref_state
from shoal.core.peer_message import MixingMessage, Offer, Taken
from shoal.core.plausible import ROUND_LEAP, lie
from shoal.core.repeat import Repeats
from shoal.core.sums import TreeSum
from shoal.core.topology import Graph, complete, listeners, metropolis, one_peer, regular, ring, rows_of, torus
from shoal.core.transfer import Transfer
from shoal.core.tree import Tree, norm, same_layout, sub, towards

GraphName = Literal["ring", "torus", "regular", "exponential", "complete"]


@dataclass(frozen=True)
class Neighbours(Mixing):
    """All mix in step, each with its neighbours on a graph of those that are there."""

    name: ClassVar[str] = "neighbours"
    title: ClassVar[str] = "Synchronous averaging with neighbours (D-PSGD, Lian et al. 2017)"
    filtered: ClassVar[bool] = True

    graph: GraphName = "regular"
    """Who listens to whom. "exponential": to one other, 1, 2, 4, … places away by round (Ying et al. 2021)."""
    degree: int = 4
    """Neighbours of each in a random regular graph; as many as there are, or one more, where that cannot be."""
    seed: int = 0
    """Which random regular graph."""
    target: Literal["uniform", "examples"] = "uniform"
    """Whether all peers count alike in the mean that is approached, or by their examples."""
    patience_s: float = 30.0
    """Seconds to wait for the neighbours' models of the same round."""
    repeat_s: float = 1.0
    """Seconds until an unanswered offer is sent again, doubled each time."""

    def __post_init__(self) -> None:
        if self.graph not in get_args(GraphName):
            raise InvalidJob(
                f"neighbours: graph is {self.graph!r}", hint=f"use one of {', '.join(get_args(GraphName))}"
            )
        if self.degree < 2:
            raise InvalidJob(f"neighbours: degree is {self.degree}, but a graph is connected from 2 on")
        if self.target not in {"uniform", "examples"}:
            raise InvalidJob(f"neighbours: target is {self.target!r}", hint='use "uniform" or "examples"')
        if self.graph == "exponential" and self.target == "examples":
            raise InvalidJob(
                "neighbours: one-way links cannot weight by examples", hint='use the graph "regular", or push_sum'
            )
        if not (0 < self.patience_s < inf and 0 < self.repeat_s < inf):
            raise InvalidJob("neighbours: patience_s and repeat_s must be positive")

    def mixer(self) -> NeighboursMixer:
        """A peer's side of it."""
        return NeighboursMixer(self)

    def links(self, nodes: tuple[str, ...], round_: int) -> Graph:
        """The graph of that round over these nodes; the nearest that there is where the wanted one cannot be."""
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
class Round:
    """The round that is open: how many neighbours each of those has to whom we listen, and what has come from them."""

    degrees: dict[str, int]
    degree: int
    until: float
    shown: Ref
    """Our own offer's body."""
    heard: dict[str, Offer] = field(default_factory=dict)


class NeighboursMixer:
    """What survives the process: the number of the round, and the offer that somebody may have missed."""

    in_step: ClassVar[bool] = True

    def __init__(self, policy: Neighbours) -> None:
        self.policy = policy
        self.round = 0
        self.offer: Offer | None = None
        self.alarm = inf
        self.refused = 0
        """Offers that must not be mixed."""
        self.open: Round | None = None
        self.early: dict[str, Offer] = {}
        """The newest offer of each peer that is further than we are."""
        self._to: tuple[str, ...] = ()
        self._unheard: Repeats[str] = Repeats(policy.repeat_s)
        self._drawn: tuple[object, Graph] = None, {}

    @property
    def waiting(self) -> bool:
        return self.open is not None

    @property
    def busy(self) -> bool:
        return self.open is not None or len(self._unheard) > 0

    @property
    def moving_until(self) -> float:
        return self._unheard.moving_until

    def halt(self) -> None:
        """Rounds are begun by `turn` alone, and end by themselves."""

    def resume(self) -> None:
        """The next `turn` begins one."""

    def turn(self, me: Holding, now: float) -> Sequence[Effect]:
        """Offer the model to those that listen to us."""
        return self._begin(max([self.round + 1, *(offer.round for offer in self.early.values())]), me, now)

    def _begin(self, round_: int, me: Holding, now: float) -> list[Effect]:
        graph = self._graph(tuple(sorted({me.node, *me.live})), round_)
        self.round, self._to = round_, tuple(sorted(listeners(graph, me.node)))
        self.offer = Offer(me.node, round_, me.shown(), dict(me.seen), me.weight)
        self._unheard.clear()
        for to in self._to:
            self._unheard.add(to, now)
        degrees = {node: len(graph[node]) for node in sorted(graph[me.node])}
        self.open = Round(degrees, len(graph[me.node]), now + self.policy.patience_s, self.offer.body)
        self.open.heard = {node: one for node, one in self.early.items() if one.round == round_ and node in degrees}
        self.early = {node: one for node, one in self.early.items() if one.round > round_}
        return [*(Tell(to, self.offer) for to in self._to), *self.ring(me, now)]

    def _graph(self, nodes: tuple[str, ...], round_: int) -> Graph:
        """Drawn once for as long as the same peers are there."""
        key = nodes, round_ if self.policy.graph == "exponential" else 0
        if self._drawn[0] != key:
            self._drawn = key, self.policy.links(nodes, round_)
        return self._drawn[1]

    def moves(self, transfer: Transfer, me: Holding, now: float) -> Sequence[Effect]:
        """What is on its way is not sent again, and a round waits for what is coming."""
        if transfer.leaving and self.offer is not None and transfer.id == (me.node, self.round, 0):
            if transfer.nbytes < self.offer.body.nbytes:
                self._unheard.postpone(transfer.node, now)
        elif self.open is not None and transfer.id == (transfer.node, self.round, 0) and not transfer.leaving:
            self.open.until = max(self.open.until, now + self.policy.patience_s)
        return self.ring(me, now)

    def ring(self, me: Holding, now: float) -> Sequence[Effect]:
        """Send again what may be lost; close the round when nobody is to be waited for any longer."""
        effects: list[Effect] = []
        for to in self._unheard.take_due(now):
            if to in me.live and self.offer is not None:
                effects.append(Tell(to, self.offer))
            else:
                self._unheard.drop(to)
        if self.open is not None and (now >= self.open.until or not self._missing(self.open, me)):
            effects += self._close(self.open, me, now)
        if not self._unheard:
            self.offer = None
        self.alarm = min(self._unheard.alarm, self.open.until if self.open is not None else inf)
        return effects

    def _missing(self, round_: Round, me: Holding) -> bool:
        """Whether an offer of this round may still come: from one that is there, and not past it."""
        return bool((round_.degrees.keys() & me.live) - round_.heard.keys() - self.early.keys())

    def _close(self, round_: Round, me: Holding, now: float) -> list[Effect]:
        """Mix what has come. If all are further, go where they are, without another local round."""
        self.open = None
        if not round_.heard:
            ahead = [offer.round for node, offer in self.early.items() if node in me.live]
            return self._begin(max(ahead), me, now) if ahead else []
        share = {node: self._share(round_, node, offer.weight / me.weight) for node, offer in round_.heard.items()}
        mean, mine = TreeSum(me.model.layout), me.seen_by_others(round_.shown)
        mean.add(mine, 1.0 - sum(share.values()), norm(mine))
        for node, offer in sorted(round_.heard.items()):
            theirs = me.opened(offer.body)
            mean.add(theirs, share[node], norm(theirs))
            me.met(node, norm(sub(theirs, me.model)))
            me.learn_of(offer.seen)
        mixed = mean.mean_onto()
        me.model = towards(me.model, mine, mixed, 1.0) if me.filters else mixed
        return []

    def _share(self, round_: Round, node: str, ratio: float) -> float:
        if self.policy.graph == "exponential":
            return 0.5
        return metropolis(round_.degree, round_.degrees[node], ratio if self.policy.target == "examples" else 1.0)

    # Messages

    def on(self, message: MixingMessage, me: Holding, now: float) -> Sequence[Effect]:
        """An offer, or its answer."""
        effects: list[Effect] = []
        if isinstance(message, Offer):
            effects = self._offered(message, me)
        elif isinstance(message, Taken) and message.id == (me.node, self.round, 0):
            self._unheard.drop(message.node)
        return [*effects, *self.ring(me, now)]

    def decline(self, message: MixingMessage, why: str, me: Holding, now: float) -> Sequence[Effect]:
        """An offer is not waited for any longer in its round; its weight goes to the peer itself."""
        if isinstance(message, Offer):
            return [*self._offered(message, me, why), *self.ring(me, now)]
        return self.on(message, me, now)

    def _offered(self, offer: Offer, me: Holding, why: str = "") -> list[Effect]:
        """Keep it if it is of this round or a later one. Whatever it is, it need not come again."""
        node, answer = offer.node, Tell(offer.node, Taken(me.node, (offer.node, offer.round, 0)))
        if offer.round > self.round + ROUND_LEAP:
            return [answer, lie(node, f"is in round {offer.round} of mixing; this peer is in {self.round}", me.round)]
        if offer.round > self.round:
            self._unheard.drop(node)
        elif self.open is None or offer.round < self.round or node in self.open.heard:
            return [answer]
        why = why or self._fault(offer, me)
        if why:
            self.refused += 1
            if self.open is not None and offer.round == self.round:
                self.open.degrees.pop(node, None)
            return [answer, Note("refusal", f"its model was not mixed: {why}", me.round, node)]
        if offer.round > self.round:
            self.early[node] = max(offer, self.early.get(node, offer), key=lambda one: one.round)
        elif self.open is not None and node in self.open.degrees:
            self.open.heard[node] = offer
        return [answer]

    def _fault(self, offer: Offer, me: Holding) -> str:
        """Why it must not be mixed; "" if nothing is wrong with it."""
        try:
            theirs: Tree = me.opened(offer.body)
            same_layout(me.model.layout, theirs.layout)
        except InvalidPayload as error:
            return error.message
        return "" if norm(theirs) < inf and isfinite(offer.weight) and offer.weight > 0 else "it is not finite"

    # What survives

    def state(self) -> dict[str, Any]:
        offer = self.offer
        if offer is None:
            return {"round": self.round}
        kept = [offer.node, ref_state(offer.body), offer.seen, offer.weight]
        return {"round": self.round, "offer": kept, "to": list(self._to)}

    def restore(self, state: dict[str, Any]) -> None:
        """The open round is given up; neighbours may still wait for the offer."""
        self.round = state["round"]
        if "offer" in state:
            node, body, seen, weight = state["offer"]
            self.offer, self._to = Offer(node, self.round, Ref(*body), seen, weight), tuple(state["to"])
            self._unheard.add_due(self._to)
            self.alarm = 0.0

    def names(self) -> list[Ref]:
        kept = [*self.early.values(), *(self.open.heard.values() if self.open is not None else ())]
        own = [self.open.shown] if self.open is not None else []
        return [*own, *(one.body for one in [*kept, *([self.offer] if self.offer is not None else [])])]

    def tallies(self) -> dict[str, int]:
        return {"round": self.round, "unheard": len(self._unheard), "refused": self.refused}
