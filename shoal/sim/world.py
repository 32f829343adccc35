"""A coordinator, its nodes, and everything between them, on one virtual clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Literal

from shoal.core.algorithm import Algorithm
from shoal.core.hub import Hub, Plan
from shoal.core.machine import Event, Rejected
from shoal.core.message import About, Change, Drain, Join, Message, Order, Pause, Poll, Ref, Resume, Stop
from shoal.core.schedule import Schedule
from shoal.sim.bodies import MemoryBodies
from shoal.sim.clock import Clock
from shoal.sim.coordinator import Coordinator, Timing
from shoal.sim.faults import Fate, Faults, Network
from shoal.sim.node import Node, Perform
from shoal.sim.watch import Watch

RETRY_S = 1.0
"""An operator whose request nobody heard tries again after so long."""

CARE_S = 4.0
"""How often somebody looks for nodes that need a new process."""

SWEEP_STEPS = 64
"""Bodies are swept after each snapshot, and after so many steps, as it might happen at any time."""

Pace = Callable[[str, Order], float]
"""`(node, order) -> seconds` that the work takes."""


@dataclass(frozen=True)
class Act:
    """Something that people do, at a time in seconds."""

    at: float
    what: Literal[
        "start", "leave", "vanish", "pause", "resume", "drain", "block", "allow", "change", "stop now", "stop round"
    ]
    node: str = ""
    """Who starts, leaves, or vanishes without a word, or whom an operator drains, blocks or allows again."""
    values: tuple[tuple[str, float], ...] = ()
    """Settings that an operator changes, by their keys."""


@dataclass(frozen=True)
class Setup:
    """A job, who takes part, and what goes wrong."""

    plan: Plan
    algorithm: Algorithm
    schedule: Schedule
    nodes: tuple[str, ...]
    faults: Faults = field(default_factory=Faults)
    timing: Timing = field(default_factory=Timing)
    beat_s: float = 5.0
    seed: int = 0
    """Source of delays and faults; the job has a seed of its own."""
    about: Mapping[str, About] = field(default_factory=dict)
    """What nodes say of themselves."""


class World:
    """`perform` does the nodes' work; `pace` says how long that takes."""

    def __init__(
        self,
        setup: Setup,
        perform: Perform,
        pace: Pace,
        *,
        clock: Clock,
        bodies: MemoryBodies,
        watch: Watch,
        sweep_steps: int = SWEEP_STEPS,
    ) -> None:
        self.setup, self.clock, self.bodies = setup, clock, bodies
        self._sweep_steps = sweep_steps
        rng, faults = Random(setup.seed), setup.faults
        self.network = Network(self.clock, faults, rng, watch)
        self.coordinator = Coordinator(
            self.clock,
            self._make_hub,
            bodies,
            self._down,
            watch=watch,
            fate=Fate(self.clock, rng, faults.hub_crashes, faults),
            timing=setup.timing,
        )
        self.nodes: dict[str, Node] = {name: self._make_node(name, rng, perform, pace, watch) for name in setup.nodes}
        self.away: set[str] = set()
        self.held: dict[str, str] = {}
        self._cared: dict[str, int] = {}
        self._asker = "", 0

    def _make_node(
        self, name: str, rng: Random, perform: Perform, pace: Pace, watch: Watch, make: Callable[..., Node] = Node
    ) -> Node:
        """A node; `make` may be a kind of its own, with what it needs beyond this."""
        return make(
            name,
            self.clock,
            partial(self._up, name),
            perform,
            partial(pace, name),
            watch=watch,
            fate=Fate(self.clock, rng, self.setup.faults.node_crashes, self.setup.faults),
            beat_s=self.setup.beat_s,
        )

    def _make_hub(self, state: dict[str, Any] | None) -> Hub:
        setup = self.setup
        if state is None:
            return Hub(setup.plan, setup.algorithm, setup.schedule, self.bodies)
        return Hub.restore(setup.plan, setup.algorithm, setup.schedule, self.bodies, state)

    def _up(self, name: str, message: Message) -> None:
        self.network.send(name, "up", message, partial(self._heard, name, self.nodes[name].process))

    def _heard(self, name: str, process: int, message: Message) -> None:
        """A request arrives at the coordinator. What it answers at once goes to the process that asked."""
        self._asker = name, process
        if isinstance(message, Join | Poll):
            message = replace(message, about=replace(self.setup.about.get(name, About()), held=self.held.get(name, "")))
        self.coordinator.receive(message)
        self._asker = "", 0

    def _down(self, to: str, message: Message | Rejected) -> None:
        """To the process that asked, or else to the one that runs on that node now; where none runs, to nobody."""
        node = self.nodes.get(to)
        if node is not None and node.up:
            process = self._asker[1] if self._asker[0] == to else node.process
            self.network.send(to, "down", message, partial(node.receive, process))

    # People

    def act(self, act: Act) -> None:
        """Let somebody do something at its time."""
        self.clock.at(act.at, self._do, act)

    def _do(self, act: Act) -> None:
        if act.what == "start":
            self.away.discard(act.node)
            self.nodes[act.node].start()
        elif act.what == "leave":
            self.away.add(act.node)
            self.nodes[act.node].leave()
        elif act.what == "vanish":
            self.away.add(act.node)
            self.nodes[act.node].vanish()
        elif act.what in ("drain", "block", "allow"):
            self.held[act.node] = "" if act.what == "allow" else f"{act.what}ed"
            self._hold(act.node)
        elif act.what == "change":
            self._ask(Change(dict(act.values)))
        elif act.what == "pause":
            self._ask(Pause())
        elif act.what == "resume":
            self._ask(Resume())
        else:
            self._ask(Stop(when="now" if act.what == "stop now" else "round"))

    def _ask(self, request: Event) -> None:
        if not self.coordinator.submit(request):
            self.clock.after(RETRY_S, self._ask, request)

    def _hold(self, node: str) -> None:
        """Say how an operator wants it by now, until the coordinator has heard."""
        why = self.held[node]
        if not self.coordinator.submit(Drain(node, why, withdraw=why == "blocked")):
            self.clock.after(RETRY_S, self._hold, node)

    def care(self) -> None:
        """From now on start anew what the hub has given up on; after the faults, also resume, and start what is down.

        A process that has not begun anything yet is left alone: the hub has only not heard that it is a new one.
        """
        healed = self.clock.now >= self.setup.faults.until_s
        if healed and self.coordinator.hub.paused_at is not None:
            self._ask(Resume())
        for name, node in self.nodes.items():
            member = self.coordinator.hub.roster.get(name)
            if member is not None and member.suspended and node.up and node.begun > self._cared.get(name, 0):
                self._cared[name] = node.begun
                node.restart()
            elif healed and name not in self.away:
                node.start()
        if not self.over():
            self.clock.after(CARE_S, self.care)

    # Running

    def start(self, late: frozenset[str] = frozenset()) -> None:
        """Start the coordinator and all nodes but these."""
        self.coordinator.start()
        for name, node in self.nodes.items():
            if name not in late:
                self.clock.after(0.0, node.start)

    def over(self) -> bool:
        """Whether the job has ended and every node knows."""
        return self.coordinator.ended and not any(node.up for node in self.nodes.values())

    def run(self, limit_s: float, steps_max: int = sys.maxsize) -> bool:
        """Let things happen until it is over; False when it is not by then, or not after so many steps."""
        clock, coordinator = self.clock, self.coordinator
        snapshot = coordinator.snapshot
        while clock.now < limit_s and clock.steps < steps_max and clock.step():
            if coordinator.snapshot is not snapshot or not clock.steps % self._sweep_steps:
                snapshot = coordinator.snapshot
                self._sweep()
            if coordinator.ended and self.over():
                return True
        return False

    def _sweep(self) -> None:
        """Drop the bodies that nothing names any more."""
        self.bodies.keep_only(self._names())

    def _names(self) -> list[Ref | None]:
        """The bodies that somebody names, or that are on their way."""
        refs = self.coordinator.names()
        for node in self.nodes.values():
            refs += node.names()
        for message in self.network.flying.values():
            refs += [getattr(message, "body", None), getattr(message, "base", None)]
        return refs
