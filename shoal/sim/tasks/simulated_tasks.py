"""The tasks of all simulated nodes: done here, alone or at once with others, or by other processes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING

from shoal.core.algorithm.capability import capability_error
from shoal.core.algorithm.learner import Learner, check_stages
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.protocol.machine import TaskResult, Work
from shoal.core.protocol.message import BlobRef, Task, TaskStatus
from shoal.learn.loading import required_learner
from shoal.learn.stacked.task_chunks import AT_ONCE, CHUNK_BYTES, TaskChunks
from shoal.learn.user_errors import one_line
from shoal.sim.hosts.work import LearnerTask, SimulatedTask
from shoal.sim.hosts.world import SimulationSetup
from shoal.sim.network.blobs import LeanBlobs, MemoryBlobs
from shoal.sim.tasks.chunk_runner import ChunkRunner
from shoal.sim.tasks.learners import LearnersOnDemand
from shoal.sim.tasks.remote_tasks import RemoteTask, RemoteTasks
from shoal.sim.tasks.worker_pool import WorkerPool

if TYPE_CHECKING:
    from shoal.learn.stacked.stacked_tasks import StackedTasks

PICKLED = "write the function at the top level of a file, not inside another; for options take functools.partial of it"


class SimulatedTasks:
    """The tasks of all nodes: starts the work of each, in chunks where `blobs` are those of a lean simulation."""

    def __init__(self, setup: SimulationSetup, learners: Mapping[str, Learner], blobs: MemoryBlobs) -> None:
        self._setup, self._learners, self._blobs = setup, learners, blobs
        self._trained: Counter[str] = Counter()
        self._where = ""
        first = _first_checked(setup, learners)
        self._stacked = self._stacked_tasks() if isinstance(blobs, LeanBlobs) else None
        self._stacks = self._stacked is not None and not self._stacked.why_alone(first)
        self._chunk_bytes = self._stacked.chunk_bytes(first) if self._stacked is not None else CHUNK_BYTES
        self._chunks = self._new_chunks() if self._stacked is not None else None
        self._remote: RemoteTasks | None = None
        self.failed: ShoalError | None = None
        """The first failure of a learner."""
        self.failed_node = ""

    def _stacked_tasks(self) -> StackedTasks | None:
        """Return what trains several tasks at once; None while no `TorchLearner` can be among the learners."""
        if "shoal.learn.training.torch_learner" not in sys.modules:
            return None
        from shoal.learn.stacked.stacked_tasks import StackedTasks

        return StackedTasks(self._setup.algorithm, self._learners.__getitem__, self._blobs.get, self._note)

    def _note(self, how: str) -> None:
        self._trained[how] += 1

    def _new_chunks(self) -> TaskChunks:
        return TaskChunks(self._setup.nodes, stacks=self._stacks, bytes_max=self._chunk_bytes)

    @contextmanager
    def in_processes(self, workers: int, show: Callable[[str], None], threads: int) -> Iterator[None]:
        """Let `workers` processes do the tasks in a block, each with `threads` threads of torch.

        Raises `InvalidJob` where they cannot get the learners.
        """
        if workers < 1:
            raise InvalidJob(f"workers is {workers}", code="job.workers", hint="1 or more")
        runner = self._pickled_runner() if workers > 1 else b""
        setup = self._setup
        keeps = setup.algorithm.continual or setup.schedule.relative_to_reference or setup.plan.sends_differences
        if not runner or keeps:
            self._where = "in this process, since nodes keep a model from task to task" if runner else ""
            yield
            return
        with closing(WorkerPool(workers, runner, threads)) as pool:
            self._chunks = self._chunks or self._new_chunks()
            self._remote = RemoteTasks(self._chunks, pool, self._blobs, show)
            self._where = f"in {workers} processes"
            yield

    def _pickled_runner(self) -> bytes:
        """Return what each process needs to do chunks."""
        if not isinstance(self._blobs, LeanBlobs):
            text = "several workers go with a lean simulation, without faults"
            raise InvalidJob(text, code="job.workers", hint="leave workers out, or faults and fidelity")
        if not isinstance(self._learners, LearnersOnDemand):
            text = "the learners are made in this process, and several workers need a function that makes them"
            raise InvalidJob(text, code="job.workers", hint=f"write shoal.simulate(job, make, nodes=…): {PICKLED}")
        setup, torch = self._setup, self._stacked is not None
        runner = ChunkRunner(setup.algorithm, setup.plan.filters, self._learners, torch)
        try:
            pickled = bytes(ForkingPickler.dumps(runner))
        except Exception as error:
            text = f"the function that makes the learners cannot be sent to another process: {one_line(error)}"
            raise InvalidJob(text, code="job.workers", hint=PICKLED) from error
        main = sys.modules["__main__"]
        if b"__main__" in pickled and not (getattr(main, "__file__", None) or getattr(main, "__spec__", None)):
            text = "the function that makes the learners is in no file, where other processes would find it"
            raise InvalidJob(text, code="job.workers", hint="write it into a module, mine.py, and import it from there")
        return pickled

    def begin(self, node: str, work: Work) -> None:
        """Note that a node has begun a task."""
        if self._chunks is not None:
            self._chunks.begin(node, work)

    def __call__(self, node: str, task: Task, memory: BlobRef | None) -> SimulatedTask:
        """Return the work of a task that is due."""
        if self._remote is not None:
            outcome = self._remote.outcome(task)
            self._trained.update(outcome.notes)
            return RecordingTask(node, RemoteTask(outcome, self._blobs), self)
        setup = self._setup
        if self._stacked is not None and self._chunks is not None:
            learner = self._stacked.learner(task, self._chunks.due(node))
            self._chunks.withdraw(node)
        else:
            learner = self._learners[node]
        work = LearnerTask(setup.algorithm, learner, self._blobs, task, memory, setup.plan.filters)
        return RecordingTask(node, work, self)

    @property
    def summary(self) -> str:
        """The numbers of tasks that were trained at once and one by one, with the reasons, and where."""
        counts = sorted(self._trained.items(), key=lambda pair: (not pair[0].startswith(AT_ONCE), -pair[1]))
        parts = [f"{count:,} {how}" for how, count in counts]
        return "; ".join([*parts, self._where] if self._where else parts)


def _first_checked(setup: SimulationSetup, learners: Mapping[str, Learner]) -> Learner:
    """Return the first learner. Raises `InvalidJob` if a learner lacks a method that the algorithm needs."""
    first = learners[setup.nodes[0]]
    made = {setup.nodes[0]: first} if isinstance(learners, LearnersOnDemand) else learners
    for node, learner in made.items():
        error = capability_error(setup.algorithm, required_learner(learner, f"the learner of {node}"))
        check_stages(learner, len(setup.plan.stages))
        if error is not None:
            raise InvalidJob(f"{node}: {error.message}", code=error.code, hint=error.hint)
    return first


class RecordingTask:
    """A task whose first failure is recorded with its traceback."""

    def __init__(self, node: str, work: SimulatedTask, tasks: SimulatedTasks) -> None:
        self._node, self._work, self._tasks = node, work, tasks

    @property
    def held(self) -> BlobRef | None:
        return self._work.held

    def can_continue(self, task: Task) -> bool:
        return self._work.can_continue(task)

    def run_piece(self, task: Task) -> TaskResult | TaskStatus | None:
        try:
            return self._work.run_piece(task)
        except ShoalError as error:
            if self._tasks.failed is None:
                self._tasks.failed, self._tasks.failed_node = error, self._node
            raise
