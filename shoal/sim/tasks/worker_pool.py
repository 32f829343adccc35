"""Processes of this machine that run chunks of tasks.

Each has a thread here, which sends it a chunk, waits for the outcomes and sends the next one. A worker ends with this
process, however that ends, and ignores a Ctrl-C at the terminal, which is for this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any

from shoal.core.errors import ShoalError
from shoal.learn.compute_threads import set_threads
from shoal.learn.user_errors import one_line
from shoal.sim.tasks.chunk_runner import ChunkRunner, ChunkWork, TaskOutcome, in_worker

ENDING_S = 5.0
"""Seconds that a worker which has closed its connection may take to end."""


class WorkerFailed(ShoalError):
    """A worker process has ended while it was needed, or cannot do its work. It ends the simulation."""

    default_code = "worker.failed"


class WorkerPool:
    """`workers` processes with a runner in each: a pickled `ChunkRunner`."""

    def __init__(self, workers: int, runner: bytes, threads: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="shoal-worker")
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._processes: list[WorkerProcess] = []
        with _signals_blocked():
            for number in range(workers):
                self._processes.append(WorkerProcess(f"{number + 1} of {workers}", runner, threads))
                self._idle.put(self._processes[-1])

    def submit(self, work: ChunkWork) -> Future[list[TaskOutcome]]:
        """Run a chunk in the next process that is idle."""
        return self._threads.submit(self._run, work)

    def _run(self, work: ChunkWork) -> list[TaskOutcome]:
        worker = self._idle.get()
        try:
            return worker.run(work)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)


class WorkerProcess:
    """One process, which does a chunk at a time."""

    def __init__(self, name: str, runner: bytes, threads: int) -> None:
        self._name, self._is_ready = name, False
        self._connection, theirs = Pipe()
        context = multiprocessing.get_context("spawn")
        arguments = (theirs, runner, threads)
        self._process = context.Process(target=serve, args=arguments, name=f"shoal worker {name}", daemon=True)
        self._process.start()
        theirs.close()

    def run(self, work: ChunkWork) -> list[TaskOutcome]:
        """Send a chunk and wait for the outcomes. Raises `WorkerFailed`, or what has kept the worker from its work."""
        try:
            if not self._is_ready:
                self._answer()
                self._is_ready = True
            self._connection.send(work)
            outcomes: list[TaskOutcome] = self._answer()
        except (EOFError, OSError) as error:
            raise self._ended(work) from error
        return outcomes

    def _answer(self) -> Any:
        answer = self._connection.recv()
        if isinstance(answer, ShoalError):
            raise answer
        return answer

    def _ended(self, work: ChunkWork) -> WorkerFailed:
        self._process.join(ENDING_S)
        code = self._process.exitcode
        how = (
            f"with exit code {code}" if code is None or code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"
        )
        if not self._is_ready:
            hint = 'what it printed says more; a script calls shoal.simulate below `if __name__ == "__main__":`'
            return WorkerFailed(f"worker process {self._name} ended at its start {how}", hint=hint)
        first, last = work.tasks[0].task.node, work.tasks[-1].task.node
        which = first if first == last else f"{first} to {last}"
        hint = "out of memory? look at the system's log, and use fewer workers or learners with less data"
        return WorkerFailed(f"worker process {self._name} ended {how} in tasks of {which}", hint=hint)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()


def serve(connection: Connection, runner: bytes, threads: int) -> None:
    """Run chunks until this process is killed, or the one that has started it ends: the body of a worker."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    multiprocessing.current_process().daemon = False  # a learner may start processes of its own, which read its data
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read when torch is loaded
    try:
        run: ChunkRunner = ForkingPickler.loads(runner)
    except Exception as error:  # noqa: BLE001 - the user's modules are imported here
        connection.send(
            _failed("loading the learners", error, "it imports the file of the function that makes them again")
        )
        return
    set_threads(threads)
    connection.send(None)
    while True:
        work = connection.recv()
        try:
            answer: Any = run(work)
        except Exception as error:  # noqa: BLE001 - told, as what ends the simulation
            answer = _failed("running tasks", error)
        connection.send(answer)


def _failed(what: str, error: Exception, hint: str = "") -> WorkerFailed:
    failed = WorkerFailed(f"{what} in a worker process failed: {one_line(error)}", hint=hint)
    failed.add_note(in_worker(error))
    return failed


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    wait([parent.sentinel] if parent is not None else [])
    os._exit(1)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block Ctrl-C in a block: processes that it starts never get one, this process gets it afterwards."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # which would unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
