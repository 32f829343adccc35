"""Jobs that switch between server and gossip under faults, drawn from seeds, and their invariants.

- A version number is never used for two models, and versions follow each other without a gap.
- Models that are handed back are merged exactly: the new version is the old one and the weighted mean of the updates.
  A weight is less than claimed only where the node would exceed its greatest share.
- The model that the merge check has measured is the one that becomes the version.
- A task relative to a reference model that becomes a first local round is added to that model.
- A peer drops its model only when it was counted.
- A node for which the job returns is asked for its model.
- A node's term never falls, not even over its death.
- Every run ends: once the faults are over, the coordinator ends the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.failover.failover import Failover
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.update_bounds import UpdateBounds
from shoal.core.model.tree import digest
from shoal.core.protocol.machine import Event, JobEvent, ModelVersion, Save, Send, Wake
from shoal.core.protocol.message import Ack, BlobRef, Join, NodeInfo, Report, Task
from shoal.core.server.hub import Hub
from shoal.filters.quantize import Quantize
from shoal.schedules.rounds import Rounds
from shoal.sim.checks.conservation import floats
from shoal.sim.hosts.coordinator import CoordinatorTiming
from shoal.sim.hosts.peer_node import FailoverSetup, FailoverWorld
from shoal.sim.hosts.toy_models import ToyLearner
from shoal.sim.hosts.work import LearnerTask
from shoal.sim.hosts.world import OperatorAction, SimulationSetup
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.clock import VirtualClock
from shoal.sim.network.faults import Faults, NetworkCut, NetworkSplit, PeerNetworkConditions
from shoal.sim.network.observer import Observer
from shoal.sim.scenarios.swarm import SeedFailed, changing, draining, repeatable
from shoal.sim.scenarios.switching_jobs import draw_job

GRACE_S = 3600.0
"""Seconds that a run may go on after its faults."""

SWITCH_BACK_S = 120.0
"""Seconds after the faults at which an operator calls the job back to the server."""

HOURS = (("00:00-00:01", "00:04-24:00"), ("00:02-24:00",), ("00:00-00:02",))
"""Availability windows that end or begin during the faults; the last one stays closed for the rest of the run."""

STEPS_MAX = 400_000

ROUNDING = 1e-5
"""Error of single precision in a merge, relative to the model."""

SHARE = UpdateBounds().weight_fraction_max - ROUNDING
"""Least share of a version's weight for which a weight may be reduced."""


@dataclass(frozen=True)
class TimedAction:
    """An operator's switch, or a death of the coordinator that lasts."""

    at: float
    what: Literal["kill", "server", "gossip"]
    down_s: float = 0.0


class FailoverObserver(Observer):
    """An observer of every version, counted report and dropped model."""

    def __init__(self, blobs: MemoryBlobs, write_line: Callable[[str], None] | None = None) -> None:
        self._blobs, self._write_line = blobs, write_line
        self.versions: dict[int, ModelVersion] = {}
        self.counted: set[tuple[str, tuple[int, int]]] = set()
        self.merges = self.judged = 0
        self._on_trial: str | None = None
        """The digest of the model that is judged."""
        self._kept: list[BlobRef] = []
        self._reports: dict[tuple[int, int], tuple[float, BlobRef]] = {}

    def fed(self, index: int, event: Event, now: float, effects: Any, hub: Hub) -> None:
        """Check versions and acknowledgements."""
        if self._write_line is not None:
            self._write_line(f"{now:9.3f} {event} {[effect for effect in effects if not isinstance(effect, Wake)]}")
        if isinstance(event, Report) and event.blob is not None:
            self._reports[event.task] = event.weight, event.blob
            self._kept = [*self._kept, event.blob][-64:]
        if isinstance(event, Join) and event.gossip_rounds:
            _check_return(event.node, effects, hub)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Ack) and effect.message.counted:
                self.counted.add((effect.to, effect.message.task))
            if isinstance(effect, Save) and isinstance(effect.what, ModelVersion):
                self._version(effect.what)
        check = hub.state.merge_check
        self._on_trial = digest(tree_slot(check.slots, "model")) if check is not None else None

    def _version(self, version: ModelVersion) -> None:
        known = self.versions.get(version.number)
        if known is not None and known.model != version.model:
            raise SeedFailed(f"version {version.number} is two models")
        if version.number and version.number - 1 not in self.versions:
            raise SeedFailed(f"version {version.number} follows none")
        if known is None and version.why.startswith("back at the server"):
            self._check_merge(version)
        self.versions[version.number] = version
        self._kept = [*self._kept, version.model][-64:]

    def _check_merge(self, version: ModelVersion) -> None:
        self.merges += 1
        self.judged += self._on_trial is not None
        made = digest(tree_slot(self._blobs.get(version.model), "model"))
        if self._on_trial is not None and self._on_trial != made:
            raise SeedFailed(f"version {version.number} is not the model that was judged")
        before = self._floats(self.versions[version.number - 1].model)
        parts = [(weight, self._reports[task][1]) for _, task, weight, _ in version.reports]
        total = sum(weight for weight, _ in parts)
        for node, task, weight, _ in version.reports:
            claimed = self._reports[task][0]
            if weight != claimed and not SHARE * total <= weight < claimed:
                raise SeedFailed(f"version {version.number} counts {node} for {weight:g}, not for {claimed:g}")
        moved = sum(weight * self._floats(ref) for weight, ref in parts) / total
        off = float(np.abs(self._floats(version.model) - before - moved).max())
        if off > ROUNDING * (1 + float(np.abs(before + moved).max())):
            raise SeedFailed(f"version {version.number} is off by {off:.3g} from what was handed back")

    def _floats(self, ref: BlobRef) -> Any:
        return floats(tree_slot(self._blobs.get(ref), "model"))

    def names(self, hub: Hub) -> list[BlobRef | None]:
        """Return the blobs that the checks need."""
        return list(self._kept)


def _check_return(node: str, effects: Any, hub: Hub) -> None:
    """Check that a job which returns because of a node asks that node for its model, unless it is paused."""
    returns = any(isinstance(one, JobEvent) and one.text.startswith("back to the server") for one in effects)
    asked = any(isinstance(one, Send) and one.to == node and isinstance(one.message, Task) for one in effects)
    if returns and not asked and hub.progress.paused_at is None and node not in hub.state.round.failed:
        raise SeedFailed(f"the job returns because of {node}, but does not ask it for its model")


@dataclass
class FailoverScenario:
    """One drawn run."""

    seed: int
    setup: SimulationSetup
    failover: FailoverSetup
    conditions: PeerNetworkConditions
    actions: tuple[TimedAction, ...]
    pace_s: dict[str, float]


def draw(seed: int) -> FailoverScenario:
    """Return the scenario of that seed, with any job that supports gossip."""
    run, job = draw_plain(seed), draw_job(Random(f"job of {seed}"))
    plan = replace(run.setup.plan, filters=job.filters, versions=job.versions)
    node_info = draw_hours(Random(f"daily windows of {seed}"), run.setup.nodes)
    setup = replace(run.setup, plan=plan, algorithm=job.algorithm, schedule=job.schedule, node_info=node_info)
    return replace(run, setup=setup)


def draw_hours(rng: Random, nodes: tuple[str, ...]) -> dict[str, NodeInfo]:
    """Return daily hours for some nodes but the first in a part of the runs. Virtual time begins at midnight."""
    timed = nodes[1:] if rng.random() < 0.3 else ()
    return {node: NodeInfo(hours=rng.choice(HOURS)) for node in timed if rng.random() < 0.7}


def draw_plain(seed: int) -> FailoverScenario:
    """Return the scenario of that seed, with federated averaging in rounds."""
    rng = Random(f"switching/{seed}")
    nodes = tuple(f"n{number}" for number in range(1, rng.randint(2, 7) + 1))
    until = rng.choice((60.0, 150.0, 300.0))
    cuts = tuple(
        NetworkCut(node, start, start + rng.choice((10.0, 40.0, 90.0)))
        for node in nodes
        if rng.random() < 0.25
        for start in [rng.random() * until]
    )
    faults = Faults(
        until_s=until,
        delay_s=rng.choice((0.0, 0.02, 0.3)),
        message_loss=rng.choice((0.0, 0.0, 0.02, 0.1)),
        message_duplicates=rng.choice((0.0, 0.1)),
        cuts=cuts,
        coordinator_crashes=rng.choice((0, 1, 3)),
        node_crashes=rng.choice((0, 0, 1, 2)),
    )
    plan = JobPlan(
        rng.randint(5, 40),
        seed=seed,
        filters=rng.choice(((), (), (Quantize(bits=8),))),
        accuracy_drop_max=rng.choice((0.0, 0.02)),
    )
    setup = SimulationSetup(
        plan,
        Algorithm(),
        Rounds(deadline_s=rng.choice((8.0, 20.0))),
        nodes,
        faults,
        CoordinatorTiming(down_s=10.0),
        5.0,
        seed,
    )
    failover = Failover(
        coordinator_timeout_s=rng.choice((12.0, 15.0)),
        suspicion_s=rng.choice((6.0, 15.0)),
        failover_quorum=rng.choice(("any", "any", "majority")),
        min_gossip_s=rng.choice((10.0, 30.0)),
        open_exchanges_timeout_s=rng.choice((5.0, 20.0)),
    )
    halves = frozenset(nodes[: len(nodes) // 2])
    split = (NetworkSplit(halves, 0.3 * until, 0.6 * until),) if rng.random() < 0.3 else ()
    conditions = PeerNetworkConditions(
        until,
        delay_s=rng.choice((0.0, 0.02, 0.3)),
        message_loss=rng.choice((0.0, 0.05, 0.1)),
        message_duplicates=rng.choice((0.0, 0.1)),
        cuts=split,
    )
    return FailoverScenario(
        seed,
        setup,
        FailoverSetup(failover, weights={node: float(rng.choice((1, 3, 10))) for node in nodes}),
        conditions,
        draw_actions(rng, until),
        {node: rng.choice((0.5, 2.0, 4.0)) for node in nodes},
    )


def draw_actions(rng: Random, until: float) -> tuple[TimedAction, ...]:
    """Return long deaths of the coordinator, flapping, or an operator's switches."""
    kind = rng.random()
    if kind < 0.4:
        return tuple(
            TimedAction(rng.random() * until, "kill", rng.choice((20.0, 60.0, 120.0))) for _ in range(rng.randint(1, 2))
        )
    if kind < 0.6:
        start = rng.random() * until / 2
        return tuple(TimedAction(start + 15.0 * turn, "kill", 10.0) for turn in range(rng.randint(2, 10)))
    if kind < 0.9:
        start = rng.random() * until / 2
        back = start + rng.choice((0.0, 5.0, 60.0))
        return (
            TimedAction(start, "gossip"),
            TimedAction(back, "server"),
            TimedAction(rng.random() * until, "kill", rng.choice((2.0, 50.0))),
        )
    return ()


def run_seed(
    seed: int, write_line: Callable[[str], None] | None = None, drawn: Callable[[int], FailoverScenario] = draw
) -> tuple[FailoverWorld, FailoverObserver]:
    """Run that seed of `drawn` and check all invariants; `write_line` takes lines. Raises `SeedFailed`."""
    run = drawn(seed)
    blobs, clock = MemoryBlobs(), VirtualClock()
    observer = FailoverObserver(blobs, write_line)
    learners = {node: ToyLearner(number) for number, node in enumerate(run.setup.nodes, 1)}
    rng = Random(seed)

    def perform(node: str, task: Task, memory: BlobRef | None) -> LearnerTask:
        return LearnerTask(run.setup.algorithm, learners[node], blobs, task, memory, run.setup.plan.filters)

    def pace(node: str, _task: Task) -> float:
        return run.pace_s[node] * rng.choice((1.0, 1.0, 0.7, 1.6))

    world = FailoverWorld(
        run.setup, run.failover, perform, pace, conditions=run.conditions, clock=clock, blobs=blobs, watch=observer
    )
    with repeatable(seed, "--switching "):
        _run_to_end(run, world)
        _check_end(world, observer)
    return world, observer


def _run_to_end(run: FailoverScenario, world: FailoverWorld) -> None:
    world.start()
    world.update_live_peers()
    for action in run.actions:
        if action.what == "kill":
            world.clock.at(action.at, world.coordinator.kill, action.down_s)
        else:
            world.operator.plan(OperatorAction(action.at, action.what))
    for operator_action in (*draining(run.seed, run.setup), *changing(run.seed, run.setup)):
        world.operator.plan(operator_action)
    back_at = run.setup.faults.until_s + SWITCH_BACK_S
    world.clock.at(back_at, world.operator.plan, OperatorAction(0.0, "server"))
    world.clock.at(run.setup.faults.until_s, world.operator.supervise)
    if not world.run(run.setup.faults.until_s + GRACE_S, STEPS_MAX):
        hub = world.coordinator.hub
        states = {name: (node.up, world.peer(name).peer.state) for name, node in world.nodes.items()}
        raise SeedFailed(
            f"not over: version {hub.progress.version}, {hub.progress.phase}, {hub.progress.mode}; {states}"
        )


def _check_end(world: FailoverWorld, observer: FailoverObserver) -> None:
    """Check that every node that gossiped has handed its model back."""
    for name in world.nodes:
        peer = world.peer(name).log
        if peer.terms != sorted(peer.terms):
            raise SeedFailed(f"{name} went back in its terms: {peer.terms}")
        for base, start in peer.adopted:
            off = float(np.abs(floats(base) - floats(start)).max())
            if off > ROUNDING * (1 + float(np.abs(floats(base)).max())):
                raise SeedFailed(f"{name} added work that is relative to a base to a model {off:.3g} from it")
        for task in peer.given_up:
            if task is None or (name, task) not in observer.counted:
                raise SeedFailed(f"{name} gave its model up, but its report on {task} does not count")
