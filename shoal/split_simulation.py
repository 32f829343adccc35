"""Split learning in this process: `shoal.simulate_split(job, learners)`.

    import shoal

    result = shoal.simulate_split(shoal.SplitJob(cut=2, rounds=5), learners)
    print(result.metrics)

The machines and the learners are the real ones; the network, the clock and the disks are simulated. Time is virtual:
each leg of a batch takes `LEG_S` seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from shoal.core.algorithm.filter import Filter
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed, Unreachable
from shoal.core.model.tree import Layout, Tree, same_layout
from shoal.core.protocol.machine import JobEvent
from shoal.core.split.part_state import SplitVersion
from shoal.core.split.split_coordinator import SplitCoordinator
from shoal.core.split.split_node import SplitNode
from shoal.core.split.split_plan import LabelPlace, SplitPlan, TurnOrder
from shoal.learn.data.passes import training_batches
from shoal.learn.default_generators import kept_generator
from shoal.learn.seeds import generator_of
from shoal.learn.split.cut_choice import SplitSpeed, choose_cut, measured_pieces
from shoal.learn.split.cutting import Cut, SplitModel, cut_forms, split_model
from shoal.learn.split.part_legs import CoordinatorLegs, NodeLegs
from shoal.learn.split.trained_part import MODEL, TrainedPart
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.user_errors import user_code
from shoal.results.result import Result, VersionResult
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import Faults
from shoal.sim.split.split_world import MachineMaker, SplitWorld
from shoal.sim.split.version_log import closed_version
from shoal.sim.tasks.torch_threads import torch_threads
from shoal.simulation import payload_bytes

PATIENCE = 4
"""Turn timeouts without any progress after which a job is given up."""


@dataclass(frozen=True)
class SplitJob:
    """A split job. `cut`: as in `shoal.learn.split.cutting`, or "auto": measured. `steps`: batches of each turn;
    0: `epochs` passes over the node's data."""

    name: str = "split"
    cut: Cut = "auto"
    labels: LabelPlace = "node"
    order: TurnOrder = "sequential"
    rounds: int = 1
    epochs: float = 1.0
    steps: int = 0
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    filters: Sequence[Filter] = ()
    checkpoint_every: int = 16
    speed: SplitSpeed = field(default_factory=SplitSpeed)
    """For `cut="auto"`."""


def simulate_split(
    job: SplitJob,
    learners: Sequence[TorchLearner] | Mapping[str, TorchLearner],
    *,
    faults: Faults | None = None,
    fault_seed: int | None = None,
    held_out: TorchLearner | None = None,
    threads: int = 1,
) -> Result:
    """Train the learners' model, cut between each of them and the coordinator; all compute on the CPU.

    A sequence of learners gets the names node-0, node-1, … `faults` says what goes wrong; `fault_seed` draws its
    instants (None: the job's seed). `held_out` measures each round's model: metrics "held_out/…".

    Raises `InvalidJob` for a cut, data or learners that do not fit, before anything starts, and `LearnerFailed` for an
    error in the user's code.
    """
    with torch_threads(threads), kept_generator():
        return SplitRun(job, _named(learners), held_out).run(faults, job.seed if fault_seed is None else fault_seed)


class SplitRun:
    """One run: the cut models of all learners, and the versions so far."""

    def __init__(self, job: SplitJob, learners: Mapping[str, TorchLearner], held_out: TorchLearner | None) -> None:
        self._job, self._learners, self._held_out = job, learners, held_out
        for learner in [*learners.values(), *([held_out] if held_out is not None else [])]:
            learner.use(device="cpu")
        first = next(iter(learners.values()))
        first.init(job.seed)
        batch = _first_batch(first, job)
        self.cut, self._notes = job.cut, list[JobEvent]()
        if job.cut == "auto":
            self.cut = choose_cut(
                measured_pieces(first.module, batch[0]), job.speed, last=1 if job.labels == "node" else 0
            )
        self._models = {name: split_model(one.module, self.cut, job.labels) for name, one in learners.items()}
        cuts, label_form = cut_forms(self._models[next(iter(learners))], batch, job.labels)
        self.plan = SplitPlan(
            cuts=cuts,
            label_form=label_form,
            order=job.order,
            rounds=job.rounds,
            min_nodes=len(learners),
            batch_size=job.batch_size,
            filters=tuple(job.filters),
            checkpoint_every=job.checkpoint_every,
            seed=job.seed,
        )
        self._blobs = MemoryBlobs(payload_bytes)
        self._versions: list[VersionResult] = []
        self._batches = {name: _batches_of(one, job) for name, one in learners.items()}
        up, down = self.plan.step_bytes(len(batch[0]))
        text = f"the model is cut at {self.cut}; a step of {len(batch[0])} examples sends {up} bytes up, {down} down"
        self._notes.append(JobEvent("decision", text, 0))

    def _part(self, name: str, modules: Callable[[SplitModel], Sequence[Any]]) -> TrainedPart:
        """Return a new part of a learner's model, with an optimizer of its own."""
        with user_code("making the optimizer"):
            own = copy.deepcopy(tuple(modules(self._models[name])))
            return TrainedPart(own, self._learners[name].optimizer, self._job.lr)

    def run(self, faults: Faults | None, seed: int) -> Result:
        """Run the job to its end. Raises `Unreachable` where messages never pass."""
        first = next(iter(self._learners))
        own, middle = self._part(first, _of_node), self._part(first, _of_coordinator)
        start = self._blobs.put(own.save()), self._blobs.put(middle.save())
        for name in self._learners:
            same_layout(own.layout, self._part(name, _of_node).layout)
            same_layout(middle.layout, self._part(name, _of_coordinator).layout)

        def coordinator_legs() -> CoordinatorLegs:
            loss = self._learners[first].loss
            return CoordinatorLegs(self.plan, self._blobs, lambda: self._part(first, _of_coordinator), loss)

        world = SplitWorld(
            (lambda: SplitCoordinator(self.plan, self._blobs, *start), coordinator_legs),
            {name: self._node(name) for name in self._learners},
            self._blobs,
            faults=faults,
            seed=seed,
            closed=lambda version: self._close(version, world),
        )
        self._close(SplitVersion(0, *start, 0.0, {}, ()), world)
        _run_to_end(world, self.plan)
        newest = world.newest
        if newest is None or newest.number < self.plan.rounds:
            raise LearnerFailed(world.coordinator.state.ended, code="split.failed")
        return Result(
            name=self._job.name,
            state="done",
            versions=tuple(self._versions),
            model=self._joined(newest),
            metrics=self._versions[-1].metrics,
            notes=(*self._notes, *world.events),
            up_bytes=world.traffic.total("up"),
            down_bytes=world.traffic.total("down"),
        )

    def _node(self, name: str) -> MachineMaker:
        learner, batches = self._learners[name], self._batches[name]
        weight = float(learner.examples or batches)

        def legs() -> NodeLegs:
            return NodeLegs(self.plan, self._blobs, lambda: self._part(name, _of_node), learner, batches)

        return lambda: SplitNode(name, self.plan, batches, weight), legs

    def _joined(self, version: SplitVersion) -> Tree:
        """Return the whole model of a version."""
        parts = [self._blobs.get(ref)[MODEL] for ref in (version.node_part, version.coordinator_part)]
        return joined([part for part in parts if isinstance(part, Tree)])

    def _close(self, version: SplitVersion, world: SplitWorld) -> None:
        closed = closed_version(version, world, self._versions, self._held_out, lambda: self._joined(version))
        self._versions.append(closed)


def joined(parts: Sequence[Tree]) -> Tree:
    """Return one tree with the tensors of several."""
    owner = {name: part for part in parts for name in part}
    entries = ((one.name, one.dtype, one.shape) for part in parts for one in part.layout.leaves)
    layout = Layout.of(entries, "", frozenset().union(*(part.layout.statistics for part in parts)))
    data = b"".join(bytes(_stored(owner[leaf.name], leaf.name)) for leaf in layout.leaves)
    return Tree(layout, memoryview(data))


def _stored(tree: Tree, name: str) -> Any:
    leaf = tree.layout.index[name]
    return tree.block(leaf.start, leaf.stop)


def _of_node(model: SplitModel) -> Sequence[Any]:
    return model.of_node


def _of_coordinator(model: SplitModel) -> Sequence[Any]:
    return (model.middle,)


def _named(learners: Sequence[TorchLearner] | Mapping[str, TorchLearner]) -> Mapping[str, TorchLearner]:
    """Return the learners by name. Raises `InvalidJob` for other learners, and settings that no side could follow."""
    found = learners if isinstance(learners, Mapping) else {f"node-{i}": one for i, one in enumerate(learners)}
    if not found:
        raise InvalidJob("a job needs at least one learner", code="job.learners")
    for name, one in found.items():
        given: object = one
        if not isinstance(given, TorchLearner):
            text = f"{name} is a {type(given).__name__}"
            raise InvalidJob(text, code="job.learners", hint="split learning needs a TorchLearner")
        config = one.config
        if config.precision != "float32" or config.clip_norm is not None or config.accumulate != 1:
            text = f"{name}: split learning has no precision, clip_norm and accumulate of its own"
            raise InvalidJob(text, code="job.learners", hint="leave them out of its TorchConfig")
    return found


def _first_batch(learner: TorchLearner, job: SplitJob) -> Any:
    config = TrainConfig(steps=1, batch_size=job.batch_size, batch_index=0, sequence_seed=job.seed)
    learner.place()
    with user_code("reading the data"):
        batch, _ = next(training_batches(learner.train_data, config, generator_of(0)))
    return batch.data


def _batches_of(learner: TorchLearner, job: SplitJob) -> int:
    """Return the batches of each turn."""
    learner.place()
    per_pass = learner.train_data.steps(job.batch_size)
    found = job.steps or ceil(job.epochs * (per_pass or 0) - 1e-9)
    if found < 1:
        text = f"a turn of {found} batches"
        raise InvalidJob(text, code="job.split", hint="set steps, or epochs above 0 for data of known length")
    return found


def _run_to_end(world: SplitWorld, plan: SplitPlan) -> None:
    """Run until the job ends. Raises `Unreachable` after `PATIENCE` turn timeouts without progress."""
    world.start()
    before = None
    while not world.run(world.clock.now + PATIENCE * plan.turn_timeout_s):
        state = world.coordinator.state
        progress = state.round, state.turns, [one.position for one in state.open]
        if progress == before:
            text = f"no turn goes on: {world.refused[-1] if world.refused else 'no message arrives'}"
            raise Unreachable(text, code="split.stalled")
        before = progress
