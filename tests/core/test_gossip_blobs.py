"""Blobs that a gossiping peer stores: a model is stored once for all its users."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.gossip.gossip import GossipPeer
from shoal.core.gossip.gossip_state import GossipState
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.machine import Work
from shoal.core.protocol.message import BlobRef
from shoal.mixing.all_reduce import AllReduce
from shoal.sim.network.blobs import MemoryBlobs


class Counted(MemoryBlobs):
    """Blobs that count what is stored, equal or not."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = 0

    def put(self, slots: Slots) -> BlobRef:
        self.stored += 1
        return super().put(slots)


@pytest.mark.parametrize(("more", "stored"), [({}, 1), ({"count": 1.0}, 2)], ids=["model", "model and more"])
def test_the_saved_model_is_also_the_task_where_it_is_the_same(more: Slots, stored: int) -> None:
    blobs, slots = Counted(), {"model": Tree.of({"w": np.ones(3)}), **more}
    gossip = GossipPeer(JobPlan(1), Algorithm(), GossipState("a", 1, 1.0, slots, blobs, Random(1)), AllReduce().mixer())
    (work,) = (effect for effect in gossip.start(0.0) if isinstance(effect, Work))
    assert blobs.stored == stored
    assert work.task.blob is not None
    assert blobs.get(work.task.blob).keys() == {"model"}
