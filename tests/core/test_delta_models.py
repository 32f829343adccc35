"""Models as differences to the version before: who is sent what, and that all have the same model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.filter import Filter, pack_with_feedback, unpack_difference
from shoal.core.algorithm.reference_model import NEW_REFERENCE
from shoal.core.errors import InvalidJob
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree, digest
from shoal.core.protocol.machine import Restarted
from shoal.core.protocol.message import Join, Report, Task
from shoal.core.server.hub import Hub
from shoal.filters.delta import Delta
from shoal.filters.quantize import Quantize
from shoal.jobs.spec import parse_job
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import restored

FILTERS: tuple[Filter, ...] = (Delta(), Quantize(8, 512))
SIZE = 4096


def begun(filters: tuple[Filter, ...], wanted: int = 2) -> Hub:
    """A hub that has asked `wanted` of the nodes a, b, and c."""
    blobs = MemoryBlobs()
    start = blobs.put({"model": Tree.of({"w": np.linspace(-1, 1, SIZE, dtype=np.float32)})})
    hub = Hub(JobPlan(9, 7, "fixed", start, filters=filters), Algorithm(), Rounds(cohort=wanted, min_nodes=3), blobs)
    for event in (Restarted(), *map(Join, "abc")):
        hub.on(event, 0.0)
    return hub


def asked(hub: Hub) -> dict[str, Task]:
    standing = {node: hub.poll_reply(node) for node in "abc"}
    return {node: task for node, task in standing.items() if isinstance(task, Task)}


def answered(hub: Hub) -> set[str]:
    """Let all asked nodes report something; return their names."""
    tasks = asked(hub)
    for number, (node, task) in enumerate(tasks.items()):
        tree = Tree.of({"w": np.random.default_rng(task.seed + number).standard_normal(SIZE).astype(np.float32)})
        slots, _ = pack_with_feedback(hub.settings.plan.filters, {"model": tree}, {}, task.seed)
        hub.on(Report(node, task.id, task.version, 1.0, hub.store.blobs.put(slots), {}, 5.0), 1.0)
    return set(tasks)


def received(hub: Hub, task: Task) -> Tree:
    """The model that a node makes of a task."""
    assert task.blob is not None
    sent = tree_slot(hub.store.blobs.get(task.blob), "model")
    base = tree_slot(hub.store.blobs.get(task.reference), "model") if task.reference is not None else None
    return sent if base is None else unpack_difference(hub.settings.plan.filters, sent, base)


def test_who_took_part_is_sent_the_difference_and_others_the_model() -> None:
    hub, whole = begun(FILTERS), 4 * SIZE
    before: set[str] = set()
    kinds = set()
    for _ in range(8):
        tasks = asked(hub)
        for node, task in tasks.items():
            assert task.blob is not None
            small = task.blob.nbytes < whole / 3
            assert small is (node in before) is (task.reference is not None)
            assert task.numbers[NEW_REFERENCE] == 1.0
            assert digest(received(hub, task)) == digest(tree_slot(hub.store.slots, "model"))
            kinds.add(small)
        before = answered(hub)
    assert kinds == {True, False}


def test_a_hub_that_died_knows_who_holds_what() -> None:
    hub = begun(FILTERS, 3)
    answered(hub)
    again = restored(hub)
    assert {member.node: member.history.held_version for member in again.roster.all_members()} == dict.fromkeys(
        "abc", 0
    )
    answered(hub)
    answered(again)
    assert asked(again) == asked(hub)
    assert all(task.reference is not None for task in asked(again).values())


def test_one_body_is_stored_for_all_that_are_sent_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, put = begun(FILTERS, 3), MemoryBlobs.put
    answered(hub)
    stored: list[Any] = []
    monkeypatch.setattr(MemoryBlobs, "put", lambda self, slots: stored.append(slots) or put(self, slots))
    hub.state.clear_round()
    hub.tasks.withdraw_all()
    hub.on(Join("a"), 2.0)
    assert len(asked(hub)) == 3
    assert len(stored) == 1


NAMED = {"name": "fits", "rounds": 1}
DELTA: dict[str, Any] = {**NAMED, "filters": [{"name": "delta"}, {"name": "quantize"}]}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"algorithm": {"name": "dynamic"}, "schedule": {"name": "divergence"}}, "sends differences by itself"),
        ({"schedule": {"name": "buffer"}}, "each node holds another version"),
        ({"gossip": {"allowed": True}}, "need whole models"),
    ],
)
def test_where_differences_cannot_be(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidJob, match=why) as caught:
        parse_job({**DELTA, **more})
    assert caught.value.code == "job.fit"
    assert parse_job(DELTA).plan().sends_differences
