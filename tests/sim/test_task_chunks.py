"""Chunks of tasks: how they are planned, and how far they are sent ahead of their turn."""

from concurrent.futures import Future

import pytest

from shoal.core.algorithm.algorithm import LocalResult
from shoal.core.protocol.machine import Work
from shoal.core.protocol.message import BlobRef, Kind, Task
from shoal.learn.stacked.task_chunks import TaskChunks
from shoal.sim.network.blobs import LeanBlobs
from shoal.sim.tasks.chunk_runner import ChunkWork, TaskOutcome
from shoal.sim.tasks.remote_tasks import RemoteTasks

SMALL = BlobRef("a" * 64, 4)


def names(count: int) -> list[str]:
    return [f"node-{number}" for number in range(count)]


def work(node: str, blob: BlobRef | None = SMALL, kind: Kind = "train") -> Work:
    return Work(Task(id=(0, 1), node=node, kind=kind, version=1, seed=0, blob=blob), BlobRef(node, 1))


def begun(count: int, blob: BlobRef | None = SMALL, *, stacks: bool = False) -> TaskChunks:
    chunks = TaskChunks(names(count), stacks=stacks)
    for node in names(count):
        chunks.begin(node, work(node, blob))
    return chunks


@pytest.mark.parametrize(
    ("count", "nbytes", "stacks", "number", "longest"),
    [
        (10, 4, False, 10, 1),
        (96, 4, False, 32, 3),
        (20_000, 4, False, 79, 254),
        (60, 4, True, 1, 60),
        (255, 4, True, 1, 255),
        (1000, 4, True, 7, 143),
        (5000, 4, True, 20, 250),
        (130, 1_000_000, True, 13, 10),
        (4, 100_000_000, True, 4, 1),
    ],
)
def test_chunks_are_nearly_equal(count: int, nbytes: int, stacks: bool, number: int, longest: int) -> None:
    chunks = begun(count, BlobRef("a" * 64, nbytes), stacks=stacks)
    chunks.due("node-0")
    lengths = [len(chunk.tasks) for chunk in chunks.planned]
    assert (sum(lengths), len(lengths), max(lengths)) == (count, number, longest)
    assert longest - min(lengths) <= 1


def test_tasks_of_a_chunk_have_one_model_and_their_turn_is_not_past() -> None:
    other = BlobRef("b" * 64, 4)
    chunks = TaskChunks(names(6), stacks=True)
    for number, node in enumerate(names(6)):
        chunks.begin(node, work(node, other if number % 2 else SMALL))
    chunk = chunks.due("node-2")
    assert [task.node for task in chunk.tasks] == ["node-2", "node-4"]
    assert [[task.node for task in one.tasks] for one in chunks.planned] == [["node-2", "node-4"], ["node-3", "node-5"]]
    assert [task.node for task in chunks.due("node-0").tasks] == ["node-0"]


def test_a_chunk_lets_go_of_what_is_done_or_replaced() -> None:
    chunks = begun(3, stacks=True)
    chunk = chunks.due("node-0")
    chunks.withdraw("node-0")
    chunks.begin("node-1", work("node-1", None))
    assert list(chunk.memories) == ["node-2"]
    chunks.withdraw("node-2")
    assert not chunk.is_awaited
    assert not chunks.planned
    assert chunks.due("node-1") is not chunk


class Engine:
    """Two workers, whose results are there at once."""

    workers = 2

    def __init__(self) -> None:
        self.sent: list[str] = []

    def submit(self, work: ChunkWork) -> Future[list[TaskOutcome]]:
        self.sent.append(work.tasks[0].task.node)
        future: Future[list[TaskOutcome]] = Future()
        future.set_result([TaskOutcome(LocalResult(float(one.task.node[5:]))) for one in work.tasks])
        return future

    def close(self) -> None: ...


def test_few_chunks_are_sent_ahead_and_none_that_nobody_waits_for() -> None:
    blobs, engine, shown = LeanBlobs(), Engine(), list[str]()
    body, chunks = blobs.add({"x": 1.0}), TaskChunks(names(12), stacks=False)
    memory = blobs.add({"y": 1.0})
    tasks = {node: work(node, body).task for node in names(12)}
    for node, task in tasks.items():
        chunks.begin(node, Work(task, memory))
    remote = RemoteTasks(chunks, engine, blobs, shown.append)
    for number, ahead in enumerate([5, 6, 7]):
        outcome = remote.outcome(tasks[f"node-{number}"])
        assert outcome.made == LocalResult(float(number))
        assert engine.sent == names(ahead)
    assert shown[-1] == "tasks of node-2 and others in 2 processes"
    for node in ("node-4", "node-5", "node-6", "node-7"):
        chunks.begin(node, Work(tasks[node], memory))
    remote.outcome(tasks["node-3"])
    assert engine.sent == [*names(7), "node-8", "node-9", "node-10", "node-11"]
