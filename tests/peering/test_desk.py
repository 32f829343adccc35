"""What is kept of a job that its nodes may carry on: which bodies, and what of them a new process finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.machine import Result
from shoal.core.message import Ref, Report
from shoal.core.tree import Tree
from shoal_edge_client.peering.desk import Desk


def slots(value: float) -> dict[str, Any]:
    return {"model": Tree.of({"w": np.full(4, value, np.float32)})}


def standing(slots_ref: Ref | None = None, model: Ref | None = None) -> dict[str, Any]:
    gossip = {"slots": [slots_ref.digest, slots_ref.nbytes]} if slots_ref is not None else None
    return {
        "state": "away",
        "term": 2,
        "version": 3,
        "model": [model.digest, model.nbytes] if model is not None else None,
        "gossip": gossip,
    }


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "j", "j")


def test_nothing_that_is_awaited_is_swept_away(desk: Desk) -> None:
    """Training has made a body, and the machine has not been told of it yet."""
    made, memory = desk.put(slots(1.0)), desk.remember({"step": 1.0})
    named, other = desk.bodies.put(slots(2.0)), desk.bodies.put(slots(3.0))
    desk.sweep([named])
    assert set(desk.bodies.digests()) == {made.digest, memory.digest, named.digest}
    assert not desk.bodies.has(other.digest)
    desk.adopted(Result(1.0, made, {}, memory))
    desk.sweep([named])
    assert desk.bodies.digests() == [named.digest]
    with desk.awaiting(named), desk.awaiting(None):
        desk.sweep([])
        assert desk.bodies.digests() == [named.digest]
    desk.sweep([])
    assert desk.bodies.digests() == []


def test_what_the_spool_needs_is_kept(desk: Desk) -> None:
    memory, pending = desk.bodies.put({"step": 1.0}), desk.bodies.put({"step": 2.0})
    desk.hold(slots(4.0))
    desk.memory(memory)
    body = desk.bodies.put(slots(1.0))
    desk.said(Report("a", (1, 1), 0, 1.0, body), pending)
    desk.sweep([body])
    assert len(desk.bodies.digests()) == 4
    desk.said(None, None)
    assert len(desk.bodies.digests()) == 4, "others may need them: it is swept between two events"
    desk.sweep([])
    assert len(desk.bodies.digests()) == 2, "the base and the memory"


def test_small_bodies_are_files_too(desk: Desk) -> None:
    """A report that was not heard becomes part of the model: its body must be there."""
    body = desk.put(slots(1.0))
    assert desk.bodies.has(body.digest)
    desk.said(Report("a", (1, 1), 0, 1.0, body), None)
    again = Desk(desk.folder, "j")
    kept = again.load()
    assert kept.said is not None
    assert kept.said.body == body
    assert again.payload(body)[0 : body.nbytes] == desk.payload(body)[0 : body.nbytes]


def test_a_report_of_a_node_that_only_worked_is_taken_up_whole(tmp_path: Path) -> None:
    """Its body stands in the frame alone."""
    from shoal_edge_client.spool import Spool

    spool = Spool(tmp_path / "j", "j")
    body = spool.put(slots(1.0))
    spool.said(Report("a", (1, 1), 0, 1.0, body), None)
    desk = Desk(tmp_path / "j", "j")
    assert not desk.bodies.has(body.digest)
    desk.load()
    assert desk.bodies.check(body)


def test_a_new_process_finds_what_was_kept(desk: Desk) -> None:
    own, model = desk.bodies.put(slots(1.0)), desk.bodies.put(slots(2.0))
    desk.keep(standing(own, model), [1.0, 2.0])
    stood = Desk(desk.folder, "j").standing()
    assert stood is not None
    assert (stood.peer, stood.books) == (standing(own, model), [1.0, 2.0])


def test_a_base_that_had_not_come_whole_is_none(desk: Desk) -> None:
    desk.keep(standing(None, Ref("0" * 64, 8)), None)
    stood = desk.standing()
    assert stood is not None
    assert (stood.peer["version"], stood.peer["model"]) == (-1, None)


@pytest.mark.parametrize("damage", ["", "[]", '{"peer": {}}', "missing body"])
def test_what_is_damaged_is_given_up(desk: Desk, damage: str) -> None:
    desk.keep(standing(Ref("0" * 64, 8)), None)
    if damage != "missing body":
        (desk.peer_folder / "standing.json").write_text(damage)
    assert desk.standing() is None


def test_another_job_of_that_name_takes_all_of_it_away(desk: Desk) -> None:
    desk.belongs_to("2026-01-01T00:00:00Z")
    desk.keep_page({"spec": {"name": "j"}, "created_at": "2026-01-01T00:00:00Z", "state": "running"})
    desk.keep_papers({"charter": "x", "roster": "y"})
    assert desk.page() == {"spec": {"name": "j"}, "created_at": "2026-01-01T00:00:00Z"}
    assert json.loads((desk.peer_folder / "papers.json").read_bytes()) == {"charter": "x", "roster": "y"}
    assert not desk.belongs_to("2026-02-02T00:00:00Z")
    assert (desk.page(), desk.papers(), desk.standing()) == (None, None, None)
    desk.keep(standing(), None)
    assert desk.standing() is not None
