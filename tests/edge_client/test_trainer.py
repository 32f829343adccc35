"""Doing tasks with a learner, and what becomes of its faults."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask
from shoal.core.algorithm.learner import Learner
from shoal.core.errors import Cancelled, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.machine import TaskResult
from shoal.core.protocol.message import Task, TaskStatus
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.worker_ports import CancelToken
from shoal.wire.payload import open_payload
from shoal_edge_client.identity import StateFolder
from shoal_edge_client.spool import Spool
from shoal_edge_client.training.trainer import EdgeTrainer, TaskInProgress
from shoal_edge_client.training.trainer_backend import start_in_thread
from tests.edge_client.counting_algorithm import Remembering
from tests.support.learners import VectorLearner


class Bench:
    """A trainer and what it leans on."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder(folder / "state", parse("http://127.0.0.1"))
        self.spool = Spool(folder / "j", "j")
        self.watch = CancelToken()

    def do(self, learner: Any, kind: Any = "train", algorithm: Algorithm | None = None, **more: Any) -> TaskResult:
        made = self.begin(learner, algorithm, kind, **more).run_piece(Task((1, 2), "a", kind, 4, 3))
        assert isinstance(made, TaskResult)
        return made

    def begin(
        self, learner: Any, algorithm: Algorithm | None = None, kind: Any = "train", **more: Any
    ) -> TaskInProgress:
        begin = partial(start_in_thread, algorithm or Algorithm(), learner, ())
        trainer = EdgeTrainer("j", begin, self.spool, self.state.save_traceback)
        slots: Slots = {} if kind == "init" else {"model": Tree.of({"w": np.zeros(8, np.float32)})}
        return trainer(Task((1, 2), "a", kind, 4, 3), slots, {}, more.get("memory"), self.watch)

    def errors(self) -> list[str]:
        return [path.read_text() for path in (self.state.folder / "errors").glob("*.txt")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def weights(bench: Bench, result: TaskResult) -> np.ndarray:
    assert result.blob is not None

    model = open_payload(bench.spool.report_blob(result.blob))["model"]
    assert isinstance(model, Tree)
    return model["w"]


def test_an_initial_model(bench: Bench) -> None:
    result = bench.do(VectorLearner(), "init")
    assert (result.weight, result.metrics) == (0.0, {})
    assert np.array_equal(weights(bench, result), np.full(8, 3.0))


def test_training(bench: Bench) -> None:
    result = bench.do(VectorLearner())
    assert result.weight == 3.0
    assert np.array_equal(weights(bench, result), np.full(8, 0.125))  # a displacement
    assert result.metrics == {"eval/examples": 2.0, "eval/accuracy": 0.0, "train/loss": 0.5}
    assert all(type(value) is float for value in result.metrics.values())
    assert result.memory is None
    assert bench.watch.fraction == 1.0


def test_an_evaluation(bench: Bench) -> None:
    result = bench.do(VectorLearner(), "evaluate")
    assert (result.blob, result.weight) == (None, 2.0)
    assert set(result.metrics) == {"eval/examples", "eval/accuracy"}


def test_private_memory_comes_and_goes(bench: Bench) -> None:
    first = bench.do(VectorLearner(), algorithm=Remembering())
    assert first.memory is not None
    assert bench.spool.blobs.get(first.memory) == {"count": 1.0}
    second = bench.do(VectorLearner(), algorithm=Remembering(), memory=first.memory)
    assert second.memory is not None
    assert bench.spool.blobs.get(second.memory) == {"count": 2.0}
    assert second.metrics["train/count"] == 1.0


def test_an_algorithm_may_go_on_for_several_pieces(bench: Bench) -> None:
    class Silent(Algorithm):
        def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
            if task.is_recalled:
                return LocalResult(float(task.check), {"model": task.slots["model"]})
            before = task.carry["pieces"] if task.carry else 0.0
            assert isinstance(before, float)
            assert before == task.check
            return Continue({"pieces": before + 1}, {"train/checks_since_task": before} if task.check else None)

    hand = bench.begin(VectorLearner(), Silent())
    task = Task((1, 2), "a", "train", 4, 3)
    assert hand.run_piece(task) is None
    assert hand.run_piece(task) == TaskStatus("a", (1, 2), 2, {"train/checks_since_task": 1.0})
    assert hand.can_continue(task)
    in_step = replace(task, checks_allowed=2)
    assert not hand.can_continue(in_step)
    assert hand.can_continue(replace(in_step, checks_allowed=3))
    recalled = replace(in_step, recall=True)
    assert hand.can_continue(recalled)
    result = hand.run_piece(recalled)
    assert isinstance(result, TaskResult)
    assert result.weight == 2.0


def test_a_cancelled_training_ends_at_its_next_tick(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    bench.watch.cancel()
    with pytest.raises(Cancelled):
        bench.do(VectorLearner(hold=tmp_path / "hold"))
    assert bench.errors() == []


def test_the_learners_error_is_one_line_and_its_traceback_is_kept(bench: Bench) -> None:
    with pytest.raises(LearnerFailed) as failed:
        bench.do(VectorLearner(fault="raise"))
    assert "ValueError: the data" in failed.value.message
    assert "learners.py, line" in failed.value.message
    assert "\n" not in failed.value.message
    (text,) = bench.errors()
    assert "Traceback" in text
    assert "self._misbehave()" in text


def test_sys_exit_in_a_learner_is_an_error_like_others(bench: Bench) -> None:
    with pytest.raises(LearnerFailed, match=r"sys.exit\(7\)"):
        bench.do(VectorLearner(fault="exit"))
    assert len(bench.errors()) == 1


def test_a_diverged_update_is_not_even_sent(bench: Bench) -> None:
    with pytest.raises(InvalidPayload, match=r"w\[0\] is not finite") as wrong:
        bench.do(VectorLearner(fault="nan"))
    assert "learning rate" in wrong.value.hint


@pytest.mark.parametrize(
    ("weight", "metrics", "text"),
    [
        (1.0, {'a "name"': 1.0}, "not a metric name"),
        (-1.0, {}, "a weight of -1"),
        (float("nan"), {}, "weight"),
        (1.0, {f"m{n}": 1.0 for n in range(521)}, "521 metrics"),
    ],
)
def test_what_the_coordinator_would_refuse_is_said_here(bench: Bench, weight: float, metrics: Any, text: str) -> None:
    class Odd(Algorithm):
        def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
            return LocalResult(weight, {"model": task.slots["model"]}, metrics)

    with pytest.raises(LearnerFailed, match=text):
        bench.do(VectorLearner(), algorithm=Odd())


def test_a_diverged_loss_is_sent_as_it_is(bench: Bench) -> None:
    class Diverged(Algorithm):
        def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
            return LocalResult(1.0, {"model": task.slots["model"]}, {"train/loss": np.float64("nan")})

    assert np.isnan(bench.do(VectorLearner(), algorithm=Diverged()).metrics["train/loss"])
