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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import floor
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypedDict, Unpack, get_args

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.settings_change import JobSettings
from shoal.core.model.tree import Layout, Slots
from shoal.core.protocol.message import NodeInfo, Task
from shoal.core.scheduling.availability_windows import DAY_S
from shoal.core.scheduling.schedule import Schedule
from shoal.core.scheduling.selection import check_node_info
from shoal.core.server.roster import FAILURES_MAX
from shoal.jobs.spec import JobSpec, load_job
from shoal.learn.default_generators import kept_generator
from shoal.learn.loading import is_learner, with_device
from shoal.plugins import suggestion
from shoal.progress import Progress, displayed
from shoal.results.callbacks import Checkpoints, RoundCallback, StopSimulation
from shoal.results.result import Fidelity, Result
from shoal.sim.hosts.coordinator import CoordinatorTiming
from shoal.sim.hosts.lean_world import LeanWorld
from shoal.sim.hosts.world import CoordinatedWorld, Pace, SimulationSetup
from shoal.sim.network.blobs import LeanBlobs, MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import Faults
from shoal.sim.tasks.learners import LearnersOnDemand, MakeLearner
from shoal.sim.tasks.simulated_tasks import SimulatedTasks
from shoal.sim.tasks.simulation_record import QUIET_S, HeldOutMetrics, SimulationProgress, SimulationRecorder
from shoal.sim.tasks.torch_threads import torch_threads
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

GARBAGE = (20_000, 10, 20)
"""New objects, and looks at younger ones, between two searches for what only points at itself: a thousand nodes are
many objects and no garbage."""


class SimulateOptions(TypedDict, total=False):
    """Further options of `simulate`."""

    evaluate_every: int
    nodes: int
    workers: int
    threads: int
    device: str
    slow: Mapping[str, float]
    node_info: Mapping[str, NodeInfo]
    callbacks: Sequence[RoundCallback]


@dataclass(frozen=True)
class _Options:
    """The same with defaults."""

    evaluate_every: int = 1
    nodes: int = 0
    workers: int = 1
    threads: int = 1
    device: str = ""
    slow: Mapping[str, float] = field(default_factory=dict)
    node_info: Mapping[str, NodeInfo] = field(default_factory=dict)
    callbacks: Sequence[RoundCallback] = ()


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
    fault_seed: int | None = None,
    progress: bool | Progress | None = None,
    held_out: Learner | None = None,
    **more: Unpack[SimulateOptions],
) -> Result:
    """Run a job (or that of a TOML file, or of a mapping) to its end over these learners.

    A sequence of learners gets the names node-0, node-1, … A function makes the learner of one of `nodes` nodes from
    its number, 0 to nodes - 1, for each of its tasks, so that few learners are in memory. With such a function,
    `workers` processes can do the tasks, with the same result; each finds it by its module and name. Torch computes
    with `threads` threads in each process: more are slower for small models. `device` ("cuda") is where all learners
    compute, in place of their own choice.
    `faults` says what goes wrong; `fault_seed` draws its instants (None: the job's own). `progress`: None shows it in a
    notebook and in a terminal, True elsewhere too, False nowhere; a function is called instead. `held_out` measures
    each `evaluate_every`-th version and the last one on data that no node has: metrics "held_out/…".
    `slow` says how many times longer than the others some nodes take; `node_info` gives tags and hours of some (time
    begins at midnight). `callbacks` (`shoal.results.callbacks`) see the start and the end of each round. `fidelity`
    "wire" simulates journal, disks and processes too, as faults need; "lean", the default without faults, leaves them
    out, with the same result.

    Ctrl-C (state "interrupted") and `StopSimulation` in a callback ("stopped") keep the versions made; before the
    first, `KeyboardInterrupt` is raised. Raises `InvalidJob` when the job can't go on with these learners,
    `LearnerFailed` when they fail too often, from the first error that one of them has raised.
    """
    job = load_job(job) if isinstance(job, str | Path | Mapping) else job
    plan, algorithm, schedule = job.plan(), job.build_algorithm(), job.build_schedule()
    options, checkpoints = _Options(**more), Checkpoints(job.checkpoint_every if isinstance(job, JobSpec) else 0)
    named = _named(learners, options.nodes, options.device)
    evaluation = HeldOutMetrics(held_out, options.evaluate_every, options.device, len(plan.stages))
    factors, node_info = _factors(options.slow, named), _checked_node_info(options.node_info, named)
    clock, rng = VirtualClock(), Random(plan.seed if fault_seed is None else fault_seed)
    setup = SimulationSetup(
        plan,
        algorithm,
        schedule,
        tuple(named),
        faults=faults or Faults(latency_s=TICK_S if algorithm.continual else TICK_S / (16 * len(named))),
        timing=CoordinatorTiming(lease_s=LEASE_S),
        heartbeat_s=BEAT_S,
        seed=rng.getrandbits(32),
        node_info=node_info,
    )
    pace = _paced(clock, factors, list(named), rng if faults is not None else None)
    blobs = (LeanBlobs if _fidelity(fidelity, faults) == "lean" else MemoryBlobs)(payload_bytes)
    tasks = SimulatedTasks(setup, named, blobs)
    patience_s = _patience_s(setup, factors)
    with torch_threads(options.threads), kept_generator(), displayed(progress, job.name) as shown:
        shows = SimulationProgress(shown, plan.versions)
        record = SimulationRecorder(
            job.name, progress=shows, held_out=evaluation, tasks=tasks, callbacks=[checkpoints, *options.callbacks]
        )
        with tasks.in_processes(options.workers, shows.show, options.threads), _less_garbage():
            result = _run(_world(setup, tasks, pace, clock, blobs, record), record, patience_s)
    return replace(result, checkpoints=checkpoints.models)


def _world(
    setup: SimulationSetup,
    tasks: SimulatedTasks,
    pace: Pace,
    clock: VirtualClock,
    blobs: MemoryBlobs,
    record: SimulationRecorder,
) -> CoordinatedWorld | LeanWorld:
    if isinstance(blobs, LeanBlobs):
        return LeanWorld(setup, tasks, pace, clock=clock, blobs=blobs, watch=record)
    return CoordinatedWorld(setup, tasks, pace, clock=clock, blobs=blobs, watch=record, sweep_steps=SWEEP_STEPS)


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
    timed = setup.plan.selection.hours or any(info.hours for info in setup.node_info.values())
    return IDLE_S + (DAY_S if timed else 0.0)


@contextmanager
def _less_garbage() -> Iterator[None]:
    """Look for garbage less often in a block."""
    usual = gc.get_threshold()
    gc.set_threshold(*GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _run(world: CoordinatedWorld | LeanWorld, record: SimulationRecorder, patience_s: float) -> Result:
    """Run until the job ends. Raises the error that ends it."""
    begun, advance = -1, record.advance(world.hub)
    try:
        world.start()
        while not world.run(world.clock.now + patience_s):
            failing = [member.failures >= FAILURES_MAX for member in world.hub.roster.present_members()]
            stands = record.advance(world.hub) == advance
            if record.progress.rate.tasks == begun or (any(failing) and (stands or all(failing))):
                raise record.given_up(world.hub) from record.cause
            begun, advance = record.progress.rate.tasks, record.advance(world.hub)
        state: str = world.hub.progress.phase
    except KeyboardInterrupt:
        if not record.has_versions:
            raise
        state = "interrupted"
    except StopSimulation:
        state = "stopped"
    return record.result(world.hub, state, "lean" if isinstance(world, LeanWorld) else "wire")


def _named(learners: Any, nodes: int, device: str) -> Mapping[str, Learner]:
    """Return the learners by name, which compute on `device` if it is given.

    Raises `InvalidJob` where they are not a mapping, sequence or function, or cannot use the device.
    """
    given = learners
    made = isinstance(given, Iterable) or is_learner(given) or (isinstance(given, type) and not nodes)
    if callable(given) and not made:
        if nodes < 1:
            text = "learners is a function, so the number of nodes is needed"
            raise InvalidJob(text, code="job.learners", hint="pass nodes=1000")
        return LearnersOnDemand(given, nodes, device)
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
    return {node: with_device(learner, device=device) for node, learner in named.items()}


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


def _checked_node_info(node_info: Mapping[str, NodeInfo], named: Mapping[str, Learner]) -> Mapping[str, NodeInfo]:
    """Return what nodes report, checked."""
    for node, info in node_info.items():
        if node not in named:
            raise InvalidJob(f"node_info names {node}, but there is no such learner", hint=suggestion(node, named))
        check_node_info(info)
    return node_info


def payload_bytes(slots: Slots) -> int:
    """Return the bytes of a blob with these slots on the wire, with its header."""
    return _layouts_bytes(tuple(layouts_of(slots).items()))


@lru_cache(maxsize=64)
def _layouts_bytes(layouts: tuple[tuple[str, Layout | None], ...]) -> int:
    layout = payload_layout(dict(layouts))
    return len(layout.header) + layout.nbytes
