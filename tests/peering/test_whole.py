"""From which model a node could carry on that has an order in hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.core.algorithm import tree_slot
from shoal.core.anchor import Anchor
from shoal.core.message import Order
from shoal.core.tree import Slots, Tree, digest
from shoal.core.worker import Worker
from shoal.spec import parse_job
from shoal_edge_client.peering.desk import Desk
from shoal_edge_client.peering.part import Part

JOB = {
    "name": "toys",
    "algorithm": {"name": "dynamic"},
    "schedule": {"name": "drift"},
    "filters": [{"name": "quantize", "bits": 4, "bucket": 2}],
    "gossip": {"allowed": True},
}


def model(*values: float) -> Slots:
    return {"model": Tree.of({"w": np.array(values, np.float32)})}


def test_a_new_base_that_came_as_a_difference_is_kept_whole(tmp_path: Path) -> None:
    """The order names the base before: from there the work since would have been lost."""
    spec, desk = parse_job(JOB), Desk(tmp_path, "toys")
    part, bodies, anchor = Part(spec, Worker("a"), 1, desk), desk.bodies, Anchor(spec.plan().filters)
    anchor.rebase(bodies, model(1.0, 2.0))
    first = anchor.refs()[0]

    def order() -> tuple[Order, Slots]:
        sent = anchor.sent(slots)
        return Order((1, 1), "a", "train", 3, 7, bodies.put(sent), base=anchor.base, numbers=anchor.numbers), sent

    slots = anchor.moved(bodies, model(1.3, 2.7), False, 5)
    balanced, sent = order()
    assert part.whole(balanced, sent, model(1.0, 2.0)) == balanced.base == first

    before = anchor.held
    slots = anchor.moved(bodies, model(3.3, -7.7), True, 5)
    anchor.rebase(bodies, slots)
    synchronised, sent = order()
    assert synchronised.base == first
    whole = part.whole(synchronised, sent, before)
    assert whole not in (None, first, synchronised.body)
    desk.sweep([])
    assert whole is not None
    assert digest(tree_slot(bodies.get(whole), "model")) == digest(tree_slot(slots, "model"))
