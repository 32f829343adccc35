"""A pump without network and files: whatever it leans on is a script in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from shoal.core.errors import Cancelled
from shoal.core.machine import Result
from shoal.core.message import Ack, Fail, Message, Order, OrderId, Ref, Report, Status
from shoal.core.tree import Slots
from shoal.core.worker import Worker
from shoal.runtime.backoff import Backoff
from shoal.runtime.pump import Held, Ports, Pump, Watch
from shoal.runtime.threads import Lane
from tests.runtime.hands import BODY, begins


class World:
    """Transport, Keep and Do in one: everything that happens is noted in `log`, in its order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.brought: Slots | None = None  # the body that comes with an order
        self.answers: dict[str, list[Any]] = {}  # what the next calls raise or return, by name
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

    def poll(self, held: Mapping[str, Held]) -> tuple[str, Message] | None:
        raise AssertionError("the pump doesn't poll")

    def at_hand(self, job: str, ref: Ref) -> Slots | None:
        return self.brought

    def body(self, job: str, ref: Ref, cancelled: Callable[[], bool]) -> Slots:
        return self._say("body", f"fetch {ref.digest[0]}", {"step": 1.0})

    def report(self, job: str, said: Report, body: Any, cancelled: Callable[[], bool]) -> Ack:
        return self._say("report", f"report {said.order[1]}", Ack(said.order, True))

    def fail(self, job: str, said: Fail) -> Ack:
        return self._say("fail", f"fail {said.order[1]}: {said.error}", Ack(said.order, False, "noted"))

    def status(self, job: str, said: Status) -> None:
        self._say("status", f"status {said.order[1]} check {said.check}")

    def beat(self, job: str, order: OrderId, fraction: float) -> None:
        self._say("beat", f"beat {order[1]} {fraction}")

    def leave(self) -> None:
        raise AssertionError("the agent leaves")

    def said(self, said: Report | None, pending: Ref | None) -> None:
        with_memory = f" with {pending.digest[0]}" if pending else ""
        self._say("keep", f"keep {said.order[1] if said else None}{with_memory}")

    def payload(self, ref: Ref) -> bytes:
        return b"payload"

    def memory(self, ref: Ref) -> None:
        self._say("memory", f"memory {ref.digest[0]}")

    def perform(self, order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Result:
        return self.do(order, slots, memory, watch)  # looked up late: tests replace it

    def do(self, order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Result:
        self.log.append(f"begin {order.id[1]}")
        self.started.set()
        watch.tick(0.5)
        while not self.gate.wait(0.002):
            try:
                watch.tick(0.5)
            except Cancelled:
                self.log.append(f"cancelled {order.id[1]}")
                raise
        return self._say("do", f"end {order.id[1]}", Result(1.0, BODY, {}, self.result_memory))

    result_memory: Ref | None = None


def pumped(scenario: Callable[[World, Pump], Awaitable[None]], world: World | None = None, **more: Any) -> World:
    """Run a scenario beside a pump; whatever stops the pump comes out."""
    found = world or World()

    async def main() -> None:
        worker = more.pop("worker", None) or Worker("a", beat_s=more.pop("worker_beat_s", 100.0))
        lane = Lane("lane")
        ports = Ports(found, found, begins(found.perform), lane, time.monotonic, Backoff(0.001, 0.002), **more)
        pump = Pump("j", worker, ports)
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
            lane.close()

    asyncio.run(asyncio.wait_for(main(), 20.0))
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - threads set no event
        await asyncio.sleep(0.001)


def logged(world: World, *notes: str) -> Callable[[], bool]:
    return lambda: all(note in world.log for note in notes)
