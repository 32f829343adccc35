"""A small job whose nodes can do without their hub, and its whole history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.failover.failover import Failover
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import Event, JobEvent, ModelVersion, Save
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.hosts.peer_node import FailoverSetup, FailoverWorld
from shoal.sim.hosts.toy_models import ToyLearner
from shoal.sim.hosts.work import LearnerTask
from shoal.sim.hosts.world import OperatorAction, SimulationSetup
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import Faults, NetworkCut, NetworkSplit, PeerNetworkConditions
from shoal.sim.network.observer import Observer


class History(Observer):
    """Versions, and when what was said."""

    def __init__(self) -> None:
        self.versions: list[ModelVersion] = []
        self.said: list[tuple[float, str]] = []

    def fed(self, index: int, event: Event, now: float, effects: Any, hub: Hub) -> None:
        """Remember."""
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                self.versions = [*self.versions[: effect.what.number], effect.what]
            if isinstance(effect, JobEvent):
                self.said.append((now, effect.text))


@dataclass
class PeerStage:
    """Nodes n1, n2, …; a local round takes `pace_s`."""

    count: int = 5
    versions: int = 40
    failover: Failover = field(default_factory=lambda: Failover(min_gossip_s=30.0))
    cuts: Iterable[NetworkCut] = ()
    splits: Iterable[NetworkSplit] = ()
    seed: int = 1
    pace_s: float = 2.0
    algorithm: Algorithm = field(default_factory=Algorithm)

    def __post_init__(self) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, self.count + 1))
        faults = Faults(cuts=tuple(self.cuts))
        setup = SimulationSetup(
            JobPlan(self.versions, seed=3),
            self.algorithm,
            Rounds(deadline_s=5 * self.pace_s),
            self.nodes,
            faults,
            seed=self.seed,
        )
        self.blobs, self.clock, self.history = MemoryBlobs(), VirtualClock(), History()
        learners = {node: ToyLearner(number) for number, node in enumerate(self.nodes, 1)}
        self.weights = {node: float(number) for number, node in enumerate(self.nodes, 1)}
        self.world = FailoverWorld(
            setup,
            FailoverSetup(self.failover, weights=self.weights),
            lambda node, task, memory: LearnerTask(setup.algorithm, learners[node], self.blobs, task, memory),
            lambda _node, _task: self.pace_s,
            conditions=PeerNetworkConditions(cuts=tuple(self.splits)),
            clock=self.clock,
            blobs=self.blobs,
            watch=self.history,
        )
        self.world.start()
        self.world.update_live_peers()

    @property
    def hub(self) -> Hub:
        return self.world.coordinator.hub

    def switch(self, to: Literal["server", "gossip"], at: float) -> None:
        """Let an operator request that mode at that time."""
        self.world.operator.plan(OperatorAction(at, to))

    def until(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run(seconds, 1_000_000)

    def states(self) -> set[str]:
        """The states of all nodes."""
        return {self.world.peer(node).peer.state for node in self.nodes}

    def gossip_at(self, limit_s: float) -> float:
        """When the last node began to gossip: looked at every half second."""
        while self.clock.now < limit_s:
            self.until(self.clock.now + 0.5)
            if self.states() == {"gossip"}:
                return self.clock.now
        raise AssertionError(f"not all gossip: {self.states()}")

    def events(self, text: str) -> list[str]:
        """Return the nodes' lines that contain this."""
        return [event.text for node in self.nodes for event in self.world.peer(node).log.events if text in event.text]

    def finish(self) -> None:
        """To the end of the job."""
        assert self.world.run(self.clock.now + 3600.0, 2_000_000), (
            self.hub.progress.phase,
            self.hub.progress.mode,
            self.states(),
        )
