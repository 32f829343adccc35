"""Models of a job's versions: which one is meant, and its tensors."""

from __future__ import annotations

import hashlib
from typing import Any

from shoal.client.api import CoordinatorApi, segment
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import ShoalError
from shoal.core.model.tree import Tree
from shoal.wire.payload import open_payload


def resolve_version(api: CoordinatorApi, job: str, version: str) -> int:
    """Return the version number for a number, `best`, `last` or a label. Raises `ShoalError` when there is none."""
    if version.isdecimal():
        return int(version)
    found = api.get(f"/jobs/{segment(job)}")
    if version not in ("best", "last"):
        return _labeled(found, version)
    if found["model"] is None:
        raise ShoalError(f"{job} has no model yet", code="job.no-model", hint=f"shoal jobs show {job}")
    if version == "last":
        return int(found["version"])
    if found["best"] is None:
        raise ShoalError(f"no version of {job} has an accuracy", code="job.no-accuracy", hint="give --version last")
    return int(found["best"]["version"])


def _labeled(job: dict[str, Any], label: str) -> int:
    labels: dict[str, int] = job.get("labels", {})
    if label not in labels:
        known = ", ".join(sorted(labels)) or "none"
        raise ShoalError(
            f"{label}: neither a number, best or last, nor a label of {job['name']}",
            code="usage.invalid",
            hint=f"labels of this job: {known}",
        )
    return labels[label]


def check_arrived(found: str, expected: str) -> None:
    """Raise `ShoalError` if a model's SHA-256 is not the one that the coordinator has sent."""
    if expected and found != expected:
        raise ShoalError(
            f"the model arrived damaged: sha256 {found}, expected {expected}",
            code="export.damaged",
            hint="try again; if it happens twice, look at the coordinator's disk",
        )


def download_model(api: CoordinatorApi, job: str, number: int) -> Tree:
    """Return the model of a version, in memory. Raises `ShoalError`, also for one that arrived damaged."""
    data, digest = bytearray(), hashlib.sha256()
    with api.download(f"/jobs/{segment(job)}/models/{number}") as body:
        for piece in body.pieces:
            data += piece
            digest.update(piece)
    check_arrived(digest.hexdigest(), body.digest)
    return tree_slot(open_payload(memoryview(data)), "model")
