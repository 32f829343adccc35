"""Many polls ask a follower together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from shoal_coordinator.cluster.follower_polls import BYTES_MAX, POLLS_MAX, PendingPoll, PollBatcher
from shoal_coordinator.http.request_limits import INTERNAL_BYTES_MAX


class Follower:
    """Answers when it is let; has something for those whose names end in an even digit."""

    def __init__(self) -> None:
        self.asked: list[list[PendingPoll]] = []
        self.may = asyncio.Event()

    async def answer(self, polls: list[PendingPoll]) -> Collection[str]:
        self.asked.append(polls)
        await self.may.wait()
        return {poll.node for poll in polls if int(poll.node[-1]) % 2 == 0}


def poll(number: int, *held: str) -> PendingPoll:
    return PendingPoll(f"n{number}", held, ())


async def begun(batcher: PollBatcher, polls: list[PendingPoll]) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(batcher.has_task(one)) for one in polls]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_polls_that_arrive_during_a_request_share_the_next_one() -> None:
    async def scene() -> None:
        follower = Follower()
        batcher = PollBatcher(follower.answer)
        first = await begun(batcher, [poll(0)])
        others = await begun(batcher, [poll(number) for number in range(1, 100)])
        assert [len(polls) for polls in follower.asked] == [1]
        follower.may.set()
        assert await asyncio.gather(*first, *others) == [number % 2 == 0 for number in range(100)]
        assert [len(polls) for polls in follower.asked] == [1, 99]
        assert await batcher.has_task(poll(8)), "and again, when nobody waits any more"

    asyncio.run(scene())


def test_a_cancelled_poll_delays_no_other() -> None:
    async def scene() -> None:
        follower = Follower()
        batcher = PollBatcher(follower.answer)
        tasks = await begun(batcher, [poll(0), poll(1), poll(2)])
        tasks[0].cancel()
        tasks[1].cancel()
        follower.may.set()
        assert await tasks[2]

    asyncio.run(scene())


@pytest.mark.parametrize("held", [(), ("x" * 60_000,)])
def test_a_batch_is_no_larger_than_the_follower_accepts(held: tuple[str, ...]) -> None:
    async def scene() -> None:
        follower = Follower()
        follower.may.set()
        batcher = PollBatcher(follower.answer)
        await asyncio.gather(*(batcher.has_task(poll(number, *held)) for number in range(600)))
        assert sum(map(len, follower.asked)) == 600
        for polls in follower.asked:
            assert len(polls) <= POLLS_MAX
            assert sum(one.nbytes for one in polls) <= BYTES_MAX < INTERNAL_BYTES_MAX / 2

    asyncio.run(scene())


def test_a_poll_too_large_for_a_batch_is_sent_alone() -> None:
    async def scene() -> None:
        follower = Follower()
        follower.may.set()
        batcher = PollBatcher(follower.answer)
        assert await asyncio.gather(*(batcher.has_task(poll(number, "x" * BYTES_MAX)) for number in range(2)))
        assert [len(polls) for polls in follower.asked] == [1, 1]

    asyncio.run(scene())
