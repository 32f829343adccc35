"""Checkpoints of nodes for a coordinator that loses its disk: signed versions, and their models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import Refused
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef
from shoal.runtime.durable_files import STEPS
from shoal.trust.documents import Charter, Manifest, sign_document
from shoal.trust.keys import SigningKey
from shoal_edge_client.peering.failover_pump import FailoverPump
from shoal_edge_client.peering.node_state import NodeState
from shoal_edge_client.peering.recovery.checkpoint_store import CheckpointStore
from tests.peering.scenario import LONG, Threaded, acquainted, begin
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import until

KEY, OTHER = SigningKey.make(), SigningKey.make()
CHARTER = Charter("j", "0" * 64, "1" * 64, KEY.public_key, KEY.public_key)


class Dead(BaseException):
    """The process has been killed."""


class Coordinator:
    """Signs what it is told to sign."""

    def __init__(self) -> None:
        self.sealed: bytes | None = None
        self.asked: list[int] = []

    def manifest(self, job: str, held: int) -> bytes | None:
        self.asked.append(held)
        return self.sealed

    def sign(self, version: int, digest: str, *, key: SigningKey = KEY, term: int = 1) -> None:
        charter = replace(CHARTER, coordinator_public_key=key.public_key)
        self.sealed = sign_document(Manifest("j", term, version, digest, (), version), key, charter)


class Stage:
    """One node's state, and who vouches for what comes there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.coordinator = folder, Coordinator()
        self.begin()

    def begin(self) -> None:
        """A new process."""
        self.node_state = NodeState(self.folder, "j")
        self.checkpoints = CheckpointStore("j", self.node_state)

    def came(self, value: float, **more: Any) -> BlobRef:
        return self.node_state.blobs.put({"model": Tree.of({"w": np.full(4, value, np.float32)}), **more})

    def seek(self, version: int, model: BlobRef) -> None:
        asyncio.run(self.checkpoints.request(CHARTER, version, model, self.coordinator))

    def keep(self, version: int, **how: Any) -> BlobRef:
        """That version comes, and the coordinator vouches for it."""
        model = self.came(float(version))
        self.coordinator.sign(version, model.digest, **how)
        self.seek(version, model)
        return model

    @property
    def versions(self) -> list[int]:
        return [one.manifest.version for one in self.checkpoints.checkpoints]

    def found(self) -> list[int]:
        """Return the checkpoints that another process finds."""
        self.begin()
        self.checkpoints.load(CHARTER)
        return self.versions


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "j")


def test_the_newest_two_are_kept_with_their_models(stage: Stage) -> None:
    models = [stage.keep(version) for version in range(4)]
    stage.node_state.sweep([])
    assert stage.versions == [3, 2]
    assert set(stage.node_state.blobs.digests()) == {models[3].digest, models[2].digest}
    assert stage.coordinator.asked == [-1, 0, 1, 2], "who holds the newest is not sent it again"
    assert not stage.checkpoints.is_due(3)
    assert stage.checkpoints.is_due(4)
    assert stage.found() == [3, 2]
    stage.node_state.sweep([])
    assert [stage.node_state.blobs.check(model) for model in models] == [False, False, True, True]


def test_a_new_process_adds_to_what_is_kept(stage: Stage) -> None:
    stage.keep(1)
    stage.begin()
    stage.keep(2)
    assert (stage.versions, stage.found()) == ([2, 1], [2, 1])


def test_a_version_of_a_later_term_is_the_newer_one(stage: Stage) -> None:
    stage.keep(7)
    stage.keep(3, term=2)
    stage.keep(5)
    assert stage.versions == [3, 7], "what an earlier term has made is older, whatever its number"


def test_what_the_coordinator_has_not_signed_is_not_kept(stage: Stage) -> None:
    stage.keep(1)
    stage.keep(2, key=OTHER)
    assert stage.versions == [1]
    assert stage.found() == [1]


def test_a_version_whose_model_has_not_come_is_not_kept(stage: Stage) -> None:
    """The job has gone on while this node asked."""
    stage.coordinator.sign(2, "f" * 64)
    stage.seek(1, stage.came(1.0))
    assert (stage.versions, stage.found()) == ([], [])


def test_nothing_new_and_a_refusal_change_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.keep(1)
    stage.coordinator.sealed = None
    stage.seek(2, stage.came(2.0))

    def refuse(job: str, held: int) -> bytes:
        raise Refused("not yet", code="trust.early")

    monkeypatch.setattr(stage.coordinator, "manifest", refuse)
    stage.seek(3, stage.came(3.0))
    assert stage.versions == [1]
    assert not stage.checkpoints.is_due(3), "a version is asked for once"


def test_a_model_that_came_with_more_is_kept_alone(stage: Stage) -> None:
    alone = stage.came(5.0)
    stage.node_state.blobs.delete(alone.digest)
    more = stage.came(5.0, c=Tree.of({"w": np.ones(4, np.float32)}))
    stage.coordinator.sign(5, alone.digest)
    stage.seek(5, more)
    stage.node_state.sweep([])
    assert stage.node_state.blobs.digests() == [alone.digest]
    assert stage.found() == [5]


@pytest.mark.parametrize("damage", ["", "[]", '{"checkpoints": [{"manifest": "x", "model": 5}]}', "model", "forged"])
def test_what_is_damaged_is_given_up(stage: Stage, damage: str) -> None:
    model = stage.keep(1)
    path = stage.node_state.files.folder / "checkpoints.json"
    if damage == "model":
        data = bytearray(stage.node_state.blobs.path(model.digest).read_bytes())
        data[-1] ^= 1
        stage.node_state.blobs.path(model.digest).write_bytes(data)
    elif damage == "forged":
        path.write_text(path.read_text().replace('\\"version\\":1', '\\"version\\":9'))
        assert "9" in json.loads(path.read_text())["checkpoints"][0]["manifest"]
    else:
        path.write_text(damage)
    assert stage.found() == []
    stage.keep(2)
    assert stage.found() == [2]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_leaves_the_one_or_the_other(stage: Stage, step: str) -> None:
    stage.keep(1)

    def at(point: str) -> None:
        if point == f"checkpoints.{step}":
            raise Dead

    stage.node_state.files._at = at
    with pytest.raises(Dead):
        stage.checkpoints._store(CHARTER, *_signed(stage, 2))
    assert stage.found() == ([2, 1] if step in ("renamed", "kept") else [1])


def _signed(stage: Stage, version: int) -> tuple[bytes, BlobRef]:
    model = stage.came(float(version))
    stage.coordinator.sign(version, model.digest)
    assert stage.coordinator.sealed is not None
    return stage.coordinator.sealed, model


def test_nodes_keep_what_a_coordinator_signs(server: Server, threaded: Callable[..., Threaded]) -> None:
    begin(server, 2, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.2)) for name in "ab"]
    acquainted(server, nodes)
    pumps = [node.pump for node in nodes]
    found = [pump.checkpoints for pump in pumps if isinstance(pump, FailoverPump)]
    assert len(found) == 2
    until("versions that are vouched for", lambda: all(len(one.checkpoints) == 2 for one in found))
    for one in found:
        newer, older = (kept.rank for kept in one.checkpoints)
        assert newer > older
