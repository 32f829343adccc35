"""A whole job in this process: `shoal.simulate(spec, learners)`.

    import shoal

    result = shoal.simulate(spec, learners)
    print(result.metrics)

Hub, workers, algorithm, schedule and learners are the real ones; the network, the clock and the coordinator's disk are
simulated. Learners work one after the other, in this process. Time is virtual: each piece of work takes a second (with
faults: half a second to one and a half), so that deadlines mean something and a run can be repeated exactly. Learners
that begin together end within the same millisecond however long they go on, but one after the other, so that no two
learners' updates are held in memory at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import floor
from pathlib import Path
from random import Random
from typing import Any, Protocol

from shoal import wire
from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.capability import misfit
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.hub import Hub
from shoal.core.learner import Learner
from shoal.core.machine import Effect, Event, Measured, Note, Rejected, Save, Version, Work
from shoal.core.machine import Result as Done
from shoal.core.message import About, Bodies, Message, Metrics, Order, Ref, Report, Status
from shoal.core.plan import Plan
from shoal.core.roster import FAILURES_MAX
from shoal.core.schedule import Schedule
from shoal.core.selection import check
from shoal.core.tree import Slots
from shoal.learn.blame import IN_THE_LOG
from shoal.learn.loading import required_learner
from shoal.plugins import suggestion
from shoal.progress import Progress, displayed
from shoal.record import Traffic
from shoal.result import Result, Round
from shoal.sim.bodies import MemoryBodies
from shoal.sim.clock import Clock
from shoal.sim.coordinator import Timing
from shoal.sim.faults import Faults
from shoal.sim.watch import Direction, Watch
from shoal.sim.work import Begun, Hand
from shoal.sim.world import Pace, Setup, World
from shoal.spec import load_job

WORK_S = 1.0
"""Virtual seconds that an order takes."""

TICK_S = 0.001
"""Work ends in a tick of this length, where each learner has an instant of its own, in their order, in the first half,
so that equal learners do not move apart as they go on. Messages take less than the time between two instants: the
update of the learner before is folded and dropped by then. They take a whole tick where learners train on by
themselves: all that end in one tick end before the hub can answer any of them."""

SWEEP_STEPS = 4
"""How often bodies are dropped that nobody needs any more."""

BEAT_S = 10.0
LEASE_S = 35.0

IDLE_S = 8000.0
"""Virtual seconds without any work after which a job is given up: twice the longest deadline that a schedule makes up
by itself, and more than a worker needs to be heard again."""

CHAINED = "mend the learner: the traceback of its first error stands above this one"

Judge = Callable[[Ref], Metrics]
"""Measures a version's model."""


class Job(Protocol):
    """What is needed of a job: `shoal.spec.JobSpec` is one."""

    @property
    def name(self) -> str: ...

    def plan(self) -> Plan: ...

    def build_algorithm(self) -> Algorithm: ...

    def build_schedule(self) -> Schedule: ...


def simulate(
    job: Job | str | Path | Mapping[str, Any],
    learners: Mapping[str, Learner] | Sequence[Learner],
    *,
    faults: Faults | None = None,
    seed: int | None = None,
    progress: bool | Progress | None = None,
    held_out: Learner | None = None,
    slow: Mapping[str, float] | None = None,
    about: Mapping[str, About] | None = None,
) -> Result:
    """Run a job (or that of a TOML file, or of a mapping) to its end over these learners.

    A sequence of learners gets the names node-0, node-1, …
    `faults` says what goes wrong, if anything should; `seed` draws its instants (None: the job's own). `progress`:
    None shows how far it is in a notebook and in a terminal, True elsewhere too, False nowhere; a function is told
    instead. `held_out` measures every version on data that no node has, as a coordinator does: metrics "held_out/…".
    `slow` says how many times longer than the others some nodes take; `about` what some say of themselves (tags, hours;
    time begins at midnight).

    Raises `InvalidJob` when the job can't go on with these learners, `LearnerFailed` when they fail too often, from the
    first error that one of them has raised.
    """
    if isinstance(job, str | Path | Mapping):
        job = load_job(job)
    plan, algorithm = job.plan(), job.build_algorithm()
    named = _named(learners, algorithm)
    if held_out is not None:
        required_learner(held_out, "held_out")
    factors, told = _factors(slow or {}, named), _told(about or {}, named)
    clock, bodies = Clock(), MemoryBodies(payload_bytes)
    rng = Random(plan.seed if seed is None else seed)
    setup = Setup(
        plan,
        algorithm,
        job.build_schedule(),
        tuple(named),
        faults=faults or Faults(latency_s=TICK_S if algorithm.based else TICK_S / (16 * len(named))),
        timing=Timing(lease_s=LEASE_S),
        beat_s=BEAT_S,
        seed=rng.getrandbits(32),
        about=told,
    )
    pace = _paced(clock, factors, list(named), rng if faults is not None else None)
    with displayed(progress, job.name) as shown:
        record = Record(job.name, plan.versions, shown, partial(judged, held_out, bodies) if held_out else None)

        def do(node: str, order: Order, memory: Ref | None) -> Hand:
            return Noted(Begun(algorithm, named[node], bodies, order, memory, plan.filters), record)

        world = World(setup, do, pace, clock=clock, bodies=bodies, watch=record, sweep_steps=SWEEP_STEPS)
        return _run(world, record)


def _run(world: World, record: Record) -> Result:
    """Go on until the job ends. Raises what it ends with, where it doesn't go on."""
    world.start()
    begun = -1
    while not world.run(world.clock.now + IDLE_S):
        here = world.coordinator.hub.roster.here()
        if record.begun == begun or (here and all(member.failures >= FAILURES_MAX for member in here)):
            raise record.given_up(world.coordinator.hub) from record.cause
        begun = record.begun
    return record.result(world.coordinator.hub)


def _named(learners: Mapping[str, Learner] | Sequence[Learner], algorithm: Algorithm) -> dict[str, Learner]:
    """Return the learners by name. Raises `InvalidJob` for what is no learner, or one that lacks what is needed."""
    given: Any = learners
    if isinstance(given, str) or not isinstance(given, Iterable):
        text = f"learners is {type(given).__name__}; what is wanted is a list of learners, one per node"
        raise InvalidJob(text, code="job.learners", hint="write [learner(part) for part in range(4)]")
    named = dict(learners) if isinstance(learners, Mapping) else {f"node-{i}": one for i, one in enumerate(learners)}
    if not named:
        raise InvalidJob("a job needs at least one learner", code="job.learners")
    for node, learner in named.items():
        if (error := misfit(algorithm, required_learner(learner, f"the learner of {node}"))) is not None:
            raise InvalidJob(f"{node}: {error.message}", code=error.code, hint=error.hint)
    return named


def _paced(clock: Clock, factors: Mapping[str, float], nodes: Sequence[str], rng: Random | None) -> Pace:
    """Return how long each node's work takes; with `rng`, more or less."""
    turns = {node: turn for turn, node in enumerate(nodes)}

    def pace(node: str, _: Order) -> float:
        work_s = WORK_S * factors.get(node, 1.0)
        if rng is not None:
            return work_s * rng.uniform(0.5, 1.5)
        tick = floor((clock.now + work_s) / TICK_S) + 1
        return (tick + (turns[node] + 0.5) / (2 * len(turns))) * TICK_S - clock.now

    return pace


def _factors(slow: Mapping[str, float], named: Mapping[str, Learner]) -> Mapping[str, float]:
    """The same, checked."""
    for node, factor in slow.items():
        if node not in named:
            raise InvalidJob(f"slow names {node}, but there is no such learner", hint=suggestion(node, named))
        if not 0 < factor < float("inf"):
            raise InvalidJob(f"slow: {node} takes {factor} times as long, but that must be above 0")
    return slow


def _told(about: Mapping[str, About], named: Mapping[str, Learner]) -> Mapping[str, About]:
    """The same, checked."""
    for node, words in about.items():
        if node not in named:
            raise InvalidJob(f"about names {node}, but there is no such learner", hint=suggestion(node, named))
        check(words)
    return about


def payload_bytes(slots: Slots) -> int:
    """Bytes of a body with these slots on the wire, its header included."""
    layout = wire.payload_layout(wire.layouts_of(slots))
    return len(layout.header) + layout.nbytes


def judged(learner: Learner, bodies: Bodies, model: Ref) -> Metrics:
    """What a learner with data of its own says about a version's model."""
    learner.load(tree_slot(bodies.get(model), "model"))
    return {name.replace("eval/", "held_out/", 1): value for name, value in learner.evaluate().items()}


class Noted:
    """An order in hand, whose first failure is kept with its traceback."""

    def __init__(self, work: Begun, record: Record) -> None:
        self._work, self._record = work, record

    @property
    def held(self) -> Ref | None:
        return self._work.held

    def may_go_on(self, order: Order) -> bool:
        return self._work.may_go_on(order)

    def piece(self, order: Order) -> Done | Status | None:
        try:
            return self._work.piece(order)
        except ShoalError as error:
            self._record.failed = self._record.failed or error
            raise


class Record(Watch):
    """Writes down what a job's database would hold."""

    def __init__(self, name: str, versions: int, progress: Progress | None, judge: Judge | None) -> None:
        self._name, self._versions, self._progress, self._judge = name, versions, progress, judge
        self._fed = 0
        self._made: dict[int, tuple[Version, dict[str, Traffic]]] = {}
        self._metrics: dict[int, Metrics] = {}
        self._held_out: dict[int, Metrics] = {}
        self._notes: list[Note] = []
        self._bytes: dict[Direction, Counter[str]] = {"up": Counter(), "down": Counter()}
        self._before: dict[Direction, Counter[str]] = {"up": Counter(), "down": Counter()}
        self._trained: dict[str, float] = {}
        self._held: dict[str, Ref | None] = {}
        self.begun = 0
        self.failed: ShoalError | None = None
        """The first failure of a learner."""

    @property
    def cause(self) -> BaseException | None:
        """What the user's code raised first, or else that failure itself."""
        return (self.failed.__cause__ or self.failed) if self.failed is not None else None

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Keep what is seen for the first time."""
        if index < self._fed:
            return
        self._fed = index + 1
        for effect in effects:
            if isinstance(effect, Note):
                self._notes.append(effect)
            elif isinstance(effect, Measured):
                self._metrics[effect.number] = effect.metrics
            elif isinstance(effect, Save) and isinstance(effect.what, Version):
                self._close(effect.what)
        if isinstance(event, Report):
            self._trained[event.node] = hub.algorithm.trained(event.metrics) or 0.0
        if self._progress is not None:
            last = self._notes[-1].text if self._notes else ""
            self._progress(self._share(hub), f"waits: {hub.waits}" if hub.idle and hub.waits else last)

    def _share(self, hub: Hub) -> float:
        """How far the job is: by its versions, or, where those come as they like, by what its nodes have trained."""
        if hub.schedule.anchored:
            return sum(self._trained.values()) / max(1, len(self._trained))
        within = len(hub.gathered.reports) / max(1, len(hub.gathered.asked)) if hub.phase == "running" else 0.0
        return min(1.0, (hub.version + within) / self._versions)

    def _close(self, version: Version) -> None:
        if self._judge is not None:
            self._held_out[version.number] = self._judge(version.model)
        more = {way: count - self._before[way] for way, count in self._bytes.items()}
        nodes = sorted({*more["up"], *more["down"]})
        self._made[version.number] = version, {node: Traffic(more["up"][node], more["down"][node]) for node in nodes}
        self._before = {way: Counter(count) for way, count in self._bytes.items()}

    def travels(self, node: str, direction: Direction, message: Message | Rejected) -> None:
        """Count a message, and the body that goes with a report."""
        if not isinstance(message, Rejected):
            self._bytes[direction][node] += 4 + len(wire.encode_head(self._name, message))
        if isinstance(message, Report) and message.body is not None:
            self._bytes[direction][node] += message.body.nbytes

    def started(self, node: str, work: Work) -> None:
        """Count the bodies that a node fetches for an order."""
        self.begun += 1
        for ref in (work.order.body, work.order.base):
            if ref is not None and ref != self._held.get(node):
                self._bytes["down"][node] += ref.nbytes

    def holds(self, node: str, base: Ref | None) -> None:
        """A node keeps its base from one order to the next."""
        self._held[node] = base

    def _measured(self, number: int) -> Metrics:
        return self._metrics.get(number, {}) | self._held_out.get(number, {})

    def given_up(self, hub: Hub) -> InvalidJob | LearnerFailed:
        """Why a job doesn't go on."""
        failures = [note.text for note in self._notes if note.kind in ("warning", "refusal")]
        if self.failed is not None:
            hint = CHAINED if self.failed.hint in ("", IN_THE_LOG) else self.failed.hint
            lasting = failures[-1] if failures else "learners fail"
            return LearnerFailed(f"{lasting}; the first failure: {self.failed.message}", hint=hint)
        if failures:
            return LearnerFailed(failures[-1], hint=failures[0])
        text = f"the job does not go on: {hub.waits or 'too few learners'}"
        return InvalidJob(text, code="job.stuck", hint="check min_nodes and quorum")

    def result(self, hub: Hub) -> Result:
        """All of it."""
        rounds = (
            Round(
                number,
                version.why,
                version.opened,
                version.closed,
                len(version.reports),
                self._measured(number),
                sum(traffic.up for traffic in nodes.values()),
                sum(traffic.down for traffic in nodes.values()),
                nodes,
            )
            for number, (version, nodes) in sorted(self._made.items())
        )
        return Result(
            name=self._name,
            state=hub.phase,
            versions=tuple(rounds),
            model=tree_slot(hub.slots, "model"),
            metrics=self._measured(hub.version),
            notes=tuple(self._notes),
            up_bytes=dict(self._bytes["up"]),
            down_bytes=dict(self._bytes["down"]),
            uncounted=tuple(hub.uncounted()[0]),
        )
