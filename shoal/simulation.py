"""A whole job in this process: `shoal.simulate(spec, learners)`.

    import shoal

    result = shoal.simulate(spec, learners)
    print(result.metrics)

Hub, workers, algorithm, schedule and learners are the real ones; the network, the clock and the coordinator's disk are
simulated. Learners train in this process, or in others. Time is virtual: each piece of work takes a second (with
faults: half a second to one and a half), so that deadlines have a meaning and runs can be repeated exactly. Learners
that start together end within the same millisecond, but one after the other, so that no two learners' updates are in
memory at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import floor
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypedDict, Unpack, get_args

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.settings_change import JobSettings
from shoal.core.model.tree import Layout, Slots
from shoal.core.protocol.machine import Effect, Event, JobEvent, Measured, ModelVersion, ReportRejected, Save, Work
from shoal.core.protocol.message import BlobRef, Blobs, Message, Metrics, NodeInfo, Report, Task
from shoal.core.scheduling.availability_windows import DAY_S
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import check_node_info
from shoal.core.server.hub import Hub
from shoal.core.server.roster import FAILURES_MAX
from shoal.jobs.spec import load_job
from shoal.learn.loading import is_learner, required_learner
from shoal.learn.user_errors import IN_THE_LOG
from shoal.plugins import suggestion
from shoal.progress import Progress, displayed
from shoal.results.result import Fidelity, Result, VersionResult
from shoal.sim.hosts.coordinator import CoordinatorTiming
from shoal.sim.hosts.lean_world import LeanWorld
from shoal.sim.hosts.world import CoordinatedWorld, Pace, SimulationSetup
from shoal.sim.network.blobs import LeanBlobs, MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import Faults
from shoal.sim.network.observer import Direction, Observer
from shoal.sim.network.traffic_count import TrafficCount
from shoal.sim.tasks.learners import LearnersOnDemand, MakeLearner
from shoal.sim.tasks.simulated_tasks import SimulatedTasks
from shoal.sim.tasks.torch_threads import torch_threads
from shoal.wire.head_size import head_size
from shoal.wire.payload import layouts_of, payload_layout

WORK_S = 1.0
"""Virtual seconds that a task takes."""

TICK_S = 0.001
"""Work ends in a tick of this length, where each learner has an instant of its own, in their order, in the first half,
so that equal learners do not move apart as they go on. Messages take less than the time between two instants: the
update of the learner before is folded and dropped by then. They take a whole tick where learners train on by
themselves: all that end in one tick end before the hub can answer any of them."""

SWEEP_STEPS = 4
"""Steps after which unused blobs are dropped."""

BEAT_S = 10.0
LEASE_S = 35.0

IDLE_S = 8000.0
"""Virtual seconds without any work, or with a failing node and no advance, after which a job is given up: twice the
longest deadline that a schedule makes up by itself, and more than a worker needs to be heard again."""

QUIET_S = 1000.0
"""Virtual seconds without a version after which a job is given up whose nodes train without end: that many checks of
each node, by default 10,000 mini-batches."""

GARBAGE = (20_000, 10, 20)
"""New objects, and looks at younger ones, between two searches for what only points at itself: a thousand nodes are
many objects and no garbage."""

CHAINED = "fix the learner: the traceback of its first error is above this one"

Evaluate = Callable[[BlobRef], Metrics]
"""Evaluates a version's model."""


class NodeOptions(TypedDict, total=False):
    """Options of `simulate` for its nodes."""

    nodes: int
    workers: int
    threads: int
    slow: Mapping[str, float]
    about: Mapping[str, NodeInfo]


@dataclass(frozen=True)
class _NodeOptions:
    """The same with defaults."""

    nodes: int = 0
    workers: int = 1
    threads: int = 1
    slow: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, NodeInfo] = field(default_factory=dict)


class SimulatedJob(Protocol):
    """The part of a job that is needed: `shoal.jobs.spec.JobSpec` has it."""

    @property
    def name(self) -> str: ...

    def plan(self) -> JobPlan: ...

    def build_algorithm(self) -> Algorithm: ...

    def build_schedule(self) -> Schedule: ...


def simulate(
    job: SimulatedJob | str | Path | Mapping[str, Any],
    learners: Mapping[str, Learner] | Sequence[Learner] | MakeLearner,
    *,
    faults: Faults | None = None,
    fidelity: Fidelity | None = None,
    seed: int | None = None,
    progress: bool | Progress | None = None,
    held_out: Learner | None = None,
    **more: Unpack[NodeOptions],
) -> Result:
    """Run a job (or that of a TOML file, or of a mapping) to its end over these learners.

    A sequence of learners gets the names node-0, node-1, … A function makes the learner of one of `nodes` nodes from
    its number, 0 to nodes - 1, for each of its tasks, so that few learners are in memory. With such a function,
    `workers` processes can do the tasks, with the same result; each finds it by its module and name. Torch computes
    with `threads` threads in each process: more are slower for small models.
    `faults` says what goes wrong, if anything should; `seed` draws its instants (None: the job's own). `progress`:
    None shows how far it is in a notebook and in a terminal, True elsewhere too, False nowhere; a function is told
    instead. `held_out` measures every version on data that no node has, as a coordinator does: metrics "held_out/…".
    `slow` says how many times longer than the others some nodes take; `about` what some say of themselves (tags, hours;
    time begins at midnight). `fidelity` "wire" simulates journal, disks and processes too, as faults need; "lean", the
    default without faults, leaves them out, with the same result.

    Raises `InvalidJob` when the job can't go on with these learners, `LearnerFailed` when they fail too often, from the
    first error that one of them has raised.
    """
    if isinstance(job, str | Path | Mapping):
        job = load_job(job)
    plan, algorithm, schedule = job.plan(), job.build_algorithm(), job.build_schedule()
    options = _NodeOptions(**more)
    named = _named(learners, options.nodes)
    if held_out is not None:
        required_learner(held_out, "held_out")
    factors, infos = _factors(options.slow, named), _node_infos(options.about, named)
    clock, rng = VirtualClock(), Random(plan.seed if seed is None else seed)
    setup = SimulationSetup(
        plan,
        algorithm,
        schedule,
        tuple(named),
        faults=faults or Faults(latency_s=TICK_S if algorithm.continual else TICK_S / (16 * len(named))),
        timing=CoordinatorTiming(lease_s=LEASE_S),
        heartbeat_s=BEAT_S,
        seed=rng.getrandbits(32),
        about=infos,
    )
    pace = _paced(clock, factors, list(named), rng if faults is not None else None)
    bodies = (LeanBlobs if _fidelity(fidelity, faults) == "lean" else MemoryBlobs)(payload_bytes)
    tasks = SimulatedTasks(setup, named, bodies)
    patience_s, evaluate = _patience_s(setup, factors), partial(evaluated, held_out, bodies) if held_out else None
    with torch_threads(options.threads), displayed(progress, job.name) as shown:
        record = SimulationRecorder(job.name, plan.versions, shown, evaluate, tasks)
        with tasks.in_processes(options.workers, record.show, options.threads):
            if isinstance(bodies, LeanBlobs):
                return _run(LeanWorld(setup, tasks, pace, clock=clock, bodies=bodies, watch=record), record, patience_s)
            wire = CoordinatedWorld(
                setup, tasks, pace, clock=clock, bodies=bodies, watch=record, sweep_steps=SWEEP_STEPS
            )
            return _run(wire, record, patience_s)


def _fidelity(given: Fidelity | None, faults: Faults | None) -> Fidelity:
    """Return how a job is simulated. Raises `InvalidJob` for faults that nothing could suffer."""
    if given not in (None, *get_args(Fidelity)):
        known = " or ".join(get_args(Fidelity))
        raise InvalidJob(f"fidelity is {given!r}", code="job.fidelity", hint=f"use {known}")
    if given == "lean" and faults is not None:
        text = 'fidelity "lean" has no disks, processes and messages that could fail'
        raise InvalidJob(text, code="job.fidelity", hint="leave fidelity out, or the faults")
    return given or ("lean" if faults is None else "wire")


def _patience_s(setup: SimulationSetup, slow: Mapping[str, float]) -> float:
    """Return the virtual seconds without an advance after which a job is given up.

    Raises `InvalidJob` for a job that only an operator could end.
    """
    if JobSettings(setup.plan, setup.algorithm, setup.schedule).has_endless_training:
        if setup.plan.versions >= setup.schedule.versions:
            text = "the nodes of this job train until it is stopped, and no operator stops a simulated job"
            raise InvalidJob(text, code="job.endless", hint="set local_steps or epochs in [algorithm], or rounds")
        return QUIET_S * max([1.0, *slow.values()])
    timed = setup.plan.selection.hours or any(info.hours for info in setup.about.values())
    return IDLE_S + (DAY_S if timed else 0.0)


def _run(world: CoordinatedWorld | LeanWorld, record: SimulationRecorder, patience_s: float) -> Result:
    """Run until the job ends. Raises the error that ends it."""
    begun, advance, usual = -1, record.advance(world.hub), gc.get_threshold()
    gc.set_threshold(*GARBAGE)
    try:
        world.start()
        while not world.run(world.clock.now + patience_s):
            failing = [member.failures >= FAILURES_MAX for member in world.hub.roster.present_members()]
            stands = record.advance(world.hub) == advance
            if record.begun == begun or (any(failing) and (stands or all(failing))):
                raise record.given_up(world.hub) from record.cause
            begun, advance = record.begun, record.advance(world.hub)
    finally:
        gc.set_threshold(*usual)
    return record.result(world.hub, "lean" if isinstance(world, LeanWorld) else "wire")


def _named(learners: Any, nodes: int) -> Mapping[str, Learner]:
    """Return the learners by name. Raises `InvalidJob` where they are not a mapping, sequence or function."""
    given = learners
    made = isinstance(given, Iterable) or is_learner(given) or (isinstance(given, type) and not nodes)
    if callable(given) and not made:
        if nodes < 1:
            text = "learners is a function, so the number of nodes is needed"
            raise InvalidJob(text, code="job.learners", hint="pass nodes=1000")
        return LearnersOnDemand(given, nodes)
    if nodes:
        text = "nodes goes with a function that makes the learners, and these are made"
        raise InvalidJob(text, code="job.learners", hint="leave nodes out, or give the function")
    if isinstance(given, str) or not isinstance(given, Iterable):
        text = f"learners is {type(given).__name__}; give a list of learners, one per node"
        raise InvalidJob(text, code="job.learners", hint="write [learner(part) for part in range(4)]")
    named: dict[str, Learner] = (
        dict(learners) if isinstance(learners, Mapping) else {f"node-{i}": one for i, one in enumerate(learners)}
    )
    if not named:
        raise InvalidJob("a job needs at least one learner", code="job.learners")
    return named


def _paced(clock: VirtualClock, factors: Mapping[str, float], nodes: Sequence[str], rng: Random | None) -> Pace:
    """Return the function that gives each task's duration; with `rng`, it varies."""
    turns = {node: turn for turn, node in enumerate(nodes)}

    def pace(node: str, _: Task) -> float:
        work_s = WORK_S * factors.get(node, 1.0)
        if rng is not None:
            return work_s * rng.uniform(0.5, 1.5)
        tick = floor((clock.now + work_s) / TICK_S) + 1
        return (tick + (turns[node] + 0.5) / (2 * len(turns))) * TICK_S - clock.now

    return pace


def _factors(slow: Mapping[str, float], named: Mapping[str, Learner]) -> Mapping[str, float]:
    """Return the factors, checked."""
    for node, factor in slow.items():
        if node not in named:
            raise InvalidJob(f"slow names {node}, but there is no such learner", hint=suggestion(node, named))
        if not 0 < factor < float("inf"):
            raise InvalidJob(f"slow: {node} takes {factor} times as long, but that must be above 0")
    return slow


def _node_infos(about: Mapping[str, NodeInfo], named: Mapping[str, Learner]) -> Mapping[str, NodeInfo]:
    """Return what nodes report, checked."""
    for node, info in about.items():
        if node not in named:
            raise InvalidJob(f"about names {node}, but there is no such learner", hint=suggestion(node, named))
        check_node_info(info)
    return about


def payload_bytes(slots: Slots) -> int:
    """Return the bytes of a blob with these slots on the wire, with its header."""
    return _layouts_bytes(tuple(layouts_of(slots).items()))


@lru_cache(maxsize=64)
def _layouts_bytes(layouts: tuple[tuple[str, Layout | None], ...]) -> int:
    layout = payload_layout(dict(layouts))
    return len(layout.header) + layout.nbytes


def evaluated(learner: Learner, bodies: Blobs, model: BlobRef) -> Metrics:
    """Return the metrics of a version's model on a learner's own data."""
    learner.load(tree_slot(bodies.get(model), "model"))
    return {name.replace("eval/", "held_out/", 1): value for name, value in learner.evaluate().items()}


class SimulationRecorder(Observer):
    """An observer that records what a job's database would hold."""

    def __init__(
        self,
        name: str,
        versions: int,
        progress: Progress | None,
        evaluate: Evaluate | None,
        tasks: SimulatedTasks | None = None,
    ) -> None:
        self._name, self._versions, self._progress, self._evaluate = name, versions, progress, evaluate
        self._tasks, self._fed, self._shown = tasks, 0, 0.0
        self._made: dict[int, VersionResult] = {}
        self._metrics: dict[int, Metrics] = {}
        self._held_out: dict[int, Metrics] = {}
        self._notes: list[JobEvent] = []
        self._traffic = TrafficCount()
        self._trained: dict[str, float] = {}
        self._held: dict[str, str] = {}
        self.begun = 0

    @property
    def _failed(self) -> ShoalError | None:
        return self._tasks.failed if self._tasks is not None else None

    @property
    def cause(self) -> BaseException | None:
        """The error that the user's code raised first, or else that failure itself."""
        return (self._failed.__cause__ or self._failed) if self._failed is not None else None

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Record effects at their first occurrence."""
        if index < self._fed:
            return
        self._fed = index + 1
        for effect in effects:
            if isinstance(effect, JobEvent):
                self._notes.append(effect)
            elif isinstance(effect, Measured):
                self._metrics[effect.number] = effect.metrics
            elif isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                self._close(effect.what)
        if isinstance(event, Report):
            self._trained[event.node] = hub.settings.algorithm.training_progress(event.metrics) or 0.0
        if self._progress is not None:
            last = self._notes[-1].text if self._notes else ""
            self._shown = self._share(hub)
            self.show(f"waits: {hub.progress.waiting_for}" if hub.state.is_idle and hub.progress.waiting_for else last)

    def show(self, text: str) -> None:
        """Show what happens, beside the progress."""
        if self._progress is not None:
            self._progress(self._shown, text)

    def advance(self, hub: Hub) -> tuple[int, float]:
        """Return what grows as long as the job goes on: versions, and what nodes have trained."""
        return hub.progress.version, sum(self._trained.values())

    def _share(self, hub: Hub) -> float:
        """Return the progress: by versions, or, where those are irregular, by what nodes have trained."""
        if hub.settings.schedule.relative_to_reference:
            return sum(self._trained.values()) / max(1, len(self._trained))
        within = (
            len(hub.state.round.reports) / max(1, len(hub.state.round.asked))
            if hub.progress.phase == "running"
            else 0.0
        )
        return min(1.0, (hub.progress.version + within) / self._versions)

    def _close(self, version: ModelVersion) -> None:
        if self._evaluate is not None:
            self._held_out[version.number] = self._evaluate(version.model)
        nodes = self._traffic.close_version()
        self._made[version.number] = VersionResult(
            version.number,
            version.why,
            version.opened,
            version.closed,
            len(version.reports),
            {},
            sum(traffic.up for traffic in nodes.values()),
            sum(traffic.down for traffic in nodes.values()),
            nodes,
        )

    def message_sent(self, node: str, direction: Direction, message: Message | ReportRejected) -> None:
        """Count a message, and the blob of a report."""
        if not isinstance(message, ReportRejected):
            self._traffic.add(node, direction, head_size(self._name, message))
        if isinstance(message, Report) and message.body is not None:
            self._traffic.add(node, direction, message.body.nbytes)

    def started(self, node: str, work: Work) -> None:
        """Count the blobs that a node fetches for a task."""
        self.begun += 1
        if self._tasks is not None:
            self._tasks.begin(node, work)
        for ref in (work.task.body, work.task.reference):
            if ref is not None and ref.digest != self._held.get(node):
                self._traffic.add(node, "down", ref.nbytes)

    def holds(self, node: str, base: BlobRef | None) -> None:
        """Record the reference model that a node keeps from one task to the next."""
        self._held[node] = base.digest if base is not None else ""

    def _measured(self, number: int) -> Metrics:
        return self._metrics.get(number, {}) | self._held_out.get(number, {})

    def given_up(self, hub: Hub) -> InvalidJob | LearnerFailed:
        """Return the error that explains why a job does not go on."""
        failures = [note.text for note in self._notes if note.kind in ("warning", "refusal")]
        if self._failed is not None:
            hint = CHAINED if self._failed.hint in ("", IN_THE_LOG) else self._failed.hint
            since = [text for text in (hub.progress.waiting_for, *failures[-1:]) if text]
            node = self._tasks.failed_node if self._tasks is not None else ""
            return LearnerFailed(f"{node}: {self._failed.message} (then: {'; '.join(since)})", hint=hint)
        if failures:
            return LearnerFailed(failures[-1], hint=failures[0])
        why, hint = hub.progress.waiting_for or "too few learners", "check min_nodes and quorum"
        if hub.settings.has_endless_training and hub.roster.busy_count():
            why = f"the nodes train without end, and no version has been made for {QUIET_S:,.0f} checks ({why})"
            hint = "set local_steps or epochs in [algorithm], or change [schedule] so that it averages more often"
        elif "not asked" in why:
            hint += ", and the tags and hours of the nodes"
        return InvalidJob(f"the job does not go on: {why}", code="job.stuck", hint=hint)

    def result(self, hub: Hub, fidelity: Fidelity) -> Result:
        """Return the complete result."""
        return Result(
            name=self._name,
            state=hub.progress.phase,
            versions=tuple(replace(one, metrics=self._measured(n)) for n, one in sorted(self._made.items())),
            model=tree_slot(hub.store.slots, "model"),
            metrics=self._measured(hub.progress.version),
            notes=tuple(self._notes),
            up_bytes=self._traffic.total("up"),
            down_bytes=self._traffic.total("down"),
            uncounted=tuple(hub.eligibility.never_counted()[0]),
            fidelity=fidelity,
            training=self._tasks.summary if self._tasks is not None else "",
        )
