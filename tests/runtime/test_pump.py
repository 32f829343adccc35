"""The pump without network and files: a hub or a script at the other end, all in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from shoal.core.errors import Cancelled, InvalidPayload, NotAllowed, Refused, StorageFailed, Unreachable
from shoal.core.machine import Result, Timer
from shoal.core.message import Ack, Fail, Idle, Message, Order, OrderId, Ref, Report, Status, Stop
from shoal.core.tree import Slots
from shoal.core.worker import Worker
from shoal.runtime.backoff import Backoff
from shoal.runtime.pump import Held, Ports, Pump, Watch
from shoal.runtime.threads import Lane
from tests.runtime.hands import BODY, MEMORY, begins, order


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


@pytest.mark.parametrize("brought", [None, {"step": 1.0}], ids=["fetched", "brought along"])
def test_an_order_from_its_coming_to_its_acknowledgement(brought: Slots | None) -> None:
    world = World()
    world.brought = brought

    async def scenario(world: World, pump: Pump) -> None:
        assert pump.held is None
        assert await pump.take(order(1)) is True
        assert pump.held == (1, 1)
        await until(logged(world, "keep None"))
        assert pump.held is None

    fetched = [] if brought else ["fetch a"]
    assert pumped(scenario, world).log == [*fetched, "begin 1", "end 1", "keep 1", "report 1", "keep None"]


def test_private_memory_is_committed_before_the_report_is_forgotten() -> None:
    world = World()
    world.result_memory = MEMORY

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "keep None"))
        assert pump.worker.memory == MEMORY

    assert pumped(scenario, world).log[-4:] == ["keep 1 with b", "report 1", "memory b", "keep None"]


def test_no_order_is_begun_while_it_is_unknown_which_memory_it_starts_from() -> None:
    world = World()
    world.result_memory = MEMORY
    world.answers["report"] = [Unreachable("gone")] * 10**5

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(lambda: world.log.count("report 1") > 2)
        assert await pump.take(order(2)) is False
        world.answers["report"] = []
        await until(logged(world, "memory b"))
        await until(lambda: pump.held is None)
        assert await pump.take(order(2)) is True
        await until(logged(world, "report 2"))

    log = pumped(scenario, world).log
    assert log.index("memory b") < log.index("begin 2")


def test_a_report_that_did_not_count_leaves_the_memory() -> None:
    world = World()
    world.result_memory = MEMORY
    world.answers["report"] = [Ack((1, 1), False, "too late")]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "keep None"))
        assert pump.worker.memory is None

    assert "memory b" not in pumped(scenario, world).log


def test_events_that_change_nothing_say_so() -> None:
    async def scenario(world: World, pump: Pump) -> None:
        world.gate.clear()
        assert await pump.take(order(2)) is True
        assert await pump.take(order(2)) is False
        assert await pump.take(order(1)) is False
        assert await pump.take(Idle((1, 1))) is False
        assert await pump.take(Idle((1, 2))) is True

    pumped(scenario)


def test_a_newer_order_cancels_the_work_at_once() -> None:
    async def scenario(world: World, pump: Pump) -> None:
        world.gate.clear()
        await pump.take(order(1))
        await until(world.started.is_set)
        begun = time.monotonic()
        await pump.take(order(2, version=1))
        await until(logged(world, "cancelled 1", "begin 2"))
        assert time.monotonic() - begun < 5.0
        world.gate.set()
        await until(logged(world, "keep None"))

    log = pumped(scenario).log
    assert [note for note in log if note.startswith(("report", "fail"))] == ["report 2"]


def test_work_that_does_not_look_is_superseded_all_the_same() -> None:
    """A learner that never ticks ends when it ends; what it brings then is thrown away."""
    world, go = World(), threading.Event()
    real = world.do

    def deaf(order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Result:
        if order.id[1] == 1:
            world.started.set()
            go.wait(10.0)
            return Result(1.0, MEMORY)
        return real(order, slots, memory, watch)

    world.do = deaf  # type: ignore[method-assign]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(world.started.is_set)
        await pump.take(order(2))
        go.set()
        await until(logged(world, "keep None"))

    assert [note for note in pumped(scenario, world).log if "report" in note] == ["report 2"]


def test_it_beats_while_it_trains_and_only_then() -> None:
    async def scenario(world: World, pump: Pump) -> None:
        world.answers["beat"] = [Unreachable("lost"), Refused("unknown")]
        world.gate.clear()
        await pump.take(order(1))
        await until(lambda: world.log.count("beat 1 0.5") >= 4)
        world.gate.set()
        await until(logged(world, "keep None"))
        count = len(world.log)
        await asyncio.sleep(0.05)
        assert len(world.log) == count

    pumped(scenario, beat_s=0.005)


def test_a_report_is_sent_until_it_is_acknowledged() -> None:
    world = World()
    world.answers["report"] = [Unreachable("gone"), Unreachable("gone"), Ack((1, 1), True)]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "keep None"))

    assert pumped(scenario, world).log.count("report 1") == 3


def test_one_delivery_at_a_time() -> None:
    """The worker's alarm says again and again what is being said already."""
    world, go = World(), threading.Event()
    real, now, most = world.report, [0], [0]

    def slow(job: str, said: Report, body: Any, cancelled: Callable[[], bool]) -> Ack:
        now[0] += 1
        most[0] = max(most[0], now[0])
        go.wait(10.0)
        now[0] -= 1
        return real(job, said, body, cancelled)

    world.report = slow  # type: ignore[method-assign]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "keep 1"))
        await asyncio.sleep(0.05)
        go.set()
        await until(logged(world, "keep None"))

    pumped(scenario, world, worker_beat_s=0.005)
    assert most == [1]


def test_what_has_just_been_answered_is_not_sent_again() -> None:
    """The worker's alarm goes off when the answer is there, but has not had its turn."""
    points: list[str] = []
    pumps: list[Pump] = []

    def at(point: str) -> None:
        points.append(point)
        if point == "report.answered":
            pumps[0]._put(Timer())

    async def scenario(world: World, pump: Pump) -> None:
        pumps.append(pump)
        await pump.take(order(1))
        await until(logged(world, "keep None"))

    pumped(scenario, at=at)
    assert points.count("report.sending") == 1


def test_a_delivery_is_given_up_for_a_newer_order() -> None:
    world = World()
    real = world.report

    def never_the_first(job: str, said: Report, body: Any, cancelled: Callable[[], bool]) -> Ack:
        answer = real(job, said, body, cancelled)
        if said.order[1] == 1:
            raise Unreachable("gone")
        return answer

    world.report = never_the_first  # type: ignore[method-assign]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(lambda: world.log.count("report 1") > 2)
        await pump.take(order(2))
        await until(lambda: pump.held is None)
        count = world.log.count("report 1")
        await asyncio.sleep(0.05)
        assert world.log.count("report 1") <= count + 1

    log = pumped(scenario, world).log
    assert log.index("keep None") < log.index("begin 2")


@pytest.mark.parametrize(
    "error", [Refused("foreign model", code="payload.header"), InvalidPayload("gone"), StorageFailed("gone")]
)
def test_a_report_that_can_never_count_becomes_a_failure(error: Exception) -> None:
    world = World()
    world.answers["report"] = [error]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(lambda: pump.held is None)

    log = pumped(scenario, world).log
    assert log[-3:] == ["report 1", "keep None", f"fail 1: report refused: {error}"]


def test_a_foreign_order_is_forgotten() -> None:
    world = World()
    world.answers["report"] = [Refused("not yours", code="order.foreign")]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "keep None"))
        assert pump.held is None

    assert not [note for note in pumped(scenario, world).log if note.startswith("fail")]


def test_a_failure_that_is_refused_is_let_go() -> None:
    world = World()
    world.answers.update(do=[ValueError("x")], fail=[Refused("no such order")])

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "fail 1: ValueError: x"))
        await until(lambda: pump.held is None)

    pumped(scenario, world)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad\nthing"), "ValueError: bad thing"),
        (Refused("gone", hint="poll"), "gone (poll)"),
        (InvalidPayload("damaged"), "damaged"),
    ],
)
@pytest.mark.parametrize("where", ["body", "do"])
def test_what_goes_wrong_is_reported_as_a_failure(where: str, error: Exception, text: str) -> None:
    world = World()
    world.answers[where] = [error]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, f"fail 1: {text}"))

    assert "keep 1" not in pumped(scenario, world).log


def test_a_body_is_fetched_until_it_is_had() -> None:
    world = World()
    world.answers["body"] = [Unreachable("gone")] * 5

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "keep None"))

    assert pumped(scenario, world).log.count("fetch a") == 6


def test_a_report_that_cannot_be_kept_is_not_sent() -> None:
    """A full disk: the coordinator hears of a failure, never of a report that a crash would make us forget."""
    world = World()
    world.answers["keep"] = [StorageFailed("no space left")]

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(lambda: any(note.startswith("fail") for note in world.log))

    log = pumped(scenario, world).log
    assert "report 1" not in log
    assert "fail 1: report refused: this node cannot keep it: no space left" in log


@pytest.mark.parametrize("where", ["report", "fail", "body", "beat"])
def test_a_revoked_credential_stops_everything(where: str) -> None:
    world = World()
    world.answers[where] = [NotAllowed("revoked")]
    if where == "fail":
        world.answers["do"] = [ValueError("x")]

    async def scenario(world: World, pump: Pump) -> None:
        if where == "beat":
            world.gate.clear()
        await pump.take(order(1))
        await asyncio.sleep(10.0)

    with pytest.raises(BaseExceptionGroup) as stopped:
        pumped(scenario, world, beat_s=0.005)
    assert stopped.group_contains(NotAllowed)


def test_an_unsent_report_goes_first_after_a_restart() -> None:
    worker = Worker("a", beat_s=100.0)
    worker.resume(Report("a", (1, 4), 0, 1.0, BODY), MEMORY)

    async def scenario(world: World, pump: Pump) -> None:
        assert pump.held == (1, 4)
        await until(logged(world, "keep None"))
        assert pump.worker.memory == MEMORY

    assert pumped(scenario, worker=worker).log == ["report 4", "memory b", "keep None"]


def test_stop_ends_it() -> None:
    async def scenario(world: World, pump: Pump) -> None:
        world.gate.clear()
        await pump.take(order(1))
        await until(world.started.is_set)
        assert await pump.take(Stop("the job is done")) is True
        assert pump.stopped == "the job is done"
        await until(logged(world, "cancelled 1"))
        assert await pump.take(order(2)) is False

    assert "begin 2" not in pumped(scenario).log


@pytest.mark.parametrize("work_s", [0.0, 10.0])
def test_leaving_waits_for_work_as_long_as_it_is_told(work_s: float) -> None:
    async def scenario(world: World, pump: Pump) -> None:
        world.gate.clear()
        await pump.take(order(1))
        await until(world.started.is_set)
        leaving = asyncio.create_task(pump.leave(work_s=work_s, answer_s=0.01))
        await asyncio.sleep(0.1)
        assert leaving.done() is (work_s == 0.0)
        world.gate.set()
        await leaving
        assert pump.stopped == "left"

    assert ("report 1" in pumped(scenario).log) is (work_s > 0.0)


@pytest.mark.parametrize(("lost", "answer_s"), [(5, 10.0), (10**5, 0.02)])
def test_leaving_gives_an_answer_time_to_get_through_but_not_for_ever(lost: int, answer_s: float) -> None:
    world = World()
    world.answers["report"] = [Unreachable("gone")] * lost

    async def scenario(world: World, pump: Pump) -> None:
        await pump.take(order(1))
        await until(logged(world, "report 1"))
        await pump.leave(work_s=0.0, answer_s=answer_s)

    assert ("keep None" in pumped(scenario, world).log) is (lost == 5)  # if not, it stays in the spool


def test_two_jobs_share_one_lane() -> None:
    """One order is trained at a time, whatever job it is of."""
    worlds = World(), World()
    now, most = [0], [0]

    def do(order: Order, slots: Slots, memory: Ref | None, watch: Watch) -> Result:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.01)
        now[0] -= 1
        return Result(1.0)

    async def main() -> None:
        lane = Lane("lane")
        pumps = [Pump("j", Worker("a"), Ports(w, w, begins(do), lane, time.monotonic)) for w in worlds]
        running = [asyncio.create_task(pump.run()) for pump in pumps]
        for pump in pumps:
            await pump.take(order(1))
        await until(lambda: all("keep None" in world.log for world in worlds))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        lane.close()

    asyncio.run(asyncio.wait_for(main(), 20.0))
    assert most == [1]
