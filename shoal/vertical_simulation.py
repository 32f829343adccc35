"""Training on vertical data in this process: `shoal.simulate_vertical(job, learner)`.

    import shoal
    from shoal.learn.split.vertical_network import VerticalNetwork

    learner = TorchLearner(lambda: VerticalNetwork({"bank": head, "shop": other}, tail), (x_bank, x_shop, y))
    result = shoal.simulate_vertical(shoal.VerticalJob(rounds=5), learner)

The machines are the real ones; the network, the clock and the disks are simulated, as in `shoal.split_simulation`.
"""

from __future__ import annotations

from shoal.core.errors import LearnerFailed, Unreachable
from shoal.core.protocol.machine import JobEvent
from shoal.core.split.part_state import SplitVersion
from shoal.learn.default_generators import kept_generator
from shoal.learn.split.vertical_job import Party, VerticalCut, VerticalJob
from shoal.learn.training.torch_learner import TorchLearner
from shoal.results.result import Result
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import Faults
from shoal.sim.split.split_world import MachineMaker, SplitWorld
from shoal.sim.split.version_log import VersionLog
from shoal.sim.tasks.torch_threads import torch_threads
from shoal.simulation import payload_bytes

PATIENCE = 4
"""Turn timeouts for each batch after which a job is given up."""


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
    """One run: the learner of the whole network, and the versions so far."""

    def __init__(self, job: VerticalJob, learner: TorchLearner, held_out: TorchLearner | None) -> None:
        if held_out is not None:
            held_out.use(device="cpu")
        self._cut, self._blobs = VerticalCut(job, learner), MemoryBlobs(payload_bytes)
        self._versions = VersionLog(self._blobs, held_out)

    def run(self, faults: Faults | None, seed: int) -> Result:
        """Run the job to its end."""
        cut, blobs = self._cut, self._blobs
        start, batches = [blobs.put(one.save()) for one in cut.start_parts()], next(iter(cut.parties.values())).batches
        world = SplitWorld(
            (lambda: cut.coordinator(blobs, start), lambda: cut.coordinator_legs(blobs)),
            {name: self._party(one) for name, one in cut.parties.items()},
            blobs,
            faults=faults,
            seed=seed,
            closed=lambda version: self._versions.close(version, world),
        )
        self._versions.close(SplitVersion(0, tuple(start), {}, ()), world)
        if not world.run_to_end(PATIENCE * cut.job.turn_timeout_s * (cut.job.rounds * batches + 1)):
            text = f"no batch goes on: {world.refused[-1] if world.refused else 'no message arrives'}"
            raise Unreachable(text, code="split.stalled")
        if world.newest is None or world.newest.number < cut.job.rounds:
            raise LearnerFailed(world.ended, code="split.failed")
        return self._versions.result(cut.job.name, world.newest, world, [JobEvent("decision", cut.step_text, 0)])

    def _party(self, party: Party) -> MachineMaker:
        return party.node, lambda: party.node_legs(self._blobs)
