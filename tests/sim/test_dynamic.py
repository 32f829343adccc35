"""Promises of dynamic averaging, compared with the nodes' true models in simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Array, Tree
from shoal.core.protocol.machine import Effect, Event, ModelVersion, ReportRejected, Save, Send
from shoal.core.protocol.message import Amendment, BlobRef, Blobs, Message, Metrics, Report, Task, TaskStatus
from shoal.core.protocol.metrics import FINISHED
from shoal.core.server.hub import Hub
from shoal.core.server.round_control import RoundControl
from shoal.schedules.divergence import Divergence
from shoal.sim.hosts.work import LearnerTask
from shoal.sim.hosts.world import CoordinatedWorld, SimulationSetup
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.observer import Observer

DELTA = 0.5
CHECKS = 150
SIZE = 50
NOISE = 0.2
APART = 0.15


class Seeker:
    """Least squares towards a point of its own, with noise: E||w - point||^2 falls to a floor. `batch` examples.

    The point may move in the middle of the job.
    """

    def __init__(self, number: int, moves: bool) -> None:
        own, shared = np.random.default_rng(number), np.random.default_rng(99)
        self.point = shared.standard_normal(SIZE) + APART * own.standard_normal(SIZE)
        self.moves_by = shared.standard_normal(SIZE) * moves
        self.batch = float(1 + number)
        self.weights = np.zeros(SIZE, np.float32)

    def init(self, seed: int) -> Tree:
        return Tree.of({"w": np.zeros(SIZE, np.float32)})

    def load(self, model: Tree) -> None:
        self.weights = np.array(model["w"])

    def model(self) -> Tree:
        return Tree.of({"w": self.weights.copy()})

    def train(self, config: TrainConfig, **_: Any) -> Trained:
        noise = np.random.default_rng((config.seed, config.batch_index)).standard_normal((config.steps, SIZE))
        point = self.point + self.moves_by * (config.batch_index >= CHECKS // 2)
        for step in range(config.steps):
            slope = self.weights - point + NOISE * noise[step]
            self.weights = (self.weights - config.lr * slope).astype(np.float32)
        return Trained(self.batch * config.steps, {"train/loss": float(np.sum((self.weights - point) ** 2))})

    def evaluate(self) -> Metrics:
        return {}


class Truth(Observer):
    """Looks at the nodes' own models whenever the hub decides something."""

    def __init__(self, blobs: Blobs, nodes: Sequence[str]) -> None:
        self.blobs, self.nodes = blobs, nodes
        self.models: dict[str, Array] = {}
        self.tasks: dict[str, Task | Amendment] = {}
        self.divergences: list[float] = []
        self.gaps: list[float] = []
        self.moves: list[float] = []
        self.violations = self.checks = self.unasked = self.late = 0
        self.asked: list[tuple[int, int]] = []
        """For each version: nodes that were asked, and reports."""
        self.closed: list[float] = []
        """When each version was made."""

    def checked(self, node: str, learner: Seeker, made: Any, base: Array) -> None:
        """A node has made a check."""
        self.models[node] = learner.weights.astype(np.float64)
        self.checks += 1
        if made is None or isinstance(made, TaskStatus):
            self.gaps.append(float(np.sum((self.models[node] - base) ** 2)))
        else:
            self.violations += 1

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        for effect in effects:
            if isinstance(effect, Save) and isinstance(effect.what, ModelVersion) and effect.what.reports:
                self._closed(effect.what)
                self.closed.append(now)
        if isinstance(event, Report) and "train/divergence" in event.metrics and FINISHED not in event.metrics:
            self.unasked += not self.tasks[event.node].recall
        tasks = [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, Task | Amendment)]
        onward = [node for node, task in tasks if not task.recall and self.tasks.get(node) != task]
        self.tasks |= dict(tasks)
        if onward and len(self.models) == len(self.nodes):
            every = np.stack([self.models[node] for node in self.nodes])
            self.divergences.append(float(np.mean(np.sum((every - every.mean(0)) ** 2, axis=1))))

    def sent(self, node: str, message: Message | ReportRejected, hub: Hub) -> None:
        self.late = max(self.late, len(hub.state.round.late))

    def _closed(self, version: ModelVersion) -> None:
        """The mean of those who are balanced, weighted by what they have trained on, stays where it is."""
        self.asked.append((version.asked, len(version.reports)))
        made = np.asarray(tree_slot(self.blobs.get(version.model), "model")["w"], np.float64)
        weights = np.array([weight for _, _, weight, _ in version.reports])
        before = np.stack([self.models[node] for node, _, _, _ in version.reports])
        self.moves.append(float(np.abs(weights @ before / weights.sum() - made).max()))
        for node, _, _, _ in version.reports:
            self.models[node] = made


@cache
def ran(schedule: Divergence, slow_s: float = 1.0, moves: bool = False) -> tuple[Truth, Hub]:
    """A job without faults: the truth about it, and its hub. A check takes a second, for the last node `slow_s`."""
    blobs, clock, checks = MemoryBlobs(), VirtualClock(), CHECKS
    names = tuple(f"n{number}" for number in range(8))
    learners = {name: Seeker(number, moves) for number, name in enumerate(names)}
    algorithm = DynamicAveraging(steps=1, local_steps=checks, lr=0.1)
    truth = Truth(blobs, names)

    class Seen(LearnerTask):
        def run_piece(self, task: Task) -> Any:
            made = super().run_piece(task)
            if task.kind == "train":
                base = np.asarray(tree_slot(self._work.reference, "model")["w"], np.float64)
                truth.checked(task.node, learners[task.node], made, base)
            return made

    def begin(node: str, task: Task, memory: BlobRef | None) -> Seen:
        return Seen(algorithm, learners[node], blobs, task, memory)

    setup = SimulationSetup(JobPlan(1_000_000, seed=3), algorithm, schedule, names)
    last = names[-1]
    world = CoordinatedWorld(
        setup, begin, lambda node, _: slow_s if node == last else 1.0, clock=clock, blobs=blobs, watch=truth
    )
    world.start()
    assert world.run(100_000)
    return truth, world.coordinator.hub


@pytest.mark.parametrize("balancing", ["all", "double", "hedged"])
@pytest.mark.parametrize("in_step", [True, False])
def test_who_is_silent_is_near_the_reference(balancing: Any, in_step: bool) -> None:
    truth, _ = ran(Divergence(delta=DELTA, balancing=balancing, in_step=in_step, min_nodes=8))
    assert len(truth.gaps) > 3 * CHECKS
    assert max(truth.gaps) <= DELTA
    assert truth.violations > 20


@pytest.mark.parametrize("balancing", ["all", "double", "hedged"])
def test_all_models_are_close_together_after_each_check(balancing: Any) -> None:
    """(1/m) sum_i ||w_i - mean||^2 <= delta, without a message."""
    truth, _ = ran(Divergence(delta=DELTA, balancing=balancing, in_step=True, min_nodes=8))
    assert len(truth.divergences) >= CHECKS / 2
    assert max(truth.divergences) <= DELTA
    assert max(truth.divergences) > 0.05 * DELTA


@pytest.mark.parametrize("balancing", ["double", "hedged"])
def test_a_balancing_moves_no_mean(balancing: Any) -> None:
    truth, _ = ran(Divergence(delta=DELTA, balancing=balancing, in_step=True, min_nodes=8))
    assert len(truth.moves) > 10
    assert max(truth.moves) < 1e-5


def test_more_is_said_after_a_drift() -> None:
    """As in A2c: more versions in the quarter after the points have moved than in the one before; then fewer again."""
    truth, _ = ran(Divergence(delta=DELTA, in_step=True, min_nodes=8), moves=True)
    quarters = np.histogram(truth.closed, bins=4, range=(0.0, max(truth.closed)))[0]
    assert quarters[2] >= 1.7 * quarters[1]
    assert quarters[3] < quarters[2]


def test_a_late_answer_is_no_violation() -> None:
    """One node is too slow to answer in time, so that others are balanced without it; then its answer comes."""
    truth, hub = ran(Divergence(delta=DELTA, balancing="double", min_nodes=8, deadline_s=2.0), slow_s=15.0)
    assert truth.late > 0, "every answer was in time: this has shown nothing"
    assert hub.progress.numbers["total.violations"] == truth.unasked > 100


def test_who_reports_was_asked() -> None:
    truth, _ = ran(Divergence(delta=DELTA, balancing="double", min_nodes=8))
    assert len(truth.asked) > 20
    assert all(asked >= reports for asked, reports in truth.asked)


def test_a_reference_that_never_changes_is_violated_at_nearly_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Divergence(delta=DELTA, in_step=True, min_nodes=8)
    _, hub = ran(schedule)
    assert hub.progress.version < CHECKS / 4
    close = RoundControl.close
    monkeypatch.setattr(
        RoundControl, "close", lambda self, decision, now: close(self, replace(decision, rebase=False), now)
    )
    _, hub = ran.__wrapped__(schedule)
    assert hub.progress.version > 0.9 * CHECKS
