"""Checkpoints in a node's state folder, read without writing and without a lock.

Nothing is verified here; `shoal.recovery.checkpoint` does that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.recovery.checkpoint import MANIFESTS_MAX, OFFER_BYTES_MAX, CheckpointOffer
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.durable_files import FileSource, storing
from shoal.validation import strict_json

DEPTHS = ("", "*/", "*/*/")
"""A state folder holds one folder per coordinator; a folder of state folders is taken as well."""


class LocalCheckpoints:
    """The checkpoints that this node keeps of one job, for a holder of the coordinator's key. Any thread may call."""

    def __init__(self, folder: Path, node: str, blobs: FileBlobs) -> None:
        self._folder, self._node, self._blobs = folder, node, blobs

    def offer(self) -> bytes:
        """Return an offer as JSON. Raises `Refused` without checkpoints, and what `offer_in` raises."""
        self._rows()
        return json.dumps(offer_in(self._folder, self._node, "").values()).encode()

    def model(self, digest: str) -> FileSource:
        """Return the model of a stored checkpoint. Raises `Refused` for any other blob."""
        if digest not in {str(row["model"][0]) for row in self._rows()}:
            raise Refused(f"no version of that model is kept here: {digest[:70]}", code="restore.model")
        return FileSource(self._blobs.path(digest))

    def _rows(self) -> list[dict[str, Any]]:
        path = self._folder / "peer/checkpoints.json"
        if not path.exists():
            hint = "a node keeps signed versions from its first training task on"
            raise Refused("no signed version is kept here yet", code="restore.nothing", hint=hint)
        rows: list[dict[str, Any]] = _values(path)["checkpoints"]
        return rows


def offers_in(folder: Path) -> list[CheckpointOffer]:
    """Return the offers of all nodes below a folder. Raises `StorageFailed` without any."""
    with storing(folder):
        found = [path for depth in DEPTHS for path in sorted(folder.glob(f"{depth}jobs/*/peer/checkpoints.json"))]
    if not found:
        hint = "name a node's state folder; only nodes that listen to others (--peer-listen) keep signed versions"
        raise StorageFailed(f"no signed version is kept below {folder}", code="restore.nothing", hint=hint)
    return [offer_in(path.parents[1], _name_of(path.parents[3]), str(folder)) for path in found]


def offer_in(folder: Path, node: str, source: str) -> CheckpointOffer:
    """Return the offer of one job's folder. Raises `StorageFailed`, and `InvalidPayload` for unreadable files."""
    try:
        job_info, documents = _values(folder / "peer/job.json"), _values(folder / "peer/documents.json")
        rows = _values(folder / "peer/checkpoints.json")["checkpoints"]
        machine = folder / "peer/machine.json"
        term = int(_values(machine)["peer"]["term"]) if machine.exists() else 0
        return CheckpointOffer(
            source,
            node,
            folder.name,
            dict(job_info["spec"]),
            str(job_info["created_at"]),
            term,
            str(documents["charter"]).encode("ascii"),
            str(documents["roster"]).encode("ascii"),
            tuple(str(row["manifest"]).encode("ascii") for row in rows[:MANIFESTS_MAX]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidPayload(f"{folder}: what was kept cannot be read: {str(error)[:100]}") from None


def model_in(folder: Path, job: str, digest: str) -> FileSource | None:
    """Return the unverified model of that SHA-256 below a folder; None if it is missing."""
    path = _first_below(folder, f"jobs/{job}/blobs/{digest}")
    return FileSource(path) if path is not None else None


def base_in(folder: Path, digest: str) -> Path | None:
    """Return the unverified base model of that SHA-256 that a node below a folder has fetched; None if none has."""
    return _first_below(folder, f"bases/{digest}") if digest else None


def _first_below(folder: Path, name: str) -> Path | None:
    """Return the first file of that name in a node's folder or those below `folder`."""
    with storing(folder):
        return next((path for depth in DEPTHS for path in folder.glob(f"{depth}{name}")), None)


def _name_of(folder: Path) -> str:
    """Return the node's name from its credential."""
    path = folder / "credential.json"
    return str(_values(path).get("name", "")) if path.exists() else ""


def _values(path: Path) -> dict[str, Any]:
    with storing(path):
        if path.stat().st_size > OFFER_BYTES_MAX:
            raise InvalidPayload(f"{path} is too large for a node's checkpoints")
        data = path.read_bytes()
    try:
        found = strict_json.loads_own(data)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidPayload(f"{path} holds no table")
    return found
