"""`shoal.simulated`: a training loop of the user's own gives the models of a `TorchLearner`, bit for bit."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import InvalidJob, InvalidPayload, LearnerFailed
from shoal.core.model.tree import Tree, digest
from shoal.jobs.spec import parse_job
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.example_count import count_examples
from shoal.loop.learner import LoopLearner, LoopStart
from shoal.loop.node import LoopNode
from shoal.loop.rendezvous import Rendezvous
from shoal.loop.task import LoopTask
from shoal.plugins import algorithms
from tests.conventions.sources import ROOT
from tests.loop.loops import NODES, adapted, learners, loop, network, parts, train

SCHEDULES: dict[str, dict[str, Any]] = {
    "dynamic": {"schedule": {"name": "divergence", "delta": 0.02}},
    "fda": {"schedule": {"name": "variance", "theta": 0.02}},
    "downpour": {"schedule": {"size": NODES}},
    "fedasync": {"schedule": {"size": NODES}},
}
CONTINUAL = ("dynamic", "fda", "periodic")


def job(name: str = "fedavg", **fields: Any) -> shoal.JobSpec:
    more = {"local_steps": 20} if name in CONTINUAL else {}
    given = {"name": "loop", "rounds": 2, "seed": 5, "algorithm": {"name": name, **more}, **SCHEDULES.get(name, {})}
    return parse_job({**given, **fields})


def each(spec: shoal.JobSpec, model: Any, body: Callable[[LoopTask], object], nodes: int = 1) -> LoopNode:
    """Run a loop with this body over a simulated job."""
    with shoal.simulated(spec, nodes=nodes) as node:
        for task in node.tasks(model):
            body(task)
    return node


def possible() -> list[str]:
    """All that a loop can serve but flexlora, which is for models with adapters. A loop's optimizer is not known."""
    return [
        name
        for name, kind in algorithms().items()
        if kind().required_capabilities <= {"plain_sgd"} and name != "flexlora"
    ]


@pytest.mark.parametrize("name", possible())
def test_every_algorithm_without_corrections_gives_the_same_model(name: str) -> None:
    foreseen = shoal.simulate(job(name), learners())
    model = network()
    with shoal.simulated(job(name), nodes=NODES) as node:
        assert loop(node.tasks(model), model) >= 2 * NODES
    assert digest(node.result.model) == digest(foreseen.model)
    assert node.result.versions[-1].reports == foreseen.versions[-1].reports
    assert [one.text for one in node.result.events] == [one.text for one in foreseen.events]


@pytest.mark.parametrize("name", sorted({*algorithms()} - {*possible(), "flexlora"}))
def test_an_algorithm_that_needs_more_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidJob, match=rf"^node-0: {name} .*LoopLearner") as caught:
        each(job(name), network(), print)
    assert caught.value.code == "learner.capability"
    assert "fedavg" in caught.value.hint


def test_a_selection_by_loss_is_refused() -> None:
    selection = {"name": "power_of_choice", "measure": True}
    chosen = job(selection=selection, schedule={"name": "rounds", "cohort": 2, "min_nodes": 3})
    with pytest.raises(InvalidJob, match="gives no gradient"):
        each(chosen, network(), print, NODES)


@pytest.mark.parametrize("filters", [["half"], ["top_k"], ["quantize"], ["delta"]], ids=str)
def test_filters(filters: list[str]) -> None:
    filtered = job(filters=[{"name": name} for name in filters])
    foreseen = shoal.simulate(filtered, learners())
    with shoal.simulated(filtered, nodes=NODES) as node:
        loop(node.tasks(model := network()), model)
    assert digest(node.result.model) == digest(foreseen.model)


def test_only_the_adapters_of_a_frozen_model_travel() -> None:
    foreseen = shoal.simulate(job(), learners(adapted))
    with shoal.simulated(job(), nodes=NODES) as node:
        loop(node.tasks(model := adapted()), model)
    assert set(node.result.model) == {"4.weight", "4.bias"}
    assert digest(node.result.model) == digest(foreseen.model)


def test_tensors_that_stay_are_each_nodes_own() -> None:
    def travels(name: str, tensor: torch.Tensor) -> bool:
        return not name.startswith("4.")

    foreseen = shoal.simulate(job(), learners(config=TorchConfig(travels=travels)))
    with shoal.simulated(job(), nodes=NODES) as node:
        loop(node.tasks(model := network(), travels=travels), model)
    assert "4.weight" not in node.result.model
    assert digest(node.result.model) == digest(foreseen.model)


def test_shared_parameters_travel_once_and_stay_shared() -> None:
    def tied() -> nn.Module:
        module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        module[2].weight = module[0].weight
        return module

    model = tied()
    with shoal.simulated(job(), nodes=NODES) as node:
        for task in node.tasks(model):
            fresh, received = tied(), model[0].weight.clone()
            nn.init.zeros_(model[0].weight)  # received values do not change
            fresh.load_state_dict(task.state_dict())
            assert torch.equal(fresh[2].weight, received)
            train(task, fresh, parts()[task.index])
            task.report(fresh, examples=1)
    assert "2.weight" not in node.result.model


def test_a_state_dict_may_be_loaded_and_reported() -> None:
    foreseen = shoal.simulate(job(), learners())
    with shoal.simulated(job(), nodes=NODES) as node:
        for task in node.tasks(network()):
            other = network()
            nn.init.zeros_(other[0].weight)
            other.load_state_dict(task.state_dict())
            examples, _ = train(task, other, parts()[task.index])
            task.report(other.state_dict(), examples=examples)
    assert digest(node.result.model) == digest(foreseen.model)


def test_the_default_generators_are_seeded_and_restored() -> None:
    torch.manual_seed(3)
    random.seed(3)
    before = (torch.random.get_rng_state(), random.getstate())
    drawn: list[tuple[float, ...]] = []
    for _ in range(2):
        with shoal.simulated(job(rounds=1), nodes=1) as node:
            for task in node.tasks(model := network()):
                drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))  # noqa: NPY002
                task.report(model, examples=1)
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_task_that_is_kept_does_not_hold_the_default_generators() -> None:
    before = torch.random.get_rng_state()
    with shoal.simulated(job(), nodes=2) as node:
        first = node.tasks(model := network())
        next(first)
        second = node.tasks(model)
        next(second)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [list(tasks) for tasks in (first, second)] == [[], []]


@pytest.mark.parametrize("name", ["fedavg", "fedadam"])
def test_what_is_lost_late_doubled_or_killed_does_not_show_in_the_model(name: str) -> None:
    faults = shoal.Faults(
        until_s=30, delay_s=0.2, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=3
    )
    spec = job(name, aggregation_precision="fixed", schedule={"name": "rounds", "min_nodes": NODES, "quorum": NODES})
    with shoal.simulated(spec, nodes=NODES, faults=faults, fault_seed=1) as node:
        loop(node.tasks(model := network()), model)
    assert node.result.fidelity == "wire"
    assert digest(node.result.model) == digest(shoal.simulate(spec, learners()).model)


def test_metrics_and_evaluations_have_the_names_of_a_torch_learner() -> None:
    seen = []

    def evaluate(module: nn.Module) -> dict[str, float]:
        seen.append((module.training, torch.is_grad_enabled()))
        return {"examples": 4, "accuracy": 0.5}

    with shoal.simulated(job(rounds=1), nodes=2) as node:
        for task in node.tasks(model := network(), evaluate=evaluate):
            task.report(model, examples=1, metrics={"loss": torch.tensor(0.25), "own/number": 3})
    assert node.result.versions[0].metrics["train/loss"] == 0.25
    assert node.result.versions[0].metrics["own/number"] == 3.0
    assert node.result.metrics == {"eval/accuracy": 0.5, "eval/examples": 8.0, "eval/nodes": 2.0}
    assert set(seen) == {(False, False)}


def test_a_task_says_what_is_wanted() -> None:
    with shoal.simulated(job(algorithm={"name": "fedavg", "epochs": 2, "lr": 0.25}, rounds=1), nodes=1) as node:
        for task in node.tasks(model := network()):
            assert (task.epochs, task.batch_size, task.lr, task.steps, task.node) == (2, 32, 0.25, 0, "node-0")
            assert range(task.epochs)
            assert task.progress(0.5) is True
            assert repr(task) == "LoopTask(node-0, epochs=2, batch_size=32, lr=0.25)"
            task.report(model, examples=1)
    with pytest.raises(InvalidJob, match=r"counts mini-batches, not epochs: .* 10 of them"):
        each(job("periodic"), model, lambda task: task.epochs)


ARRAYS = """
import sys
import numpy as np
import shoal
data = [np.arange(4.0) + n for n in range(3)]
with shoal.simulated({"name": "arrays", "rounds": 3}, nodes=3) as node:
    for task in node.tasks({"mean": np.zeros(4, np.float32)}):
        mean = task.arrays()["mean"]
        mean += 0.5 * (data[task.index] - mean)
        task.report({"mean": mean.astype(float)}, examples=1)
print(node.result.model["mean"], node.result.model["mean"].dtype, "torch" in sys.modules)
"""


def test_arrays_need_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", ARRAYS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[0.875 1.75  2.625 3.5  ] float32 False\n"


# --------------------------------------------------------------------------------------------------------------- errors


def test_a_loop_that_never_reports_fails_its_tasks_and_is_told_what_to_do() -> None:
    with pytest.raises(LearnerFailed, match=r"to the next task without task\.report") as caught:
        each(job(), network(), lambda task: None, nodes=2)
    assert "report once for each task" in caught.value.hint


def test_a_task_without_a_report_fails_and_the_job_goes_on() -> None:
    count = 0
    with shoal.simulated(job(schedule={"name": "rounds", "quorum": 1}), nodes=NODES) as node:
        for task in node.tasks(model := network()):
            count += 1
            if count != 2:
                task.report(model, examples=1)
    assert node.result.state == "done"
    (failed,) = [event.text for event in node.result.events if "failed" in event.text]
    assert "went on to the next task without task.report(model, examples=…)" in failed


def test_a_second_report_is_refused_where_it_is_made() -> None:
    def twice(task: LoopTask) -> None:
        task.report(examples=1)
        task.report(examples=1)

    with pytest.raises(LearnerFailed, match=r"task\.report was called twice"):
        each(job(), network(), twice)


def test_a_report_that_is_not_a_number_fails_its_task() -> None:
    first = True
    with shoal.simulated(job(schedule={"name": "rounds", "quorum": 1}), nodes=NODES) as node:
        for task in node.tasks(model := network()):
            if first:
                model[0].weight.data.fill_(float("nan"))
            task.report(model, examples=1)
            first = False
    assert node.result.state == "done"
    assert [event.text for event in node.result.events if "0.weight" in event.text or "not finite" in event.text]


def other_base() -> nn.Module:
    module = adapted()
    nn.init.ones_(module[0].weight)
    return module


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        (lambda: nn.Linear(8, 12), "the reported model lacks 4.(weight|bias), 4.(weight|bias)"),
        (lambda: nn.Sequential(*network()[:4], nn.Linear(12, 3)), r"4.bias is F32\[3\], and the job's is F32\[2\]"),
        (lambda: network().double(), r"4.bias is F64\[2\], and the job's is F32\[2\]"),
        (other_base, "frozen tensors are not those of base model [0-9a-f]{12}"),
        (lambda: 3, "the reported model is int"),
    ],
    ids=["lacking", "shape", "type", "base", "number"],
)
def test_a_report_of_another_model_is_refused_where_it_is_made(reported: Any, message: str) -> None:
    with pytest.raises(InvalidPayload, match=message):
        each(job(), adapted(), lambda task: task.report(reported(), examples=1))


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        (None, "the reported model is NoneType"),
        ({"b": np.zeros(2)}, "the reported model lacks w"),
        ({"w": np.zeros(3)}, r"w is float64\[3\], and the job's is F32\[2\]"),
        ({"w": np.zeros(2, complex)}, r"w is complex128\[2\]"),
    ],
    ids=["none", "lacking", "shape", "type"],
)
def test_reported_arrays_that_are_not_the_jobs_are_refused_where_they_are_reported(reported: Any, message: str) -> None:
    with pytest.raises(InvalidPayload, match=message):
        each(job(), {"w": np.zeros(2, np.float32)}, lambda task: task.report(reported, examples=1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"examples": -1}, "examples is -1"),
        ({"examples": float("nan")}, "examples is nan"),
        ({"examples": 1, "metrics": {"loss": "low"}}, "the metric loss is str"),
    ],
    ids=["negative", "nan", "metric"],
)
def test_a_report_with_wrong_numbers_is_refused_where_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerFailed, match=message):
        each(job(), network(), lambda task: task.report(**given))


def test_a_buffer_of_the_base_that_training_changes_is_named() -> None:
    model = adapted()

    def moved(task: LoopTask) -> None:
        train(task, model.train(), parts()[0])
        task.report(examples=1)

    with pytest.raises(LearnerFailed, match=r"changed the buffer 1\.running_mean"):
        each(job(), model, moved)


def test_an_exception_of_the_loop_goes_on_to_the_user() -> None:
    node = shoal.simulated(job(), nodes=1)

    def divided() -> None:
        with node:
            for task in node.tasks(network()):
                task.lr / 0

    with pytest.raises(ZeroDivisionError):
        divided()
    assert not node._thread.is_alive()
    with pytest.raises(InvalidJob, match="has not ended"):
        assert node.result


def test_an_exception_of_evaluate_goes_on_to_the_user() -> None:
    with pytest.raises(KeyError, match="accuracy"), shoal.simulated(job(), nodes=1) as node:
        list(node.tasks(network(), evaluate=lambda module: {}["accuracy"]))


def test_a_loop_may_be_left_and_entered_again() -> None:
    model, seen = network(), 0
    with shoal.simulated(job(schedule={"name": "rounds", "quorum": 1}), nodes=NODES) as node:
        for task in node.tasks(model, evaluate=lambda module: {"examples": 1, "accuracy": 1.0}):
            task.report(model, examples=1)
            break
        for task in node.tasks(model):
            seen += 1
            task.report(model, examples=1)
        assert list(node.tasks(model)) == []
    assert seen == 2 * NODES - 1
    assert node.result.metrics["eval/accuracy"] == 1.0
    with shoal.simulated(job(), nodes=1) as node:
        for _ in node.tasks(model):
            break
    assert not node._thread.is_alive()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (network, "the model of a loop is function"),
        (network().requires_grad_(False), "has no parameter that can be trained"),
        (torch.optim.SGD(network().parameters()), "SGD, and not a torch module"),
        ({}, "has no array"),
    ],
    ids=["function", "frozen", "optimizer", "empty"],
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message), shoal.simulated(job(), nodes=1) as node:
        node.tasks(model)


def test_a_node_has_one_model() -> None:
    with shoal.simulated(job(), nodes=1) as node:
        node.tasks(network())
        with pytest.raises(InvalidJob, match="another model already"):
            node.tasks(network())


def test_there_is_at_least_one_node() -> None:
    with pytest.raises(InvalidJob, match="nodes is 0"):
        shoal.simulated(job(), nodes=0)


def test_a_learner_beside_the_loop_measures_versions() -> None:
    """It draws from the same generators, so it waits until the loop has come to its next task."""
    judge = TorchLearner(network, parts()[0], parts()[1])
    with shoal.simulated(job(), nodes=2, held_out=judge) as node:
        loop(node.tasks(model := network()), model)
    assert node.result.metrics["held_out/accuracy"] > 0.0


def test_a_loop_is_not_asked_how_many_examples_there_are() -> None:
    """Peers ask a learner by a step that is discarded; a loop would make a whole training of it."""
    calls, start = Rendezvous(), LoopStart(Tree.of({"w": np.zeros(2, np.float32)}))
    with pytest.raises(LearnerFailed, match="no number of examples") as caught:
        count_examples(LoopLearner(calls, start), 1)
    assert "examples=len(data)" in caught.value.hint
    assert count_examples(LoopLearner(calls, replace(start, examples=12)), 1) == 12.0
