"""Stored state of a job that may fail over: its blobs, and those that a new process finds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import StorageFailed
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import BlobRef, Report
from shoal_edge_client.peering.node_state import NodeState


def slots(value: float) -> dict[str, Any]:
    return {"model": Tree.of({"w": np.full(4, value, np.float32)})}


def standing(slots_ref: BlobRef | None = None, model: BlobRef | None = None) -> dict[str, Any]:
    gossip = {"slots": [slots_ref.digest, slots_ref.nbytes]} if slots_ref is not None else None
    return {
        "state": "gossip",
        "term": 2,
        "version": 3,
        "model": [model.digest, model.nbytes] if model is not None else None,
        "gossip": gossip,
    }


@pytest.fixture
def node_state(tmp_path: Path) -> NodeState:
    return NodeState(tmp_path / "j", "j")


def test_nothing_that_is_awaited_is_swept_away(node_state: NodeState) -> None:
    """Training has made a blob, and the machine has not been told of it yet."""
    made, memory = node_state.put_update(slots(1.0)), node_state.put_memory({"step": 1.0})
    named, other = node_state.blobs.put(slots(2.0)), node_state.blobs.put(slots(3.0))
    node_state.sweep([named])
    assert set(node_state.blobs.digests()) == {made.digest, memory.digest, named.digest}
    assert not node_state.blobs.has(other.digest)
    node_state.release_result(TaskResult(1.0, made, {}, memory))
    node_state.sweep([named])
    assert node_state.blobs.digests() == [named.digest]
    with node_state.holds.holding(named), node_state.holds.holding(None):
        node_state.sweep([])
        assert node_state.blobs.digests() == [named.digest]
    node_state.sweep([])
    assert node_state.blobs.digests() == []


def test_what_the_spool_needs_is_kept(node_state: NodeState) -> None:
    memory, pending = node_state.blobs.put({"step": 1.0}), node_state.blobs.put({"step": 2.0})
    node_state.put_base(slots(4.0))
    node_state.commit_memory(memory)
    body = node_state.blobs.put(slots(1.0))
    node_state.save_report(Report("a", (1, 1), 0, 1.0, body), pending)
    node_state.sweep([body])
    assert len(node_state.blobs.digests()) == 4
    node_state.save_report(None, None)
    assert len(node_state.blobs.digests()) == 4, "others may need them: it is swept between two events"
    node_state.sweep([])
    assert len(node_state.blobs.digests()) == 2, "the base and the memory"


def test_small_blobs_are_files_too(node_state: NodeState) -> None:
    """A report that was not heard becomes part of the model: its blob must be there."""
    body = node_state.put_update(slots(1.0))
    assert node_state.blobs.has(body.digest)
    node_state.save_report(Report("a", (1, 1), 0, 1.0, body), None)
    again = NodeState(node_state.folder, "j")
    kept = again.load()
    assert kept.report is not None
    assert kept.report.blob == body
    assert again.report_blob(body)[0 : body.nbytes] == node_state.report_blob(body)[0 : body.nbytes]


def test_a_report_of_a_node_that_only_worked_is_taken_up_whole(tmp_path: Path) -> None:
    """Its blob stands in the frame alone."""
    from shoal_edge_client.spool import Spool

    spool = Spool(tmp_path / "j", "j")
    body = spool.put_update(slots(1.0))
    spool.save_report(Report("a", (1, 1), 0, 1.0, body), None)
    node_state = NodeState(tmp_path / "j", "j")
    assert not node_state.blobs.has(body.digest)
    node_state.load()
    assert node_state.blobs.check(body)


def test_a_new_process_finds_what_was_kept(node_state: NodeState) -> None:
    own, model = node_state.blobs.put(slots(1.0)), node_state.blobs.put(slots(2.0))
    node_state.save_peer(standing(own, model), [1.0, 2.0])
    stood = NodeState(node_state.folder, "j").load_peer()
    assert stood is not None
    assert (stood.peer, stood.sums) == (standing(own, model), [1.0, 2.0])


def test_a_base_that_had_not_come_whole_is_none(node_state: NodeState) -> None:
    node_state.save_peer(standing(None, BlobRef("0" * 64, 8)), None)
    stood = node_state.load_peer()
    assert stood is not None
    assert (stood.peer["version"], stood.peer["model"]) == (-1, None)


@pytest.mark.parametrize("damage", ["", "[]", '{"peer": {}}', "missing body"])
def test_what_is_damaged_is_given_up(node_state: NodeState, damage: str) -> None:
    node_state.save_peer(standing(BlobRef("0" * 64, 8)), None)
    if damage != "missing body":
        (node_state.files.folder / "machine.json").write_text(damage)
    assert node_state.load_peer() is None


def test_another_job_of_that_name_takes_all_of_it_away(node_state: NodeState) -> None:
    node_state.bind_to_job("2026-01-01T00:00:00Z")
    node_state.files.save_job_info({"spec": {"name": "j"}, "created_at": "2026-01-01T00:00:00Z", "state": "running"})
    node_state.files.save("documents", {"charter": "x", "roster": "y"})
    assert node_state.files.job_info() == {"spec": {"name": "j"}, "created_at": "2026-01-01T00:00:00Z"}
    assert json.loads((node_state.files.folder / "documents.json").read_bytes()) == {"charter": "x", "roster": "y"}
    assert not node_state.bind_to_job("2026-02-02T00:00:00Z")
    assert (node_state.files.job_info(), node_state.files.documents(), node_state.load_peer()) == (None, None, None)
    node_state.save_peer(standing(), None)
    assert node_state.load_peer() is not None


def test_a_thread_that_still_saves_does_not_disturb_the_deletion(
    node_state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background task that is cancelled at the end of the job leaves its blocking call in a thread."""
    remove, late = os.rmdir, []

    def remove_and_save(*given: Any, **more: Any) -> None:
        with suppress(StorageFailed):
            node_state.files.save("checkpoints", {"checkpoints": []})
            late.append("saved")
        remove(*given, **more)

    node_state.save_peer(standing(), None)
    monkeypatch.setattr(os, "rmdir", remove_and_save)
    node_state.forget()
    assert (late, list(node_state.folder.parent.iterdir())) == ([], [])
