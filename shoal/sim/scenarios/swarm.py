"""Many small runs, each drawn from its seed: other nodes, another job, other faults.

A run that breaks an invariant, or does not end, raises `Broken` with the one command that repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from random import Random

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.errors import LearnerFailed, ShoalError
from shoal.core.filter import Filter
from shoal.core.hub import Plan
from shoal.core.machine import Result
from shoal.core.message import Bodies, Order, Ref, Status
from shoal.core.schedule import Schedule
from shoal.core.settings_change import changeable
from shoal.core.tree import scale
from shoal.filters.delta import Delta
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK
from shoal.schedules.drift import Drift
from shoal.schedules.rounds import Rounds
from shoal.sim.anchored import Violation, check_weight
from shoal.sim.bodies import MemoryBodies
from shoal.sim.clock import Clock
from shoal.sim.coordinator import Timing
from shoal.sim.faults import Cut, Faults
from shoal.sim.invariants import Checker
from shoal.sim.toys import Ledger, ToyLearner, toy_tree
from shoal.sim.trace import Tracer
from shoal.sim.work import Begun
from shoal.sim.world import CARE_S, Act, Setup, World

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
"""After the faults have ended a run has this long, and `VERSION_S` for each version, to end."""

VERSION_S = 120.0

STEPS_MAX = 10_000
"""No run needs a tenth of that; one that does goes round in circles."""


class Broken(AssertionError):
    """A run went wrong. The message says how to repeat it."""


@dataclass(frozen=True)
class Scenario:
    """One run: a job and its faults, what people do meanwhile, and how the nodes behave."""

    setup: Setup
    acts: tuple[Act, ...]
    late: frozenset[str]
    """Nodes that are not there at the beginning."""
    pace_s: dict[str, float]
    """How long each node works on an order, about."""
    failing: float
    """The chance that an order fails on its node, while there are faults."""
    frail: frozenset[str]
    """Nodes on which orders may never end; the job can do without them."""
    hanging: float
    """The chance of that, while there are faults."""
    poison: float
    """The chance that an update is not finite, or too large for a fixed-point sum, while there are faults."""
    liar: str = ""
    """The node whose updates are 1e15 times too long, or a million times too heavy; empty: none."""


def draw(seed: int) -> Scenario:
    """The run of that seed: in four of five anything goes wrong; in the others only what makes a round wait."""
    rng = Random(seed)
    kind = rng.random()
    if kind < 0.5:
        return draw_storm(seed, rng)
    if kind < 0.85:
        scenario = draw_drift(seed, rng)
        return replace(
            scenario, acts=(*scenario.acts, *draining(seed, scenario.setup), *changing(seed, scenario.setup))
        )
    return draw_stall(seed, rng)


def draw_storm(seed: int, rng: Random) -> Scenario:
    """All faults at once."""
    nodes = draw_nodes(rng, 1)
    schedule = draw_schedule(rng, len(nodes))
    spare = len(nodes) - max(schedule.quorum, schedule.min_nodes)
    frail = frozenset(node for node in rng.sample(nodes, spare) if rng.random() < 0.5)
    faults = draw_faults(rng, nodes)
    late = frozenset(node for node in nodes if rng.random() < 0.15)
    setup = draw_setup(seed, rng, nodes, schedule, faults)
    filters = Random(f"filters of {seed}").choice((*FILTERS, *DIFFERENCES, (), (), ()))
    return Scenario(
        replace(setup, plan=replace(setup.plan, filters=filters)),
        (*draw_acts(rng, nodes, late, frail, faults.until_s), *draining(seed, setup), *changing(seed, setup)),
        late,
        {node: rng.choice((0.3, 1.0, 2.0, 8.0)) for node in nodes},
        failing=rng.choice((0.0, 0.05, 0.3, 0.8)),
        # Without a deadline of its own a round may take an hour until it gives up on a node that hangs.
        frail=frail if schedule.deadline_s else frozenset(),
        hanging=0.2,
        poison=rng.choice((0.0, 0.0, 0.0, 0.1)),
        liar=draw_liar(seed, nodes, setup.plan, filters),
    )


def draw_liar(seed: int, nodes: tuple[str, ...], plan: Plan, filters: tuple[Filter, ...]) -> str:
    """In a job of several nodes perhaps one that lies, unless what it says is refused for other reasons anyway. (From
    a source of its own, so that all else is drawn as it was.)"""
    rng = Random(f"liar of {seed}")
    several = len(nodes) > 3 and plan.sums == "float64" and not filters
    return rng.choice(nodes) if several and rng.random() < 0.4 else ""


def draw_stall(seed: int, rng: Random) -> Scenario:
    """A good network, a coordinator that dies, and one node after the other that hangs or vanishes: after the crash
    nothing but the alarm, or the leases, moves the job on."""
    nodes = draw_nodes(rng, 2)
    frail = frozenset(nodes[1:])
    hang = rng.random() < 0.5
    schedule = Rounds(deadline_s=20.0, quorum=1) if hang else Rounds()
    faults = Faults(until_s=30.0, hub_crashes=rng.choice((1, 2)))
    return Scenario(
        draw_setup(seed, rng, nodes, schedule, faults),
        () if hang else vanishing(rng, frail, 3.0),
        frozenset(),
        {node: rng.choice((0.3, 1.0, 2.0)) for node in nodes},
        failing=0.0,
        frail=frail if hang else frozenset(),
        hanging=0.5,
        poison=0.0,
    )


def draw_drift(seed: int, rng: Random) -> Scenario:
    """Dynamic averaging: nodes that speak when they like, and a hub that dies in the middle of a balancing."""
    nodes = draw_nodes(rng, 1)
    schedule = Drift(
        delta=rng.choice(("auto", 3.0, 60.0, 200.0, 1000.0)),
        balancing=rng.choice(("all", "double", "double", "hedged")),
        in_step=rng.random() < 0.5,
        deadline_s=rng.choice((1.0, 5.0, 20.0)),
        min_nodes=rng.randint(1, len(nodes)),
    )
    # Balancings come one after the other for as long as nodes train: so must the deaths.
    faults = replace(
        draw_faults(rng, nodes), until_s=rng.choice((8.0, 30.0, 60.0)), hub_crashes=rng.choice((0, 2, 4, 8))
    )
    late = frozenset(node for node in nodes[schedule.min_nodes :] if rng.random() < 0.3)
    algorithm = DynamicAveraging(steps=1, checks=rng.randint(2, 20))
    setup = draw_setup(seed, rng, nodes, schedule, faults)
    filters = rng.choice(FILTERS)
    return Scenario(
        replace(setup, algorithm=algorithm, plan=replace(setup.plan, versions=1000, filters=filters)),
        draw_acts(rng, nodes, late, frozenset(), faults.until_s),
        late,
        {node: rng.choice((0.3, 1.0, 2.0)) for node in nodes},
        failing=rng.choice((0.0, 0.0, 0.05)),
        frail=frozenset(),
        hanging=0.0,
        poison=0.0,
    )


def draw_nodes(rng: Random, least: int) -> tuple[str, ...]:
    """One to eight nodes, rather few."""
    return tuple(f"n{number}" for number in range(1, max(least, min(rng.randint(1, 8), rng.randint(1, 8))) + 1))


def draw_setup(seed: int, rng: Random, nodes: tuple[str, ...], schedule: Schedule, faults: Faults) -> Setup:
    """The rest of a job."""
    return Setup(
        plan=Plan(
            versions=min(rng.randint(1, 6), rng.randint(1, 6)),
            seed=seed,
            sums=rng.choice(("float64", "fixed")),
            patience_s=rng.choice((10.0, 30.0, 60.0)),
        ),
        algorithm=rng.choice((Algorithm(), Ledger())),
        schedule=schedule,
        nodes=nodes,
        faults=faults,
        timing=draw_timing(rng),
        beat_s=rng.choice((5.0, 8.0)),
        seed=rng.getrandbits(32),
    )


def draw_timing(rng: Random) -> Timing:
    """A coordinator's process and its disk."""
    return Timing(
        lease_s=rng.choice((12.0, 18.0)),
        sync_s=rng.choice((0.0, 0.0, 0.005, 0.5)),
        down_s=rng.choice((0.5, 3.0, 10.0)),
        jump_s=rng.choice((0.0, 0.0, 60.0, 3600.0)),
    )


def draw_schedule(rng: Random, count: int) -> Rounds:
    """Rounds that so many nodes can fill."""
    quorum = rng.randint(1, min(3, count))
    cohort = rng.choice((0, 0, rng.randint(quorum, max(quorum, count + 1))))
    return Rounds(
        cohort=cohort,
        fraction=rng.choice((1.0, 1.0, 0.5, 0.1)),
        over=rng.choice((0, 0, 1, 2)),
        deadline_s=rng.choice((0.0, 5.0, 8.3, 20.0, 0.7)),
        quorum=quorum,
        min_nodes=rng.randint(1, count),
    )


def draw_faults(rng: Random, nodes: tuple[str, ...]) -> Faults:
    """Anything from a quiet network to a bad one."""
    until = rng.choice((3.0, 8.0, 15.0, 30.0))
    cuts = []
    for node in nodes:
        if rng.random() < 0.2:
            start = rng.random() * until
            cuts.append(Cut(node, start, start + rng.choice((2.0, 8.0, 20.0)), rng.choice(("up", "down", "both"))))
    return Faults(
        until_s=until,
        delay_s=rng.choice((0.0, 0.02, 0.3, 2.0)),
        loss=rng.choice((0.0, 0.02, 0.1, 0.3)),
        duplicate=rng.choice((0.0, 0.1, 0.4)),
        cuts=tuple(cuts),
        hub_crashes=rng.choice((0, 1, 2, 4)),
        node_crashes=rng.choice((0, 0, 1, 2)),
        keep=rng.choice((1.0, 0.5, 0.0)),
    )


def draw_acts(
    rng: Random, nodes: tuple[str, ...], late: frozenset[str], frail: frozenset[str], until_s: float
) -> tuple[Act, ...]:
    """Joins and leaves, a pause, a stop."""
    acts = [Act(rng.random() * until_s, "start", node) for node in nodes if node in late]
    acts += vanishing(rng, frail, until_s) if rng.random() < 0.3 else ()
    for node in nodes:
        if node not in frail and rng.random() < 0.15:
            start = rng.random() * until_s
            acts.append(Act(start, "leave", node))
            acts.append(Act(start + rng.choice((0.05, 1.0, 10.0)), "start", node))
    if rng.random() < 0.15:
        start = rng.random() * until_s
        acts += [Act(start, "pause"), Act(start + rng.choice((1.0, 10.0)), "resume")]
    if rng.random() < 0.1:
        acts.append(Act(rng.random() * until_s, rng.choice(("stop now", "stop round"))))
    return tuple(acts)


def draining(seed: int, setup: Setup) -> tuple[Act, ...]:
    """Nodes that an operator drains or blocks for a while. (From a source of its own, so that all else is drawn as it
    was.)"""
    rng = Random(f"draining of {seed}")
    acts: list[Act] = []
    for node in setup.nodes if rng.random() < 0.3 else ():
        if rng.random() < 0.5:
            start, until = sorted(rng.random() * setup.faults.until_s for _ in range(2))
            acts += [Act(start, rng.choice(("drain", "block")), node), Act(until, "allow", node)]
    return tuple(acts)


def changing(seed: int, setup: Setup) -> tuple[Act, ...]:
    """Settings that an operator changes meanwhile, none so that more nodes are needed. (From a source of its own.)"""
    rng, schedule = Random(f"changing of {seed}"), setup.schedule
    drawn: dict[str, float] = {
        "algorithm.lr": rng.choice((0.05, 0.2)),
        "algorithm.batch_size": rng.randint(1, 64),
        "rounds": rng.randint(1, setup.plan.versions + 2),
        "schedule.min_nodes": rng.randint(1, max(1, schedule.least)),
        "schedule.quorum": rng.randint(1, max(1, int(getattr(schedule, "quorum", 1)))),
        "schedule.deadline_s": float(getattr(schedule, "deadline_s", 0.0)) * rng.choice((0.5, 1.0, 2.0)),
    }
    known = [key for key in drawn if key in changeable(setup.algorithm, schedule)]
    acts = []
    for _ in range(rng.randint(1, 4) if rng.random() < 0.4 else 0):
        values = tuple((key, drawn[key]) for key in sorted(rng.sample(known, rng.randint(1, len(known)))))
        acts.append(Act(rng.random() * setup.faults.until_s, "change", values=values))
    return tuple(acts)


def vanishing(rng: Random, frail: frozenset[str], until_s: float) -> tuple[Act, ...]:
    """Frail nodes that are seen no more."""
    return tuple(Act(rng.random() * until_s, "vanish", node) for node in sorted(frail) if rng.random() < 0.5)


class Nodes:
    """All nodes' work: toys that may fail."""

    def __init__(self, scenario: Scenario, bodies: Bodies, rng: Random) -> None:
        self._scenario, self._bodies, self._rng = scenario, bodies, rng
        self._learners = {name: ToyLearner(number) for number, name in enumerate(scenario.setup.nodes, 1)}
        self.healthy = False

    def pace(self, node: str, order: Order) -> float:
        """About the node's own pace; half of all orders take that long exactly, so that ends coincide."""
        if node in self._scenario.frail and not self.healthy and self._rng.random() < self._scenario.hanging:
            return inf
        return self._scenario.pace_s[node] * self._rng.choice((1.0, 1.0, 0.7, 1.6))

    def perform(self, node: str, order: Order, memory: Ref | None) -> Unlucky:
        """Begin it; this may be one of those that go wrong."""
        setup = self._scenario.setup
        begun = Begun(setup.algorithm, self._learners[node], self._bodies, order, memory, setup.plan.filters)
        return Unlucky(begun, self, memory)

    def checked(self, order: Order, memory: Ref | None, made: Result | Status | None) -> None:
        """Hold a result against the private memory before and after it."""
        if isinstance(made, Result) and made.memory is not None and self._scenario.setup.schedule.anchored:
            number = float(order.node.removeprefix("n"))
            before = self._bodies.get(memory) if memory is not None else {}
            check_weight(order, number, before, made, self._bodies.get(made.memory))

    def spoilt(self, made: Result | Status | None) -> Result | Status | None:
        """What comes of a piece of work when luck is bad."""
        chance = 1.0 if self.healthy else self._rng.random()
        if chance < self._scenario.failing:
            raise LearnerFailed("no luck")
        if not isinstance(made, Result) or chance >= self._scenario.failing + self._scenario.poison:
            return made
        if made.body is None or self._scenario.setup.plan.filters:
            return made
        return self._poisoned(made)

    def _poisoned(self, made: Result) -> Result:
        assert made.body is not None
        poisoned = toy_tree((0.0, self._rng.choice((nan, 1e8)), 0.0), 1)
        return replace(made, body=self._bodies.put({**self._bodies.get(made.body), "model": poisoned}))

    def lie(self, order: Order, made: Result | Status | None) -> Result | Status | None:
        """What becomes of a result on the liar's way to the hub."""
        if order.node != self._scenario.liar or order.kind != "train" or not isinstance(made, Result):
            return made
        if order.id[1] % 2:
            return replace(made, weight=999_999.0)
        assert made.body is not None
        slots = self._bodies.get(made.body)
        return replace(made, body=self._bodies.put({**slots, "model": scale(tree_slot(slots, "model"), 1e15)}))


@dataclass
class Unlucky:
    """Work whose pieces may fail, or be spoilt."""

    begun: Begun
    nodes: Nodes
    memory: Ref | None

    @property
    def held(self) -> Ref | None:
        return self.begun.held

    def piece(self, order: Order) -> Result | Status | None:
        made = self.begun.piece(order)
        self.nodes.checked(order, self.memory, made)
        return self.nodes.lie(order, self.nodes.spoilt(made))

    def may_go_on(self, order: Order) -> bool:
        return self.begun.may_go_on(order)


def run(scenario: Scenario, tell: Callable[[str], None] | None = None) -> World:
    """Run it to its end under all invariants; `tell` takes a line for each thing that happens. Raises `Violation`."""
    bodies, clock = MemoryBodies(), Clock()
    nodes = Nodes(scenario, bodies, Random(scenario.setup.seed + 1))
    watch = Tracer(bodies, tell, lambda: clock.now) if tell is not None else Checker(bodies)
    world = World(scenario.setup, nodes.perform, nodes.pace, clock=clock, bodies=bodies, watch=watch)
    world.start(scenario.late)
    for act in scenario.acts:
        world.act(act)
    until = scenario.setup.faults.until_s
    clock.at(until % CARE_S, world.care)
    over = world.run(until, STEPS_MAX)
    nodes.healthy = True
    patience_s = GRACE_S + VERSION_S * min(scenario.setup.plan.versions, 20)
    over = over or world.run(until + patience_s, STEPS_MAX)
    hub = world.coordinator.hub
    if not over:
        where = f"{world.clock.now:.0f} s and {world.clock.steps} steps"
        raise Violation(f"ends: after {where} the job is {hub.phase} at version {hub.version}")
    if hub.phase == "done" and hub.version != hub.plan.versions and not hub.schedule.anchored:
        raise Violation(f"numbered: done at version {hub.version} of {hub.plan.versions}")
    return world


def run_seed(
    seed: int,
    tell: Callable[[str], None] | None = None,
    drawn: Callable[[int], Scenario] = draw,
    flag: str = "",
) -> World:
    """The run of that seed, and of what draws it; `flag` tells the command which that is. Raises `Broken`."""
    try:
        return run(drawn(seed), tell)
    except (AssertionError, ShoalError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Broken(
            f"seed {seed}: {type(error).__name__}: {error}\nrepeat it: python -m shoal.sim {flag}{seed} --trace"
        ) from error
