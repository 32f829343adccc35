"""A peer that has used up its bytes: over HTTP, by what it says and what it counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal.core.protocol.peer_message import ExchangeDeny, ExchangeGrant, ExchangeRequest, Ping, PingAck
from shoal.peering.state.byte_counts import STRANGER, ByteCounts
from tests.peer.scenario import PeerClient, folders, node


def test_who_asks_is_told_to_wait_and_who_pings_is_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, more="bytes_per_hour = 1e9")
        async with node(peers / "a", hold=True, bytes_per_hour=1e5) as made:
            client = PeerClient(peers / "b", made)
            meter = made.gossip.me.budget
            status, said = await client.send(ExchangeRequest("b", ("b", 1, 1)))
            assert (status, type(said[0])) == (200, ExchangeGrant)
            made.group.byte_counts.add("c", received=int(meter.balance))
            status, said = await client.send(ExchangeRequest("b", ("b", 1, 2)))
            assert isinstance(said[0], ExchangeDeny)
            assert "budget" in said[0].why
            assert said[0].wait_s > 60
            found = made.status()["budget"]
            assert found["bytes_per_hour"] == 1e5
            assert found["wait_s"] > 60
            status, said = await client.send(Ping("b", 1, 1))
            assert PingAck in {type(one) for one in said}

    asyncio.run(scene())


def test_another_process_goes_on_with_what_was_left(tmp_path: Path) -> None:
    async def scene() -> None:
        peers = folders(tmp_path, "ab", more="bytes_per_hour = 1e5")
        async with node(peers / "a", hold=True) as made:
            made.group.byte_counts.add("b", sent=int(made.gossip.me.budget.balance))
            await PeerClient(peers / "b", made).send(ExchangeRequest("b", ("b", 1, 1)))
        async with node(peers / "a", hold=True) as again:
            status, said = await PeerClient(peers / "b", again, 2).send(ExchangeRequest("b", ("b", 2, 1)))
            assert (status, type(said[0])) == (200, ExchangeDeny)

    asyncio.run(scene())


def test_what_strangers_send_is_not_the_peers(tmp_path: Path) -> None:
    ledger = ByteCounts(tmp_path / "bytes.json")
    ledger.add(STRANGER, sent=100, received=10**9)
    ledger.add("a", sent=3, received=4)
    assert ledger.crossed == 7
