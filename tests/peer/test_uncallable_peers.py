"""Peers that cannot be called: they call, and messages wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.core.protocol.peer_message import ExchangeCommit, ExchangeRequest, PeerMessage
from shoal.peering.host.mailbox import MESSAGES_MAX, Mailbox
from shoal.peering.host.peer_group import PeerCallbacks, PeerGroup
from shoal.peering.http.peer_link import OutgoingMessage
from shoal_peer.peer_process import StandalonePeer
from tests.peer.scenario import PATIENCE_S, PeerClient, apart, drift, folders, node, to_its_end, until
from tests.peer.test_uncallable_nodes import Losing
from tests.support.ports import free_ports

ROUNDS = 4


@asynccontextmanager
async def three_peers(root: Path, silent: str, **more: Any) -> AsyncIterator[list[StandalonePeer]]:
    """Peers a, b and c, of which these cannot be called."""
    ports = free_ports(3)
    peers = folders(root, ports=ports, silent=silent, rounds=ROUNDS, **more)
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(node(peers / who, number, port=port, audit=True))
            for number, (who, port) in enumerate(zip("abc", ports, strict=True), 1)
        ]


@pytest.mark.parametrize("silent", ["c", "bc"], ids=["one", "two that can reach only a third"])
@pytest.mark.parametrize("mixing", ["pairwise", "push_sum"])
def test_they_take_part_like_the_others(silent: str, mixing: str, tmp_path: Path) -> None:
    async def scene() -> None:
        async with three_peers(tmp_path, silent, more=f'[gossip.mixing]\nname = "{mixing}"') as made:
            summaries = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in made)), 2 * PATIENCE_S)
            assert [one.rounds_by_peer for one in summaries] == [dict.fromkeys("abc", ROUNDS)] * 3
            assert all(one.settled for one in summaries)
            assert apart(made) < 0.005
            if mixing == "pairwise":
                assert drift(made) < 1e-6
            for one in made:
                assert one.gossip.me.node not in silent or set(one.group.byte_counts.totals()["sent"]) <= {
                    "?",
                    *"abc",
                } - set(silent)

    asyncio.run(scene())


def test_two_of_them_get_their_mail_in_spite_of_lost_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each third answer is lost; `a` repeats its message while nothing waits for the peer, as machines do."""

    async def scene() -> None:
        ports = free_ports(3)
        peers = folders(tmp_path, ports=ports, silent="bc")
        heard: dict[str, list[PeerMessage]] = {"b": [], "c": []}
        message = ExchangeCommit("a", ("a", 9, 9))
        async with AsyncExitStack() as stack:
            losing = Losing(monkeypatch)
            made = [
                await stack.enter_async_context(node(peers / who, number, port=port, hold=True))
                for number, (who, port) in enumerate(zip("abc", ports, strict=True), 1)
            ]
            for one in made[1:]:
                monkeypatch.setattr(one.group, "_callbacks", noting(one.group, heard[one.gossip.me.node]))
            await until(lambda: made[0].group.router.callers == {"b", "c"} and losing.lost >= 3)
            for who in "bc":
                await until(partial(is_told, made[0].group, who, heard[who], message), f"{who} was never told")

    asyncio.run(scene())


def noting(group: PeerGroup, heard: list[PeerMessage]) -> PeerCallbacks:
    async def handle(messages: Sequence[PeerMessage]) -> list[OutgoingMessage]:
        heard.extend(messages)
        return []

    return replace(group._callbacks, handle_messages=handle)


def is_told(by: PeerGroup, who: str, heard: list[PeerMessage], message: PeerMessage) -> bool:
    if not by.router.mailbox.counts().get(who):
        by.router.post(who, [(message, None)])
    return message in heard


def test_what_is_for_them_comes_with_an_answer(tmp_path: Path) -> None:
    """`a` begins an exchange with `c`, which says something else, and gets that."""

    async def scene() -> None:
        peers = folders(tmp_path, silent="c")
        async with node(peers / "a", hold=True) as a:
            message = ExchangeRequest("a", ("a", 1, 1))
            await a.group.router.send("c", [(message, None)])
            await a.group.router.send("b", [(message, None)])
            assert a.status()["mailbox"] == {"waiting": {"c": 1}, "dropped": 0}
            status, said = await PeerClient(peers / "c", a).send(ExchangeCommit("c", ("c", 1, 1)))
            assert status == 200
            assert message in said
            assert not a.group.router.mailbox.counts()

    asyncio.run(scene())


def test_who_goes_says_goodbye_to_them_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays until they have come for that."""

    async def scene() -> None:
        monkeypatch.setattr("shoal.peering.host.peer_group.CALLERS_PERIODS", 2 * PATIENCE_S)
        async with three_peers(tmp_path, "bc") as (a, b, c):
            await until(lambda: all(len(one.group.membership.live()) == 2 for one in (a, b, c)), "not all are there")
            await asyncio.wait_for(a.leave(), PATIENCE_S)
            assert not a.group.router.mailbox.counts()
            for one in (b, c):
                await until(
                    lambda one=one: one.group.membership.state_of("a") == "left",
                    f"{one.gossip.me.node} has not heard it",
                )

    asyncio.run(scene())


# The box itself


class Sized:
    """A model of that many bytes."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes


def message(number: int, nbytes: int = 0) -> OutgoingMessage:
    return ExchangeCommit("a", ("a", 1, number)), Sized(nbytes) if nbytes else None  # type: ignore[return-value]


def numbers(told: list[OutgoingMessage]) -> list[int]:
    return [one.id[2] for one, _ in told]  # type: ignore[union-attr]


def test_each_has_a_box_of_its_own_and_empties_it() -> None:
    box = Mailbox(10.0, lambda: 100)
    box.put("b", [message(1), message(2)])
    box.put("c", [message(3)])
    assert box.counts() == {"b": 2, "c": 1}
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
    assert box.counts() == {"b": 1}
    assert numbers(box.take("b")) == [2]
    assert box.dropped == 1
