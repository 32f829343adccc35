"""A job goes on at a coordinator with an empty disk, from what its nodes have kept and the old one's key has signed."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from shoal.core.errors import StorageFailed
from shoal.core.protocol.message import Task
from shoal.runtime.observability import logs
from shoal.trust.documents import Manifest, Roster, open_charter, sign_document, verify_document
from shoal.trust.keys import SigningKey, load_or_create
from shoal_coordinator.peers import signed_checkpoints
from shoal_coordinator.peers.trust_documents import LEAP
from tests.support.coordinator import Inside, Server
from tests.support.lost_coordinator import Kept, go_on, manifest_of, one_round
from tests.support.node import advance, body, initial
from tests.support.peers import GOSSIP, OPEN, join_as_peers, poll
from tests.support.scenario import SIZE, Stage, by_hand, problem, set_up, task_of
from tests.support.waiting import until

# Manifests


def test_the_newest_version_is_signed(kept: Kept, tmp_path: Path) -> None:
    found = verify_document(kept.manifest.encode(), Manifest, kept.opened)
    assert (found.job, found.term, found.version, found.model_sha256) == ("main", 1, 1, kept.digest)
    assert len(found.parents) == 3, "version 0, and what two nodes reported"


def test_a_manifest_is_the_same_in_every_life(server: Callable[..., Server]) -> None:
    running = server(**OPEN).start()
    stage = set_up(cast("Inside", running), gossip=GOSSIP)
    join_as_peers(stage, "n0")
    first = manifest_of(stage)
    assert first.headers["etag"] == '"0"'
    assert manifest_of(stage, **{"If-None-Match": '"0"'}).status_code == 304
    running.kill()
    running.start()
    assert manifest_of(stage).json() == first.json()
    one_round(stage)
    newer = until("version 1", lambda: (found := manifest_of(stage)).headers["etag"] == '"1"' and found)
    assert newer.json()["version"] == 1
    charter = open_charter(stage.send("n0", "GET", "/jobs/main/trust").json()["charter"].encode())
    found = verify_document(newer.json()["manifest"].encode(), Manifest, charter)
    assert (found.term, found.version) == (1, 1), "its tasks were given in the first life"
    stage.close()


class NoRows:
    """A database in which a version is not committed yet."""

    reader: NoRows

    def __init__(self) -> None:
        self.reader = self

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[NoRows]:
        yield self

    async def execute(self, _query: object) -> list[object]:
        return []


def test_a_version_that_has_just_closed_is_to_be_asked_for_again() -> None:
    with pytest.raises(StorageFailed, match="is not committed yet") as caught:
        asyncio.run(
            signed_checkpoints._manifest(cast("Any", SimpleNamespace(name="main")), 3, 1, cast("Any", NoRows()))
        )
    assert caught.value.code in logs.USUAL_WAITS_S


# Going on


def test_a_coordinator_with_an_empty_disk_goes_on(kept: Kept, empty: Inside) -> None:
    answer = go_on(empty, kept)
    assert answer.status_code == 201, answer.text
    job = empty.job("main")
    assert (job["version"], job["state"], job["model"]["digest"]) == (1, "running", kept.digest)
    old = verify_document(kept.manifest.encode(), Manifest, kept.opened)
    assert empty.runner("main").hub.tasks.term == old.term + LEAP + 1
    stage = Stage(empty, "main", [by_hand(empty, name, {"main": SIZE}) for name in ("n0", "n1")])
    join_as_peers(stage, "n0", "n1")
    for node in stage.nodes:
        task, payload = task_of(node, "main")
        assert (task.version, task.id[0], payload) == (1, old.term + LEAP + 1, kept.model)
        assert node.report("main", task).counted
    until("version 2", lambda: empty.get("/jobs/main/versions", after=1)["versions"])
    found = load(empty.request("GET", "/api/v1/jobs/main/models/2").content)["w"]
    first = advance(initial(SIZE), 0, ("n0", "n1"))
    assert np.array_equal(found, advance(first, 1, ("n0", "n1")))
    numbers = [version["number"] for version in empty.get("/jobs/main/versions")["versions"]]
    assert numbers == [1, 2], "no number is used twice"
    documents = stage.send("n0", "GET", "/jobs/main/trust").json()
    roster = verify_document(documents["roster"].encode(), Roster, kept.opened)
    assert documents["charter"] == kept.charter, "peers need no new one"
    assert roster.version > verify_document(kept.roster.encode(), Roster, kept.opened).version + LEAP, (
        "whatever is held of it"
    )
    assert poll(stage, "n0") == f"main={old.term + LEAP + 1}.{roster.version}"
    stage.close()


def test_what_goes_on_outlives_a_death_at_once(kept: Kept, server: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    shutil.copy2(kept.key, tmp_path / "next" / "coordinator.pem")
    running = server("next", **OPEN).start(crash="runner.journaled")
    with pytest.raises(httpx.TransportError):
        go_on(cast("Inside", running), kept)
    until("the death", lambda: running.ended() is not None)
    running.start()
    job = running.job("main")
    assert (job["version"], job["model"]["digest"]) == (1, kept.digest)
    held = verify_document(kept.roster.encode(), Roster, kept.opened)
    until("a new roster", lambda: running.rows("SELECT version FROM trust_documents")[0][0] > held.version + LEAP)


def forged(kept: Kept, key: SigningKey | None = None, **changes: Any) -> str:
    """The manifest with changes: signed by another key, or not signed again."""
    true = verify_document(kept.manifest.encode(), Manifest, kept.opened)
    wrong = replace(true, **changes)
    if key is None:
        return kept.manifest.replace(f'"version":{true.version}', f'"version":{wrong.version}')
    charter = replace(kept.opened, coordinator_public_key=key.public_key)
    return sign_document(wrong, key, charter).decode()


Change = Callable[[Kept], dict[str, Any]]
OTHER = body(np.ones(SIZE, np.float32))


def _other_model(_: Kept) -> dict[str, Any]:
    return {"model": OTHER, "digest": hashlib.sha256(OTHER).hexdigest()}


def _another_charter(kept: Kept) -> dict[str, Any]:
    key = SigningKey.make()
    charter = replace(kept.opened, coordinator_public_key=key.public_key, operator_public_key=key.public_key)
    manifest = verify_document(kept.manifest.encode(), Manifest, kept.opened)
    roster = verify_document(kept.roster.encode(), Roster, kept.opened)
    documents = {"charter": charter, "roster": roster, "manifest": manifest}
    return {name: sign_document(document, key, charter).decode() for name, document in documents.items()}


def _own_charter_with_the_true_key(kept: Kept) -> dict[str, Any]:
    """A forged charter that names our key has none of our signatures."""
    key = SigningKey.make()
    charter = replace(kept.opened, operator_public_key=key.public_key)
    return {"charter": sign_document(charter, key, charter).decode()}


REFUSED: dict[str, tuple[Change, int, str]] = {
    "a newer version, signed by a node": (
        lambda kept: {"manifest": forged(kept, SigningKey.make(), version=7)},
        409,
        "trust.signature",
    ),
    "a newer version, not signed": (lambda kept: {"manifest": forged(kept, version=7)}, 409, "trust.signature"),
    "another model": (_other_model, 409, "restore.model"),
    "another coordinator's job": (_another_charter, 409, "restore.key"),
    "a charter of one's own": (_own_charter_with_the_true_key, 409, "trust.signature"),
    "another form of the job": (lambda kept: {"spec": {"seed": 99}}, 409, "restore.job"),
    "no paper": (lambda kept: {"manifest": "{}"}, 409, "trust.document"),
    "a roster as a manifest": (lambda kept: {"manifest": kept.roster}, 409, "trust.document"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_the_jobs_own_is_refused(kept: Kept, empty: Inside, what: str) -> None:
    change, status, code = REFUSED[what]
    problem(go_on(empty, kept, **change(kept)), status, code)
    assert empty.get("/jobs")["jobs"] == []
    assert empty.rows("SELECT count(*) FROM trust_documents") == [(0,)]
    assert go_on(empty, kept).status_code == 201, "and the true one is still taken"


def test_a_job_that_is_over_does_not_go_on(kept: Kept, empty: Inside) -> None:
    charter, key = kept.opened, load_or_create(kept.key)
    true = verify_document(kept.manifest.encode(), Manifest, charter)
    last = sign_document(replace(true, version=3), key, charter).decode()
    problem(go_on(empty, kept, manifest=last), 409, "restore.over")
    told = {"spec": kept.spec, "restore": kept.texts()}
    problem(empty.request("POST", "/api/v1/jobs", json=told), 422, "job.invalid")
    assert go_on(empty, kept).status_code == 201
    problem(go_on(empty, kept), 409, "job.exists")


def test_jobs_that_allow_no_gossip_have_no_manifest(empty: Inside) -> None:
    stage = set_up(empty, "plain")
    problem(stage.send("n0", "GET", "/jobs/plain/manifest"), 404, "trust.none")
    assert isinstance(stage.tasks["n0"], Task)
    stage.close()
