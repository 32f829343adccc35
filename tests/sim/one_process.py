"""Workers of a simulation without processes, for unit tests."""

from concurrent.futures import Future
from itertools import cycle
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shoal.sim.tasks.chunk_runner import ChunkRunner, ChunkWork, TaskOutcome


class OneProcess:
    """The workers of a simulation, all in this process: each has a runner of its own, and gets what a pipe carries."""

    def __init__(self, workers: int, runner: bytes, threads: int) -> None:
        self.workers = workers
        self._turns = cycle([ForkingPickler.loads(runner) for _ in range(workers)])

    def submit(self, work: ChunkWork) -> Future[list[TaskOutcome]]:
        run: ChunkRunner = next(self._turns)
        future: Future[list[TaskOutcome]] = Future()
        future.set_result(copied(run(copied(work))))
        return future

    def close(self) -> None: ...


def copied(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))
