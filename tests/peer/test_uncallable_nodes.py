"""Nodes of a coordinator that nobody can call: they call, and what others have to say waits for them, as anywhere."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import Unreachable
from shoal.core.message import Ref
from shoal.core.peer_message import Bulletin, Declare, PeerMessage, Suspect
from shoal_peer.company import Company
from shoal_peer.folder import read_papers
from shoal_peer.intake import Intake
from shoal_peer.link import PeerLink
from tests.peer.stage import folders, free_ports, until
from tests.peer.test_company import Machine, company

DECLARED = Declare("a", 4, 2, Ref("ab" * 32, 20), "the hub is silent")


class Losing:
    """Every third answer on its way to a peer is lost, when its letter has been acted on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost, self._count, self._post = 0, 0, PeerLink._post
        losing = self

        def post(link: PeerLink, *given: Any) -> tuple[tuple[PeerMessage, ...], Intake]:
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
                name: await stack.enter_async_context(company(read_papers(peers / name), tmp_path / f"at-{name}", port))
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


def is_told(by: Company, name: str, machine: Machine) -> bool:
    """Tell it again while nothing waits for it, as machines do: one answer in three is lost."""
    if not by.outbox.mailbox.waiting().get(name):
        by.post(name, [(DECLARED, None)])
    return DECLARED in machine.heard


def test_one_that_cannot_be_called_is_not_taken_for_a_carrier(tmp_path: Path) -> None:
    """It may hear the coordinator; nobody could bring it a word to carry."""

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", ports=ports, silent="b")
        async with (
            company(read_papers(peers / "a"), tmp_path / "x", ports[0]) as (a, told_a),
            company(read_papers(peers / "b"), tmp_path / "y", ports[1]) as (_, told_b),
        ):
            await until(lambda: told_a.live == {"b"})
            a.post("b", [(Suspect("a", 1), None)])
            await until(lambda: Suspect("a", 1) in told_b.heard, "the question came with an answer")
            await said(a, Bulletin("b", 1, True, False, 0, None), Bulletin("b", 1, False, False, 0, None))
            assert [one.hears for one in told_a.heard if isinstance(one, Bulletin)] == [False]

    asyncio.run(scene())


async def said(to: Any, *messages: PeerMessage) -> None:
    """Let a peer hear these."""

    class Nothing:
        def release(self) -> None:
            """No body came."""

    await to.hear([replace(message) for message in messages], Nothing())
