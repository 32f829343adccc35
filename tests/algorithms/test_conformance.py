"""Requirements for every algorithm of `shoal.plugins`, in rounds or in its own schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.algorithm import LocalTask, run_task
from shoal.core.algorithm.capability import Restriction, capability_error, capability_refusal, declared_lacks
from shoal.core.algorithm.learner import TrainConfig, Trained, no_progress
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.model.tree import Slots, Tree, add, digest
from shoal.core.protocol.machine import Effect, Event, Save, Send
from shoal.core.protocol.message import Task
from shoal.core.server.hub import Hub
from shoal.core.server.hub_state import HubState
from shoal.jobs.spec import parse_job
from shoal.plugins import algorithms
from shoal.wire.payload import layouts_of, payload_layout
from tests.algorithms.softmax import Adapted, Softmax, digits, unbalanced
from tests.algorithms.tables import halves
from tests.support.sampling import extended

ROUNDS = {"name": "rounds", "min_nodes": 3, "quorum": 3}
ALONE: dict[str, tuple[dict[str, Any], str]] = {
    "fedavg": ({}, "fedavg"),
    "fedprox": ({"mu": 0.0}, "fedavg"),
    "fedavgm": ({"beta": 0.0}, "fedavg"),
    "scaffold": ({}, "fedavg"),
    "fedasync": ({"alpha": 1.0}, "fedavg"),
    "fedbuff": ({}, "fedavg"),
    "periodic": ({"batch_size": 32}, "fedavg"),
    "dynamic": ({"batch_size": 32}, "fedavg"),
    "fedsgd": ({}, "fedsgd"),
    "asgd": ({"momentum": 0.0, "lr": 0.1}, "fedsgd"),
    "largebatch": ({"beta": 0.0, "lr": 0.1}, "fedsgd"),
}
"""With these, one node alone does what it would do alone: train, or go down its gradient."""

ALWAYS: dict[str, dict[str, Any]] = {
    "dynamic": {"delta": 1e-12},
    "fedasync": {"size": 1},
    "fedbuff": {"size": 1},
}
"""Settings of schedules other than `rounds` under which a node alone reports each time."""

NOT_IN_ROUNDS = {"downpour", "dynamic", "fda", "fedasync", "fedbuff"}
"""Algorithms that `rounds` would make another method of (`test_compatibility.py`)."""

QUICK: dict[str, dict[str, Any]] = {"admm": {"epochs": 1}, "dynamic": {"local_steps": 200}, "diloco": {"steps": 10}}
"""Less work than by default; dynamic averaging has no end of its own once models agree."""

STEPPING = {"admm", "downpour", "fedadagrad", "fedadam", "fedyogi", "flexlora", "lbfgs"}
"""The hub takes a step of its own even with one node: what holds is that two alike nodes are as one."""

LIKE_ANOTHER = {
    "fedprox": "fedavg",
    "fedadagrad": "fedadam",
    "fedyogi": "fedadam",
    "fedavgm": "fedadam",
    "largebatch": "asgd",
    "bagged_trees": "boosted_trees",
}
"""Algorithms that keep what another keeps, at the hub and on nodes: what holds of its crashes holds of theirs."""

ELSEWHERE = {
    "bagged_trees": "its model is not weights: test_bagged_trees.py",
    "boosted_trees": "its model is not weights: test_boosted_trees.py",
    "fda": "it goes with its own schedule alone: tests/algorithms/test_averaging_under_faults.py, test_fda.py",
    "diloco": "the optimizer of each node goes on from round to round: test_diloco.py",
    "codistillation": "nothing is averaged, each node begins from a seed of its own: test_codistillation.py",
}


MODELS: dict[str, type[Softmax]] = {"flexlora": Adapted}
"""Models for an algorithm that does not take any model."""


def kind(name: str) -> type[Softmax]:
    return MODELS.get(name, Softmax)


def in_rounds() -> list[str]:
    """All that work under the schedule `rounds`."""
    found = []
    for name in algorithms():
        try:
            parse_job({"name": "fits", "rounds": 1, "algorithm": name, "schedule": "rounds"})
        except InvalidJob:
            continue
        found.append(name)
    return found


def of_weights() -> list[str]:
    """Those whose learners have weights."""
    return [name for name in algorithms() if "trees" not in algorithms()[name]().required_capabilities]


def three(name: str, tested: bool = False) -> list[Any]:
    """Three unequal nodes for an algorithm."""
    return unbalanced(tested, kind(name)) if name in of_weights() else halves(tested)


def job(name: str, **fields: object) -> shoal.JobSpec:
    given = {
        "name": "shelf",
        "rounds": 4,
        "seed": 5,
        "aggregation_precision": "fixed",
        "schedule": {"min_nodes": 3} if name in NOT_IN_ROUNDS else ROUNDS,
        "algorithm": {"name": name},
    }
    found: dict[str, Any] = {**given, **fields}
    return parse_job({**found, "algorithm": QUICK.get(name, {}) | found["algorithm"]})


def test_no_method_is_left_out() -> None:
    """One that is registered tomorrow must say here what it is with one node."""
    assert {*ALONE, *STEPPING, *ELSEWHERE} == set(algorithms())
    assert {*in_rounds(), *NOT_IN_ROUNDS} == set(algorithms())


@pytest.mark.parametrize("name", algorithms())
def test_it_learns(name: str) -> None:
    rounds = {"asgd": 40, "downpour": 120, "fedasync": 24}.get(name, 8)
    result = shoal.simulate(job(name, rounds=rounds, algorithm={"name": name, "lr": 0.5}), three(name, True))
    assert result.versions[-1].metrics["eval/loss"] < 0.8 * result.versions[0].metrics["eval/loss"]


@pytest.mark.parametrize("name", extended(in_rounds(), but=sorted({*in_rounds()} - LIKE_ANOTHER.keys())))
@pytest.mark.parametrize("seed", extended((12, 14, 23), but=[14]))
def test_what_is_lost_late_doubled_or_killed_does_not_show_in_the_model(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Private memory and the hub's slots outlive crashes; reports count once, in whatever order they come. So no
    checkpoint differs either."""
    given = job(name, checkpoint_every=2)
    faults = shoal.Faults(
        until_s=30, delay_s=0.2, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=3
    )
    restored, load = list[str](), HubState._load
    with monkeypatch.context() as patch:
        patch.setattr(HubState, "_load", lambda *args: (restored.append(name), load(*args)))
        bad = shoal.simulate(given, three(name), faults=faults, fault_seed=seed)
    assert restored, "the hub dies after a version has closed"
    good = shoal.simulate(given, three(name))
    assert digest(bad.model) == digest(good.model)
    assert list(bad.checkpoints) == [2, 4]
    assert [digest(one) for one in bad.checkpoints.values()] == [digest(one) for one in good.checkpoints.values()]
    assert [version.reports for version in bad.versions] == [0, 3, 3, 3, 3]


@pytest.mark.parametrize("name", [name for name in algorithms() if "asynchronous" in algorithms()[name].schedules])
@pytest.mark.parametrize("seed", extended(range(2), but=[0]))
def test_reports_of_any_age_count_once_in_a_buffer(name: str, seed: int) -> None:
    """The job ends despite loss, delay, duplicates and kills, and no report makes two versions."""
    faults = shoal.Faults(
        until_s=60, delay_s=0.5, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=6, node_crashes=3
    )
    schedule = {"name": "buffer", "size": 2, "min_nodes": 3, "deadline_s": 20.0}
    result = shoal.simulate(job(name, rounds=8, schedule=schedule), unbalanced(), faults=faults, fault_seed=seed)
    assert [version.number for version in result.versions] == list(range(9))
    assert result.versions[1].reports in {2, 3}, "the first update is longer than a model of zeros: none counts alone"
    assert {version.reports for version in result.versions[2:]} <= {1, 2}


@pytest.mark.parametrize("name", algorithms())
def test_a_job_that_may_go_to_its_nodes_needs_an_algorithm_that_declares_it(name: str) -> None:
    gossip = {"allowed": True}
    if algorithms()[name].mixed_slots:
        assert job(name, gossip=gossip).gossip.allowed
        return
    with pytest.raises(InvalidJob, match=f"{name} keeps") as caught:
        job(name, gossip=gossip)
    assert caught.value.code == "job.fit"


@pytest.mark.parametrize("name", algorithms())
def test_no_model_and_no_task_tells_of_a_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version's blob, which leaves by downloads, is the model alone; a task names no node in a slot."""
    stored, sent, on = list[Slots](), list[Slots](), Hub.on

    def watched(hub: Hub, event: Event, now: float) -> list[Effect]:
        effects, blobs = on(hub, event, now), hub.store.blobs
        stored.extend(blobs.get(e.what.model) for e in effects if isinstance(e, Save))
        tasks = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Task)]
        sent.extend(blobs.get(task.blob) for task in tasks if task.blob is not None)
        return effects

    monkeypatch.setattr(Hub, "on", watched)
    shoal.simulate(job(name), three(name))
    assert stored
    assert sent
    assert [*map(list, stored)] == [["model"]] * len(stored)
    headers = {payload_layout(layouts_of(slots)).header for slots in (*stored, *sent)}
    assert not [header for header in headers if b"node-" in header]


@pytest.mark.parametrize("name", ALONE)
def test_one_node_alone_trains_as_if_alone(name: str) -> None:
    def alone() -> list[Softmax]:
        return unbalanced()[:1]

    fields, like = ALONE[name]
    one = ALWAYS.get(name, {"name": "rounds"})
    own = shoal.simulate(job(name, schedule=one, algorithm={"name": name, **fields}), alone()).model
    reference = unbalanced()[0]
    reference.load(reference.init(5))
    for version in range(4):
        if like == "fedavg":
            reference.train(TrainConfig(seed=job(name).plan().task_seed(version, "node-0")))
        else:
            _, gradient = reference.gradient(TrainConfig())
            reference.load(add(reference.model(), gradient, -0.1))
    for tensor, value in reference.model().items():
        assert np.allclose(own[tensor], value, atol=1e-6)


@pytest.mark.parametrize("name", sorted({*ALONE, *STEPPING} - NOT_IN_ROUNDS))
def test_two_alike_nodes_are_as_one(name: str) -> None:
    """Tasks with full batches, which leave nothing to chance."""
    fields: dict[str, Any] = {"largebatch": {"linear_scaling": False}, "periodic": {}}.get(name, {"batch_size": 0})
    found = []
    for count in (1, 2):
        schedule = {"name": "rounds", "min_nodes": count, "quorum": count}
        algorithm = {"name": name, **({"batch_size": 100} | fields)}
        given = job(name, rounds=2, schedule=schedule, algorithm=algorithm)
        found.append(shoal.simulate(given, alike(kind(name))[:count]).model)
    for tensor in found[0]:
        assert np.allclose(found[0][tensor], found[1][tensor], atol=1e-5)


def alike(model: type[Softmax]) -> list[Softmax]:
    """Two learners of the same hundred digits."""
    return [unbalanced(kind=model)[0] for _ in range(2)]


class Watched(Softmax):
    """Writes down what it is asked for beyond plain training."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__(x, y)
        self.asked: set[str] = set()

    def train(
        self, config: TrainConfig, *, correct: Any = None, extra_loss: Any = None, progress: Any = no_progress
    ) -> Trained:
        self.asked |= {"corrections"} if correct else set()
        self.asked |= {"teaching"} if extra_loss else set()
        return super().train(config, correct=correct, extra_loss=extra_loss, progress=progress)

    def optimizer_state(self) -> Tree:
        self.asked.add("optimizer_state")
        return super().optimizer_state()

    def gradient(self, config: TrainConfig, *, progress: Any = no_progress) -> Any:
        self.asked.add("gradients")
        return super().gradient(config, progress=progress)


class Plain(Softmax):
    """Trains, and does nothing beyond that."""

    applies_corrections = False
    gives_gradients = False
    other_optimizer = "Adam"
    teach = None  # type: ignore[assignment]
    optimizer_state = None  # type: ignore[assignment]

    def __init__(self) -> None:
        x, y = digits()
        super().__init__(x[:100], y[:100])


class Deaf(Plain):
    """Declares that it applies corrections, and does not."""

    applies_corrections = True
    other_optimizer = ""

    def train(self, config: TrainConfig, *, correct: Any = None, **more: Any) -> Trained:
        return super().train(config, **more)


@pytest.mark.parametrize("name", of_weights())
def test_it_declares_what_it_asks_of_learners(name: str) -> None:
    watched = type("Watched", (Watched, kind(name)), {})
    learners = [watched(one.x, one.y) for one in unbalanced()]
    shoal.simulate(job(name), learners)
    assert learners[0].asked == job(name).build_algorithm().required_capabilities - {"plain_sgd"}


@pytest.mark.parametrize("name", algorithms())
def test_a_learner_that_lacks_what_it_needs_is_refused_by_name(name: str) -> None:
    """Before anything is trained: what is ignored would give a model, only not this algorithm's."""
    one, plain = job(name, rounds=1, schedule={"min_nodes": 1}), type("Plain", (Plain, kind(name)), {})
    if not one.build_algorithm().required_capabilities:
        assert shoal.simulate(one, [plain()]).state == "done"
        return
    with pytest.raises(InvalidJob, match=f"node-0: {name} .*Plain") as caught:
        shoal.simulate(one, [plain()])
    assert caught.value.code == "learner.capability"
    assert "fedavg" in caught.value.hint
    task = LocalTask((1, 1), "train", 0, 1, {})
    with pytest.raises(InvalidJob, match=f"^{name} .*Plain"):  # so do all that do its work, wherever they are
        run_task(one.build_algorithm(), Plain(), task, {})


@pytest.mark.parametrize("name", algorithms())
def test_a_restriction_takes_capabilities_away_for_its_reason(name: str) -> None:
    """A node knows it by the declarations of the learner in its training process, before a task."""
    taken = {"corrections", "teaching", "optimizer_state", "gradients"}
    restriction = Restriction(frozenset(taken), "its model is in parts", "train it whole")  # type: ignore[arg-type]
    (one, *_), algorithm = unbalanced(), algorithms()[name]()
    learner = type("Restricted", (Watched,), {"restriction": restriction})(one.x, one.y)
    told = capability_error(algorithm, learner)
    assert str(told) == str(capability_refusal(algorithm, declared_lacks(learner).get))
    if algorithm.required_capabilities & taken:
        assert told is not None
        assert told.message.startswith(f"{name} ")
        assert told.message.endswith(", and its model is in parts")
        assert told.hint == "train it whole; or choose another algorithm, for example fedavg"


@pytest.mark.parametrize(
    "name", [name for name in in_rounds() if "corrections" in algorithms()[name]().required_capabilities]
)
def test_a_learner_that_declares_corrections_and_applies_none_is_found_out(name: str) -> None:
    with pytest.raises(LearnerFailed, match="Deaf declares applies_corrections, but its train has not called correct"):
        shoal.simulate(job(name, rounds=1, schedule={"name": "rounds"}), [Deaf()])


def test_what_is_switched_off_is_not_needed() -> None:
    assert not job("fedprox", algorithm={"name": "fedprox", "mu": 0.0}).build_algorithm().required_capabilities
    assert job("fedprox").build_algorithm().required_capabilities == {"corrections"}
