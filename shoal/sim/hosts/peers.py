"""Simulated peers without a coordinator: processes that die, and disks that survive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filters
from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidPayload, LearnerFailed
from shoal.core.gossip.byte_budget import ByteBudget
from shoal.core.gossip.gossip import GossipPeer, LocalRoundDone, PeerEffect, PeerEvent, StopGossip
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.gossip.mixer import Mixer
from shoal.core.gossip.termination import TerminationRule
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import JobEvent, MachineState, Save, TaskDone, TaskResult, Tell, Timer, Wake, Work
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import PeerMessage
from shoal.sim.hosts.sim_process import SimulatedProcess
from shoal.sim.hosts.work import LearnerTask
from shoal.sim.network.blobs import MemoryBlobs

DOWN_S = 5.0
"""Longest time in seconds between a process's death and the next one."""

SETTLE_S = 30.0
"""Seconds for which a leaving peer waits for open exchanges."""

HEAD_BYTES = 400


def message_bytes(message: PeerMessage) -> int:
    """Return about the bytes of a message."""
    blob = getattr(message, "blob", None)
    return HEAD_BYTES + (blob.nbytes if blob is not None else 0)


class PeerSurroundings(Protocol):
    """The world, as one peer sees it."""

    def send(self, source: str, target: str, message: PeerMessage) -> None:
        """Send a message to another peer."""
        ...

    def live_peers(self, viewer: str) -> LivePeers:
        """Return the live peers, and those that may come back."""
        ...

    def record_state(self, node: str, state: dict[str, Any], learned: bool) -> None:
        """Record the new state of a peer's disk; `learned`: after a local round of its own."""
        ...


@dataclass(frozen=True)
class GossipSetup:
    """The configuration that all peers of a job share."""

    plan: JobPlan
    algorithm: Algorithm
    mixing: Callable[[], Mixer]
    slots: Slots
    drain: TerminationRule
    seed: int = 0
    bytes_per_hour: float = 0.0
    """Byte budget of each peer; 0: no limit."""
    filters: Filters = ()
    """Filters of published models."""


@dataclass(frozen=True)
class PeerSetup:
    """The configuration of one peer. `work_s` returns how long a task takes."""

    name: str
    weight: float
    learner: Learner
    work_s: Callable[[], float]


@dataclass
class PeerDisk:
    """Durable state."""

    state: dict[str, Any] | None = None
    names: list[BlobRef] = field(default_factory=list)


class SimulatedPeer:
    """One peer's shell: it carries out effects, and dies between any two of them when its process's plan says so."""

    def __init__(
        self,
        own: PeerSetup,
        shared: GossipSetup,
        process: SimulatedProcess,
        blobs: MemoryBlobs,
        surroundings: PeerSurroundings,
    ) -> None:
        self.own, self.shared, self.process = own, shared, process
        self._blobs, self._surroundings = blobs, surroundings
        self.disk = PeerDisk()
        self.gossip: GossipPeer | None = None
        self.crossed = 0
        """Bytes that it has sent and received, over all its processes."""
        self.learned: list[LocalRoundDone] = []
        self.events: list[JobEvent] = []
        self.left = False
        """It has left the job."""
        self.leaving_since = 0.0
        self.unsettled = False
        """It has left while something was open."""

    def start(self) -> None:
        """Start a new process over the disk."""
        if self.process.up or self.left:
            return
        self.process.start()
        own, shared, number = self.own, self.shared, self.process.number
        rng = Random(f"{shared.seed}/{own.name}/{number}")
        budget = ByteBudget(shared.bytes_per_hour, lambda: self.crossed)
        me = GossipState(own.name, number, own.weight, shared.slots, self._blobs, rng, budget=budget)
        me.filters = shared.filters
        mixer = shared.mixing()
        if self.disk.state is None:
            self.gossip = GossipPeer(shared.plan, shared.algorithm, me, mixer, termination=shared.drain)
        else:
            self.gossip = GossipPeer.restore(
                shared.plan, shared.algorithm, me, mixer, self.disk.state, termination=shared.drain
            )
        there = self._surroundings.live_peers(own.name)
        me.peers = there.others(own.name, None)
        self._carry_out(self.gossip.start(self.process.clock.now), False)

    def feed(self, event: PeerEvent) -> None:
        """Feed an event to the machine, if a process runs."""
        if self.process.up and self.gossip is not None:
            self._carry_out(self.gossip.on(event, self.process.clock.now), isinstance(event, TaskDone))
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        """Leave, when all is done and settled; a lost partner is waited for at most `SETTLE_S`."""
        gossip, now = self.gossip, self.process.clock.now
        if not self.process.up or gossip is None or not (gossip.may_leave or gossip.halted):
            return
        if not gossip.halted:
            self.leaving_since = now
            self.process.clock.after(SETTLE_S, self.update_live_peers)
            self.feed(StopGossip("leaving"))
        elif gossip.idle or now >= self.leaving_since + SETTLE_S:
            self.unsettled = not gossip.idle
            self.process.end()
            self.left = True

    def receive(self, message: PeerMessage) -> None:
        """Deliver a message."""
        self.crossed += message_bytes(message) if self.process.up else 0
        self.feed(message)  # type: ignore[arg-type]

    def update_live_peers(self) -> None:
        """Tell the machine which peers are live."""
        self.feed(self._surroundings.live_peers(self.own.name))

    def _dies(self) -> bool:
        process = self.process
        if process.up and process.crashes.strikes():
            process.end()
            process.clock.after(process.crashes.seconds(DOWN_S), self.start)
        return not process.up

    def _carry_out(self, effects: Sequence[PeerEffect], done: bool) -> None:
        for effect in effects:
            if self._dies():
                return
            match effect:
                case Save(MachineState(state)):
                    assert self.gossip is not None
                    self.disk.state, self.disk.names = state, self.gossip.blob_refs()
                    self._surroundings.record_state(self.own.name, state, done)
                case Tell():
                    self.crossed += message_bytes(effect.message)
                    self._surroundings.send(self.own.name, effect.to, effect.message)
                case Work():
                    self.process.after(self.own.work_s(), self._finish, effect)
                case Wake():
                    self.process.wake(effect.at, self.feed, Timer())
                case LocalRoundDone():
                    self.learned.append(effect)
                case JobEvent():
                    self.events.append(effect)

    def _finish(self, work: Work) -> None:
        task = work.task
        learner_task = LearnerTask(self.shared.algorithm, self.own.learner, self._blobs, task, work.memory)
        try:
            made = learner_task.run_piece(task)
        except (LearnerFailed, InvalidPayload) as error:
            self.feed(TaskDone(task.id, None, error.message))
            return
        assert isinstance(made, TaskResult)
        self.feed(TaskDone(task.id, made))

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs that disk and process need."""
        return self.disk.names + (self.gossip.blob_refs() if self.gossip is not None else [])
