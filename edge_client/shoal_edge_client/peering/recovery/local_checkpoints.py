"""What a node has kept of its jobs, as its state folder shows it: nothing is written, and no lock is taken.

Nothing here is checked; `shoal.checkpoint` says what counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal import strict_json
from shoal.checkpoint import MANIFESTS_MAX, OFFER_BYTES_MAX, Offer
from shoal.core.errors import InvalidPayload, Refused, StorageFailed
from shoal.runtime.store import FileBodies, FileSource, storing

DEPTHS = ("", "*/", "*/*/")
"""A state folder holds one folder per coordinator; a folder of state folders is taken as well."""


class Kept:
    """What this node itself has kept of one job, for whoever has its coordinator's key. Any thread may ask."""

    def __init__(self, folder: Path, node: str, bodies: FileBodies) -> None:
        self._folder, self._node, self._bodies = folder, node, bodies

    def offer(self) -> bytes:
        """An offer, as JSON. Raises `Refused` while nothing is kept, and what `offer_in` raises."""
        self._rows()
        return json.dumps(offer_in(self._folder, self._node, "").values()).encode()

    def model(self, digest: str) -> FileSource:
        """The model of one of the versions that are kept. Raises `Refused` for any other body."""
        if digest not in {str(row["model"][0]) for row in self._rows()}:
            raise Refused(f"no version of that model is kept here: {digest[:70]}", code="restore.model")
        return FileSource(self._bodies.path(digest))

    def _rows(self) -> list[dict[str, Any]]:
        path = self._folder / "peer/checkpoints.json"
        if not path.exists():
            hint = "it keeps what its coordinator signs, as soon as it has been asked to train"
            raise Refused("no signed version is kept here yet", code="restore.nothing", hint=hint)
        rows: list[dict[str, Any]] = _values(path)["checkpoints"]
        return rows


def offers_in(folder: Path) -> list[Offer]:
    """What the nodes below a folder have kept. Raises `StorageFailed` where nothing is."""
    with storing(folder):
        found = [path for depth in DEPTHS for path in sorted(folder.glob(f"{depth}jobs/*/peer/checkpoints.json"))]
    if not found:
        hint = "name a node's state folder; only nodes that listen to others (--peer-listen) keep signed versions"
        raise StorageFailed(f"no signed version is kept below {folder}", code="restore.nothing", hint=hint)
    return [offer_in(path.parents[1], _name_of(path.parents[3]), str(folder)) for path in found]


def offer_in(folder: Path, node: str, source: str) -> Offer:
    """What a node has kept of one job. Raises `StorageFailed`, and `InvalidPayload` for what cannot be read."""
    try:
        page, papers = _values(folder / "peer/job.json"), _values(folder / "peer/papers.json")
        rows = _values(folder / "peer/checkpoints.json")["checkpoints"]
        standing = folder / "peer/standing.json"
        term = int(_values(standing)["peer"]["term"]) if standing.exists() else 0
        return Offer(
            source,
            node,
            folder.name,
            dict(page["spec"]),
            str(page["created_at"]),
            term,
            str(papers["charter"]).encode("ascii"),
            str(papers["roster"]).encode("ascii"),
            tuple(str(row["manifest"]).encode("ascii") for row in rows[:MANIFESTS_MAX]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidPayload(f"{folder}: what was kept cannot be read: {str(error)[:100]}") from None


def model_in(folder: Path, job: str, digest: str) -> FileSource | None:
    """The model of that SHA-256 below a folder, whose bytes are still to be checked; None where there is none."""
    with storing(folder):
        found = [path for depth in DEPTHS for path in folder.glob(f"{depth}jobs/{job}/bodies/{digest}")]
    return FileSource(found[0]) if found else None


def _name_of(folder: Path) -> str:
    """The node's name, as its credential says it."""
    path = folder / "credential.json"
    return str(_values(path).get("name", "")) if path.exists() else ""


def _values(path: Path) -> dict[str, Any]:
    with storing(path):
        if path.stat().st_size > OFFER_BYTES_MAX:
            raise InvalidPayload(f"{path} is too long to be what a node keeps")
        data = path.read_bytes()
    try:
        found = strict_json.kept(data)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidPayload(f"{path} holds no table")
    return found
