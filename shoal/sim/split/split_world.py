"""The coordinator and the nodes of a split job on one virtual clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from shoal.core.errors import InvalidPayload, Refused
from shoal.core.protocol.machine import HUB, JobEvent, MachineState, Save, Timer, Wake
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.split_message import SplitMessage
from shoal.core.split.part_state import (
    Compute,
    Computed,
    Masked,
    MaskIds,
    SplitEffect,
    SplitSend,
    SplitVersion,
)
from shoal.core.split.split_coordinator import SplitCoordinator
from shoal.core.split.split_node import SplitNode
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.sim.hosts.sim_process import SimulatedProcess
from shoal.sim.hosts.world import World
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import COORDINATOR, CrashPlan, Faults
from shoal.sim.network.network import Network
from shoal.sim.network.traffic_count import TrafficCount

LEG_S = 0.01
"""Virtual seconds that one leg takes."""
RESTART_S = 2.0
"""Longest time until a dead process starts again."""
SWEEP_STEPS = 64

ComputeLeg = Callable[[Any], Computed | Masked]
"""A function that does a `Compute`, and a `MaskIds` at a party."""
Machine = SplitNode | SplitCoordinator | VerticalCoordinator
MachineMaker = tuple[Callable[[], Machine], Callable[[], ComputeLeg]]
"""A function that makes a machine, and one that makes the function which computes its legs."""


class SplitHost:
    """The processes of one machine, one after the other. `make` makes the machine; `prepare` makes the function that
    computes its legs, with the memory of one process."""

    def __init__(
        self,
        world: SplitWorld,
        name: str,
        make: Callable[[], Machine],
        prepare: Callable[[], ComputeLeg],
        crashes: CrashPlan,
    ) -> None:
        self.name, self.crashes = name, crashes
        self._world, self._make, self._prepare = world, make, prepare
        self._process = SimulatedProcess(world.clock, crashes)
        self._durable: MachineState | None = None
        self.machine = make()
        self._compute: ComputeLeg | None = None

    def start(self) -> None:
        """Start the next process from the durable state."""
        self.machine, self._compute = self._restored(), self._prepare()
        self._process.start()
        self._carry_out(self.machine.start(self._world.clock.now))

    def _restored(self) -> Machine:
        machine = self._make()
        if self._durable is not None:
            machine.restore(self._durable.state)
        return machine

    @property
    def is_up(self) -> bool:
        """True while a process runs."""
        return self._process.up

    def refs(self) -> Iterable[BlobRef]:
        """Return the blobs that the machine refers to, or its durable state if it is dead."""
        return self.machine.refs() if self.is_up else self._restored().refs()

    def feed(self, event: SplitMessage | Computed | Masked | Timer) -> None:
        """Feed an event; it is lost if the process is dead."""
        if not self._process.up:
            return
        try:
            effects = self.machine.on(event, self._world.clock.now)  # type: ignore[arg-type]
        except (InvalidPayload, Refused) as refusal:
            self._world.refused.append(refusal.message)
            return
        self._carry_out(effects)

    def _carry_out(self, effects: Sequence[SplitEffect]) -> None:
        for effect in effects:
            if self.crashes.strikes():
                self._die()
                return
            match effect:
                case Save(what=MachineState() as state):
                    self._durable = state
                case SplitSend(to=to, message=message):
                    self._world.send(self.name, COORDINATOR if to == HUB else to, message)
                case Compute() | MaskIds():
                    self._process.after(LEG_S, self._do, effect)
                case Wake(at=at):
                    self._process.wake(at, self.feed, Timer())
                case SplitVersion():
                    self._world.close_version(effect)
                case JobEvent():
                    self._world.events.append(effect)

    def _do(self, work: Compute | MaskIds) -> None:
        assert self._compute is not None
        self.feed(self._compute(work))

    def _die(self) -> None:
        self._process.end()
        self._world.crashes += 1
        if self.name != COORDINATOR and not self.crashes.disk_survives():
            self._durable = None
        self._process.clock.after(self.crashes.seconds(RESTART_S), self.start)


class SplitWorld(World):
    """A split job: `coordinator` and `nodes` make the machines and their functions."""

    def __init__(
        self,
        coordinator: MachineMaker,
        nodes: Mapping[str, MachineMaker],
        blobs: MemoryBlobs,
        *,
        faults: Faults | None = None,
        seed: int = 0,
        closed: Callable[[SplitVersion], None] | None = None,
    ) -> None:
        super().__init__(VirtualClock(), blobs, SWEEP_STEPS)
        rng, conditions = Random(seed), faults or Faults()
        self.traffic, self.events, self.refused = TrafficCount(), list[JobEvent](), list[str]()
        self.newest: SplitVersion | None = None
        self.crashes = 0
        self._closed = closed
        self._network = Network(self.clock, conditions, rng)
        self._hosts: dict[str, SplitHost] = {}
        for name, made in {COORDINATOR: coordinator, **nodes}.items():
            deaths = conditions.node_crashes if name else conditions.coordinator_crashes
            plan = CrashPlan(self.clock, Random(rng.getrandbits(64)), deaths, conditions)
            self._hosts[name] = SplitHost(self, name, *made, plan)

    def start(self) -> None:
        """Start all processes."""
        for host in self._hosts.values():
            host.start()

    @property
    def coordinator(self) -> SplitCoordinator:
        """The newest machine of the coordinator."""
        machine = self._hosts[COORDINATOR].machine
        assert isinstance(machine, SplitCoordinator)
        return machine

    @property
    def ended(self) -> str:
        """The reason why the job has ended; empty before."""
        machine = self._hosts[COORDINATOR].machine
        assert not isinstance(machine, SplitNode)
        return machine.state.ended

    def send(self, sender: str, receiver: str, message: SplitMessage) -> None:
        """Send a message, and count the bytes of its blob."""
        blob = getattr(message, "blob", None)
        nbytes = blob.nbytes if isinstance(blob, BlobRef) else 0
        if sender == COORDINATOR:
            self.traffic.add(receiver, "down", nbytes)
        else:
            self.traffic.add(sender, "up", nbytes)
        self._network.send(sender, receiver, message, self._hosts[receiver].feed, nbytes=nbytes)

    def close_version(self, version: SplitVersion) -> None:
        """Note a closed round; a restarted coordinator may close it again, with the same result."""
        if self.newest is None or version.number > self.newest.number:
            self.newest = version
            if self._closed is not None:
                self._closed(version)

    def over(self) -> bool:
        """Return whether the job has ended."""
        return self._hosts[COORDINATOR].is_up and bool(self.ended)

    def run_to_end(self, limit_s: float, steps_max: int = sys.maxsize) -> bool:
        """Start all processes and run until the job ends; return False at the limits."""
        self.start()
        return self.run(limit_s, steps_max)

    def _blob_refs(self) -> Iterator[BlobRef | None]:
        for host in self._hosts.values():
            yield from host.refs()
        yield from self._network.blob_refs()
        if self.newest is not None:
            yield from self.newest.parts
