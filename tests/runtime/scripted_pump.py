"""A pump without network and files: whatever it leans on is a script in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from shoal.core.client.worker import Worker
from shoal.core.errors import Cancelled
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import Ack, BlobRef, Message, Report, Task, TaskFailed, TaskId, TaskStatus
from shoal.runtime.http.retry import Backoff
from shoal.runtime.threads import SerialExecutor
from shoal.runtime.worker_ports import CancelToken, HeldTask, WorkerPorts
from shoal.runtime.worker_pump import WorkerPump
from tests.runtime.task_runs import BODY, begins
from tests.support.waiting import PATIENCE_S, until_async

EVERY_S = 0.002


class World:
    """Transport, Keep and Do in one: everything that happens is noted in `log`, in its order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.brought: Slots | None = None  # the body that comes with a task
        self.answers: dict[str, list[Any]] = {}  # results of the next calls, by name
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def _say(self, name: str, note: str, otherwise: Any = None) -> Any:
        self.log.append(note)
        answers = self.answers.get(name, [])
        found = answers.pop(0) if answers else otherwise
        if isinstance(found, BaseException):
            raise found
        return found

    def poll(self, held: Mapping[str, HeldTask]) -> tuple[str, Message] | None:
        raise AssertionError("the pump doesn't poll")

    def inline_blob(self, job: str, ref: BlobRef) -> Slots | None:
        return self.brought

    def fetch_blob(self, job: str, ref: BlobRef, cancelled: Callable[[], bool]) -> Slots:
        return self._say("body", f"fetch {ref.digest[0]}", {"step": 1.0})

    def report(self, job: str, said: Report, body: Any, cancelled: Callable[[], bool]) -> Ack:
        return self._say("report", f"report {said.task[1]}", Ack(said.task, True))

    def fail(self, job: str, said: TaskFailed) -> Ack:
        return self._say("fail", f"fail {said.task[1]}: {said.error}", Ack(said.task, False, "noted"))

    def status(self, job: str, said: TaskStatus) -> None:
        self._say("status", f"status {said.task[1]} check {said.check}")

    def heartbeat(self, job: str, task: TaskId, fraction: float) -> None:
        self._say("beat", f"beat {task[1]} {fraction}")

    def leave(self) -> None:
        raise AssertionError("the agent leaves")

    def save_report(self, said: Report | None, pending: BlobRef | None) -> None:
        with_memory = f" with {pending.digest[0]}" if pending else ""
        self._say("keep", f"keep {said.task[1] if said else None}{with_memory}")

    def report_blob(self, ref: BlobRef) -> bytes:
        return b"payload"

    def commit_memory(self, ref: BlobRef) -> None:
        self._say("memory", f"memory {ref.digest[0]}")

    def perform(self, task: Task, slots: Slots, memory: BlobRef | None, watch: CancelToken) -> TaskResult:
        return self.do(task, slots, memory, watch)  # looked up late: tests replace it

    def do(self, task: Task, slots: Slots, memory: BlobRef | None, watch: CancelToken) -> TaskResult:
        self.log.append(f"begin {task.id[1]}")
        self.started.set()
        watch.progress(0.5)
        while not self.gate.wait(EVERY_S):
            try:
                watch.progress(0.5)
            except Cancelled:
                self.log.append(f"cancelled {task.id[1]}")
                raise
        return self._say("do", f"end {task.id[1]}", TaskResult(1.0, BODY, {}, self.result_memory))

    result_memory: BlobRef | None = None


def pumped(scenario: Callable[[World, WorkerPump], Awaitable[None]], world: World | None = None, **more: Any) -> World:
    """Run a scenario beside a pump; raise the error that stops the pump."""
    found = world or World()

    async def main() -> None:
        worker = more.pop("worker", None) or Worker("a", heartbeat_s=more.pop("worker_heartbeat_s", 100.0))
        executor = SerialExecutor("executor")
        ports = WorkerPorts(
            found, found, begins(found.perform), executor, time.monotonic, Backoff(0.001, 0.002), **more
        )
        pump = WorkerPump("j", worker, ports)
        running = asyncio.create_task(pump.run())
        acting = asyncio.create_task(scenario(found, pump))
        try:
            done, _ = await asyncio.wait({running, acting}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
            await acting
        finally:
            found.gate.set()
            for task in (running, acting):
                task.cancel()
            await asyncio.gather(running, acting, return_exceptions=True)
            executor.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    return found


async def until(condition: Callable[[], bool]) -> None:
    await until_async("the pump to come to it", condition, every_s=0.001)


def logged(world: World, *notes: str) -> Callable[[], bool]:
    return lambda: all(note in world.log for note in notes)
