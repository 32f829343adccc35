"""Many small runs with a coordinator, drawn from seeds: different nodes, jobs and faults.

A run that violates an invariant, or does not end, raises `SeedFailed` with the command that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, nan
from random import Random

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.filter import Filter
from shoal.core.errors import LearnerFailed, ShoalError
from shoal.core.job.early_stop import EarlyStop
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.settings_change import changeable
from shoal.core.job.stages import Stage
from shoal.core.model.tree import scale
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef, Task, TaskStatus
from shoal.core.scheduling.schedule import Schedule
from shoal.filters.delta import Delta
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK
from shoal.schedules.divergence import Divergence
from shoal.schedules.rounds import Rounds
from shoal.sim.checks.invariants import InvariantChecker
from shoal.sim.checks.reference_checks import Violation, check_weight
from shoal.sim.checks.trace import Tracer
from shoal.sim.hosts.coordinator import CoordinatorTiming
from shoal.sim.hosts.toy_models import STAGES_MAX, CountingAlgorithm, ToyLearner, toy_tree
from shoal.sim.hosts.work import LearnerTask
from shoal.sim.hosts.world import SUPERVISION_INTERVAL_S, CoordinatedWorld, OperatorAction, SimulationSetup
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import Faults, NetworkCut
from shoal.sim.network.observer import Observer

FILTERS: tuple[tuple[Filter, ...], ...] = (
    (),
    (Quantize(bits=8),),
    (Quantize(bits=4),),
    (Half(),),
    (TopK(0.3),),
    (TopK(0.3), Quantize(bits=8)),
)

DIFFERENCES: tuple[tuple[Filter, ...], ...] = ((Delta(),), (Delta(), Quantize(bits=8)), (Delta(), TopK(0.3), Half()))

GRACE_S = 600.0
"""Seconds that a run has after the faults, in addition to `VERSION_S` for each version, to end."""

VERSION_S = 120.0

STEPS_MAX = 10_000
"""Ten times the steps of the longest run; a run with more does not end."""


class SeedFailed(AssertionError):
    """A run failed. The message contains the command that repeats it."""


@dataclass(frozen=True)
class JobScenario:
    """One run: a job with its faults, operators' actions, and the nodes' behavior."""

    setup: SimulationSetup
    actions: tuple[OperatorAction, ...]
    late: frozenset[str]
    """Nodes that are absent at the start."""
    pace_s: dict[str, float]
    """About the seconds that each node works on a task."""
    failing: float
    """Probability that a task fails on its node, while there are faults."""
    unreliable: frozenset[str]
    """Nodes on which tasks may never end; the job can do without them."""
    hanging: float
    """Probability of that, while there are faults."""
    poison: float
    """Probability that an update is not finite, or too large for a fixed-point sum, while there are faults."""
    byzantine: str = ""
    """The node whose updates are 1e15 times too long, or a million times too heavy; empty: none."""
    weight_factors: Mapping[str, float] = field(default_factory=dict)
    """Factor by which a node claims more examples than its learner has."""


def draw(seed: int) -> JobScenario:
    """Return the scenario of that seed: a storm, dynamic averaging, or a stall."""
    rng = Random(seed)
    kind = rng.random()
    if kind < 0.5:
        return draw_storm(seed, rng)
    if kind < 0.85:
        scenario = draw_drift(seed, rng)
        return replace(
            scenario, actions=(*scenario.actions, *draining(seed, scenario.setup), *changing(seed, scenario.setup))
        )
    return draw_stall(seed, rng)


def draw_storm(seed: int, rng: Random) -> JobScenario:
    """Return a scenario with all faults at once."""
    nodes = draw_nodes(rng, 1)
    schedule = draw_schedule(rng, len(nodes))
    spare = len(nodes) - max(schedule.quorum, schedule.min_nodes)
    unreliable = frozenset(node for node in rng.sample(nodes, spare) if rng.random() < 0.5)
    faults = draw_faults(rng, nodes)
    late = frozenset(node for node in nodes if rng.random() < 0.15)
    setup = draw_setup(seed, rng, nodes, schedule, faults)
    filters = Random(f"filters of {seed}").choice((*FILTERS, *DIFFERENCES, (), (), ()))
    return JobScenario(
        replace(setup, plan=replace(setup.plan, filters=filters, stages=draw_stages(seed))),
        (*draw_actions(rng, nodes, late, unreliable, faults.until_s), *draining(seed, setup), *changing(seed, setup)),
        late,
        {node: rng.choice((0.3, 1.0, 2.0, 8.0)) for node in nodes},
        failing=rng.choice((0.0, 0.05, 0.3, 0.8)),
        # Without a deadline of its own a round may take an hour until it gives up on a node that hangs.
        unreliable=unreliable if schedule.deadline_s else frozenset(),
        hanging=0.2,
        poison=rng.choice((0.0, 0.0, 0.0, 0.1)),
        byzantine=draw_byzantine(seed, nodes, setup.plan, filters),
    )


def draw_stages(seed: int) -> tuple[Stage, ...]:
    """Return the stages of a network that grows, in some jobs. (Own random source, so that all else is drawn as
    before.)"""
    rng = Random(f"stages of {seed}")
    count = rng.choice((0, 0, 0, 2, STAGES_MAX))
    flat = EarlyStop("eval/loss", rounds=1)
    return tuple(rng.choice((Stage(1), Stage(2), Stage(3, flat))) if left else Stage() for left in range(count)[::-1])


def draw_byzantine(seed: int, nodes: tuple[str, ...], plan: JobPlan, filters: tuple[Filter, ...]) -> str:
    """Return a Byzantine node in some jobs of several nodes, unless its updates are rejected for other reasons anyway.

    It has a random source of its own, so that all else is drawn as before.
    """
    rng = Random(f"liar of {seed}")
    several = len(nodes) > 3 and plan.aggregation_precision == "float64" and not filters
    return rng.choice(nodes) if several and rng.random() < 0.4 else ""


def draw_stall(seed: int, rng: Random) -> JobScenario:
    """Return a scenario in which only an alarm or a lease moves the job on after the coordinator's death."""
    nodes = draw_nodes(rng, 2)
    unreliable = frozenset(nodes[1:])
    hang = rng.random() < 0.5
    schedule = Rounds(deadline_s=20.0, quorum=1) if hang else Rounds()
    faults = Faults(until_s=30.0, coordinator_crashes=rng.choice((1, 2)))
    return JobScenario(
        draw_setup(seed, rng, nodes, schedule, faults),
        () if hang else vanishing(rng, unreliable, 3.0),
        frozenset(),
        {node: rng.choice((0.3, 1.0, 2.0)) for node in nodes},
        failing=0.0,
        unreliable=unreliable if hang else frozenset(),
        hanging=0.5,
        poison=0.0,
    )


def draw_drift(seed: int, rng: Random) -> JobScenario:
    """Return dynamic averaging, with a hub that dies in the middle of balancings."""
    nodes = draw_nodes(rng, 1)
    schedule = Divergence(
        delta=rng.choice(("auto", 3.0, 60.0, 200.0, 1000.0)),
        balancing=rng.choice(("all", "double", "double", "hedged")),
        in_step=rng.random() < 0.5,
        deadline_s=rng.choice((1.0, 5.0, 20.0)),
        min_nodes=rng.randint(1, len(nodes)),
    )
    # Balancings come one after the other for as long as nodes train: so must the deaths.
    faults = replace(
        draw_faults(rng, nodes), until_s=rng.choice((8.0, 30.0, 60.0)), coordinator_crashes=rng.choice((0, 2, 4, 8))
    )
    late = frozenset(node for node in nodes[schedule.min_nodes :] if rng.random() < 0.3)
    algorithm = DynamicAveraging(steps=1, local_steps=rng.randint(2, 20))
    setup = draw_setup(seed, rng, nodes, schedule, faults)
    filters = rng.choice(FILTERS)
    return JobScenario(
        replace(setup, algorithm=algorithm, plan=replace(setup.plan, versions=1000, filters=filters)),
        draw_actions(rng, nodes, late, frozenset(), faults.until_s),
        late,
        {node: rng.choice((0.3, 1.0, 2.0)) for node in nodes},
        failing=rng.choice((0.0, 0.0, 0.05)),
        unreliable=frozenset(),
        hanging=0.0,
        poison=0.0,
    )


def draw_nodes(rng: Random, least: int) -> tuple[str, ...]:
    """Return one to eight names, rather few."""
    return tuple(f"n{number}" for number in range(1, max(least, min(rng.randint(1, 8), rng.randint(1, 8))) + 1))


def draw_setup(seed: int, rng: Random, nodes: tuple[str, ...], schedule: Schedule, faults: Faults) -> SimulationSetup:
    """Return the rest of a job."""
    return SimulationSetup(
        plan=JobPlan(
            versions=min(rng.randint(1, 6), rng.randint(1, 6)),
            seed=seed,
            aggregation_precision=rng.choice(("float64", "fixed")),
            init_timeout_s=rng.choice((10.0, 30.0, 60.0)),
        ),
        algorithm=rng.choice((Algorithm(), CountingAlgorithm())),
        schedule=schedule,
        nodes=nodes,
        faults=faults,
        timing=draw_timing(rng),
        heartbeat_s=rng.choice((5.0, 8.0)),
        seed=rng.getrandbits(32),
    )


def draw_timing(rng: Random) -> CoordinatorTiming:
    """Return the times of a coordinator's process and disk."""
    return CoordinatorTiming(
        lease_s=rng.choice((12.0, 18.0)),
        sync_s=rng.choice((0.0, 0.0, 0.005, 0.5)),
        down_s=rng.choice((0.5, 3.0, 10.0)),
        jump_s=rng.choice((0.0, 0.0, 60.0, 3600.0)),
    )


def draw_schedule(rng: Random, count: int) -> Rounds:
    """Return rounds that `count` nodes can fill."""
    quorum = rng.randint(1, min(3, count))
    cohort = rng.choice((0, 0, rng.randint(quorum, max(quorum, count + 1))))
    return Rounds(
        cohort=cohort,
        fraction=rng.choice((1.0, 1.0, 0.5, 0.1)),
        over_select=rng.choice((0, 0, 1, 2)),
        deadline_s=rng.choice((0.0, 5.0, 8.3, 20.0, 0.7)),
        quorum=quorum,
        min_nodes=rng.randint(1, count),
    )


def draw_faults(rng: Random, nodes: tuple[str, ...]) -> Faults:
    """Return anything from a quiet network to a bad one."""
    until = rng.choice((3.0, 8.0, 15.0, 30.0))
    cuts = []
    for node in nodes:
        if rng.random() < 0.2:
            start = rng.random() * until
            cuts.append(
                NetworkCut(node, start, start + rng.choice((2.0, 8.0, 20.0)), rng.choice(("up", "down", "both")))
            )
    return Faults(
        until_s=until,
        delay_s=rng.choice((0.0, 0.02, 0.3, 2.0)),
        message_loss=rng.choice((0.0, 0.02, 0.1, 0.3)),
        message_duplicates=rng.choice((0.0, 0.1, 0.4)),
        cuts=tuple(cuts),
        coordinator_crashes=rng.choice((0, 1, 2, 4)),
        node_crashes=rng.choice((0, 0, 1, 2)),
        disk_survival=rng.choice((1.0, 0.5, 0.0)),
    )


def draw_actions(
    rng: Random, nodes: tuple[str, ...], late: frozenset[str], unreliable: frozenset[str], until_s: float
) -> tuple[OperatorAction, ...]:
    """Return joins and leaves, a pause, a stop."""
    actions = [OperatorAction(rng.random() * until_s, "start", node) for node in nodes if node in late]
    actions += vanishing(rng, unreliable, until_s) if rng.random() < 0.3 else ()
    for node in nodes:
        if node not in unreliable and rng.random() < 0.15:
            start = rng.random() * until_s
            actions.append(OperatorAction(start, "leave", node))
            actions.append(OperatorAction(start + rng.choice((0.05, 1.0, 10.0)), "start", node))
    if rng.random() < 0.15:
        start = rng.random() * until_s
        actions += [OperatorAction(start, "pause"), OperatorAction(start + rng.choice((1.0, 10.0)), "resume")]
    if rng.random() < 0.1:
        actions.append(OperatorAction(rng.random() * until_s, rng.choice(("stop now", "stop round"))))
    return tuple(actions)


def draining(seed: int, setup: SimulationSetup) -> tuple[OperatorAction, ...]:
    """Return actions that drain or block nodes for a while. (Own random source, so that all else is drawn as
    before.)"""
    rng = Random(f"draining of {seed}")
    actions: list[OperatorAction] = []
    for node in setup.nodes if rng.random() < 0.3 else ():
        if rng.random() < 0.5:
            start, until = sorted(rng.random() * setup.faults.until_s for _ in range(2))
            actions += [
                OperatorAction(start, rng.choice(("drain", "block")), node),
                OperatorAction(until, "allow", node),
            ]
    return tuple(actions)


def changing(seed: int, setup: SimulationSetup) -> tuple[OperatorAction, ...]:
    """Return changes of settings, none of which needs more nodes. (Own random source.)"""
    rng, schedule = Random(f"changing of {seed}"), setup.schedule
    drawn: dict[str, float] = {
        "algorithm.lr": rng.choice((0.05, 0.2)),
        "algorithm.batch_size": rng.randint(1, 64),
        "rounds": rng.randint(1, setup.plan.versions + 2),
        "schedule.min_nodes": rng.randint(1, max(1, schedule.required_nodes)),
        "schedule.quorum": rng.randint(1, max(1, int(getattr(schedule, "quorum", 1)))),
        "schedule.deadline_s": float(getattr(schedule, "deadline_s", 0.0)) * rng.choice((0.5, 1.0, 2.0)),
    }
    known = [key for key in drawn if key in changeable(setup.algorithm, schedule)]
    actions = []
    for _ in range(rng.randint(1, 4) if rng.random() < 0.4 else 0):
        values = tuple((key, drawn[key]) for key in sorted(rng.sample(known, rng.randint(1, len(known)))))
        actions.append(OperatorAction(rng.random() * setup.faults.until_s, "change", values=values))
    return tuple(actions)


def vanishing(rng: Random, unreliable: frozenset[str], until_s: float) -> tuple[OperatorAction, ...]:
    """Return the disappearances of unreliable nodes."""
    return tuple(
        OperatorAction(rng.random() * until_s, "vanish", node) for node in sorted(unreliable) if rng.random() < 0.5
    )


class FaultyLearners:
    """All nodes' work: toy learners that may fail."""

    def __init__(self, scenario: JobScenario, blobs: MemoryBlobs, rng: Random) -> None:
        self._scenario, self._blobs, self._rng = scenario, blobs, rng
        stages = max(1, len(scenario.setup.plan.stages))
        self._learners = {name: ToyLearner(number, stages) for number, name in enumerate(scenario.setup.nodes, 1)}
        self.healthy = False

    def pace(self, node: str, task: Task) -> float:
        """Return about the node's own pace; half of all tasks take that long exactly, so that ends coincide."""
        if node in self._scenario.unreliable and not self.healthy and self._rng.random() < self._scenario.hanging:
            return inf
        return self._scenario.pace_s[node] * self._rng.choice((1.0, 1.0, 0.7, 1.6))

    def perform(self, node: str, task: Task, memory: BlobRef | None) -> FaultyTask:
        """Start a task, which may fail."""
        setup = self._scenario.setup
        inner = LearnerTask(setup.algorithm, self._learners[node], self._blobs, task, memory, setup.plan.filters)
        return FaultyTask(inner, self, memory)

    def checked(self, task: Task, memory: BlobRef | None, made: TaskResult | TaskStatus | None) -> None:
        """Check a result against the private memory before and after it."""
        if (
            isinstance(made, TaskResult)
            and made.memory is not None
            and self._scenario.setup.schedule.relative_to_reference
        ):
            number = float(task.node.removeprefix("n"))
            before = self._blobs.get(memory) if memory is not None else {}
            check_weight(task, number, before, made, self._blobs.get(made.memory))

    def poisoned(self, made: TaskResult | TaskStatus | None) -> TaskResult | TaskStatus | None:
        """Return the result, poisoned at random, or raise `LearnerFailed`."""
        chance = 1.0 if self.healthy else self._rng.random()
        if chance < self._scenario.failing:
            raise LearnerFailed("no luck")
        if not isinstance(made, TaskResult) or chance >= self._scenario.failing + self._scenario.poison:
            return made
        if made.blob is None or self._scenario.setup.plan.filters:
            return made
        return self._poisoned(made)

    def _poisoned(self, made: TaskResult) -> TaskResult:
        assert made.blob is not None
        poisoned = toy_tree((0.0, self._rng.choice((nan, 1e8)), 0.0), 1)
        return replace(made, blob=self._blobs.put({**self._blobs.get(made.blob), "model": poisoned}))

    def falsify(self, task: Task, made: TaskResult | TaskStatus | None) -> TaskResult | TaskStatus | None:
        """Return the result with the node's weight, falsified if the node is Byzantine."""
        if task.kind != "train" or not isinstance(made, TaskResult):
            return made
        made = replace(made, weight=made.weight * self._scenario.weight_factors.get(task.node, 1.0))
        if task.node != self._scenario.byzantine:
            return made
        if task.id[1] % 2:
            return replace(made, weight=999_999.0)
        assert made.blob is not None
        slots = self._blobs.get(made.blob)
        return replace(made, blob=self._blobs.put({**slots, "model": scale(tree_slot(slots, "model"), 1e15)}))


@dataclass
class FaultyTask:
    """A task whose pieces may fail, or be poisoned."""

    inner: LearnerTask
    nodes: FaultyLearners
    memory: BlobRef | None

    @property
    def held(self) -> BlobRef | None:
        return self.inner.held

    def run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        made = self.inner.run_piece(task)
        self.nodes.checked(task, self.memory, made)
        return self.nodes.falsify(task, self.nodes.poisoned(made))

    def can_continue(self, task: Task) -> bool:
        return self.inner.can_continue(task)


def run(
    scenario: JobScenario,
    write_line: Callable[[str], None] | None = None,
    checker: Callable[[MemoryBlobs], Observer] = InvariantChecker,
) -> CoordinatedWorld:
    """Run it to its end under all invariants; `write_line` takes a line for each event. Raises `Violation`."""
    blobs, clock = MemoryBlobs(), VirtualClock()
    nodes = FaultyLearners(scenario, blobs, Random(scenario.setup.seed + 1))
    watch = Tracer(blobs, write_line, lambda: clock.now) if write_line is not None else checker(blobs)
    world = CoordinatedWorld(scenario.setup, nodes.perform, nodes.pace, clock=clock, blobs=blobs, watch=watch)
    world.start(scenario.late)
    for action in scenario.actions:
        world.operator.plan(action)
    until = scenario.setup.faults.until_s
    clock.at(until % SUPERVISION_INTERVAL_S, world.operator.supervise)
    over = world.run(until, STEPS_MAX)
    nodes.healthy = True
    patience_s = GRACE_S + VERSION_S * min(scenario.setup.plan.versions, 20)
    over = over or world.run(until + patience_s, STEPS_MAX)
    hub = world.coordinator.hub
    if not over:
        where = f"{world.clock.now:.0f} s and {world.clock.steps} steps"
        raise Violation(f"ends: after {where} the job is {hub.progress.phase} at version {hub.progress.version}")
    if (
        hub.progress.phase == "done"
        and hub.progress.version != hub.settings.plan.versions
        and not hub.settings.schedule.relative_to_reference
    ):
        raise Violation(f"numbered: done at version {hub.progress.version} of {hub.settings.plan.versions}")
    return world


def run_seed(
    seed: int,
    write_line: Callable[[str], None] | None = None,
    drawn: Callable[[int], JobScenario] = draw,
    flag: str = "",
    checker: Callable[[MemoryBlobs], Observer] = InvariantChecker,
) -> CoordinatedWorld:
    """Run that seed of `drawn`; `flag` is the option that repeats it. Raises `SeedFailed`."""
    with repeatable(seed, flag):
        return run(drawn(seed), write_line, checker)


@contextmanager
def repeatable(seed: int, flag: str = "") -> Iterator[None]:
    """Raise `SeedFailed` for whatever a run raises, with the command that repeats it."""
    try:
        yield
    except (AssertionError, ShoalError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise SeedFailed(
            f"seed {seed}: {type(error).__name__}: {error}\nrepeat it: python -m shoal.sim {flag}{seed} --trace"
        ) from error
