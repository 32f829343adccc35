"""Algorithms over HTTP, one for each kind of state: real edge clients come to the models of the simulation.

`tests/algorithms/test_conformance.py` proves every algorithm in the simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import digest
from shoal.jobs.spec import parse_job
from shoal.learn.trees import TreesLearner
from shoal.wire.payload import open_payload
from tests.algorithms.softmax import Adapted, Softmax
from tests.algorithms.softmax import digits as softmax_digits
from tests.edge_client.dynamic_job import Joined
from tests.support.coordinator import Inside, inside
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(300)]

NODES = ("n0", "n1")
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"name": "rounds", "cohort": 2, "quorum": 2},
    {"name": "divergence", "in_step": True, "delta": 0.01},
    {"name": "variance", "in_step": True, "theta": 0.01},
    {"name": "periodic"},
)
"""Each algorithm takes the first of these that goes with it."""

ALGORITHMS = {
    "admm": "private memory of a node and a step of the hub",
    "bagged_trees": "a model without weights, which grows",
    "boosted_trees": "updates of another layout on each level",
    "codistillation": "tasks that differ between nodes",
    "fda": "sketches, and a schedule that reads them",
    "fedadam": "moments that the hub keeps",
    "fedavg": "a model alone",
    "fedsgd": "gradients",
    "flexlora": "adapters of a model",
    "scaffold": "a memory of each node, and a second tree in each update",
}
"""Features of each that have to pass the wire and the database."""
BUFFERED = ("fedasync", "fedbuff")

OWN_MODELS = {"trees": {"bagged_trees", "boosted_trees"}, "adapters": {"flexlora"}}
"""Algorithms that go with other learners, and so with nodes of their own."""


def given(name: str) -> dict[str, Any]:
    """A job of the method without its schedule."""
    return {"name": name, "seed": 5, "rounds": 3, "aggregation_precision": "fixed", "algorithm": {"name": name}}


def job(name: str) -> dict[str, Any]:
    """A job of the method; its result must not depend on the order of nodes."""
    for schedule in SCHEDULES:
        tried = {**given(name), "schedule": {**schedule, "min_nodes": 2}}
        try:
            parse_job(tried)
        except InvalidJob:
            continue
        return tried
    raise AssertionError(f"{name} goes with none of these schedules")


def buffered(name: str) -> dict[str, Any]:
    schedule = {"name": "buffer", "size": 1, "min_nodes": 2}
    return {**given(name), "name": f"{name}-buffered", "rounds": 8, "schedule": schedule}


def learners(name: str) -> dict[str, Any]:
    """The learners of two nodes, for an algorithm."""
    x, y = softmax_digits()
    group = next((group for group, names in OWN_MODELS.items() if name in names), "")
    parts = {f"n0{group}": slice(0, 100), f"n1{group}": slice(100, 250)}
    if group == "trees":  # with this number of bins updates are files of their own, and each level has another layout
        return {node: TreesLearner((x[part], y[part] > 4), trees=2, depth=3, bins=256) for node, part in parts.items()}
    kind = Adapted if group == "adapters" else Softmax
    return {node: kind(x[part], y[part], (x[1500:], y[1500:])) for node, part in parts.items()}


def nodes_of(running: Inside, folder: Path, names: set[str]) -> list[Joined]:
    """Two nodes for each kind of learner."""
    groups = [names - set().union(*OWN_MODELS.values()), *OWN_MODELS.values()]
    return [
        Joined(running.url, running.token(), node, one, folder, sorted(jobs))
        for jobs in groups
        for node, one in learners(min(jobs)).items()
    ]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A coordinator on which all have ended."""
    folder = tmp_path_factory.mktemp("every")
    jobs = [*map(job, ALGORITHMS), *map(buffered, BUFFERED)]
    with ExitStack() as stack:
        running = stack.enter_context(inside(folder / "data"))
        for spec in jobs:
            running.post("/jobs", {"spec": spec})
        names = [spec["name"] for spec in jobs]
        nodes = nodes_of(running, folder, {*names})
        for node in nodes:
            node.start()
        for node in nodes:
            node.finish()
        until("all to end", lambda: all(running.job(name)["state"] == "done" for name in names))
        yield running


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_comes_to_the_model_of_the_simulation(name: str, done: Inside) -> None:
    foreseen = shoal.simulate(parse_job(job(name)), learners(name))
    found = done.job(name)
    assert (found["state"], found["version"]) == ("done", foreseen.versions[-1].number)
    body = done.request("GET", f"/api/v1/jobs/{name}/models/{found['version']}").content
    assert digest(tree_slot(open_payload(body), "model")) == digest(foreseen.model)


@pytest.mark.parametrize("name", BUFFERED)
def test_without_rounds_each_report_makes_a_version_and_tells_its_age(name: str, done: Inside) -> None:
    found = done.job(f"{name}-buffered")
    assert (found["state"], found["version"]) == ("done", 8)
    reports = done.get(f"/jobs/{name}-buffered/reports")["reports"]
    trained = [one for one in reports if one["kind"] == "train"]
    assert sorted(one["round"] for one in trained) == list(range(1, 9))
    assert all(one["staleness"] == one["round"] - 1 - one["version"] for one in trained)
