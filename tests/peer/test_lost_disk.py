"""A peer that has lost its disk is repaired as docs/how-to/peers.md says, starts again, and takes part."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.trust.keys import next_process_number
from shoal_peer.peer_process import StandalonePeer
from tests.peer.scenario import PATIENCE_S, folders, node, to_its_end, until
from tests.support.ports import free_ports

ROUNDS = 3


def lose_state(folder: Path) -> None:
    """The documented repair."""
    shutil.rmtree(folder / "state")


def keep_the_key_alone(folder: Path) -> None:
    """The whole folder is lost, and what was carried to the machine at first is carried there again."""
    shutil.rmtree(folder / "state")
    (folder / "process-number").unlink(missing_ok=True)


@pytest.mark.parametrize("lose", [lose_state, keep_the_key_alone])
def test_a_peer_without_its_state_is_heard_and_learns_anew(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    async def scene() -> None:
        ports = free_ports(3)
        peers = folders(tmp_path, ports=ports, rounds=ROUNDS)
        async with AsyncExitStack() as stack:
            others = [
                await stack.enter_async_context(node(peers / who, number, port=port, hold=True))
                for number, (who, port) in enumerate(zip("ab", ports, strict=False), 1)
            ]
            for _ in range(3):  # so that it has started more often than the repaired one will have
                async with node(peers / "c", 3, port=ports[2], hold=True) as before:
                    await until(lambda before=before: heard_by_all(others, before), "c was never heard")
            lose(peers / "c")
            c = await stack.enter_async_context(node(peers / "c", 3, port=ports[2], hold=True))
            assert c.gossip.me.local_rounds == 0, "it begins anew"
            await until(lambda: heard_by_all(others, c), "it is mute")
            for one in (*others, c):
                one.trainer.hold.set()  # type: ignore[attr-defined]
            ends = await asyncio.wait_for(asyncio.gather(*(to_its_end(one) for one in (*others, c))), PATIENCE_S)
            assert [one.rounds_by_peer for one in ends] == [dict.fromkeys("abc", ROUNDS)] * 3
            assert not any("trust.process-old" in one.group.refusals.counts for one in others)

    asyncio.run(scene())


def heard_by_all(others: list[StandalonePeer], one: StandalonePeer) -> bool:
    """Return whether all others have taken a request of this very process."""
    windows = [other.group.verifier.snapshot()["windows"].get(one.group.documents.key.peer_id) for other in others]
    return all(window is not None and window[0] == one.state.process_number for window in windows)


def test_the_process_number_never_falls_behind_the_clock_or_itself(tmp_path: Path) -> None:
    """If either of the two survives, the next number is greater than all before."""
    path, times = tmp_path / "process-number", iter([1000.0, 1000.0, 900.0, 2000.0, 2000.001])
    numbers = [next_process_number(path, wall_s=lambda: next(times)) for _ in range(4)]
    assert numbers == [1_000_000, 1_000_001, 1_000_002, 2_000_000]
    path.unlink()
    assert next_process_number(path, wall_s=lambda: next(times)) == 2_000_001, "only the key was restored"
