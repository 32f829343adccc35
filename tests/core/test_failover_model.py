"""From which model a node carries on without its hub, and with which work: see `shoal.core.failover.failover`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.filter import Filter, pack
from shoal.core.algorithm.reference_model import NEW_REFERENCE, ReferenceModel
from shoal.core.failover.failover import starting_state
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef, Report, Task
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.sim.network.blobs import MemoryBlobs

ALGORITHM = DynamicAveraging()


def model(*values: float) -> Slots:
    return {"model": Tree.of({"w": np.array(values, np.float32)})}


def numbers(slots: Slots) -> list[float]:
    return [float(value) for value in tree_slot(slots, "model")["w"]]


def task_of(blob: BlobRef, base: BlobRef | None, **told: float) -> Task:
    return Task((1, 1), "a", "train", 3, 7, blob, reference=base, numbers=told)


def test_work_against_a_base_is_carried_on_from_that_base() -> None:
    """The version holds a part of what the node has learned since: it would count twice."""
    blobs = MemoryBlobs()
    base, version = blobs.put(model(1.0, 2.0)), blobs.put(model(4.0, 4.0))
    task = task_of(version, base, **{NEW_REFERENCE: 0.0})
    slots, in_hand = starting_state(ALGORITHM, (), blobs, version, task)
    assert (numbers(slots), in_hand) == ([1.0, 2.0], task)


@pytest.mark.parametrize("filters", [(Quantize(bits=4, bucket=2),), (Half(),)])
def test_a_new_base_that_came_as_a_difference_is_carried_on_from(filters: tuple[Filter, ...]) -> None:
    blobs, anchor = MemoryBlobs(), ReferenceModel(filters)
    anchor.rebase(blobs, model(1.0, 2.0))
    slots = anchor.pack_version(blobs, model(3.3, -7.7), True, 5)
    sent = blobs.put(anchor.packed_slots(slots))
    anchor.rebase(blobs, slots)
    task = task_of(sent, anchor.task_reference, **anchor.task_numbers)
    assert task.reference is not None
    newest = blobs.put(model(9.0, 9.0))
    found, in_hand = starting_state(ALGORITHM, filters, blobs, newest, task)
    assert (numbers(found), in_hand) == (numbers(slots), task)


def test_work_that_cannot_have_been_begun_is_dropped() -> None:
    """Its base was still to be fetched."""
    blobs = MemoryBlobs()
    version, missing = blobs.put(model(4.0, 4.0)), BlobRef("0" * 64, 8)
    task = task_of(version, missing, **{NEW_REFERENCE: 0.0})
    slots, in_hand = starting_state(ALGORITHM, (), blobs, version, task)
    assert (numbers(slots), in_hand) == ([4.0, 4.0], None)


def test_without_a_base_work_joins_the_version() -> None:
    blobs = MemoryBlobs()
    older, version = blobs.put(model(1.0, 2.0)), blobs.put(model(4.0, 4.0))
    task = task_of(older, None)
    slots, in_hand = starting_state(Algorithm(), (), blobs, version, task)
    assert (numbers(slots), in_hand) == ([4.0, 4.0], task)
    assert numbers(starting_state(Algorithm(), (), blobs, version, None)[0]) == [4.0, 4.0]


def test_a_report_that_nobody_has_acknowledged_is_added_at_once() -> None:
    blobs, filters = MemoryBlobs(), (Half(),)
    base = blobs.put(model(1.0, 2.0))
    said = Report("a", (1, 1), 3, 5.0, blobs.put(pack(filters, model(0.5, -1.0), 1)))
    slots, in_hand = starting_state(ALGORITHM, filters, blobs, base, said)
    assert (numbers(slots), in_hand) == ([1.5, 1.0], None)
    assert numbers(starting_state(ALGORITHM, filters, blobs, base, replace(said, blob=None))[0]) == [1.0, 2.0]
