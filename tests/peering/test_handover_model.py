"""From which model a node could carry on that has a task in hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.reference_model import ReferenceModel
from shoal.core.client.worker import Worker
from shoal.core.model.tree import Slots, Tree, digest
from shoal.core.protocol.message import Task
from shoal.jobs.spec import parse_job
from shoal_edge_client.peering.node_state import NodeState
from shoal_edge_client.peering.peer_session import PeerSession

JOB = {
    "name": "toys",
    "algorithm": {"name": "dynamic"},
    "schedule": {"name": "divergence"},
    "filters": [{"name": "quantize", "bits": 4, "bucket": 2}],
    "gossip": {"allowed": True},
}


def model(*values: float) -> Slots:
    return {"model": Tree.of({"w": np.array(values, np.float32)})}


def test_a_new_base_that_came_as_a_difference_is_kept_whole(tmp_path: Path) -> None:
    """The task names the base before: from there the work since would have been lost."""
    spec, node_state = parse_job(JOB), NodeState(tmp_path, "toys")
    part, blobs, anchor = (
        PeerSession(spec, Worker("a"), 1, node_state),
        node_state.blobs,
        ReferenceModel(spec.plan().filters),
    )
    anchor.rebase(blobs, model(1.0, 2.0))
    first = anchor.refs()[0]

    def task() -> tuple[Task, Slots]:
        sent = anchor.packed_slots(slots)
        return Task(
            (1, 1), "a", "train", 3, 7, blobs.put(sent), reference=anchor.task_reference, numbers=anchor.task_numbers
        ), sent

    slots = anchor.pack_version(blobs, model(1.3, 2.7), False, 5)
    balanced, sent = task()
    assert part.held_model(balanced, sent, model(1.0, 2.0)) == balanced.reference == first

    before = anchor.slots
    slots = anchor.pack_version(blobs, model(3.3, -7.7), True, 5)
    anchor.rebase(blobs, slots)
    synchronized, sent = task()
    assert synchronized.reference == first
    whole = part.held_model(synchronized, sent, before)
    assert whole not in (None, first, synchronized.blob)
    node_state.sweep([])
    assert whole is not None
    assert digest(tree_slot(blobs.get(whole), "model")) == digest(tree_slot(slots, "model"))
