"""Peers count the bytes on the wire, and both sides count the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.errors import StorageFailed
from shoal.peering.http import peer_link
from shoal.peering.state.byte_counts import ByteCounts
from shoal.runtime.http import client
from tests.peer.scenario import PATIENCE_S, folders, node, until
from tests.support.ports import free_ports
from tests.support.waiting import pause_async


def test_both_sides_count_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and models, as client and as server: what one has sent, the other has received, to the byte.

    An answer that is given up is counted by its sender alone, so a busy machine gets time to answer.
    """
    monkeypatch.setitem(peer_link.FLOOR_S, "messages", PATIENCE_S)
    monkeypatch.setattr(client, "CONTINUE_S", PATIENCE_S)

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", rounds=3, drain=3, ports=ports)
        async with node(peers / "a", 1, port=ports[0]) as a, node(peers / "b", 2, port=ports[1]) as b:
            await until(
                lambda: (
                    min(a.gossip.me.counts.version_vector.get("b", 0), b.gossip.me.counts.version_vector.get("a", 0))
                    >= 3
                ),
                "all rounds",
            )
            for made in (a, b):
                await made.leave()
            await until(lambda: counts(a, b) == counts(b, a), f"{counts(a, b)} {counts(b, a)}")
            await pause_async(0.3)
            assert counts(a, b) == counts(b, a)
            model = a.group.expected_model.body_bytes
            assert all(count > 2 * model for count in counts(a, b))

    def counts(one, other) -> tuple[int, int]:  # type: ignore[no-untyped-def]
        """(bytes from a to b, bytes from b to a), as `one` has counted them."""
        sent, received = (
            one.group.byte_counts.totals()[way].get(other.gossip.me.node, 0) for way in ("sent", "received")
        )
        return (sent, received) if one.gossip.me.node == "a" else (received, sent)

    asyncio.run(scene())


def test_sums_outlive_the_process(tmp_path: Path) -> None:
    ledger = ByteCounts(tmp_path / "bytes.json")
    ledger.add("a", sent=3, received=4)
    ledger.add("a", sent=1)
    ledger.save()
    again = ByteCounts(tmp_path / "bytes.json")
    again.add("b", received=5)
    assert again.totals() == {"sent": {"a": 4, "b": 0}, "received": {"a": 4, "b": 5}}


@pytest.mark.parametrize("text", ["", "[]", '{"sent": {}}', '{"sent": {"a": "x"}, "received": {}}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bytes.json").write_text(text)
    with pytest.raises(StorageFailed, match=r"bytes\.json"):
        ByteCounts(tmp_path / "bytes.json")
