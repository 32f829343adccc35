"""The connection of a batch with a model: it lasts if all of the batch was read, and not if some of it was not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.core.protocol.peer_message import RingChunk
from shoal.mixing.all_reduce import cut
from shoal.sim.hosts.toy_models import toy_tree
from shoal.wire.payload import payload_pieces
from tests.peer.scenario import PATIENCE_S, PeerClient, folders, node, ref_of
from tests.support.waiting import pause_async

CHUNK = b"".join(bytes(piece) for piece in payload_pieces({"piece": cut(toy_tree((1.0, 2.0, 3.0), 1), 0, 3)}))
RING = '[gossip.mixing]\nname = "all_reduce"'


@pytest.mark.parametrize(("sender", "status"), [("b", b"200"), ("c", b"409")], ids=["taken", "refused"])
def test_it_lasts_if_the_whole_batch_was_read(tmp_path: Path, sender: str, status: bytes) -> None:
    async def scene() -> None:
        async with node(folders(tmp_path, more=RING) / "a", hold=True) as peer:
            client = PeerClient(tmp_path / "peers" / "b", peer)
            chunk = RingChunk(sender, 1, 0, 1, 2.0, ref_of(CHUNK), {"b": 1}, "0" * 16)
            request, content = client.batch(chunk, blobs=CHUNK)
            files = peer.state.blobs.digests()
            lines = [f"{name}: {value}" for name, value in request.headers().items()]
            head = "\r\n".join(["POST /p2p/toys HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *lines])
            reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)  # type: ignore[attr-defined]
            writer.write(f"{head}\r\n\r\n".encode() + content[:-9])
            await pause_async(0.2)
            writer.write(content[-9:])
            async with asyncio.timeout(PATIENCE_S):
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 " + status)
            assert (b"connection: close" in answer) == (sender == "c")
            writer.transport.abort()
            assert peer.state.blobs.digests() == files, "a chunk needs no file"

    asyncio.run(scene())
