"""A small job whose nodes can do without their hub, and its whole history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal.core.algorithm import Algorithm
from shoal.core.failover import Failover
from shoal.core.hub import Hub, Plan
from shoal.core.machine import Event, Note, Save, Version
from shoal.schedules.rounds import Rounds
from shoal.sim.bodies import MemoryBodies
from shoal.sim.clock import Clock
from shoal.sim.faults import Cut, Faults
from shoal.sim.mesh import Split, Weather
from shoal.sim.peer_node import Commons, PeerWorld
from shoal.sim.toys import ToyLearner
from shoal.sim.watch import Watch
from shoal.sim.work import Begun
from shoal.sim.world import Setup


class History(Watch):
    """Versions, and when what was said."""

    def __init__(self) -> None:
        self.versions: list[Version] = []
        self.said: list[tuple[float, str]] = []

    def fed(self, index: int, event: Event, now: float, effects: Any, hub: Hub) -> None:
        """Remember."""
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, Version):
                self.versions = [*self.versions[: effect.what.number], effect.what]
            if isinstance(effect, Note):
                self.said.append((now, effect.text))


@dataclass
class PeerStage:
    """Nodes n1, n2, …; a local round takes `pace_s`."""

    count: int = 5
    versions: int = 40
    failover: Failover = field(default_factory=lambda: Failover(dwell_s=30.0))
    cuts: Iterable[Cut] = ()
    splits: Iterable[Split] = ()
    seed: int = 1
    pace_s: float = 2.0

    def __post_init__(self) -> None:
        self.nodes = tuple(f"n{number}" for number in range(1, self.count + 1))
        faults = Faults(cuts=tuple(self.cuts))
        setup = Setup(
            Plan(self.versions, seed=3),
            Algorithm(),
            Rounds(deadline_s=5 * self.pace_s),
            self.nodes,
            faults,
            seed=self.seed,
        )
        self.bodies, self.clock, self.history = MemoryBodies(), Clock(), History()
        learners = {node: ToyLearner(number) for number, node in enumerate(self.nodes, 1)}
        self.weights = {node: float(number) for number, node in enumerate(self.nodes, 1)}
        self.world = PeerWorld(
            setup,
            Commons(self.failover, weights=self.weights),
            lambda node, order, memory: Begun(setup.algorithm, learners[node], self.bodies, order, memory),
            lambda _node, _order: self.pace_s,
            weather=Weather(splits=tuple(self.splits)),
            clock=self.clock,
            bodies=self.bodies,
            watch=self.history,
        )
        self.world.start()
        self.world.look()

    @property
    def hub(self) -> Hub:
        return self.world.coordinator.hub

    def until(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run(seconds, 1_000_000)

    def states(self) -> set[str]:
        """The states of all nodes."""
        return {self.world.peer(node).peer.state for node in self.nodes}

    def away_at(self, limit_s: float) -> float:
        """When the last node went away: looked at every half second."""
        while self.clock.now < limit_s:
            self.until(self.clock.now + 0.5)
            if self.states() == {"away"}:
                return self.clock.now
        raise AssertionError(f"not all went away: {self.states()}")

    def notes(self, text: str) -> list[str]:
        """What nodes said that contains this."""
        return [note.text for node in self.nodes for note in self.world.peer(node).notes if text in note.text]

    def finish(self) -> None:
        """To the end of the job."""
        assert self.world.run(self.clock.now + 3600.0, 2_000_000), (self.hub.phase, self.hub.mode, self.states())
