"""Edge clients that can do without their coordinator, simulated: the same process and disk, one machine more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from shoal.core.algorithm import tree_slot
from shoal.core.anchor import received
from shoal.core.failover import Failover, Holds
from shoal.core.filter import for_models
from shoal.core.gossip import Gossip, Holding, Learned, Live, Mixer
from shoal.core.machine import Boot, Done, Effect, Event, Lost, Memory, Note, Rejected, Standing, Tell, Version, Work
from shoal.core.message import Message, Order, OrderId, Ref, Switch
from shoal.core.peer import Peer
from shoal.core.peer_message import PeerMessage, Relayed, Swap, Swapped
from shoal.core.tree import Slots, Tree
from shoal.mixing.pairwise import Pairwise
from shoal.sim.bodies import MemoryBodies
from shoal.sim.mesh import Mesh, Weather
from shoal.sim.node import Node, Perform
from shoal.sim.watch import Watch
from shoal.sim.world import Pace, Setup, World

SEE_S = 2.0
"""How often a peer looks who is there: a stand-in for membership."""


@dataclass(frozen=True)
class Commons:
    """How the peers of a job do without their hub."""

    failover: Failover = field(default_factory=Failover)
    mixing: Callable[[], Mixer] = lambda: Pairwise().mixer()
    weights: dict[str, float] = field(default_factory=dict)


class PeerNode(Node):
    """`tell(peer, message)` sends to a peer; `setup` and `commons` say what the machine needs to know."""

    def __init__(
        self,
        *arguments: Any,
        setup: Setup,
        commons: Commons,
        bodies: MemoryBodies,
        tell: Callable[..., None],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._setup, self._commons, self._bodies, self._tell = setup, commons, bodies, tell
        self.standing: dict[str, Any] | None = None  # on the disk
        self.standing_names: list[Ref] = []
        self.terms: list[int] = []
        self.moves: list[bool] = [False]
        self.given_up: list[OrderId | None] = []
        """The orders to hand back that were over when this node gave up what it had of the time away."""
        self._order: OrderId | None = None
        self.adopted: list[tuple[Tree, Tree]] = []
        """Of each order that became a first local round: (the base that it is relative to, the model that it joins)."""
        self._start: Tree | None = None
        self.learned: list[Learned] = []
        self.notes: list[Note] = []
        self.live: frozenset[str] = frozenset()
        self._make_peer()

    def _make_peer(self) -> None:
        setup = self._setup
        self.peer = Peer(
            self.worker,
            self._gossip,
            self._revive,
            algorithm=setup.algorithm,
            filters=setup.plan.filters,
            bodies=self._bodies,
            failover=self._commons.failover,
            population=len(setup.nodes),
        )

    def _holding(self, slots: Slots) -> Holding:
        rng = Random(f"{self._setup.seed}/{self.name}/{self.process}")
        weight = self._commons.weights.get(self.name, 1.0)
        me = Holding(self.name, self.process, weight, slots, self._bodies, rng, live=self.live)
        me.filters = for_models(self._setup.plan.filters)
        return me

    def _gossip(self, slots: Slots) -> Gossip:
        setup = self._setup
        return Gossip(setup.plan, setup.algorithm, self._holding(slots), self._commons.mixing())

    def _revive(self, state: dict[str, Any]) -> Gossip:
        setup = self._setup
        return Gossip.restore(setup.plan, setup.algorithm, self._holding({}), self._commons.mixing(), state)

    # What differs from a worker's shell

    def _begin(self) -> Sequence[Effect]:
        self._make_peer()
        if self.standing is not None:
            self.peer.restore(self.standing)
        self.peer.live = self.live
        return self._known(self.peer.start(self.clock.now))

    def _take(self, event: Event) -> Sequence[Effect]:
        assert not isinstance(event, Boot | Lost)
        self._order = self.peer.order.id if self.peer.order is not None else None
        before = self.peer.gossip
        self._note_adopted(event)
        effects = self.peer.on(event, self.clock.now)
        if self.peer.gossip is not None and self.peer.gossip is not before:
            self._start = self.peer.gossip.me.model
        for order in [effect.order for effect in effects if isinstance(effect, Work) and effect.order.kind != "gossip"]:
            if order.body is not None:  # bodies are everywhere at once here
                effects += self.peer.on(Holds(order.version, self._whole(order, order.body)), self.clock.now)
        return self._known(effects)

    def _whole(self, order: Order, body: Ref) -> Ref:
        base = self._bodies.get(order.base) if order.base is not None else {}
        _, held = received(order, self._bodies.get(body), base, self._setup.plan.filters)
        return self._bodies.put(held) if held else body

    def _note_adopted(self, event: Event) -> None:
        gossip = self.peer.gossip
        order = gossip.order if gossip is not None else None
        done = isinstance(event, Done) and order is not None and event.order == order.id
        if done and order is not None and order.kind == "train" and self.held is not None and self._start is not None:
            self.adopted.append((tree_slot(self._bodies.get(self.held), "model"), self._start))

    def _known(self, effects: Sequence[Effect | Learned]) -> Sequence[Effect]:
        self.learned += [effect for effect in effects if isinstance(effect, Learned)]
        return [effect for effect in effects if not isinstance(effect, Learned)]

    def _save(self, what: Version | Memory | Standing) -> None:
        if isinstance(what, Standing):
            if self.standing is not None and self.standing["gossip"] and not what.state["gossip"]:
                self.given_up.append(self._order)
            self.standing, self.standing_names = what.state, self.peer.names()
            self.terms.append(what.state["term"])
            if not self.moves or self.moves[-1] != bool(what.state["gossip"]):
                self.moves.append(bool(what.state["gossip"]))
        else:
            super()._save(what)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Tell):
            self._tell(effect.to, effect.body)
        elif isinstance(effect, Note):
            self.notes.append(effect)

    def hear(self, process: int, message: PeerMessage) -> None:
        """A peer's message arrives."""
        if self.up and process == self.process:
            self._feed(message)  # type: ignore[arg-type]

    def see(self, live: frozenset[str]) -> None:
        """Who is there."""
        self.live = live - {self.name}
        if self.up:
            self._feed(Live(live, roster=frozenset(self._setup.nodes)))  # type: ignore[arg-type]

    def names(self) -> list[Ref | None]:
        return [*super().names(), *self.peer.names(), *self.standing_names]


class PeerWorld(World):
    """A coordinator that may go away, and nodes that carry on."""

    def __init__(
        self, setup: Setup, commons: Commons, perform: Perform, pace: Pace, *, weather: Weather, **named: Any
    ) -> None:
        self._commons = commons
        self.models_sent = 0
        self.mesh = Mesh(named["clock"], weather, Random(f"mesh/{setup.seed}"))
        super().__init__(setup, perform, pace, **named)

    def _make_node(
        self, name: str, rng: Random, perform: Perform, pace: Pace, watch: Watch, make: Callable[..., Node] = PeerNode
    ) -> Node:
        tell = partial(self._tell, name)
        kind = partial(make, setup=self.setup, commons=self._commons, bodies=self.bodies, tell=tell)
        return super()._make_node(name, rng, perform, pace, watch, kind)

    def peer(self, name: str) -> PeerNode:
        """That node."""
        node = self.nodes[name]
        assert isinstance(node, PeerNode)
        return node

    def _tell(self, source: str, target: str, message: PeerMessage) -> None:
        node = self.peer(target)
        self.models_sent += isinstance(message, Swap | Swapped)
        if node.up:
            self.mesh.send(source, target, message, partial(node.hear, node.process))

    def look(self) -> None:
        """Let everybody see who is there, again and again."""
        up = frozenset(name for name, node in self.nodes.items() if node.up)
        for name in self.nodes:
            self.peer(name).see(up)
        self.clock.after(SEE_S, self.look)

    def switch(self, to: str, at: float) -> None:
        """An operator's wish."""
        self.clock.at(at, self._ask, Switch(to))  # type: ignore[arg-type]

    def _names(self) -> list[Ref | None]:
        refs = super()._names()
        for message in self.mesh.flying.values():
            inner = getattr(message, "message", message)
            refs += [getattr(inner, name, None) for name in ("body", "base", "model")]
        return refs

    # Requests that a peer passes on for another are answered through it

    def _heard(self, name: str, process: int, message: Message) -> None:
        self._for = getattr(message, "node", name)
        super()._heard(name, process, message)
        self._for = ""

    _for = ""

    def _down(self, to: str, message: Message | Rejected) -> None:
        through = self._asker[0]
        if through and through != to and to == self._for and not isinstance(message, Rejected):
            self.network.send(through, "down", message, partial(self._pass_on, through, to))
            return
        super()._down(to, message)

    def _pass_on(self, through: str, to: str, message: Message) -> None:
        self._tell(through, to, Relayed(through, message))
