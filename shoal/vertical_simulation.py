"""Training on vertical data in this process: `shoal.simulate_vertical(job, learner)`.

    import shoal
    from shoal.learn.split.vertical_network import VerticalNetwork

    learner = TorchLearner(lambda: VerticalNetwork({"bank": head, "shop": other}, tail), (x_bank, x_shop, y))
    result = shoal.simulate_vertical(shoal.VerticalJob(rounds=5), learner)

The machines are the real ones; the network, the clock and the disks are simulated, as in `shoal.split_simulation`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import torch

from shoal.core.algorithm.filter import Filter
from shoal.core.errors import InvalidJob, LearnerFailed, Unreachable
from shoal.core.protocol.machine import JobEvent
from shoal.core.split.part_state import SplitVersion
from shoal.core.split.split_node import SplitNode
from shoal.core.split.split_plan import SplitPlan, TensorForm
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.core.split.vertical_plan import VerticalPlan
from shoal.learn.default_generators import kept_generator
from shoal.learn.split.cutting import activation_form
from shoal.learn.split.part_legs import batch_at
from shoal.learn.split.split_job import fitting_learner
from shoal.learn.split.trained_part import TrainedPart
from shoal.learn.split.vertical_legs import PartyLegs, TailLegs
from shoal.learn.split.vertical_network import VerticalNetwork
from shoal.learn.training.torch_learner import TorchLearner
from shoal.learn.training.weights import NAME_OF
from shoal.learn.user_errors import user_code
from shoal.results.result import Result
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import Faults
from shoal.sim.split.split_world import MachineMaker, SplitWorld
from shoal.sim.split.version_log import VersionLog
from shoal.sim.tasks.torch_threads import torch_threads
from shoal.simulation import payload_bytes

PATIENCE = 4
"""Turn timeouts for each batch after which a job is given up."""


@dataclass(frozen=True)
class VerticalJob:
    """A job on vertical data. `labels`: "coordinator", or the party that has them and sends them with its activations.
    `steps`: batches of each round; 0: `epochs` passes over the rows."""

    name: str = "vertical"
    labels: str = "coordinator"
    rounds: int = 1
    epochs: float = 1.0
    steps: int = 0
    batch_size: int = 32
    lr: float = 0.1
    seed: int = 0
    filters: Sequence[Filter] = ()
    checkpoint_every: int = 16


def simulate_vertical(
    job: VerticalJob,
    learner: TorchLearner,
    *,
    faults: Faults | None = None,
    fault_seed: int | None = None,
    held_out: TorchLearner | None = None,
    threads: int = 1,
) -> Result:
    """Train a learner's `VerticalNetwork`, with each head at a party of its name, and the tail at the coordinator.

    The data are one input for each head, in the same order of rows, and the labels: `(x_1, …, x_n, y)`. A party
    uses its own input only. All compute on the CPU. `faults` says what goes wrong; `fault_seed` draws its instants
    (None: the job's seed). `held_out` measures each round's model: metrics "held_out/…".

    Raises `InvalidJob` for a network, data or settings that do not fit, before anything starts, `LearnerFailed` for an
    error in the user's code, and `Unreachable` where messages never pass.
    """
    with torch_threads(threads), kept_generator():
        return VerticalRun(job, learner, held_out).run(faults, job.seed if fault_seed is None else fault_seed)


class VerticalRun:
    """One run: the plan, the learner of the whole network, and the versions so far."""

    def __init__(self, job: VerticalJob, learner: TorchLearner, held_out: TorchLearner | None) -> None:
        self._job, self._learner = job, learner
        for one in (learner, held_out):
            if one is not None:
                one.use(device="cpu")
        learner.init(job.seed)
        self._network = _network_of(fitting_learner(learner, "the learner"))
        self.plan = self._plan()
        self._blobs = MemoryBlobs(payload_bytes)
        self._versions = VersionLog(self._blobs, held_out)

    def _plan(self) -> VerticalPlan:
        """Return the plan, with the forms of one batch. Raises `InvalidJob`."""
        job, learner, names = self._job, self._learner, list(self._network.heads)
        if job.labels not in ("coordinator", *names):
            hint = f"use coordinator, {' or '.join(names)}"
            raise InvalidJob(f"the labels are at {job.labels!r}, which is not a party", code="split.labels", hint=hint)
        common = SplitPlan(
            cuts=(TensorForm("F32"),),
            rounds=job.rounds,
            batch_size=job.batch_size,
            filters=tuple(job.filters),
            checkpoint_every=job.checkpoint_every,
            seed=job.seed,
            is_party=True,
        )
        learner.place()
        with user_code("reading the data"):
            inputs, target, examples = batch_at(learner, common, 0)
            per_pass = learner.train_data.steps(job.batch_size)
        if len(inputs) != len(names) or not all(isinstance(one, torch.Tensor) for one in (*inputs, target)):
            text, hint = f"{len(inputs)} inputs for {len(names)} heads", "give the data (x_1, …, x_n, y) as tensors"
            raise InvalidJob(text, code="split.labels", hint=hint)
        labels = TensorForm(NAME_OF[target.dtype], tuple(target.shape[1:]))
        parties = {}
        for name, value in zip(names, inputs, strict=True):
            with torch.no_grad(), user_code("computing a head"):
                output = copy.deepcopy(self._network.heads[name]).eval()(value)
            form = activation_form(f"the head of {name}", output, examples)
            parties[name] = replace(common, cuts=(form,), label_form=labels if name == job.labels else None)
        return VerticalPlan(parties, job.steps or ceil(job.epochs * (per_pass or 0) - 1e-9))

    def _part(self, party: str) -> TrainedPart:
        """Return a new part with an optimizer of its own: a party's, or the coordinator's for an empty name."""
        with user_code("making the optimizer"):
            own = copy.deepcopy(self._network.head_part(party) if party else self._network.tail_part())
            return TrainedPart([own], self._learner.optimizer, self._job.lr)

    def run(self, faults: Faults | None, seed: int) -> Result:
        """Run the job to its end."""
        plan, blobs = self.plan, self._blobs
        heads, tail = [blobs.put(self._part(name).save()) for name in plan.parties], blobs.put(self._part("").save())
        world = SplitWorld(
            (
                lambda: VerticalCoordinator(plan, blobs, heads, tail),
                lambda: TailLegs(plan, blobs, partial(self._part, ""), self._learner),
            ),
            {name: self._party(name) for name in plan.parties},
            blobs,
            faults=faults,
            seed=seed,
            closed=lambda version: self._versions.close(version, world),
        )
        self._versions.close(SplitVersion(0, (*heads, tail), {}, ()), world)
        if not world.run_to_end(PATIENCE * plan.common.turn_timeout_s * (plan.common.rounds * plan.batches + 1)):
            text = f"no batch goes on: {world.refused[-1] if world.refused else 'no message arrives'}"
            raise Unreachable(text, code="split.stalled")
        if world.newest is None or world.newest.number < plan.common.rounds:
            raise LearnerFailed(world.ended, code="split.failed")
        forms = ", ".join(f"{one.cuts[0].nbytes(1)} of {name}" for name, one in plan.parties.items())
        note = JobEvent("decision", f"bytes of activations for each row: {forms}", 0)
        return self._versions.result(self._job.name, world.newest, world, [note])

    def _party(self, name: str) -> MachineMaker:
        plan = self.plan
        return (
            lambda: SplitNode(name, plan.parties[name], plan.batches, float(self._learner.examples or plan.batches)),
            lambda: PartyLegs(plan, name, self._blobs, partial(self._part, name), self._learner),
        )


def _network_of(learner: TorchLearner) -> VerticalNetwork:
    """Return a learner's network. Raises `InvalidJob` for another module, and settings that no side could follow."""
    if not isinstance(learner.module, VerticalNetwork):
        text = f"the learner's model is a {type(learner.module).__name__}"
        raise InvalidJob(text, code="job.learners", hint="give it a VerticalNetwork")
    return learner.module
