"""The model that a peer holds, read from its folder and written as one file, while its process runs or after it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob, Refused, ShoalError, StorageFailed
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import read_json
from shoal.wire.payload import payload_pieces

TRIES = 5
"""A running peer replaces its model now and then, and removes the old one."""


@dataclass(frozen=True)
class HeldModel:
    """A peer's model, the local rounds that it has made, and those of each peer that the model holds."""

    model: Tree
    local_rounds: int
    rounds_by_peer: dict[str, int]


def held_model(folder: Path) -> HeldModel:
    """Return the model in a peer's folder. Raises `Refused` before there is one, `StorageFailed`."""
    if not folder.is_dir():
        raise InvalidJob(f"there is no folder {folder}", code="peer.folder", hint="give the folder of a peer")
    for left in reversed(range(TRIES)):
        try:
            return _read(folder / "state")
        except StorageFailed:
            if not left:
                raise
    raise AssertionError("unreachable")


def _read(state: Path) -> HeldModel:
    path = state / "machine.json"
    found = read_json(path, _parse, "see docs/how-to/peers.md, on the disk")
    if found is None:
        hint = "start the peer with `shoal peer run`; it has a model as soon as it has begun to learn"
        raise Refused(f"{state.parent} holds no model yet", code="peer.no-model", hint=hint)
    ref, local_rounds, rounds_by_peer = found
    return HeldModel(tree_slot(FileBlobs(state / "blobs").get(ref), "model"), local_rounds, rounds_by_peer)


def _parse(values: Any) -> tuple[BlobRef, int, dict[str, int]]:
    gossip = values["gossip"]
    return BlobRef(*gossip["slots"]), int(gossip["local_rounds"]), dict(gossip["version_vector"])


def write_model(model: Tree, path: Path) -> tuple[int, str]:
    """Write a model as a safetensors file, whole or not at all; return its length and SHA-256. Raises `ShoalError`."""
    partial, sha, length = path.with_name(f".{path.name}.part"), hashlib.sha256(), 0
    try:
        with partial.open("wb") as file:
            for piece in payload_pieces({"model": model}):
                file.write(piece)
                sha.update(piece)
                length += len(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        text, hint = f"{path}: {error.strerror}", "check folder and free space"
        raise ShoalError(text, code="export.failed", hint=hint) from None
    return length, sha.hexdigest()
