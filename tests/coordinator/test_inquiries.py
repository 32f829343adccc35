"""Many polls ask a deputy together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from shoal_coordinator.guard import INSIDE_BYTES_MAX
from shoal_coordinator.inquiries import BYTES_MAX, POLLS_MAX, Inquiries, Poll


class Deputy:
    """Answers when it is let; has something for those whose names end in an even digit."""

    def __init__(self) -> None:
        self.asked: list[list[Poll]] = []
        self.may = asyncio.Event()

    async def answer(self, polls: list[Poll]) -> Collection[str]:
        self.asked.append(polls)
        await self.may.wait()
        return {poll.node for poll in polls if int(poll.node[-1]) % 2 == 0}


def poll(number: int, *held: str) -> Poll:
    return Poll(f"n{number}", held, ())


async def begun(inquiries: Inquiries, polls: list[Poll]) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(inquiries.has_news(one)) for one in polls]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_those_who_come_while_it_is_asked_share_the_next_question() -> None:
    async def scene() -> None:
        deputy = Deputy()
        inquiries = Inquiries(deputy.answer)
        first = await begun(inquiries, [poll(0)])
        others = await begun(inquiries, [poll(number) for number in range(1, 100)])
        assert [len(polls) for polls in deputy.asked] == [1]
        deputy.may.set()
        assert await asyncio.gather(*first, *others) == [number % 2 == 0 for number in range(100)]
        assert [len(polls) for polls in deputy.asked] == [1, 99]
        assert await inquiries.has_news(poll(8)), "and again, when nobody waits any more"

    asyncio.run(scene())


def test_who_hangs_up_holds_nobody_up() -> None:
    async def scene() -> None:
        deputy = Deputy()
        inquiries = Inquiries(deputy.answer)
        tasks = await begun(inquiries, [poll(0), poll(1), poll(2)])
        tasks[0].cancel()
        tasks[1].cancel()
        deputy.may.set()
        assert await tasks[2]

    asyncio.run(scene())


@pytest.mark.parametrize("held", [(), ("x" * 60_000,)])
def test_a_question_is_no_larger_than_what_is_taken(held: tuple[str, ...]) -> None:
    async def scene() -> None:
        deputy = Deputy()
        deputy.may.set()
        inquiries = Inquiries(deputy.answer)
        await asyncio.gather(*(inquiries.has_news(poll(number, *held)) for number in range(600)))
        assert sum(map(len, deputy.asked)) == 600
        for polls in deputy.asked:
            assert len(polls) <= POLLS_MAX
            assert sum(one.nbytes for one in polls) <= BYTES_MAX < INSIDE_BYTES_MAX / 2

    asyncio.run(scene())


def test_one_that_is_too_large_by_itself_is_asked_for_alone() -> None:
    async def scene() -> None:
        deputy = Deputy()
        deputy.may.set()
        inquiries = Inquiries(deputy.answer)
        assert await asyncio.gather(*(inquiries.has_news(poll(number, "x" * BYTES_MAX)) for number in range(2)))
        assert [len(polls) for polls in deputy.asked] == [1, 1]

    asyncio.run(scene())
