"""Blocking calls beside the loop."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

import pytest

from shoal.runtime.threads import SerialExecutor, in_thread
from tests.support.waiting import PATIENCE_S, pause, pause_async, until, until_async

WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")


@pytest.mark.parametrize("way", ["thread", "executor"])
def test_a_call_and_its_outcome(way: str) -> None:
    executor = SerialExecutor("executor")
    run = in_thread if way == "thread" else executor.run

    def fail() -> None:
        raise KeyError("x")

    def stop() -> None:
        raise StopIteration

    async def main() -> None:
        WHERE.set("here")
        assert await run(lambda: (WHERE.get(), threading.current_thread() is threading.main_thread())) == (
            "here",
            False,
        )
        with pytest.raises(KeyError):
            await run(fail)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await run(stop)
        with pytest.raises(SystemExit):
            await run(sys.exit)
        executor.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


class Held:
    """A step's tensors, say."""


@pytest.mark.parametrize("way", ["thread", "executor"])
@pytest.mark.parametrize("fails", [True, False])
def test_what_a_call_held_is_freed_with_its_end(way: str, fails: bool) -> None:
    executor, alive = SerialExecutor("executor"), []

    def call() -> Held:
        held = Held()
        alive.append(weakref.ref(held))
        if fails:
            raise ValueError
        return held

    async def handled() -> None:
        with suppress(ValueError):
            await (in_thread if way == "thread" else executor.run)(call)

    async def main() -> None:
        await handled()
        await until_async("it to be freed", lambda: alive[0]() is None)
        executor.close()

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))
    finally:
        gc.enable()


def test_the_loop_goes_on_meanwhile() -> None:
    async def main() -> int:
        go = threading.Event()
        waiting = [asyncio.create_task(in_thread(go.wait)) for _ in range(5)]
        ticks = 0
        for ticks in range(3):  # noqa: B007 - how often the loop came round
            await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*waiting) == [True] * 5
        return ticks

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == 2


def test_calls_one_after_the_other_share_threads() -> None:
    async def main() -> set[threading.Thread]:
        return {await in_thread(threading.current_thread) for _ in range(200)}

    assert len(asyncio.run(main())) < 100  # not one: a thread is free a moment after its last call was answered


def test_a_thread_that_is_not_needed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.runtime.threads.IDLE_S", 0.01)

    async def main() -> None:
        for _ in range(20):
            thread = await in_thread(threading.current_thread)
            await pause_async(random.uniform(0.0, 0.02))  # a call may come just when its thread gives up
        await until_async("the thread to end", lambda: not thread.is_alive())

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_forked_process_has_threads_of_its_own() -> None:
    code = (
        "import asyncio, os, sys, time\n"
        "from shoal.runtime import threads\n"
        "async def main():\n"
        "    return await asyncio.wait_for(threads.in_thread(os.getpid), 30)\n"
        "asyncio.run(main())\n"
        "while not threads._idle:\n"
        "    time.sleep(0.001)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(asyncio.run(main()) != os.getpid())\n"
        "sys.exit(os.waitpid(child, 0)[1] != 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_a_executor_makes_one_call_at_a_time_in_one_thread() -> None:
    executor, now, most, order = SerialExecutor("executor"), [0], [0], []

    def call(number: int) -> int:
        now[0] += 1
        most[0] = max(most[0], now[0])
        order.append(number)
        pause(0.002)
        now[0] -= 1
        return threading.get_ident()

    async def main() -> None:
        threads = await asyncio.gather(*(executor.run(lambda n=n: call(n)) for n in range(10)))
        assert len(set(threads)) == 1
        executor.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert (most, order) == ([1], list(range(10)))


def test_a_call_that_nobody_awaits_any_more_is_not_begun() -> None:
    executor, begun = SerialExecutor("executor"), []

    async def main() -> None:
        go = threading.Event()
        first = asyncio.create_task(executor.run(go.wait))
        second = asyncio.create_task(executor.run(lambda: begun.append(1)))
        await pause_async(0.01)
        second.cancel()
        await asyncio.sleep(0)
        assert executor.busy
        assert not await executor.wait_idle(0.01)
        go.set()
        await first
        assert await executor.wait_idle(PATIENCE_S)
        executor.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert begun == []
    until("its thread to have counted the last call", lambda: not executor.busy)


def test_a_hanging_call_does_not_keep_the_process() -> None:
    code = (
        "import asyncio, threading\n"
        "from shoal.runtime.threads import SerialExecutor, in_thread\n"
        "async def main():\n"
        "    executor, never = SerialExecutor('executor'), threading.Event()\n"
        "    tasks = [asyncio.create_task(in_thread(never.wait)), asyncio.create_task(executor.run(never.wait))]\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_an_outcome_after_the_loop_has_ended_is_dropped() -> None:
    go, gone = threading.Event(), threading.Event()

    def late() -> None:
        go.wait(PATIENCE_S)
        gone.set()

    async def main() -> None:
        task = asyncio.create_task(in_thread(late))
        await pause_async(0.01)
        task.cancel()

    asyncio.run(main())
    go.set()
    assert gone.wait(PATIENCE_S)  # an error in the thread would fail this test
