"""Nodes of a coordinator that cannot be called: they call, and messages wait for them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import Unreachable
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import CoordinatorProbe, CoordinatorStatus, DeclareFailover, PeerMessage
from shoal.peering.host.peer_group import PeerGroup
from shoal.peering.http.message_receiver import MessageReceiver
from shoal.peering.http.peer_link import PeerLink
from shoal.peering.state.peer_state import read_documents
from tests.peer.scenario import folders, until
from tests.peer.test_peer_group import Machine, running_group
from tests.support.ports import free_ports

DECLARED = DeclareFailover("a", 4, 2, BlobRef("ab" * 32, 20), "the hub is silent")


class Losing:
    """Every third answer on its way to a peer is lost, when its batch has been acted on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost, self._count, self._post = 0, 0, PeerLink._post
        losing = self

        def post(link: PeerLink, *given: Any) -> tuple[tuple[PeerMessage, ...], MessageReceiver]:
            messages, intake = losing._post(link, *given)
            losing._count += 1
            if losing._count % 3 == 0:
                losing.lost += 1
                intake.release()
                raise Unreachable("the answer is lost")
            return messages, intake

        monkeypatch.setattr(PeerLink, "_post", post)


def test_two_that_nobody_can_call_hear_everything_in_spite_of_lost_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a` can be called, `b` and `c` cannot: what `a` has to tell them waits, and it knows that they are there."""

    async def scene() -> None:
        ports = free_ports(3)
        peers = folders(tmp_path, "abc", ports=ports, silent="bc")
        async with AsyncExitStack() as stack:
            losing = Losing(monkeypatch)
            made = {
                name: await stack.enter_async_context(
                    running_group(read_documents(peers / name), tmp_path / f"at-{name}", port)
                )
                for name, port in zip("abc", ports, strict=True)
            }
            (a, told_a), (_, told_b), (_, told_c) = made["a"], made["b"], made["c"]
            await until(lambda: told_a.live == {"b", "c"}, "a does not know that they are there")
            await until(lambda: told_b.live == {"a"} == told_c.live, "they can reach a alone")
            await until(lambda: losing.lost >= 5)
            for name in "bc":
                assert a.membership.state_of(name) == "alive"
                await until(partial(is_told, a, name, made[name][1]), f"{name} was never told")
            assert a.status()["mailbox"]["dropped"] == 0

    asyncio.run(scene())


def is_told(by: PeerGroup, name: str, machine: Machine) -> bool:
    """Tell it again while nothing waits for it, as machines do: one answer in three is lost."""
    if not by.router.mailbox.counts().get(name):
        by.router.post(name, [(DECLARED, None)])
    return DECLARED in machine.heard


def test_an_uncallable_peer_is_not_chosen_as_relay(tmp_path: Path) -> None:
    """It may hear the coordinator, but no node could reach it as a relay."""

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", ports=ports, silent="b")
        async with (
            running_group(read_documents(peers / "a"), tmp_path / "x", ports[0]) as (a, told_a),
            running_group(read_documents(peers / "b"), tmp_path / "y", ports[1]) as (_, told_b),
        ):
            await until(lambda: told_a.live == {"b"})
            a.router.post("b", [(CoordinatorProbe("a", 1), None)])
            await until(lambda: CoordinatorProbe("a", 1) in told_b.heard, "the question came with an answer")
            await said(
                a, CoordinatorStatus("b", 1, True, False, 0, None), CoordinatorStatus("b", 1, False, False, 0, None)
            )
            assert [one.hears_hub for one in told_a.heard if isinstance(one, CoordinatorStatus)] == [False]

    asyncio.run(scene())


async def said(to: Any, *messages: PeerMessage) -> None:
    """Let a peer hear these."""

    class Nothing:
        def release(self) -> None:
            """No body came."""

    await to.handle_messages([replace(message) for message in messages], Nothing())
