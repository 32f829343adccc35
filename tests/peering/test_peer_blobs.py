"""Blobs of a peer: chunks of a round stay in memory, up to a limit, and leave nothing behind."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef
from shoal.peering.state import peer_blobs
from shoal.peering.state.peer_blobs import IncomingChunk, PeerBlobs
from shoal.wire.payload import payload_pieces

CHUNK = {"piece": Tree.of({"F32": np.arange(1000, dtype=np.float32)})}
DATA = b"".join(bytes(piece) for piece in payload_pieces(CHUNK))
REF = BlobRef(hashlib.sha256(DATA).hexdigest(), len(DATA))


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerBlobs:
    """There is room for one chunk and a half."""
    monkeypatch.setattr(peer_blobs, "TRANSIENT_BYTES_MAX", len(DATA) * 3 // 2)
    return PeerBlobs(tmp_path)


def has_room(blobs: PeerBlobs) -> bool:
    """Return whether one more chunk has room in memory."""
    found = blobs.memory.reserve(len(DATA))
    if found:
        blobs.memory.release(len(DATA))
    return found


def test_a_transient_blob_is_the_same_without_a_file(blobs: PeerBlobs) -> None:
    assert blobs.put_transient(CHUNK) == REF
    assert blobs.digests() == []
    assert bytes(blobs.source(REF)[:]) == DATA
    assert bytes(tree_slot(blobs.get(REF), "piece").buffer) == bytes(CHUNK["piece"].buffer)


def test_what_has_no_room_is_a_file(blobs: PeerBlobs) -> None:
    blobs.put_transient(CHUNK)
    other = {"piece": Tree.of({"F32": np.ones(1000, np.float32)})}
    ref = blobs.put_transient(other)
    assert blobs.digests() == [ref.digest]
    assert bytes(tree_slot(blobs.get(ref), "piece").buffer) == bytes(other["piece"].buffer)


@pytest.mark.parametrize("drop", ["delete", "keep_only"])
def test_a_dropped_blob_makes_room(blobs: PeerBlobs, drop: str) -> None:
    blobs.put_transient(CHUNK)
    assert not has_room(blobs)
    assert blobs.keep_only([REF.digest]) == 0
    if drop == "delete":
        blobs.delete(REF.digest)
    else:
        assert blobs.keep_only([]) == 1
    assert has_room(blobs)


def received(blobs: PeerBlobs, data: bytes = DATA) -> None:
    incoming = blobs.incoming("a", REF, transient=True)
    assert isinstance(incoming, IncomingChunk)
    with incoming:
        incoming.write(data[:7])
        incoming.write(data[7:])
        incoming.finish()


def test_a_received_chunk_is_there_once_however_often_it_comes(blobs: PeerBlobs) -> None:
    for _ in range(2):
        received(blobs)
        assert bytes(blobs.source(REF)[:]) == DATA
        blobs.keep_only([])


def test_a_chunk_that_comes_twice_at_once_takes_room_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_blobs, "TRANSIENT_BYTES_MAX", 2 * len(DATA))
    blobs = PeerBlobs(tmp_path)
    received(blobs)
    received(blobs)
    assert has_room(blobs)
    blobs.keep_only([])
    assert blobs.memory.reserve(2 * len(DATA))


@pytest.mark.parametrize(
    ("data", "error"),
    [(DATA[:-1], Refused), (DATA + b"x", InvalidPayload), (DATA[:-1] + b"x", InvalidPayload)],
    ids=["short", "long", "another"],
)
def test_a_wrong_chunk_is_refused_and_leaves_room(blobs: PeerBlobs, data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        received(blobs, data)
    assert has_room(blobs)
    with pytest.raises(Exception, match="missing"):
        blobs.get(REF)


def test_memory_is_limited_before_it_is_taken(blobs: PeerBlobs) -> None:
    first = blobs.incoming("a", REF, transient=True)
    with first, blobs.incoming("b", REF, transient=True) as second:
        assert isinstance(first, IncomingChunk)
        assert not isinstance(second, IncomingChunk)
        second.write(DATA)
        second.finish()
    assert blobs.digests() == [REF.digest]


def test_other_models_are_files(blobs: PeerBlobs) -> None:
    with blobs.incoming("a", REF, transient=False) as incoming:
        assert not isinstance(incoming, IncomingChunk)
