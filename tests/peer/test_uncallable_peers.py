"""Peers that nobody can call: they call, and what others have to say waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.core.peer_message import Reserve, Settle
from shoal_peer.link import Told
from shoal_peer.mailbox import MESSAGES_MAX, Mailbox
from shoal_peer.node import Node
from tests.peer.stage import PATIENCE_S, Voice, apart, drift, folders, free_ports, node, to_its_end, until

ROUNDS = 4


@asynccontextmanager
async def three(root: Path, silent: str, **more: Any) -> AsyncIterator[list[Node]]:
    """Peers a, b and c, of which these cannot be called."""
    ports = free_ports(3)
    peers = folders(root, ports=ports, silent=silent, rounds=ROUNDS, **more)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(node(peers / who, number, port=port, books=True))
            for number, (who, port) in enumerate(zip("abc", ports, strict=True), 1)
        ]


@pytest.mark.parametrize("silent", ["c", "bc"], ids=["one", "two that can reach only a third"])
@pytest.mark.parametrize("mixing", ["pairwise", "push_sum"])
def test_they_take_part_like_the_others(silent: str, mixing: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with three(tmp_path, silent, more=f'[gossip.mixing]\nname = "{mixing}"') as made:
            summaries = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), 2 * PATIENCE_S)
            assert [one.seen for one in summaries] == [dict.fromkeys("abc", ROUNDS)] * 3
            assert all(one.settled for one in summaries)
            assert apart(made) < 0.005
            if mixing == "pairwise":
                assert drift(made) < 1e-6
            for one in made:
                assert one.me not in silent or set(one.ledger.totals()["sent"]) <= {"?", *"abc"} - set(silent)

    asyncio.run(scene())


def test_what_is_for_them_comes_with_an_answer(tmp_path: Path) -> None:
    """`a` begins an exchange with `c`, which says something else, and gets that."""

    async def scene() -> None:
        peers = folders(tmp_path, silent="c")
        async with node(peers / "a", hold=True) as a:
            message = Reserve("a", ("a", 1, 1))
            await a.send("c", [(message, None)])
            await a.send("b", [(message, None)])
            assert a.status()["mailbox"] == {"waiting": {"c": 1}, "dropped": 0}
            status, said = await Voice(peers / "c", a).says(Settle("c", ("c", 1, 1)))
            assert status == 200
            assert message in said
            assert not a.mailbox.waiting()

    asyncio.run(scene())


def test_who_goes_says_goodbye_to_them_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays until they have come for that."""

    async def scene() -> None:
        monkeypatch.setattr("shoal_peer.node.CALLERS_PERIODS", 2 * PATIENCE_S)
        async with three(tmp_path, "bc") as (a, b, c):
            await until(lambda: all(len(one.pump.membership.live()) == 2 for one in (a, b, c)), "not all are there")
            await asyncio.wait_for(a.leave(), PATIENCE_S)
            assert not a.mailbox.waiting()
            for one in (b, c):
                await until(lambda one=one: one.pump.membership.state_of("a") == "left", f"{one.me} has not heard it")

    asyncio.run(scene())


# The box itself


class Sized:
    """A model of so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes


def message(number: int, nbytes: int = 0) -> Told:
    return Settle("a", ("a", 1, number)), Sized(nbytes) if nbytes else None  # type: ignore[return-value]


def numbers(told: list[Told]) -> list[int]:
    return [one.id[2] for one, _ in told]  # type: ignore[union-attr]


def test_each_has_a_box_of_its_own_and_empties_it() -> None:
    box = Mailbox(10.0, lambda: 100)
    box.put("b", [message(1), message(2)])
    box.put("c", [message(3)])
    assert box.waiting() == {"b": 2, "c": 1}
    assert numbers(box.take("b")) == [1, 2]
    assert box.take("b") == []
    assert numbers(box.take("c")) == [3]


def test_it_holds_so_many_messages_and_so_many_bytes_and_the_oldest_go_first() -> None:
    box = Mailbox(10.0, lambda: 100)
    box.put("b", [message(number) for number in range(MESSAGES_MAX + 3)])
    assert numbers(box.take("b")) == list(range(3, MESSAGES_MAX + 3))
    assert box.dropped == 3
    box.put("b", [message(1, 60), message(2), message(3, 60)])
    assert numbers(box.take("b")) == [2, 3]
    box.put("b", [message(4, 101)])
    assert box.take("b") == []


def test_nothing_waits_for_ever() -> None:
    now = 0.0
    box = Mailbox(10.0, lambda: 100, clock=lambda: now)
    box.put("b", [message(1)])
    now = 5.0
    box.put("b", [message(2)])
    now = 10.0
    assert box.waiting() == {"b": 1}
    assert numbers(box.take("b")) == [2]
    assert box.dropped == 1
