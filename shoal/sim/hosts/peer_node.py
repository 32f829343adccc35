"""Simulated edge clients that can go on without their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import model_filters
from shoal.core.algorithm.reference_model import unpack_task
from shoal.core.failover.failover import Failover, ModelHeld
from shoal.core.failover.failover_peer import FailoverPeer, GossipBuilder
from shoal.core.gossip.gossip import GossipPeer, LocalRoundDone
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.gossip.mixer import Mixer
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.machine import (
    Effect,
    JobEvent,
    MachineState,
    NodeLost,
    ReportRejected,
    Restarted,
    Save,
    TaskDone,
    Tell,
    Work,
)
from shoal.core.protocol.message import BlobRef, Message, Task, TaskId
from shoal.core.protocol.peer_message import ExchangeAccept, ExchangeOffer, PeerMessage, RelayResponse
from shoal.mixing.pairwise import Pairwise
from shoal.sim.hosts.node import NodeDisk, NodeEvent, NodeMachine, Perform, WorkerMachine
from shoal.sim.hosts.world import CoordinatedWorld, Pace, SimulationSetup
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import COORDINATOR, PeerNetworkConditions
from shoal.sim.network.network import Network

LIVE_PEERS_INTERVAL_S = 2.0
"""Interval in seconds at which peers learn which peers are live; it stands in for membership."""


@dataclass(frozen=True)
class FailoverSetup:
    """The configuration of a job's peers."""

    failover: Failover = field(default_factory=Failover)
    mixing: Callable[[], Mixer] = lambda: Pairwise().mixer()
    weights: dict[str, float] = field(default_factory=dict)


@dataclass
class FailoverLog:
    """The history of one node, over all its processes."""

    terms: list[int] = field(default_factory=list)
    mode_changes: list[bool] = field(default_factory=lambda: [False])
    """Mode after each change: True while it gossips."""
    given_up: list[TaskId | None] = field(default_factory=list)
    """Tasks of the hand-backs after which this node dropped its gossip state."""
    adopted: list[tuple[Tree, Tree]] = field(default_factory=list)
    """(reference model, model that it joins) of each task that became a first local round."""
    learned: list[LocalRoundDone] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)


@dataclass(frozen=True)
class FailoverPorts:
    """Connections of a node's machine to its world."""

    blobs: MemoryBlobs
    send: Callable[[str, PeerMessage], None]
    """`(peer, message)` sends to a peer."""
    held: Callable[[], BlobRef | None]
    """Returns the reference model of the task in progress."""


class FailoverWorkerMachine(WorkerMachine):
    """A worker that goes on with its peers while the coordinator is away."""

    def __init__(self, name: str, setup: SimulationSetup, failover: FailoverSetup, ports: FailoverPorts) -> None:
        super().__init__(name, setup.heartbeat_s)
        self._setup, self._failover, self._ports = setup, failover, ports
        self._process = 0
        self.saved: dict[str, Any] | None = None  # on the disk
        self._saved_refs: list[BlobRef] = []
        self.log = FailoverLog()
        self._task: TaskId | None = None
        self._first: Tree | None = None
        self.live: frozenset[str] = frozenset()
        self.peer = self._make_peer()

    def _make_peer(self) -> FailoverPeer:
        setup = self._setup
        builder = GossipBuilder(self._gossip, self._revive, setup.algorithm, self._ports.blobs, setup.plan.filters)
        return FailoverPeer(self.worker, builder, failover=self._failover.failover, population=len(setup.nodes))

    def _holding(self, slots: Slots) -> GossipState:
        rng = Random(f"{self._setup.seed}/{self._name}/{self._process}")
        weight = self._failover.weights.get(self._name, 1.0)
        me = GossipState(self._name, self._process, weight, slots, self._ports.blobs, rng, peers=LivePeers(self.live))
        me.filters = model_filters(self._setup.plan.filters)
        return me

    def _gossip(self, slots: Slots) -> GossipPeer:
        setup = self._setup
        return GossipPeer(setup.plan, setup.algorithm, self._holding(slots), self._failover.mixing())

    def _revive(self, state: dict[str, Any]) -> GossipPeer:
        setup = self._setup
        return GossipPeer.restore(setup.plan, setup.algorithm, self._holding({}), self._failover.mixing(), state)

    def start(self, process: int, disk: NodeDisk, now: float) -> Sequence[Effect]:
        self._process = process
        self._restore(disk)
        self.peer = self._make_peer()
        if self.saved is not None:
            self.peer.restore(self.saved)
        self.peer.peers = LivePeers(self.live)
        return self._logged(self.peer.start(now))

    def on(self, event: NodeEvent, now: float) -> Sequence[Effect]:
        assert not isinstance(event, Restarted | NodeLost)
        self._task = self.peer.task.id if self.peer.task is not None else None
        before = self.peer.gossip
        self._log_adopted(event)
        effects = self.peer.on(event, now)  # type: ignore[arg-type]
        if self.peer.gossip is not None and self.peer.gossip is not before:
            self._first = self.peer.gossip.me.model
        for task in [effect.task for effect in effects if isinstance(effect, Work) and effect.task.kind != "gossip"]:
            if task.blob is not None:  # blobs are available to all nodes at once here
                effects += self.peer.on(ModelHeld(task.version, self._whole(task, task.blob)), now)
        return self._logged(effects)

    def _whole(self, task: Task, blob: BlobRef) -> BlobRef:
        blobs = self._ports.blobs
        base = blobs.get(task.reference) if task.reference is not None else {}
        _, held = unpack_task(task, blobs.get(blob), base, self._setup.plan.filters)
        return blobs.put(held) if held else blob

    def _log_adopted(self, event: NodeEvent) -> None:
        gossip = self.peer.gossip
        task = gossip.task if gossip is not None else None
        held = self._ports.held()
        if not isinstance(event, TaskDone) or task is None or event.task != task.id or task.kind != "train":
            return
        if held is not None and self._first is not None:
            self.log.adopted.append((tree_slot(self._ports.blobs.get(held), "model"), self._first))

    def _logged(self, effects: Sequence[Effect | LocalRoundDone]) -> Sequence[Effect]:
        self.log.learned += [effect for effect in effects if isinstance(effect, LocalRoundDone)]
        return [effect for effect in effects if not isinstance(effect, LocalRoundDone)]

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Save(MachineState(state)):
                self._save(state)
            case Tell():
                self._ports.send(effect.to, effect.message)
            case JobEvent():
                self.log.events.append(effect)

    def _save(self, state: dict[str, Any]) -> None:
        if self.saved is not None and self.saved["gossip"] and not state["gossip"]:
            self.log.given_up.append(self._task)
        self.saved, self._saved_refs = state, self.peer.blob_refs()
        self.log.terms.append(state["term"])
        if self.log.mode_changes[-1] != bool(state["gossip"]):
            self.log.mode_changes.append(bool(state["gossip"]))

    def blob_refs(self) -> Sequence[BlobRef | None]:
        return [*self.peer.blob_refs(), *self._saved_refs]


class FailoverWorld(CoordinatedWorld):
    """A coordinator that may be away, and nodes that go on without it."""

    def __init__(
        self,
        setup: SimulationSetup,
        failover: FailoverSetup,
        perform: Perform,
        pace: Pace,
        *,
        conditions: PeerNetworkConditions,
        **named: Any,
    ) -> None:
        self._failover = failover
        self.models_sent = 0
        self._asked_for = ""
        self.mesh = Network(named["clock"], conditions, Random(f"mesh/{setup.seed}"))
        super().__init__(setup, perform, pace, **named)

    def _make_machine(self, name: str) -> NodeMachine:
        ports = FailoverPorts(self.blobs, partial(self._send_to_peer, name), lambda: self.nodes[name].work.held)
        return FailoverWorkerMachine(name, self.setup, self._failover, ports)

    def peer(self, name: str) -> FailoverWorkerMachine:
        """Return that node's machine."""
        machine = self.nodes[name].machine
        assert isinstance(machine, FailoverWorkerMachine)
        return machine

    def _send_to_peer(self, source: str, target: str, message: PeerMessage) -> None:
        node = self.nodes[target]
        self.models_sent += isinstance(message, ExchangeOffer | ExchangeAccept)
        if node.up:
            self.mesh.send(source, target, message, partial(node.receive, node.process.number))

    def update_live_peers(self) -> None:
        """Tell all nodes which nodes are live, now and at every interval."""
        up = frozenset(name for name, node in self.nodes.items() if node.up)
        for name, node in self.nodes.items():
            self.peer(name).live = up - {name}
            if node.up:
                node.feed(LivePeers(up, roster=frozenset(self.setup.nodes)))
        self.clock.after(LIVE_PEERS_INTERVAL_S, self.update_live_peers)

    def _blob_refs(self) -> list[BlobRef | None]:
        return [*super()._blob_refs(), *self.mesh.blob_refs()]

    def _arrive(self, name: str, process: int, message: Message) -> None:
        self._asked_for = getattr(message, "node", name)
        super()._arrive(name, process, message)

    def _down(self, to: str, message: Message | ReportRejected) -> None:
        """Send the immediate response to a relayed request through the relay."""
        relay, _ = self._asker
        if relay and relay != to == self._asked_for and not isinstance(message, ReportRejected):
            self.network.send(COORDINATOR, relay, message, partial(self._relay, relay, to))
        else:
            super()._down(to, message)

    def _relay(self, relay: str, to: str, message: Message) -> None:
        """Let the relay send a response to the node that asked."""
        self._send_to_peer(relay, to, RelayResponse(relay, message))
