"""A coordinator, its nodes and the network between them, on one virtual clock."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Literal

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import Event, ReportRejected
from shoal.core.protocol.message import (
    BlobRef,
    ChangeSettings,
    DrainNode,
    Join,
    Message,
    NodeInfo,
    Pause,
    Poll,
    Resume,
    Stop,
    SwitchMode,
    Task,
)
from shoal.core.scheduling.schedule import Schedule
from shoal.core.server.hub import Hub
from shoal.sim.hosts.coordinator import CoordinatorTiming, SimulatedCoordinator
from shoal.sim.hosts.node import NodeMachine, Perform, SimulatedNode, WorkerMachine
from shoal.sim.hosts.sim_process import SimulatedProcess
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import COORDINATOR, CrashPlan, Faults
from shoal.sim.network.network import Network
from shoal.sim.network.observer import Observer

RETRY_S = 1.0
"""Seconds after which an operator repeats a request that was lost."""

SUPERVISION_INTERVAL_S = 4.0
"""Interval in seconds of the supervisor that restarts nodes."""

SWEEP_STEPS = 64
"""Steps between two sweeps of blobs; each snapshot is followed by one too."""

SWEEP_SHARE = 8
"""A sweep looks at every node, so at least the number of nodes divided by this lies between two, in steps."""

Pace = Callable[[str, Task], float]
"""`(node, task)` returns the seconds that the work takes."""


Action = Literal[
    "start", "leave", "vanish", "pause", "resume", "drain", "block", "allow", "change",
    "stop now", "stop round", "server", "gossip",
]  # fmt: skip


@dataclass(frozen=True)
class OperatorAction:
    """An action of an operator or a user, at a time in seconds."""

    at: float
    what: Action
    node: str = ""
    """The node that starts, leaves or vanishes, or that is drained, blocked or allowed."""
    values: tuple[tuple[str, float], ...] = ()
    """Changed settings, by key."""


@dataclass(frozen=True)
class SimulationSetup:
    """A job, its nodes and its faults."""

    plan: JobPlan
    algorithm: Algorithm
    schedule: Schedule
    nodes: tuple[str, ...]
    faults: Faults = field(default_factory=Faults)
    timing: CoordinatorTiming = field(default_factory=CoordinatorTiming)
    heartbeat_s: float = 5.0
    seed: int = 0
    """Seed of delays and faults; the job has its own."""
    node_info: Mapping[str, NodeInfo] = field(default_factory=dict)
    """The nodes' reports about themselves."""


class World(ABC):
    """Machines on one virtual clock, and the blobs that they and the messages between them refer to."""

    def __init__(self, clock: VirtualClock, blobs: MemoryBlobs, sweep_steps: int) -> None:
        self.clock, self.blobs = clock, blobs
        self._sweep_steps = sweep_steps

    @abstractmethod
    def over(self) -> bool:
        """Return whether the run has come to its end."""

    @abstractmethod
    def _blob_refs(self) -> Iterable[BlobRef | None]:
        """Return the blobs that are referred to, or in transit."""

    def _after_step(self) -> None:
        """Drop unused blobs, from time to time."""
        if not self.clock.steps % self._sweep_steps:
            self.blobs.keep_only(self._blob_refs())

    def run(self, limit_s: float, steps_max: int = sys.maxsize) -> bool:
        """Run until the end; return False at the limits."""
        clock = self.clock
        while clock.now < limit_s and clock.steps < steps_max and clock.step():
            self._after_step()
            if self.over():
                return True
        return False


class CoordinatedWorld(World):
    """The simulated world of one job. `perform` does the nodes' work; `pace` returns how long that takes."""

    def __init__(
        self,
        setup: SimulationSetup,
        perform: Perform,
        pace: Pace,
        *,
        clock: VirtualClock,
        blobs: MemoryBlobs,
        watch: Observer,
        sweep_steps: int = SWEEP_STEPS,
    ) -> None:
        super().__init__(clock, blobs, max(sweep_steps, len(setup.nodes) // SWEEP_SHARE))
        self.setup = setup
        rng, faults = Random(setup.seed), setup.faults
        self.network = Network(clock, faults, rng, watch)

        def process(crashes: int) -> SimulatedProcess:
            return SimulatedProcess(clock, CrashPlan(clock, rng, crashes, faults))

        self.coordinator = SimulatedCoordinator(
            process(faults.coordinator_crashes), self._make_hub, blobs, self._down, watch=watch, timing=setup.timing
        )
        self.nodes: dict[str, SimulatedNode] = {
            name: SimulatedNode(
                name,
                process(faults.node_crashes),
                self._make_machine(name),
                partial(self._up, name),
                perform,
                partial(pace, name),
                watch=watch,
            )
            for name in setup.nodes
        }
        self.operator = Operator(self.coordinator, self.nodes, faults.until_s, self.over)
        self._swept = self.coordinator.snapshot
        self._asker = "", 0
        self._last_up: SimulatedNode | None = None

    def _make_machine(self, name: str) -> NodeMachine:
        return WorkerMachine(name, self.setup.heartbeat_s)

    def _make_hub(self, state: dict[str, Any] | None) -> Hub:
        setup = self.setup
        return Hub(setup.plan, setup.algorithm, setup.schedule, self.blobs, state)

    def _up(self, name: str, message: Message) -> None:
        arrive = partial(self._arrive, name, self.nodes[name].process.number)
        self.network.send(name, COORDINATOR, message, arrive)

    def _arrive(self, name: str, process: int, message: Message) -> None:
        """Deliver a request to the coordinator. Its immediate response goes to the process that asked."""
        self._asker = name, process
        if isinstance(message, Join | Poll):
            info = self.setup.node_info.get(name, NodeInfo())
            message = replace(message, node_info=replace(info, drain_reason=self.operator.held.get(name, "")))
        self.coordinator.receive(message)
        self._asker = "", 0

    def _down(self, to: str, message: Message | ReportRejected) -> None:
        """Send to the process that asked, or else to the node's present process, if any."""
        asker, process = self._asker
        node = self.nodes.get(to)
        if node is not None and node.up:
            deliver = partial(node.receive, process if asker == to else node.process.number)
            self.network.send(COORDINATOR, to, message, deliver)

    # Running

    @property
    def hub(self) -> Hub:
        """The hub of the present process."""
        return self.coordinator.hub

    def start(self, late: frozenset[str] = frozenset()) -> None:
        """Start the coordinator and all nodes but these."""
        self.coordinator.start()
        for name, node in self.nodes.items():
            if name not in late:
                self.clock.after(0.0, node.start)

    def over(self) -> bool:
        """Return whether the job has ended and every node knows. Nodes end one by one, so most calls look at one or
        two."""
        if not self.coordinator.ended or (self._last_up is not None and self._last_up.up):
            return False
        self._last_up = next((node for node in reversed(self.nodes.values()) if node.up), None)
        return self._last_up is None

    def _after_step(self) -> None:
        """Drop unused blobs after each snapshot too."""
        if self.coordinator.snapshot is not self._swept:
            self._swept = self.coordinator.snapshot
            self.blobs.keep_only(self._blob_refs())
        else:
            super()._after_step()

    def _blob_refs(self) -> list[BlobRef | None]:
        refs = [*self.coordinator.names(), *self.network.blob_refs()]
        for node in self.nodes.values():
            refs += node.blob_refs()
        return refs


class Operator:
    """The operator and the supervisor of a job: they repeat lost requests, and restart nodes."""

    def __init__(
        self,
        coordinator: SimulatedCoordinator,
        nodes: Mapping[str, SimulatedNode],
        healed_s: float,
        over: Callable[[], bool],
    ) -> None:
        self._coordinator, self._nodes, self._healed_s, self._over = coordinator, nodes, healed_s, over
        self._clock = coordinator.process.clock
        self._away: set[str] = set()
        self.held: dict[str, str] = {}
        """Reasons why nodes are drained or blocked, by node."""
        self._restarted: dict[str, int] = {}

    def plan(self, action: OperatorAction) -> None:
        self._clock.at(action.at, self._perform, action)

    def _perform(self, action: OperatorAction) -> None:
        match action.what:
            case "start":
                self._away.discard(action.node)
                self._nodes[action.node].start()
            case "leave":
                self._away.add(action.node)
                self._nodes[action.node].leave()
            case "vanish":
                self._away.add(action.node)
                self._nodes[action.node].vanish()
            case "drain" | "block" | "allow":
                self.held[action.node] = "" if action.what == "allow" else f"{action.what}ed"
                self._hold(action.node)
            case "change":
                self.ask(ChangeSettings(dict(action.values)))
            case "pause":
                self.ask(Pause())
            case "resume":
                self.ask(Resume())
            case "server" | "gossip":
                self.ask(SwitchMode(action.what))
            case _:
                self.ask(Stop(when="now" if action.what == "stop now" else "round"))

    def ask(self, request: Event) -> None:
        """Send a request to the coordinator, until it has received it."""
        if not self._coordinator.submit(request):
            self._clock.after(RETRY_S, self.ask, request)

    def _hold(self, node: str) -> None:
        """Request the node's present availability, until the coordinator has received it."""
        why = self.held[node]
        if not self._coordinator.submit(DrainNode(node, why, withdraw=why == "blocked")):
            self._clock.after(RETRY_S, self._hold, node)

    def supervise(self) -> None:
        """Restart nodes set aside from now on; after the faults, also resume the job and start dead nodes.

        A process that has not started a task yet is left alone: the hub does not know it yet.
        """
        hub, healed = self._coordinator.hub, self._clock.now >= self._healed_s
        if healed and hub.progress.paused_at is not None:
            self.ask(Resume())
        for name, node in self._nodes.items():
            member = hub.roster.get(name)
            started = node.work.tasks_started
            if member is not None and member.is_set_aside and node.up and started > self._restarted.get(name, 0):
                self._restarted[name] = started
                node.restart()
            elif healed and name not in self._away:
                node.start()
        if not self._over():
            self._clock.after(SUPERVISION_INTERVAL_S, self.supervise)
