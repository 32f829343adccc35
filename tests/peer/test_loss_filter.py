"""Models that are far worse than one's own are declined, and who sends bad input again and again is in quarantine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.core.peer_message import Busy, Never, Offer, Push, Reserve, Slot, Swap, Swapped, Taken
from shoal.sim.toys import toy_tree
from shoal_peer.jury import Quarantine
from shoal_peer.node import Node
from tests.peer.stage import Voice, body_of, folders, node, ref_of

NEAR = body_of(toy_tree((1.0, 1.0, 1.5), 1))
FAR = body_of(toy_tree((8.0, 8.0, 8.0), 1))
NAN = body_of(toy_tree((float("nan"), 2.0, 3.0), 1))


def swap(number: int, body: bytes) -> Swap:
    return Swap("b", ("b", 1, number), 2.0, 1e9, ref_of(body), {"b": 1})


def values(made: Node) -> bytes:
    return bytes(made.gossip.me.model.buffer)


async def swapped(voice: Voice, number: int, body: bytes) -> Any:
    """What comes of an exchange that `b` begins."""
    status, said = await voice.says(Reserve("b", ("b", 1, number)))
    assert (status, type(said[0])) == (200, Slot)
    status, said = await voice.says(swap(number, body), bodies=body)
    assert status == 200
    return said[0]


def test_a_model_of_far_greater_loss_is_declined_on_both_sides(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, more="loss_gate = 1.5")
        async with node(peers / "a", hold=True) as made:
            voice, before = Voice(peers / "b", made), values(made)
            said = await swapped(voice, 1, FAR)
            assert isinstance(said, Never)
            assert "its loss here is 13.86" in said.why
            assert values(made) == before
            assert made.status()["refused"] == {"peer.loss": 1}
            assert isinstance(await swapped(voice, 2, NEAR), Swapped)
            assert values(made) != before
            # To one that was declined and comes again, the promise holds.
            status, again = await voice.says(swap(1, NEAR), bodies=NEAR)
            assert (status, type(again[0])) == (200, Never)

    asyncio.run(scene())


def test_without_a_gate_it_is_mixed(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            assert isinstance(await swapped(Voice(peers / "b", made), 1, FAR), Swapped)

    asyncio.run(scene())


def test_a_share_of_greater_loss_goes_back_to_its_sender(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, more='loss_gate = 1.5\n[gossip.mixing]\nname = "push_sum"')
        async with node(peers / "a", hold=True) as made:
            voice, before = Voice(peers / "b", made), values(made)
            push = Push("b", ("b", 1, 1), 1.0, ref_of(FAR), {"b": 1})
            assert isinstance((await voice.says(push, bodies=FAR))[1][0], Never)
            assert values(made) == before
            good = Push("b", ("b", 1, 2), 1.0, ref_of(NEAR), {"b": 1})
            assert isinstance((await voice.says(good, bodies=NEAR))[1][0], Taken)
            assert values(made) != before

    asyncio.run(scene())


def test_an_offer_of_greater_loss_is_left_out(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, more='loss_gate = 1.5\n[gossip.mixing]\nname = "neighbours"')
        async with node(peers / "a", hold=True) as made:
            voice, before = Voice(peers / "b", made), values(made)
            status, said = await voice.says(Offer("b", 1, ref_of(FAR), {"b": 1}, 1.0), bodies=FAR)
            assert (status, type(said[0])) == (200, Taken)
            assert not made.gossip.mixer.early  # type: ignore[attr-defined]
            assert values(made) == before
            await voice.says(Offer("b", 1, ref_of(NEAR), {"b": 1}, 1.0), bodies=NEAR)
            assert made.gossip.mixer.early  # type: ignore[attr-defined]

    asyncio.run(scene())


def test_three_refused_for_one_reason_end_it_with_that_peer(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            voice = Voice(peers / "b", made)
            for number in (1, 2, 3):
                assert not made.status()["quarantine"]
                assert await voice.says(swap(number, NAN), bodies=NAN) == (422, "payload.not-finite")
            assert made.status()["quarantine"] == ["b"]
            before = values(made)
            status, said = await voice.says(Reserve("b", ("b", 1, 4)))
            assert (status, type(said[0])) == (200, Busy)
            status, said = await voice.says(swap(4, NEAR), bodies=NEAR)
            assert (status, type(said[0])) == (200, Never)
            assert values(made) == before
            assert "b" not in made.pump._there.nodes
            other = Voice(peers / "c", made)
            assert isinstance((await other.says(Reserve("c", ("c", 1, 1))))[1][0], Slot)

    asyncio.run(scene())


def test_an_exchange_that_is_under_way_comes_to_its_end_in_quarantine(tmp_path: Path) -> None:
    """Its step is taken here: it must be taken there as well."""

    async def scene() -> None:
        peers = folders(tmp_path)
        async with node(peers / "a", hold=True) as made:
            voice = Voice(peers / "b", made)
            made.gossip.mixer._under_way._still_s = 0.0  # type: ignore[attr-defined]  # what has left may be lost at once
            done = await swapped(voice, 1, NEAR)
            made.quarantine.nodes.add("b")
            status, said = await voice.says(swap(1, NEAR), bodies=NEAR)
            assert (status, said[0]) == (200, done)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("codes", "held"),
    [
        (["payload.norm"] * 3, True),
        (["payload.norm", "payload.not-finite"] * 2, False),
        (["payload.short"] * 9, False),
        (["trust.signature"] * 9, False),
        (["peer.loss"] * 3, True),
    ],
)
def test_only_the_same_and_only_what_is_somebodys_fault_counts(codes: list[str], held: bool) -> None:
    quarantine = Quarantine()
    told = [quarantine.note("b", code) for code in codes]
    assert ("b" in quarantine.nodes) == held
    assert told.count(True) == held
