"""Jobs whose network grows: the hub's stages, and what a node keeps from one stage to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.algorithms.fedopt import FedAvgM
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.client.task_runner import TaskRunner
from shoal.core.errors import InvalidJob
from shoal.core.job.early_stop import EarlyStop
from shoal.core.job.stages import Stage
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import ModelVersion, Save
from shoal.core.protocol.message import Join, NoTask, Report, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal.filters.delta import Delta
from shoal.filters.top_k import TopK
from shoal.jobs.spec import parse_job
from shoal.schedules.buffer import Buffer
from shoal.schedules.rounds import Rounds
from shoal.sim.checks.invariants import digests
from shoal.sim.hosts.toy_models import ToyLearner, toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import NODES, acks, hub_of, model, report, restored

ONE_ROUND = (Stage(1), Stage())


def task_of(hub: Hub, node: str) -> Task:
    found = hub.poll_reply(node)
    assert isinstance(found, Task)
    return found


def close_round(hub: Hub, update: Tree, **metrics: float) -> None:
    """Let all nodes report that update."""
    for node in NODES:
        hub.on(replace(report(hub, node, {"model": update}, 1.0), metrics={"eval/examples": 1.0, **metrics}), 1.0)


def growing_node(hub: Hub) -> str:
    """Return the node that is asked to grow the model."""
    (node,) = (node for node in NODES if isinstance(hub.poll_reply(node), Task))
    return node


def grown(hub: Hub, node: str, *numbers: float) -> Report:
    return replace(report(hub, node, {"model": model(*numbers)}, 1.0), weight=0.0, norm=0.0)


def test_a_node_grows_the_model_and_the_layout_changes() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND)
    close_round(hub, model(1.0, 1.0))
    node = growing_node(hub)
    task = task_of(hub, node)
    assert (task.kind, task.version, task.seed, task.numbers) == ("init", 1, 7, {"stage": 1.0})
    assert task.blob is not None
    assert hub.store.blobs.get(task.blob).keys() == {"model"}
    (version,) = (
        effect.what
        for effect in hub.on(grown(hub, node, 2.0, 3.0, 0.0), 2.0)
        if isinstance(effect, Save) and isinstance(effect.what, ModelVersion)
    )
    assert (version.number, version.numbers, version.reports) == (2, {"stage": 1.0}, ())
    assert {task_of(hub, one).numbers["stage"] for one in NODES} == {1.0}
    assert hub.reports.layouts("train")["model"] == model(1.0, 1.0, 1.0).layout
    close_round(hub, model(1.0, 1.0, 1.0))
    assert (hub.progress.version, hub.progress.phase) == (3, "evaluating")
    assert task_of(hub, "a").numbers["stage"] == 1.0


def test_a_report_for_the_stage_before_does_not_count() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND, schedule=Rounds(cohort=4, over_select=1, min_nodes=5, quorum=4))
    late = report(hub, "e", {"model": model(9.0, 9.0)}, 1.0)
    for node in NODES[:4]:
        hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 1.0)
    assert hub.progress.stage == 1
    for _ in range(2):  # while the model grows, and afterwards
        (ack,) = acks(hub.on(late, 2.0))
        assert not ack.counted
        assert "superseded" in ack.why
        if hub.progress.phase == "waiting":
            hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    assert not hub.state.round.reports


def test_tasks_that_a_schedule_keeps_are_withdrawn() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND, schedule=Buffer(size=1, min_nodes=5), versions=9)
    kept = report(hub, "e", {"model": model(1.0, 1.0)}, 1.0)
    hub.on(report(hub, "a", {"model": model(1.0, 1.0)}, 1.0), 1.0)
    hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    (ack,) = acks(hub.on(kept, 3.0))
    assert not ack.counted
    assert hub.progress.version == 2


def test_a_late_node_gets_the_stage_with_its_task() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND)
    close_round(hub, model(1.0, 1.0))
    hub.on(Join("late"), 1.5)
    assert isinstance(hub.poll_reply("late"), NoTask)
    hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    assert task_of(hub, "late").numbers["stage"] == 1.0


def test_another_node_grows_the_model_if_the_first_one_fails() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND)
    close_round(hub, model(1.0, 1.0))
    first = growing_node(hub)
    task = task_of(hub, first)
    hub.on(TaskFailed(first, task.id, "no such stage"), 2.0)
    second = growing_node(hub)
    assert second != first
    assert (task_of(hub, second).seed, task_of(hub, second).blob) == (task.seed, task.blob)


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_a_snapshot_contains_the_stage(when: str) -> None:
    hub = hub_of(MemoryBlobs(), stages=(Stage(1), Stage(2), Stage()), versions=9)
    close_round(hub, model(1.0, 1.0))
    if when == "running":
        hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    hub = restored(hub)
    if when == "waiting":
        hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    close_round(hub, model(1.0, 1.0, 1.0))
    assert (hub.progress.stage, hub.progress.phase) == (1, "running")
    close_round(hub, model(1.0, 1.0, 1.0))
    assert (hub.progress.stage, hub.progress.phase) == (2, "waiting")


def test_state_that_follows_from_older_models_begins_anew() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND, algorithm=FedAvgM(beta=0.9), versions=9)
    close_round(hub, model(1.0, 1.0))
    assert len(hub.state.recent_norms.norms) == 5
    hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    assert digests(hub.store.slots) == digests(hub.settings.algorithm.init(model(2.0, 3.0, 0.0)))
    assert not hub.state.recent_norms.norms


def test_the_first_model_of_a_stage_is_sent_whole_where_others_are_differences() -> None:
    hub = hub_of(MemoryBlobs(), stages=ONE_ROUND, filters=(Delta(),), versions=9)
    close_round(hub, model(1.0, 1.0))
    hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    for node in NODES:
        task = task_of(hub, node)
        assert (task.reference, task.blob) == (None, hub.store.model)
    assert set(hub.state.blob_refs()) == {hub.store.model}  # those of the stage before are needed no more


@pytest.mark.parametrize(
    ("stage", "losses", "version"),
    [
        (Stage(0, EarlyStop("eval/loss", 1)), [3.0, 2.0, 2.0, 1.0], 3),
        (Stage(0, EarlyStop("eval/loss", 1, 0.5)), [3.0, 2.0, 1.6, 1.0], 3),
        (Stage(0, EarlyStop("eval/accuracy", 1)), [3.0, 2.0, 2.0, 1.0], 4),
        (Stage(2, EarlyStop("eval/loss", 1)), [3.0, 2.0, 2.0, 1.0], 2),
        (Stage(4, EarlyStop("eval/loss", 2)), [3.0, 2.0, 2.0, 1.0], 4),
    ],
)
def test_a_stage_ends_after_its_rounds_or_at_a_plateau(stage: Stage, losses: list[float], version: int) -> None:
    hub = hub_of(MemoryBlobs(), stages=(stage, Stage()), versions=99)
    for loss in losses:
        if hub.progress.stage == 0:
            close_round(hub, model(1.0, 1.0), **{"eval/loss": loss})
    assert hub.progress.version == version
    assert hub.progress.stage == (version < 4 or stage.rounds == 4)


def test_the_job_ends_early_by_the_last_stage_alone() -> None:
    rule = EarlyStop("eval/loss", rounds=1)
    hub = hub_of(MemoryBlobs(), stages=(Stage(3, EarlyStop("eval/loss", 9)), Stage()), early_stop=rule, versions=99)
    for _ in range(3):
        close_round(hub, model(1.0, 1.0), **{"eval/loss": 0.1})
    assert hub.progress.stage == 1
    hub.on(grown(hub, growing_node(hub), 2.0, 3.0, 0.0), 2.0)
    for loss in (3.0, 2.0, 2.0):  # worse than in the stage before, which does not matter
        close_round(hub, model(1.0, 1.0, 1.0), **{"eval/loss": loss})
    assert (hub.progress.version, hub.progress.phase) == (7, "evaluating")


# The node


def run_task(kind: Any, model_: Tree, stage: int, memory: Any = None, learner: ToyLearner | None = None) -> Any:
    task = Task((1, 1), "n1", kind, 3, 5, numbers={"stage": float(stage)} if stage else {})
    runner = TaskRunner(
        Algorithm(), learner or ToyLearner(1, 3), {"model": model_}, memory=memory or {}, filters=[TopK(0.3)]
    )
    return runner.run_piece(task)


def test_a_node_trains_in_the_stage_of_its_task_and_grows_the_model() -> None:
    learner = ToyLearner(1, 3)
    small = toy_tree((1.0, 2.0, 3.0), 4, 1)
    made = run_task("init", small, 2, learner=learner)
    assert digests(made.slots) == digests({"model": toy_tree((1.0, 2.0, 3.0), 4, 2)})
    assert run_task("evaluate", small, 1, learner=learner).metrics["eval/loss"] == 1.0  # the layout of stage 1 again


def test_what_a_filter_kept_back_in_another_stage_is_dropped() -> None:
    small = toy_tree((1.0, 2.0, 3.0), 0, 1)
    first = run_task("train", small, 1)
    kept = first.memory
    assert kept["stage"] == 1.0
    again, other, anew = (
        digests(run_task("train", small, 1, memory).slots) for memory in (kept, kept | {"stage": 2.0}, None)
    )
    assert again != anew  # within a stage it counts
    assert other == anew


def test_a_learner_without_that_stage_says_so() -> None:
    for kind in ("init", "train", "evaluate"):
        with pytest.raises(InvalidJob, match="the job has 2 stages, and ToyLearner has 1 stage"):
            run_task(kind, toy_tree((1.0, 2.0, 3.0), 0), 1, learner=ToyLearner(1))


# The job file

GOOD: dict[str, Any] = {"name": "growing", "rounds": 9, "stages": [{"rounds": 3}, {"patience": 2}, {}]}


def test_stages_of_a_job_file() -> None:
    stages = parse_job(GOOD).plan().stages
    assert stages == (Stage(3), Stage(0, EarlyStop("eval/loss", 2)), Stage())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"stages": [{"rounds": 3}]}, "one stage is a job without growth"),
        ({"stages": [{}, {}]}, "stage 0 never ends"),
        ({"stages": [{"rounds": 3}, {"rounds": 3}]}, "stage 1 is the last, which ends with the job"),
        ({"stages": [{"rounds": 4}, {"rounds": 3}, {}]}, "take 9 versions, and the job has 9"),
        ({"stages": [{"round": 4}, {}]}, "round: unknown key"),
        ({"stages": [{"rounds": -1}, {}]}, "greater than or equal to 0"),
        ({"stages": [{"metric": "loss"}, {}]}, "metric"),
        ({"preset": "dynamic"}, "schedule divergence has its nodes train on"),
        ({"algorithm": "boosted_trees"}, "boosted_trees grows decision trees"),
        ({"gossip": {"allowed": True}}, "nodes cannot carry on without it"),
    ],
)
def test_stages_that_do_not_fit_are_refused_before_the_job(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text):
        parse_job(GOOD | change)
