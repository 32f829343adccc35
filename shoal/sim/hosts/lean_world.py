"""A coordinator and its nodes without what only faults need: the lean way to simulate a job.

Hub, workers, algorithm and virtual times are those of `shoal.sim.hosts.world`, and so are the messages and their order.
There is no journal, snapshot, spool or crash, blobs are named without hashing what nodes send, and a blob goes when
nothing refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.core.client.worker import Worker
from shoal.core.protocol.machine import Amend, Cancel, Effect, Event, ReportRejected, Restarted, Send, Timer, Wake, Work
from shoal.core.protocol.message import Join, Message, Poll, Report
from shoal.core.server.hub import Hub
from shoal.sim.hosts.coordinator import check_report
from shoal.sim.hosts.node import NodeWork, Perform
from shoal.sim.hosts.world import Pace, SimulationSetup
from shoal.sim.network.blobs import LeanBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.observer import Observer


class LeanNode:
    """A worker and its task in progress. `uplink(message)` sends to the hub."""

    __slots__ = ("_alarms", "_clock", "_uplink", "work", "worker")

    def __init__(
        self,
        name: str,
        world: LeanWorld,
        uplink: Callable[[Message], None],
        perform: Perform,
        work_s: Pace,
        heartbeat_s: float,
    ) -> None:
        self.worker = Worker(name, heartbeat_s=heartbeat_s)
        self._clock, self._uplink, self._alarms = world.clock, uplink, 0
        self.work = NodeWork(name, world.clock, perform, partial(work_s, name), watch=world.watch, finish=self.feed)

    @property
    def up(self) -> bool:
        """Return whether the node takes part still."""
        return not self.worker.stopped

    def start(self) -> None:
        """Start the worker."""
        self._carry_out(self.worker.start(self._clock.now))

    def feed(self, event: Event) -> None:
        """Feed an event to the worker, which ignores it once it has stopped."""
        self._carry_out(self.worker.on(event, self._clock.now))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._uplink(effect.message)
                case Work():
                    self.work.start(effect)
                case Wake():
                    self._alarms += 1
                    self._clock.at(effect.at, self._ring, self._alarms)
                case Amend():
                    self.work.amend(effect.task)
                case Cancel():
                    self.work.drop()

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarms:
            self.feed(Timer())


class LeanWorld:
    """The simulated world of one job without faults. `perform` does the nodes' work; `pace` returns how long that
    takes."""

    def __init__(
        self,
        setup: SimulationSetup,
        perform: Perform,
        pace: Pace,
        *,
        clock: VirtualClock,
        blobs: LeanBlobs,
        watch: Observer,
    ) -> None:
        self.setup, self.clock, self.blobs, self.watch = setup, clock, blobs, watch
        self.hub = Hub(setup.plan, setup.algorithm, setup.schedule, blobs)
        self._latency_s, self._fed, self._alarms = setup.faults.latency_s, 0, 0
        self.nodes = {
            name: LeanNode(name, self, partial(self._up, name), perform, pace, setup.heartbeat_s)
            for name in setup.nodes
        }
        self._running = len(self.nodes)

    def start(self) -> None:
        """Start the coordinator and all nodes."""
        self._feed(Restarted(self.clock.now))
        for node in self.nodes.values():
            self.clock.after(0.0, node.start)

    def run(self, limit_s: float) -> bool:
        """Run until the job has ended and every node knows; return False at the limit."""
        clock = self.clock
        while clock.now < limit_s and clock.step():
            if not self._running:
                return True
        return False

    # Messages

    def _up(self, name: str, message: Message) -> None:
        self.watch.message_sent(name, "up", message)
        self.clock.after(self._latency_s, self._receive, name, message)

    def _down(self, name: str, message: Message | ReportRejected) -> None:
        node = self.nodes[name]
        if node.up:
            self.watch.message_sent(name, "down", message)
            self.clock.after(self._latency_s, self._deliver, node, message)

    def _deliver(self, node: LeanNode, message: Any) -> None:
        if node.up:
            node.feed(message)
            self._running -= not node.up

    def _receive(self, name: str, message: Message) -> None:
        if name in self.setup.node_info and isinstance(message, Join | Poll):
            message = replace(message, node_info=self.setup.node_info[name])
        if isinstance(message, Poll) and self.hub.is_poll_repeated(name):
            self._down(name, self.hub.poll_reply(name))
        elif isinstance(message, Report):
            self._receive_report(message)
        else:
            self._feed(message)

    def _receive_report(self, report: Report) -> None:
        """Answer at once what cannot count; feed the rest, with its norm."""
        checked = check_report(self.hub, self.blobs, report)
        if not isinstance(checked, Report):
            self._down(report.node, checked)
            return
        self._feed(checked)
        if report.blob is not None:
            self.blobs.drop(report.blob)

    # The hub

    def _feed(self, event: Event) -> None:
        effects = self.hub.on(event, self.clock.now)
        self.watch.fed(self._fed, event, self.clock.now, effects, self.hub)
        self._fed += 1
        for effect in effects:
            if isinstance(effect, Send):
                self.watch.sent(effect.to, effect.message, self.hub)
                self._down(effect.to, effect.message)
            elif isinstance(effect, Wake):
                self._alarms += 1
                self.clock.at(effect.at, self._ring, self._alarms)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarms:
            self._feed(Timer())
