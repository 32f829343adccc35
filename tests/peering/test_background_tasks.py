"""Background tasks of a peer run once at a time, and are not lost when requested too early."""

from __future__ import annotations

import asyncio

from shoal_edge_client.peering.background_tasks import BackgroundTasks


def test_what_is_asked_for_too_early_is_done_once_it_runs() -> None:
    """An answer to a poll names a job's newer documents before the pump of that job has run at all."""

    async def scene() -> list[str]:
        beside, done = BackgroundTasks(), []

        async def documents() -> None:
            done.append("papers")

        beside.run("papers", documents)
        assert done == []
        async with asyncio.TaskGroup() as group:
            beside.start(group.create_task)
        return done

    assert asyncio.run(scene()) == ["papers"]


def test_a_thing_is_done_once_at_a_time_and_not_after_the_end() -> None:
    async def scene() -> int:
        beside, begun, gate = BackgroundTasks(), 0, asyncio.Event()

        async def call() -> None:
            nonlocal begun
            begun += 1
            await gate.wait()

        async with asyncio.TaskGroup() as group:
            beside.start(group.create_task)
            for _ in range(3):
                beside.run("papers", call)
                await asyncio.sleep(0)
            assert begun == 1
            gate.set()
            await asyncio.sleep(0)
            beside.run("papers", call)
            await asyncio.sleep(0)
            assert begun == 2
            gate.clear()
            beside.run("weight", call)
            await asyncio.sleep(0)
            beside.stop()
            beside.run("papers", call)
        return begun

    assert asyncio.run(scene()) == 3
