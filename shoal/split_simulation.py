"""Split learning in this process: `shoal.simulate_split(job, learners)`.

    import shoal

    result = shoal.simulate_split(shoal.SplitJob(cut=2, rounds=5), learners)
    print(result.metrics)

The machines and the learners are the real ones; the network, the clock and the disks are simulated. Time is virtual:
each leg of a batch takes `LEG_S` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.core.errors import InvalidJob, LearnerFailed, Unreachable
from shoal.core.protocol.machine import JobEvent
from shoal.core.split.part_state import SplitVersion
from shoal.core.split.split_plan import SplitPlan
from shoal.learn.default_generators import kept_generator
from shoal.learn.split.split_job import CutLearner, SplitJob, check_form, fitting_learner
from shoal.learn.training.torch_learner import TorchLearner
from shoal.results.result import Result
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import Faults
from shoal.sim.split.split_world import MachineMaker, SplitWorld
from shoal.sim.split.version_log import VersionLog
from shoal.sim.tasks.torch_threads import torch_threads
from shoal.simulation import payload_bytes

PATIENCE = 4
"""Turn timeouts without any progress after which a job is given up."""


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
        if held_out is not None:
            held_out.use(device="cpu")
        names = list(learners)
        self._first = CutLearner(job, learners[names[0]], len(learners), names[0])
        self._job, self.plan = self._first.job, self._first.plan
        self._learners = {names[0]: self._first}
        for name in names[1:]:
            self._learners[name] = one = CutLearner(self._job, learners[name], len(learners), name)
            check_form(one.form, self._first.form, name)
        self._blobs = MemoryBlobs(payload_bytes)
        self._versions = VersionLog(self._blobs, held_out)
        self._notes = [JobEvent("decision", self._first.step_text, 0)]

    def run(self, faults: Faults | None, seed: int) -> Result:
        """Run the job to its end. Raises `Unreachable` where messages never pass."""
        start = [self._blobs.put(one.save()) for one in self._first.start_parts()]
        world = SplitWorld(
            (
                lambda: self._first.coordinator(self._blobs, start),
                lambda: self._first.coordinator_legs(self._blobs),
            ),
            {name: self._node(name) for name in self._learners},
            self._blobs,
            faults=faults,
            seed=seed,
            closed=lambda version: self._versions.close(version, world),
        )
        self._versions.close(SplitVersion(0, tuple(start), {}, ()), world)
        _run_to_end(world, self.plan)
        newest = world.newest
        if newest is None or newest.number < self.plan.rounds:
            raise LearnerFailed(world.coordinator.state.ended, code="split.failed")
        return self._versions.result(self._job.name, newest, world, self._notes)

    def _node(self, name: str) -> MachineMaker:
        one = self._learners[name]
        return lambda: one.node(name), lambda: one.node_legs(self._blobs)


def _named(learners: Sequence[TorchLearner] | Mapping[str, TorchLearner]) -> Mapping[str, TorchLearner]:
    """Return the learners by name. Raises `InvalidJob` for none, and for other learners."""
    found = learners if isinstance(learners, Mapping) else {f"node-{i}": one for i, one in enumerate(learners)}
    if not found:
        raise InvalidJob("a job needs at least one learner", code="job.learners")
    for name, one in found.items():
        fitting_learner(one, name)
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
