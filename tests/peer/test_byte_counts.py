"""What peers count is what crossed, and each side counts the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.errors import StorageFailed
from shoal_peer.ledger import Ledger
from tests.peer.stage import folders, free_ports, node, until


def test_both_sides_count_the_same(tmp_path: Path) -> None:
    """Words and models, as client and as server: what one has sent, the other has received, to the byte."""

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", rounds=3, drain=3, ports=ports)
        async with node(peers / "a", 1, port=ports[0]) as a, node(peers / "b", 2, port=ports[1]) as b:
            await until(lambda: min(a.gossip.me.seen.get("b", 0), b.gossip.me.seen.get("a", 0)) >= 3, "all rounds")
            for made in (a, b):
                await made.leave()
            await until(lambda: counts(a, b) == counts(b, a), f"{counts(a, b)} {counts(b, a)}")
            await asyncio.sleep(0.3)
            assert counts(a, b) == counts(b, a)
            model = a.standard.body_bytes
            assert all(count > 2 * model for count in counts(a, b))

    def counts(one, other) -> tuple[int, int]:  # type: ignore[no-untyped-def]
        """(bytes from a to b, bytes from b to a), as `one` has counted them."""
        sent, received = (one.ledger.totals()[way].get(other.me, 0) for way in ("sent", "received"))
        return (sent, received) if one.me == "a" else (received, sent)

    asyncio.run(scene())


def test_sums_outlive_the_process(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "bytes.json")
    ledger.book("a", sent=3, received=4)
    ledger.book("a", sent=1)
    ledger.keep()
    again = Ledger(tmp_path / "bytes.json")
    again.book("b", received=5)
    assert again.totals() == {"sent": {"a": 4, "b": 0}, "received": {"a": 4, "b": 5}}


@pytest.mark.parametrize("text", ["", "[]", '{"sent": {}}', '{"sent": {"a": "x"}, "received": {}}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bytes.json").write_text(text)
    with pytest.raises(StorageFailed, match=r"bytes\.json"):
        Ledger(tmp_path / "bytes.json")
