"""The remains of a job when its coordinator's disk is lost, and a coordinator that continues it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from shoal.trust.documents import Charter, open_charter
from tests.support.coordinator import Inside
from tests.support.node import weight
from tests.support.scenario import Stage, task_of
from tests.support.waiting import until


@dataclass
class Kept:
    """A node's state of a job when its coordinator's disk is lost."""

    spec: dict[str, Any]
    model: bytes
    digest: str
    charter: str
    roster: str
    manifest: str
    key: Path

    @property
    def opened(self) -> Charter:
        return open_charter(self.charter.encode())

    def texts(self, **changes: Any) -> dict[str, Any]:
        return {"charter": self.charter, "roster": self.roster, "manifest": self.manifest, **changes}


def manifest_of(stage: Stage, **headers: str) -> httpx.Response:
    """The newest version, as a node asks for it."""

    def look() -> httpx.Response | None:
        found = stage.send("n0", "GET", "/jobs/main/manifest", headers=headers)
        return None if found.status_code == 503 else found

    answer: httpx.Response = until("the manifest", look)
    return answer


def one_round(stage: Stage) -> None:
    """n0 and n1 report on version 0, and are asked again."""
    stage.dismiss("n2")
    for name in ("n0", "n1"):
        assert stage.report(node=name, values=None, weight=weight(name)).status_code == 200


def keep(stage: Stage, tmp_path: Path) -> Kept:
    """Return the model of n0 after version 1."""
    task, payload = task_of(stage.nodes[0], "main")
    assert (task.version, task.blob is not None) == (1, True)
    documents = stage.send("n0", "GET", "/jobs/main/trust").json()
    key = tmp_path / "saved.pem"
    shutil.copy2(stage.running.folder / "coordinator.pem", key)
    spec, manifest = stage.running.job("main")["spec"], manifest_of(stage).json()["manifest"]
    assert task.blob is not None
    return Kept(spec, payload, task.blob.digest, documents["charter"], documents["roster"], manifest, key)


def go_on(running: Inside, kept: Kept, **changes: Any) -> httpx.Response:
    """An operator brings what a node had."""
    digest = changes.pop("digest", kept.digest)
    model = changes.pop("model", kept.model)
    put = running.request("PUT", f"/api/v1/blobs/{digest}", content=model)
    assert put.status_code in (200, 201), put.text
    spec = {**kept.spec, **changes.pop("spec", {})}
    told = {"spec": spec, "start_model": digest, "restore": kept.texts(**changes)}
    return running.request("POST", "/api/v1/jobs", json=told)
