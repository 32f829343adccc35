"""The pump without network and files: a hub or a script at the other end, all in memory."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from shoal.core.client.worker import Worker
from shoal.core.errors import InvalidPayload, NotAllowed, Refused, StorageFailed, Unreachable
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import Ack, BlobRef, NoTask, Report, Stop, Task
from shoal.runtime.threads import SerialExecutor
from shoal.runtime.worker_ports import CancelToken, WorkerPorts
from shoal.runtime.worker_pump import WorkerPump
from tests.runtime.scripted_pump import World, logged, pumped, until
from tests.runtime.task_runs import BODY, MEMORY, begins, task
from tests.support.waiting import PATIENCE_S, pause, pause_async


@pytest.mark.parametrize("brought", [None, {"step": 1.0}], ids=["fetched", "brought along"])
def test_an_order_from_its_coming_to_its_acknowledgement(brought: Slots | None) -> None:
    world = World()
    world.brought = brought

    async def scenario(world: World, pump: WorkerPump) -> None:
        assert pump.held is None
        assert await pump.submit(task(1)) is True
        assert pump.held == (1, 1)
        await until(logged(world, "keep None"))
        assert pump.held is None

    fetched = [] if brought else ["fetch a"]
    assert pumped(scenario, world).log == [*fetched, "begin 1", "end 1", "keep 1", "report 1", "keep None"]


def test_private_memory_is_committed_before_the_report_is_forgotten() -> None:
    world = World()
    world.result_memory = MEMORY

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "keep None"))
        assert pump.worker.memory == MEMORY

    assert pumped(scenario, world).log[-4:] == ["keep 1 with b", "report 1", "memory b", "keep None"]


def test_no_order_is_begun_while_it_is_unknown_which_memory_it_starts_from() -> None:
    world = World()
    world.result_memory = MEMORY
    world.answers["report"] = [Unreachable("gone")] * 10**5

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(lambda: world.log.count("report 1") > 2)
        assert await pump.submit(task(2)) is False
        world.answers["report"] = []
        await until(logged(world, "memory b"))
        await until(lambda: pump.held is None)
        assert await pump.submit(task(2)) is True
        await until(logged(world, "report 2"))

    log = pumped(scenario, world).log
    assert log.index("memory b") < log.index("begin 2")


def test_a_report_that_did_not_count_leaves_the_memory() -> None:
    world = World()
    world.result_memory = MEMORY
    world.answers["report"] = [Ack((1, 1), False, "too late")]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "keep None"))
        assert pump.worker.memory is None

    assert "memory b" not in pumped(scenario, world).log


def test_events_that_change_nothing_say_so() -> None:
    async def scenario(world: World, pump: WorkerPump) -> None:
        world.gate.clear()
        assert await pump.submit(task(2)) is True
        assert await pump.submit(task(2)) is False
        assert await pump.submit(task(1)) is False
        assert await pump.submit(NoTask((1, 1))) is False
        assert await pump.submit(NoTask((1, 2))) is True

    pumped(scenario)


def test_a_newer_order_cancels_the_work_at_once() -> None:
    async def scenario(world: World, pump: WorkerPump) -> None:
        world.gate.clear()
        await pump.submit(task(1))
        await until(world.started.is_set)
        await pump.submit(task(2, version=1))
        await until(logged(world, "cancelled 1", "begin 2"))
        world.gate.set()
        await until(logged(world, "keep None"))

    log = pumped(scenario).log
    assert [note for note in log if note.startswith(("report", "fail"))] == ["report 2"]


def test_work_that_does_not_look_is_superseded_all_the_same() -> None:
    """A learner that never ticks is not interrupted; its result is dropped."""
    world, go = World(), threading.Event()
    real = world.do

    def deaf(task: Task, slots: Slots, memory: BlobRef | None, watch: CancelToken) -> TaskResult:
        if task.id[1] == 1:
            world.started.set()
            go.wait(PATIENCE_S)
            return TaskResult(1.0, MEMORY)
        return real(task, slots, memory, watch)

    world.do = deaf  # type: ignore[method-assign]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(world.started.is_set)
        await pump.submit(task(2))
        go.set()
        await until(logged(world, "keep None"))

    assert [note for note in pumped(scenario, world).log if "report" in note] == ["report 2"]


def test_it_beats_while_it_trains_and_only_then() -> None:
    async def scenario(world: World, pump: WorkerPump) -> None:
        world.answers["beat"] = [Unreachable("lost"), Refused("unknown")]
        world.gate.clear()
        await pump.submit(task(1))
        await until(lambda: world.log.count("beat 1 0.5") >= 4)
        world.gate.set()
        await until(logged(world, "keep None"))
        count = len(world.log)
        await pause_async()
        assert len(world.log) == count

    pumped(scenario, heartbeat_s=0.005)


@pytest.mark.parametrize(
    "error", [Refused("foreign model", code="payload.header"), InvalidPayload("gone"), StorageFailed("gone")]
)
def test_a_report_that_can_never_count_becomes_a_failure(error: Exception) -> None:
    world = World()
    world.answers["report"] = [error]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(lambda: pump.held is None)

    log = pumped(scenario, world).log
    assert log[-3:] == ["report 1", "keep None", f"fail 1: report refused: {error}"]


def test_a_foreign_order_is_forgotten() -> None:
    world = World()
    world.answers["report"] = [Refused("not yours", code="task.foreign")]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "keep None"))
        assert pump.held is None

    assert not [note for note in pumped(scenario, world).log if note.startswith("fail")]


def test_a_failure_that_is_refused_is_let_go() -> None:
    world = World()
    world.answers.update(do=[ValueError("x")], fail=[Refused("no such task")])

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
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

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, f"fail 1: {text}"))

    assert "keep 1" not in pumped(scenario, world).log


def test_a_body_is_fetched_until_it_is_had() -> None:
    world = World()
    world.answers["body"] = [Unreachable("gone")] * 5

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "keep None"))

    assert pumped(scenario, world).log.count("fetch a") == 6


def test_a_report_that_cannot_be_kept_is_not_sent() -> None:
    """A full disk: the coordinator hears of a failure, never of a report that a crash would make us forget."""
    world = World()
    world.answers["keep"] = [StorageFailed("no space left")]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
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

    async def scenario(world: World, pump: WorkerPump) -> None:
        if where == "beat":
            world.gate.clear()
        await pump.submit(task(1))
        await asyncio.Event().wait()

    with pytest.raises(BaseExceptionGroup) as stopped:
        pumped(scenario, world, heartbeat_s=0.005)
    assert stopped.group_contains(NotAllowed)


def test_an_unsent_report_goes_first_after_a_restart() -> None:
    worker = Worker("a", heartbeat_s=100.0)
    worker.restore_answer(Report("a", (1, 4), 0, 1.0, BODY), MEMORY)

    async def scenario(world: World, pump: WorkerPump) -> None:
        assert pump.held == (1, 4)
        await until(logged(world, "keep None"))
        assert pump.worker.memory == MEMORY

    assert pumped(scenario, worker=worker).log == ["report 4", "memory b", "keep None"]


def test_stop_ends_it() -> None:
    async def scenario(world: World, pump: WorkerPump) -> None:
        world.gate.clear()
        await pump.submit(task(1))
        await until(world.started.is_set)
        assert await pump.submit(Stop("the job is done")) is True
        assert pump.stopped == "the job is done"
        await until(logged(world, "cancelled 1"))
        assert await pump.submit(task(2)) is False

    assert "begin 2" not in pumped(scenario).log


@pytest.mark.parametrize("work_s", [0.0, 10.0])
def test_leaving_waits_for_work_as_long_as_it_is_told(work_s: float) -> None:
    async def scenario(world: World, pump: WorkerPump) -> None:
        world.gate.clear()
        await pump.submit(task(1))
        await until(world.started.is_set)
        leaving = asyncio.create_task(pump.leave(train_s=work_s, upload_s=0.01))
        if work_s:
            await pause_async(0.1)
            assert not leaving.done()
        else:
            await leaving  # while the work still hangs
        world.gate.set()
        await leaving
        assert pump.stopped == "left"

    assert ("report 1" in pumped(scenario).log) is (work_s > 0.0)


@pytest.mark.parametrize(("lost", "answer_s"), [(5, 10.0), (10**5, 0.02)])
def test_leaving_gives_an_answer_time_to_get_through_but_not_for_ever(lost: int, answer_s: float) -> None:
    world = World()
    world.answers["report"] = [Unreachable("gone")] * lost

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(logged(world, "report 1"))
        await pump.leave(train_s=0.0, upload_s=answer_s)

    assert ("keep None" in pumped(scenario, world).log) is (lost == 5)  # if not, it stays in the spool


def test_two_jobs_share_one_executor() -> None:
    """One task is trained at a time, whatever job it is of."""
    worlds = World(), World()
    now, most = [0], [0]

    def do(task: Task, slots: Slots, memory: BlobRef | None, watch: CancelToken) -> TaskResult:
        now[0] += 1
        most[0] = max(most[0], now[0])
        pause(0.01)
        now[0] -= 1
        return TaskResult(1.0)

    async def main() -> None:
        executor = SerialExecutor("executor")
        pumps = [WorkerPump("j", Worker("a"), WorkerPorts(w, w, begins(do), executor, time.monotonic)) for w in worlds]
        running = [asyncio.create_task(pump.run()) for pump in pumps]
        for pump in pumps:
            await pump.submit(task(1))
        await until(lambda: all("keep None" in world.log for world in worlds))
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        executor.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert most == [1]
