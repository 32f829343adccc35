"""Doing orders with a learner, and what becomes of its faults."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Algorithm, Going, Local, Task
from shoal.core.errors import Cancelled, InvalidPayload, LearnerFailed
from shoal.core.learner import Learner
from shoal.core.machine import Result
from shoal.core.message import Order, Status
from shoal.core.tree import Slots, Tree
from shoal.runtime.address import parse
from shoal.runtime.pump import Watch
from shoal_edge_client.identity import State
from shoal_edge_client.spool import Spool
from shoal_edge_client.trainer import InHand, Trainer
from shoal_edge_client.workshop import at_hand
from tests.edge_client.learners import VectorLearner
from tests.edge_client.remembering import Remembering


class Bench:
    """A trainer and what it leans on."""

    def __init__(self, folder: Path) -> None:
        self.state = State(folder / "state", parse("http://127.0.0.1"))
        self.spool = Spool(folder / "j", "j")
        self.watch = Watch()

    def do(self, learner: Any, kind: Any = "train", algorithm: Algorithm | None = None, **more: Any) -> Result:
        made = self.begin(learner, algorithm, kind, **more).piece(Order((1, 2), "a", kind, 4, 3))
        assert isinstance(made, Result)
        return made

    def begin(self, learner: Any, algorithm: Algorithm | None = None, kind: Any = "train", **more: Any) -> InHand:
        begin = partial(at_hand, algorithm or Algorithm(), learner, ())
        trainer = Trainer("j", begin, self.spool, self.state.note_error)
        slots: Slots = {} if kind == "init" else {"model": Tree.of({"w": np.zeros(8, np.float32)})}
        return trainer(Order((1, 2), "a", kind, 4, 3), slots, {}, more.get("memory"), self.watch)

    def errors(self) -> list[str]:
        return [path.read_text() for path in (self.state.folder / "errors").glob("*.txt")]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def weights(bench: Bench, result: Result) -> np.ndarray:
    assert result.body is not None
    from shoal import wire

    model = wire.open_payload(bench.spool.payload(result.body))["model"]
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
    assert (result.body, result.weight) == (None, 2.0)
    assert set(result.metrics) == {"eval/examples", "eval/accuracy"}


def test_private_memory_comes_and_goes(bench: Bench) -> None:
    first = bench.do(VectorLearner(), algorithm=Remembering())
    assert first.memory is not None
    assert bench.spool.bodies.get(first.memory) == {"count": 1.0}
    second = bench.do(VectorLearner(), algorithm=Remembering(), memory=first.memory)
    assert second.memory is not None
    assert bench.spool.bodies.get(second.memory) == {"count": 2.0}
    assert second.metrics["train/count"] == 1.0


def test_an_algorithm_may_go_on_for_several_pieces(bench: Bench) -> None:
    class Silent(Algorithm):
        def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
            if task.recalled:
                return Local(float(task.check), {"model": task.slots["model"]})
            before = task.carry["pieces"] if task.carry else 0.0
            assert isinstance(before, float)
            assert before == task.check
            return Going({"pieces": before + 1}, {"train/pieces": before} if task.check else None)

    hand = bench.begin(VectorLearner(), Silent())
    order = Order((1, 2), "a", "train", 4, 3)
    assert hand.piece(order) is None
    assert hand.piece(order) == Status("a", (1, 2), 2, {"train/pieces": 1.0})
    assert hand.may_go_on(order)
    in_step = replace(order, until=2)
    assert not hand.may_go_on(in_step)
    assert hand.may_go_on(replace(in_step, until=3))
    recalled = replace(in_step, recall=True)
    assert hand.may_go_on(recalled)
    result = hand.piece(recalled)
    assert isinstance(result, Result)
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
        (1.0, {"Bad Name": 1.0}, "no name of a metric"),
        (-1.0, {}, "a weight of -1"),
        (float("nan"), {}, "weight"),
        (1.0, {f"m{n}": 1.0 for n in range(65)}, "65 metrics"),
    ],
)
def test_what_the_coordinator_would_refuse_is_said_here(bench: Bench, weight: float, metrics: Any, text: str) -> None:
    class Odd(Algorithm):
        def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
            return Local(weight, {"model": task.slots["model"]}, metrics)

    with pytest.raises(LearnerFailed, match=text):
        bench.do(VectorLearner(), algorithm=Odd())


def test_a_diverged_loss_is_sent_as_it_is(bench: Bench) -> None:
    class Diverged(Algorithm):
        def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
            return Local(1.0, {"model": task.slots["model"]}, {"train/loss": np.float64("nan")})

    assert np.isnan(bench.do(VectorLearner(), algorithm=Diverged()).metrics["train/loss"])
