"""Tasks that are done ahead of their turn come to what they come to in their turn, whatever happens in between."""

from concurrent.futures import Future
from itertools import product
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import shoal
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.sim.tasks.chunk_runner import ChunkRunner, ChunkWork, TaskOutcome
from tests.sim import worker_learners as make
from tests.support.sampling import extended


class AtOnce:
    """An engine in this process, which runs a chunk when it is sent."""

    def __init__(self, workers: int, runner: bytes, threads: int) -> None:
        self.workers, self.threads = workers, threads
        self._run: ChunkRunner = ForkingPickler.loads(runner)

    def submit(self, work: ChunkWork) -> Future[list[TaskOutcome]]:
        future: Future[list[TaskOutcome]] = Future()
        future.set_result(self._run(ForkingPickler.loads(ForkingPickler.dumps(work))))
        return future

    def close(self) -> None: ...


SLOW = {f"node-{number}": 1.0 + number % 4 for number in range(0, 40, 3)}


LEARNERS = {"torch": make.stackable, "numpy": make.softmax}
JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "over-selection": ("fedavg", {"name": "rounds", "cohort": 20, "over_select": 10}, {}),
    "deadline": ("fedavg", {"name": "rounds", "quorum": 20, "deadline_s": 1.5}, {}),
    "buffer": ("fedbuff", {"name": "buffer", "size": 13, "min_nodes": 40}, {}),
    "asynchronous": ("fedasync", {"name": "buffer", "size": 1, "min_nodes": 40}, {"rounds": 60}),
    "filter": ("fedprox", {"name": "rounds"}, {"filters": [{"name": "top_k", "fraction": 0.2}]}),
    "private memory": ("scaffold", {"name": "rounds", "cohort": 25}, {}),
}
SAMPLE = [("torch", "buffer"), *(("numpy", name) for name in JOBS if name != "buffer")]


@pytest.mark.parametrize(("learner", "name"), extended(product(LEARNERS, JOBS), but=SAMPLE))
def test_it_is_the_same_to_the_bit(learner: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, schedule, more = JOBS[name]
    monkeypatch.setattr("shoal.sim.tasks.simulated_tasks.WorkerPool", AtOnce)
    monkeypatch.setattr("shoal.learn.stacked.task_chunks.STACKED_MIN", 10)
    given = {"name": "j", "rounds": 4, "algorithm": {"name": algorithm, "batch_size": 8}, "schedule": schedule, **more}
    one, *others = (
        shoal.simulate(parse_job(given), LEARNERS[learner], nodes=40, workers=workers, slow=SLOW)
        for workers in (1, 2, 5)
    )
    for other in others:
        assert digest(one.model) == digest(other.model)
        assert (one.versions, one.events) == (other.versions, other.events)
        assert other.training.rpartition("in ")[0].rstrip("; ") == one.training
