"""How the pump brings a report to the hub: until it is heard, once at a time, and no longer than it counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from shoal.core.errors import Unreachable
from shoal.core.protocol.machine import Timer
from shoal.core.protocol.message import Ack, Report
from shoal.runtime.worker_pump import WorkerPump
from tests.runtime.scripted_pump import World, logged, pumped, until
from tests.runtime.task_runs import task
from tests.support.waiting import PATIENCE_S, pause_async


def test_a_report_is_sent_until_it_is_acknowledged() -> None:
    world = World()
    world.answers["report"] = [Unreachable("gone"), Unreachable("gone"), Ack((1, 1), True)]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "keep None"))

    assert pumped(scenario, world).log.count("report 1") == 3


def test_one_delivery_at_a_time() -> None:
    """The worker's alarm says again and again what is being said already."""
    world, go = World(), threading.Event()
    real, now, most = world.report, [0], [0]

    def slow(job: str, said: Report, body: Any, cancelled: Callable[[], bool]) -> Ack:
        now[0] += 1
        most[0] = max(most[0], now[0])
        go.wait(PATIENCE_S)
        now[0] -= 1
        return real(job, said, body, cancelled)

    world.report = slow  # type: ignore[method-assign]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "keep 1"))
        await pause_async()
        go.set()
        await until(logged(world, "keep None"))

    pumped(scenario, world, worker_heartbeat_s=0.005)
    assert most == [1]


def test_what_has_just_been_answered_is_not_sent_again() -> None:
    """The worker's alarm goes off when the answer is there, but has not had its turn."""
    points: list[str] = []
    pumps: list[WorkerPump] = []

    def at(point: str) -> None:
        points.append(point)
        if point == "report.answered":
            pumps[0].events.submit_nowait(Timer())

    async def scenario(world: World, pump: WorkerPump) -> None:
        pumps.append(pump)
        await pump.submit(task(1))
        await until(logged(world, "keep None"))

    pumped(scenario, at=at)
    assert points.count("report.sending") == 1


def test_a_delivery_is_given_up_for_a_newer_order() -> None:
    world = World()
    real = world.report

    def never_the_first(job: str, said: Report, body: Any, cancelled: Callable[[], bool]) -> Ack:
        answer = real(job, said, body, cancelled)
        if said.task[1] == 1:
            raise Unreachable("gone")
        return answer

    world.report = never_the_first  # type: ignore[method-assign]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(lambda: world.log.count("report 1") > 2)
        await pump.submit(task(2))
        await until(lambda: pump.held is None)
        count = world.log.count("report 1")
        await pause_async()
        assert world.log.count("report 1") <= count + 1

    log = pumped(scenario, world).log
    assert log.index("keep None") < log.index("begin 2")
