"""A peer that has used up its bytes: over HTTP, by what it says and what it counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.core.peer_message import Busy, Ping, Pong, Reserve, Slot
from shoal_peer.ledger import STRANGER, Ledger
from tests.peer.stage import Voice, folders, node


def test_who_asks_is_told_to_wait_and_who_pings_is_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, more="bytes_per_hour = 1e9")
        async with node(peers / "a", hold=True, bytes_per_hour=1e5) as made:
            voice = Voice(peers / "b", made)
            meter = made.gossip.me.meter
            status, said = await voice.says(Reserve("b", ("b", 1, 1)))
            assert (status, type(said[0])) == (200, Slot)
            made.ledger.book("c", received=int(meter.left))
            status, said = await voice.says(Reserve("b", ("b", 1, 2)))
            assert isinstance(said[0], Busy)
            assert "budget" in said[0].why
            assert said[0].wait_s > 60
            found = made.status()["budget"]
            assert found["bytes_per_hour"] == 1e5
            assert found["wait_s"] > 60
            status, said = await voice.says(Ping("b", 1, 1))
            assert Pong in {type(one) for one in said}

    asyncio.run(scene())


def test_another_process_goes_on_with_what_was_left(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, "ab", more="bytes_per_hour = 1e5")
        async with node(peers / "a", hold=True) as made:
            made.ledger.book("b", sent=int(made.gossip.me.meter.left))
            await Voice(peers / "b", made).says(Reserve("b", ("b", 1, 1)))
        async with node(peers / "a", hold=True) as again:
            status, said = await Voice(peers / "b", again, 2).says(Reserve("b", ("b", 2, 1)))
            assert (status, type(said[0])) == (200, Busy)

    asyncio.run(scene())


def test_what_strangers_send_is_not_the_peers(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "bytes.json")
    ledger.book(STRANGER, sent=100, received=10**9)
    ledger.book("a", sent=3, received=4)
    assert ledger.crossed == 7
