"""Models that peers hand back are measured before they count."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import Filter
from shoal.core.protocol.machine import Effect, JobEvent, ModelVersion, Save, Timer
from shoal.core.protocol.message import Join, Leave, Metrics, Report, Resume, SwitchMode, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal.filters.half import Half
from shoal.filters.quantize import Quantize
from shoal.filters.top_k import TopK
from shoal.schedules.divergence import Divergence
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import NODES, hub_of, model, report

MERGED = [2.0, 1.0]
"""The start, and what each node hands back on top of it."""


def gated(gate: float = 0.02, **how: Any) -> Hub:
    """A hub whose job is on its way back; no node has handed anything back."""
    hub = hub_of(MemoryBlobs(), accuracy_drop_max=gate, **how)
    hub.on(SwitchMode("gossip"), 1.0)
    hub.on(SwitchMode("server"), 2.0)
    return hub


def handed_back(hub: Hub, *nodes: str) -> list[Effect]:
    return [effect for node in nodes for effect in hub.on(report(hub, node, {"model": model(1.0, -1.0)}, 2.0), 3.0)]


def shown(hub: Hub, node: str, version: int = 0) -> list[float]:
    """The model that a node is to measure now."""
    task = hub.poll_reply(node)
    assert isinstance(task, Task)
    assert (task.kind, task.version, task.reference) == ("evaluate", version, None)
    assert task.blob is not None
    return list(tree_slot(hub.store.blobs.get(task.blob), "model")["w"])


def measure(hub: Hub, node: str, metrics: Metrics, now: float = 4.0) -> list[Effect]:
    task = hub.poll_reply(node)
    assert isinstance(task, Task)
    return hub.on(Report(node, task.id, task.version, 10.0, None, metrics), now)


def all_measure(hub: Hub, before: Metrics, after: Metrics) -> None:
    for metrics, expected in ((before, [1.0, 2.0]), (after, MERGED)):
        for node in NODES:
            assert shown(hub, node) == expected
            measure(hub, node, metrics)


def accuracy(value: float, examples: float = 10.0) -> Metrics:
    return {"eval/accuracy": value, "eval/examples": examples}


def test_a_good_model_becomes_a_version() -> None:
    hub = gated()
    handed_back(hub, *NODES)
    assert (hub.progress.mode, hub.progress.version) == ("returning", 0)
    all_measure(hub, accuracy(0.9), accuracy(0.885))
    assert (hub.progress.mode, hub.progress.version, hub.progress.paused_at) == ("server", 1, None)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == MERGED


@pytest.mark.parametrize(
    "filters", [(Quantize(bits=4, bucket=2),), (Half(),), (TopK(0.5),)], ids=["4 bits", "half", "top"]
)
def test_what_was_measured_is_adopted_and_sent_whatever_the_filters(filters: tuple[Filter, ...]) -> None:
    """Under a schedule with a reference filters rounded what judges had measured whole."""
    hub = gated(schedule=Divergence(delta=1.0, min_nodes=5), filters=filters, algorithm=DynamicAveraging())
    moved = model(0.123456, -1.7654321)
    for node in NODES:
        hub.on(report(hub, node, {"model": moved}, 2.0), 3.0)
    for node in NODES:
        measure(hub, node, accuracy(0.9))
    judged = shown(hub, NODES[0], hub.progress.version)
    for node in NODES:
        measure(hub, node, accuracy(0.9))
    assert hub.progress.mode == "server"
    assert judged == list(tree_slot(hub.store.slots, "model")["w"]) == list(model(1.0, 2.0)["w"] + moved["w"])
    assert judged == list(tree_slot(hub.store.reference.slots, "model")["w"])
    task = hub.poll_reply(NODES[0])
    assert isinstance(task, Task)
    assert (task.kind, task.reference) == ("train", None)
    assert task.blob is not None
    assert judged == list(tree_slot(hub.store.blobs.get(task.blob), "model")["w"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (accuracy(0.9), accuracy(0.87)),
        (accuracy(0.9), accuracy(nan)),
        ({"eval/loss": 0.1}, {"eval/loss": 1.0}),
        ({"eval/loss": 0.1}, {"eval/loss": nan}),
    ],
)
def test_a_bad_model_waits_for_an_operator(before: Metrics, after: Metrics) -> None:
    hub = gated()
    handed_back(hub, *NODES)
    all_measure(hub, before, after)
    assert (hub.progress.mode, hub.progress.version) == ("returning", 0)
    assert "resume to take it all the same" in hub.progress.paused_why
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [1.0, 2.0]
    effects = hub.on(Resume("an operator has looked"), 9.0)
    (made,) = (effect.what for effect in effects if isinstance(effect, Save) and isinstance(effect.what, ModelVersion))
    assert (hub.progress.mode, hub.progress.version, made.number) == ("server", 1, 1)
    assert "measured by 5 nodes" in made.why
    assert list(tree_slot(hub.store.slots, "model")["w"]) == MERGED


@pytest.mark.parametrize(("before", "after"), [({}, {}), ({"eval/loss": 0.1}, {"eval/loss": 0.9}), ({}, accuracy(0.1))])
def test_what_cannot_be_compared_is_taken(before: Metrics, after: Metrics) -> None:
    hub = gated()
    handed_back(hub, *NODES)
    all_measure(hub, before, after)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)


def test_without_a_gate_nobody_is_asked() -> None:
    hub = gated(0.0)
    handed_back(hub, *NODES)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)


def test_the_heaviest_judge_and_each_counts_by_its_examples() -> None:
    hub = gated()
    for node in ("f", "g"):  # seven in all
        hub.on(Join(node), 2.5)
    for node, weight in zip((*NODES, "f", "g"), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), strict=True):
        hub.on(report(hub, node, {"model": model(1.0, -1.0)}, weight), 3.0)
    judges = ("c", "d", "e", "f", "g")
    assert [node for node in (*NODES, "f", "g") if isinstance(hub.poll_reply(node), Task)] == list(judges)
    for _ in range(2):
        after = hub.state.merge_check is not None and shown(hub, "c") == MERGED
        for node in judges:  # the one with many examples finds it as good as before, the others far worse
            heavy = node == "g"
            measure(hub, node, accuracy(0.9 if heavy or not after else 0.5, 10_000.0 if heavy else 1.0))
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)


def test_judges_that_fail_or_go_are_not_waited_for() -> None:
    hub = gated()
    handed_back(hub, *NODES)
    for node in ("c", "d", "e"):
        measure(hub, node, accuracy(0.9))
        measure(hub, node, accuracy(0.9))
    task = hub.poll_reply("a")
    assert isinstance(task, Task)
    hub.on(TaskFailed("a", task.id, "no data"), 5.0)
    assert hub.progress.version == 0
    hub.on(Leave("b"), 6.0)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)


def test_only_those_who_have_measured_both_models_count() -> None:
    hub = gated()
    handed_back(hub, *NODES)
    measure(hub, "a", accuracy(1.0))
    hub.on(Leave("a"), 4.0)
    for _ in range(2):
        for node in NODES[1:]:
            measure(hub, node, accuracy(0.5))
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)


def test_after_the_verdict_nobody_is_asked_again() -> None:
    hub = gated()
    handed_back(hub, *NODES)
    hub.on(Leave("a"), 3.5)
    for value in (0.9, 0.1):
        for node in NODES[1:]:
            measure(hub, node, accuracy(value))
    assert hub.progress.paused_at is not None
    hub.on(Join("a"), 5.0)
    hub.on(Resume("an operator has looked"), 6.0)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)


def test_silent_judges_are_waited_for_as_long_as_those_who_hand_back() -> None:
    hub = gated()
    handed_back(hub, *NODES)
    hub.on(Timer(), 3.0 + hub.settings.plan.handback_timeout_s - 0.1)
    assert hub.progress.version == 0
    effects = hub.on(Timer(), 3.0 + hub.settings.plan.handback_timeout_s)
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)
    assert any(isinstance(effect, JobEvent) and "no node has measured it" in effect.text for effect in effects)


def test_who_comes_back_meanwhile_is_merged_as_well() -> None:
    """The sum was used up for the trial: it is made again from the models handed back."""
    hub = gated()
    hub.on(Leave("e"), 2.5)
    handed_back(hub, "a", "b", "c", "d")
    measure(hub, "a", accuracy(0.9))
    hub.on(Join("e", (1, 5)), 4.0)
    task = hub.poll_reply("e")
    assert isinstance(task, Task)
    assert (task.kind, task.recall) == ("gossip", True)
    assert not any(isinstance(hub.poll_reply(node), Task) for node in "abcd")
    hub.on(report(hub, "e", {"model": model(6.0, 4.0)}, 2.0), 5.0)
    assert hub.state.merge_check is not None
    assert hub.state.merge_check.evaluators == list(NODES)
    for _ in range(2):
        for node in NODES:
            measure(hub, node, accuracy(0.9))
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)
    assert list(tree_slot(hub.store.slots, "model")["w"]) == [3.0, 2.0]


def test_who_says_again_that_it_is_back_only_cannot_judge() -> None:
    """It died before it heard that its report counts, and is among peers again: it would not measure anything."""
    hub = gated()
    handed_back(hub, *NODES)
    trial = hub.state.merge_check
    measure(hub, "a", accuracy(0.5))
    hub.on(Join("a", (1, 5)), 4.0)
    assert trial is not None
    assert hub.state.merge_check is trial
    assert not isinstance(hub.poll_reply("a"), Task)
    for _ in range(2):
        for node in NODES[1:]:
            measure(hub, node, accuracy(0.9))
    assert (hub.progress.mode, hub.progress.version) == ("server", 1)
