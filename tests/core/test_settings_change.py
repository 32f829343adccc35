"""Changed settings of a running job: their first version, the amendments to nodes, and refusals."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest

from shoal.algorithms.lbfgs import LBFGS
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.client.task_runner import TaskRunner
from shoal.core.client.worker import Worker
from shoal.core.errors import InvalidJob
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.settings_change import apply_changes, apply_node_settings
from shoal.core.protocol.machine import Effect, JobEvent, Restarted
from shoal.core.protocol.message import ChangeSettings, SwitchMode, Task
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import NODES, hub_of, model, report
from tests.support.learners import VectorLearner

HALF = ChangeSettings({"algorithm.lr": 0.05, "algorithm.batch_size": 64.0}, "the loss stands still")


def tasks(hub: Hub) -> list[dict[str, float]]:
    """Return the settings in each node's task."""
    found = [hub.poll_reply(node) for node in NODES]
    return [task.numbers for task in found if isinstance(task, Task)]


def close(hub: Hub, now: float = 1.0) -> list[Effect]:
    return [effect for node in NODES for effect in hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), now)]


def event_texts(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, JobEvent)]


def test_a_change_begins_with_the_next_version() -> None:
    hub = hub_of(MemoryBlobs())
    before = tasks(hub)
    said = event_texts(hub.on(HALF, 1.0))
    assert said == ["from version 2 on: algorithm.batch_size 32 → 64, algorithm.lr 0.1 → 0.05 (the loss stands still)"]
    assert tasks(hub) == before, "tasks that stand keep their values"
    assert (hub.settings.changed, hub.settings.pending) == ({}, HALF.values)
    close(hub)
    assert tasks(hub) == [HALF.values] * len(NODES)
    assert (hub.settings.algorithm.lr, hub.settings.algorithm.batch_size, hub.settings.pending) == (0.05, 64, {})


def test_before_the_first_order_it_begins_at_once() -> None:
    hub = Hub(JobPlan(3, 7), Algorithm(), Rounds(min_nodes=2), MemoryBlobs())
    hub.on(Restarted(), 0.0)
    assert event_texts(hub.on(ChangeSettings({"schedule.min_nodes": 1.0, "rounds": 9.0}), 0.0)) == [
        "from version 1 on: rounds 3 → 9, schedule.min_nodes 2 → 1 (by an operator)"
    ]
    assert (hub.settings.schedule.required_nodes, hub.settings.plan.versions) == (1, 9)


@pytest.mark.parametrize(("rounds", "ends_at"), [(1.0, 1), (2.0, 2)])
def test_the_round_in_hand_may_become_the_last(rounds: float, ends_at: int) -> None:
    hub = hub_of(MemoryBlobs(), versions=3)
    hub.on(ChangeSettings({"rounds": rounds}), 0.5)
    while hub.progress.phase == "running":
        close(hub)
    assert hub.progress.version == ends_at


def test_more_rounds_are_made_though_the_last_was_open() -> None:
    hub = hub_of(MemoryBlobs(), versions=1)
    hub.on(ChangeSettings({"rounds": 2.0}), 0.5)
    close(hub)
    assert (hub.progress.phase, hub.progress.version) == ("running", 1)


@pytest.mark.parametrize("when", ["awaited", "changed"])
def test_a_snapshot_keeps_changes(when: str) -> None:
    blobs = MemoryBlobs()
    hub = hub_of(blobs)
    hub.on(HALF, 0.5)
    if when == "changed":
        close(hub)
    state: dict[str, Any] = json.loads(json.dumps(hub.snapshot()))
    again = Hub(hub_of(blobs).settings.plan, Algorithm(), Rounds(min_nodes=5, quorum=5), blobs, state)
    assert json.loads(json.dumps(again.snapshot())) == state
    if when == "awaited":
        close(again)
    assert tasks(again) == [HALF.values] * len(NODES)
    assert again.settings.algorithm.lr == 0.05


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"seed": 1.0}, "seed cannot be changed"),
        ({"algorithm.name": 1.0}, "algorithm.name cannot be changed"),
        ({"algorithm.batch_size": 1.5}, "whole number"),
        ({"schedule.deadline_s": -1.0}, "deadline_s is -1"),
        ({"algorithm.lr": -5.0}, "lr is -5"),
        ({"algorithm.lr": inf}, "lr is inf"),
        ({"algorithm.epochs": nan}, "epochs is nan"),
        ({"algorithm.batch_size": -5.0}, "not below 0"),
        ({"rounds": inf}, "whole number"),
        ({"rounds": 0.0}, "there are 0 versions already"),
    ],
)
def test_what_may_not_change_changes_nothing(values: dict[str, float], why: str) -> None:
    hub = hub_of(MemoryBlobs())
    before = json.dumps(hub.snapshot())
    said = event_texts(hub.on(ChangeSettings(values), 1.0))
    assert len(said) == 1
    assert why in said[0]
    assert json.dumps(hub.snapshot()) == before


def test_nodes_that_carry_on_keep_what_they_were_told() -> None:
    """Among themselves nothing can be changed; the task to carry on names what was changed before, open or not."""
    hub = hub_of(MemoryBlobs())
    hub.on(HALF, 0.5)
    hub.on(SwitchMode("gossip"), 1.0)
    assert tasks(hub) == [HALF.values] * len(NODES)
    assert "is with its nodes" in event_texts(hub.on(ChangeSettings({"algorithm.lr": 1.0}), 2.0))[0]
    assert hub.settings.changed == HALF.values
    worker = Worker("a")
    task = hub.poll_reply("a")
    assert isinstance(task, Task)
    worker.on(task, 1.0)
    assert worker.settings == HALF.values


class Noting(VectorLearner):
    """A learner that records what it is asked to train with."""

    def train(self, config: TrainConfig, **_: Any) -> Trained:  # type: ignore[override]
        self.told = [*getattr(self, "told", []), (config.lr, config.batch_size)]
        return Trained(1.0)


def test_a_node_trains_as_its_order_says() -> None:
    learner = Noting()
    for numbers in ({}, HALF.values, {}):
        task = Task((1, 1), "a", "train", 0, 7, numbers=numbers)
        TaskRunner(Algorithm(), learner, {"model": model(1.0)}).run_piece(task)  # type: ignore[arg-type]
    assert learner.told == [(0.1, 32), (0.05, 64), (0.1, 32)]


def test_no_order_can_change_what_an_algorithm_does_not_allow() -> None:
    assert apply_node_settings(LBFGS(), {"fraction": 1.0}) == LBFGS()
    with pytest.raises(InvalidJob, match="lbfgs does not allow"):
        apply_node_settings(LBFGS(), {"algorithm.lr": 0.5})


def test_every_changeable_field_is_one() -> None:
    from shoal.core.job.settings_change import changeable, current_value
    from shoal.plugins import algorithms, schedules

    for algorithm in algorithms().values():
        for schedule in schedules().values():
            made = JobPlan(3), algorithm(), schedule()
            values = {key: current_value(made, key) for key in changeable(*made[1:])}
            assert apply_changes(made, values) == made
