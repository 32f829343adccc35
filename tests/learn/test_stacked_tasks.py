"""Simulated learners that are trained at once come to what each would come to alone."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.algorithms.fedavg import FedAvg
from shoal.core.algorithm.correction import Correction
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.model.tree import digest
from shoal.core.protocol.machine import Work
from shoal.core.protocol.message import BlobRef, Task
from shoal.jobs.spec import parse_job
from shoal.learn import TorchConfig, TorchLearner, digits, models
from shoal.learn.data.partition import dirichlet
from shoal.learn.stacked import stacked_tasks
from shoal.learn.stacked.stacked_evaluation import StackedEvaluation
from shoal.learn.stacked.stacked_tasks import BegunTask, StackedTasks, TrainedLearner
from shoal.learn.stacked.stacked_training import StackedResult
from shoal.learn.stacked.task_chunks import TaskChunk
from shoal.learn.training.module_pool import recipe
from shoal.memory import REUSE_STACKS
from shoal.sim.tasks.chunk_runner import ChunkRunner
from shoal.sim.tasks.learners import LearnersOnDemand


def learners(lengths: list[int], model: Any = models.mlp, **more: Any) -> list[TorchLearner]:
    x, y = digits.digits()
    starts = np.cumsum([0, *lengths])
    return [TorchLearner(model, (x[a:b], y[a:b]), (x[-9:], y[-9:]), device="cpu", **more) for a, b in pairwise(starts)]


def job(algorithm: str = "fedavg", **fields: Any) -> shoal.JobSpec:
    return parse_job({"name": "j", "rounds": 3, "algorithm": {"name": algorithm, "batch_size": 8}, **fields})


def both(make: Any, given: shoal.JobSpec | None = None) -> tuple[shoal.Result, shoal.Result]:
    spec = given or job()
    return shoal.simulate(spec, make()), shoal.simulate(spec, make(), fidelity="wire")


def assert_alike(one: shoal.Result, two: shoal.Result) -> None:
    assert all(np.allclose(one.model[name], two.model[name], atol=1e-5) for name in two.model)
    assert (one.up_bytes, one.down_bytes) != ({}, {})
    for a, b in zip(one.versions, two.versions, strict=True):
        assert (a.closed_s, a.reports) == (b.closed_s, b.reports)
        assert a.metrics == pytest.approx(b.metrics, rel=1e-4, abs=0.01)


PARTIAL_WORK = {"name": "fedprox", "batch_size": 8, "epochs": 2, "partial_work_fraction": 0.5}


@pytest.mark.parametrize(
    ("given", "training"),
    [
        (job(), "60 tasks at once; 80 evaluations at once"),
        (job("fedadam"), "60 tasks at once; 80 evaluations at once"),
        (job("fedavgm", schedule={"name": "rounds", "cohort": 12}), "36 tasks at once; 56 evaluations at once"),
        (
            job("fedbuff", schedule={"name": "buffer", "size": 8, "min_nodes": 20}),
            "20 tasks at once; 40 evaluations at once; 4 one by one: fewer than 8 learners are alike",
        ),
        (
            job("fedasync", schedule={"name": "buffer", "size": 10, "min_nodes": 20}),
            "30 tasks at once; 50 evaluations at once",
        ),
        (job("fedprox"), "60 tasks at once; 80 evaluations at once"),
        (job("scaffold", schedule={"name": "rounds", "cohort": 15}), "45 tasks at once; 65 evaluations at once"),
        (job("admm"), "60 tasks at once; 80 evaluations at once"),
        (
            parse_job({"name": "j", "rounds": 3, "algorithm": PARTIAL_WORK}),
            "47 tasks at once; 67 evaluations at once; 13 one by one: fewer than 8 learners are alike",
        ),
    ],
    ids=["fedavg", "fedadam", "cohorts", "buffer", "fedasync", "fedprox", "scaffold", "admm", "partial work"],
)
def test_training_at_once_is_training_alone(given: shoal.JobSpec, training: str) -> None:
    lean, wire = both(lambda: learners([20] * 20), given)
    assert_alike(lean, wire)
    assert lean.training == training
    assert wire.training == ""


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, momentum=0.9, nesterov=True), torch.optim.Adam])
def test_an_optimizer_with_momentum(optimizer: Any) -> None:
    lean, wire = both(lambda: divided(0.5, 30, optimizer=optimizer), job(rounds=2))
    assert_alike(lean, wire)
    assert lean.training == "60 tasks at once; 90 evaluations at once"


def test_batch_norm() -> None:
    lean, wire = both(lambda: learners([20] * 20, models.bn))
    assert_alike(lean, wire)
    assert lean.training == "60 tasks at once; 80 evaluations at once"


def test_batch_norm_keeps_a_learner_with_one_example_from_the_stack() -> None:
    lean, wire = both(lambda: learners([20] * 20 + [1], models.bn))
    assert_alike(lean, wire)
    assert lean.uncounted == wire.uncounted == ("node-20",)
    assert lean.training.startswith("60 tasks at once; ")
    assert lean.training.endswith(" one by one: BatchNorm cannot train on one example")


def test_it_is_the_same_to_the_bit_again() -> None:
    first, again = (shoal.simulate(job(), learners([20] * 20)) for _ in range(2))
    assert digest(first.model) == digest(again.model)


def divided(alpha: float, parts: int, **more: Any) -> list[TorchLearner]:
    x, y = digits.digits()
    return [
        TorchLearner(models.mlp, (x[own], y[own]), (x[-9:], y[-9:]), device="cpu", **more)
        for own in dirichlet(y.numpy(), parts, alpha)
    ]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_a_dirichlet_partition_is_trained_at_once(loss: Any) -> None:
    lean, wire = both(lambda: divided(0.5, 30, loss=loss), job(rounds=2))
    assert_alike(lean, wire)
    assert lean.training == "60 tasks at once; 90 evaluations at once"


def test_whole_data_of_unequal_sizes_are_trained_one_by_one() -> None:
    """Four learners have batches of one size, nine of their own."""
    given = parse_job({"name": "j", "rounds": 3, "algorithm": {"name": "fedavg", "batch_size": 0}})
    lean, wire = both(
        lambda: learners([*range(20, 30), 20, 20, 20], loss=nn.CrossEntropyLoss(label_smoothing=0.1)), given
    )
    assert_alike(lean, wire)
    assert lean.training.startswith(
        "12 tasks at once; 52 evaluations at once; 27 one by one: few learners have batches"
    )


def test_models_that_only_look_alike_are_not_mixed() -> None:
    def other() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    lean, wire = both(lambda: [*learners([20] * 10), *learners([20] * 10, other)])
    assert_alike(lean, wire)
    assert lean.training == "60 tasks at once; 80 evaluations at once"


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 10))


@pytest.mark.parametrize(
    ("make", "given", "reason"),
    [
        (
            partial(learners, [20] * 9, models.bn, config=TorchConfig(batch_norm="local")),
            job(),
            "some of the model's weights stay on the node",
        ),
        (partial(learners, [20] * 9, wide), job(), "more than 100,000 numbers"),
        (
            partial(learners, [20] * 9, optimizer=torch.optim.Adafactor),
            job(),
            "their optimizer, Adafactor, may not move",
        ),
        (partial(learners, [20] * 9), job("fedsgd"), "fedsgd trains in a way of its own"),
        (partial(learners, [20] * 3), job(), "fewer than 8 learners are alike"),
    ],
    ids=["local norms", "large", "optimizer", "algorithm", "few"],
)
def test_others_are_trained_one_by_one_and_the_result_says_why(make: Any, given: shoal.JobSpec, reason: str) -> None:
    lean, wire = both(make, given)
    assert digest(lean.model) == digest(wire.model)
    assert lean.versions == wire.versions
    assert reason in lean.training
    assert "at once" not in lean.training


def test_models_with_dropout() -> None:
    lean, wire = both(partial(learners, [20] * 9, dropout))
    assert_alike(lean, wire)
    assert lean.training == "27 tasks at once; 36 evaluations at once"


class Drawing(nn.Module):
    """A model with random numbers that are not drawn for a tensor of its input's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(x + torch.randn(64) if self.training else x)
        return output


def test_other_random_models_are_trained_one_by_one_and_evaluated_at_once() -> None:
    lean, wire = both(partial(learners, [20] * 9, Drawing))
    assert digest(lean.model) == digest(wire.model)
    assert_alike(lean, wire)
    assert lean.training.startswith("27 one by one: they cannot be stacked (the model draws random numbers by aten.")
    assert lean.training.endswith("; 9 evaluations at once")


def test_any_other_call_goes_to_the_learner_itself() -> None:
    """An algorithm that does more than load, train and take the model gets that from the learner."""
    (own, alone) = learners([20, 20])
    base, config = own.init(1), TrainConfig(batch_size=8, seed=4)
    made = StackedResult(Trained(7.0), own.init(2))
    notes: list[str] = []
    begun = BegunTask(Task(id=(0, 0), node="a", kind="train", version=1, seed=4), own, config, None)
    ahead = TrainedLearner(begun, base, StackedEvaluation([own], base), made, notes.append)
    ahead.load(base)
    assert ahead.train(config) is made.trained
    assert ahead.model() is made.model
    other = TrainConfig(batch_size=8, seed=5)
    alone.place()
    alone.train_data = own.train_data
    alone.load(base)
    expected = alone.train(other)
    ahead.load(base)
    assert ahead.train(other) == expected
    assert digest(ahead.model()) == digest(alone.model())
    ahead.load(made.model)
    assert ahead.train(config) != made.trained
    ahead.load(base)
    assert ahead.train(config, correct=Correction(pull=1.0, anchor=base)) != made.trained
    assert notes == ["tasks at once", *["one by one: they were asked for other training"] * 3]
    ahead.load(made.model)
    assert digest(ahead.model()) == digest(made.model)
    assert ahead.applies_corrections


def test_functions_are_the_same_by_code_and_by_what_they_hold() -> None:
    def make(width: int) -> Any:
        return lambda: nn.Linear(width, 10)

    assert recipe(make(3)) == recipe(make(3)) != recipe(make(4))
    assert recipe(nn.CrossEntropyLoss()) == recipe(nn.CrossEntropyLoss())
    assert recipe(nn.CrossEntropyLoss(label_smoothing=0.1)) != recipe(nn.CrossEntropyLoss())
    assert recipe(nn.functional.cross_entropy) != recipe(nn.functional.nll_loss)


def test_learners_that_are_made_when_asked_for_are_trained_at_once() -> None:
    given = learners([20] * 12)
    made: list[int] = []

    def make(number: int) -> TorchLearner:
        made.append(number)
        if number == 5:
            raise ValueError("no data")
        return learners([20] * (number + 1))[number]

    spec = job(schedule={"name": "rounds", "deadline_s": 20.0})
    lean = shoal.simulate(spec, make, nodes=12)
    assert lean.training == "33 tasks at once; 44 evaluations at once"
    assert [version.reports for version in lean.versions] == [0, 11, 11, 11]
    wire = shoal.simulate(spec, {f"node-{n}": one for n, one in enumerate(given) if n != 5}, fidelity="wire")
    assert all(np.allclose(lean.model[name], wire.model[name], atol=1e-5) for name in wire.model)


def test_who_is_trained_at_once_does_not_depend_on_who_is_still_awaited() -> None:
    """Otherwise several processes, which train chunks ahead of their turn, would come to other bits."""
    made, body = learners([20] * 8), BlobRef("a" * 64, 4)
    named, base = {f"node-{number}": one for number, one in enumerate(made)}, made[0].init(0)
    tasks = [Task(id=(0, n), node=node, kind="train", version=1, seed=n, blob=body) for n, node in enumerate(named)]
    chunk = TaskChunk([Work(task) for task in tasks])
    del chunk.memories["node-7"]
    stacked = StackedTasks(FedAvg(batch_size=8), named.__getitem__, lambda _: {"model": base}, lambda _: None)
    assert [type(stacked.learner(task, chunk)) for task in tasks] == [TrainedLearner] * 8


def test_a_process_that_trains_at_once_keeps_freed_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and in each worker of a simulation."""
    made: list[object] = []
    monkeypatch.setattr(stacked_tasks, "configure_malloc", made.append)
    ChunkRunner(FedAvg(), (), LearnersOnDemand(lambda _: learners([8])[0], 1), torch=True)._stacked  # noqa: B018
    shoal.simulate(job(rounds=1), learners([8]))
    assert made == [REUSE_STACKS] * 2
