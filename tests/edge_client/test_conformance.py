"""`shoal conformance`: our own client passes, and clients that do something wrong are found out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.client.client import CoordinatorClient
from shoal.conformance.cases import CASES, ConformanceCase
from shoal.conformance.kit import ConformanceKit
from shoal.conformance.reference_learner import ConformanceLearner
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import LearnerFailed
from shoal.core.model.tree import Tree
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.edge_node import EdgeNode
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.timeout(300)]

BY_NAME = {case.name: case for case in CASES}


@contextmanager
def kit_of(where: Inside, make: Callable[[], Any], patience_s: float = PATIENCE_S) -> Iterator[ConformanceKit]:
    """The kit for two nodes with such learners."""
    with ExitStack() as stack:
        for name in ("a", "b"):
            folder = where.folder.parent / name
            given = {"url": where.url, "token": where.token(), "name": name, "state_dir": folder, "poll_wait_s": 5.0}
            node = EdgeNode(make(), **given).start()
            stack.callback(node.end)
            stack.callback(node.leave)
        client: CoordinatorClient = stack.enter_context(shoal.connect(where.url, OPERATOR))
        yield ConformanceKit(client, ["a", "b"], patience_s)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data") as running:
        yield running


def test_our_own_client_passes(where: Inside) -> None:
    with kit_of(where, ConformanceLearner) as kit:
        assert {(one.case, one.verdict, one.why) for one in map(kit.run, CASES)} == {
            (case.name, "passed", "") for case in CASES
        }


class Impatient(ConformanceLearner):
    """Trains for one epoch, whatever it is told."""

    def train(self, config: TrainConfig, **more: Any) -> Any:
        return super().train(TrainConfig(seed=config.seed), **more)


class Careless(ConformanceLearner):
    """Trains what cannot be trained."""

    def train(self, config: TrainConfig, **more: Any) -> Any:
        whole = self._model
        self._model = Tree.of({name: whole[name] for name in whole if name != "impossible"})
        made = super().train(config, **more)
        arrays = dict(self._model.items()) | {name: whole[name] for name in whole if name == "impossible"}
        self._model = Tree.of(arrays)
        return made


class Boastful(ConformanceLearner):
    """Measures something else."""

    def evaluate(self) -> Any:
        return super().evaluate() | {"eval/loss": 0.0}


class Double(ConformanceLearner):
    """Has a model of its own idea."""

    def init(self, seed: int) -> Tree:
        self._model = Tree.of({"w": np.zeros(8), "seen": np.array(0, np.int64)})
        return self._model


class Nameless(ConformanceLearner):
    """Forgets which tensors are statistics."""

    def train(self, config: TrainConfig, **more: Any) -> Any:
        made = super().train(config, **more)
        self._model = Tree.of(dict(self._model.items()))
        return made


class Seedless(ConformanceLearner):
    """Grows without the task's seed."""

    def grow(self, model: Tree, seed: int) -> Tree:
        return super().grow(model, seed + 1)


class Refusing(ConformanceLearner):
    """Does nothing."""

    def train(self, config: TrainConfig, **more: Any) -> Any:
        raise LearnerFailed("not today")


@pytest.mark.parametrize(
    ("make", "case", "verdict", "why"),
    [
        (Impatient, BY_NAME["epochs"], "failed", "has metrics"),
        (Careless, BY_NAME["failure"], "failed", "was reported as trained"),
        (Boastful, BY_NAME["init"], "failed", "has metrics"),
        (Double, BY_NAME["init"], "failed", "w is F64"),
        (Nameless, BY_NAME["statistics"], "failed", "bn.mean is a weight in one tree, a statistic in the other"),
        (Seedless, BY_NAME["stages"], "failed", "has metrics"),
        (Refusing, BY_NAME["init"], "failed", "not today"),
        (Refusing, BY_NAME["half"], "refused", "not today"),
    ],
)
def test_clients_that_do_something_else_are_found_out(
    where: Inside, make: type[ConformanceLearner], case: ConformanceCase, verdict: str, why: str
) -> None:
    with kit_of(where, make) as kit:
        found = kit.run(case)
    assert found.verdict == verdict
    assert why in found.why


def test_a_client_that_never_answers_is_given_up(where: Inside) -> None:
    with shoal.connect(where.url, OPERATOR) as client:
        found = ConformanceKit(client, ["nobody"], 1.0).run(BY_NAME["init"])
        assert (found.verdict, "not done after 1 s, at version 0" in found.why) == ("failed", True)
        (job,) = client.jobs.values()
        assert job.state == "stopped"


def command(where: Inside, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "shoal", "conformance", where.url, "--token", OPERATOR, *more]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_command_says_what_is_missing(where: Inside) -> None:
    said = command(where, "--timeout", "1", "--json")
    assert said.returncode == 1
    assert json.loads(said.stdout)["error"]["code"] == "conformance.nodes"
    assert "there is no case 'inti'" in command(where, "--only", "inti").stderr


def test_the_command_tests_the_nodes_that_are_online(where: Inside) -> None:
    arguments = ("--nodes", "2", "--only", "init", "--only", "failure")
    with kit_of(where, ConformanceLearner):
        found = json.loads(command(where, *arguments, "--json").stdout)["data"]
    assert found["nodes"] == ["a", "b"]
    assert [(one["case"], one["verdict"]) for one in found["cases"]] == [("init", "passed"), ("failure", "passed")]


def test_the_command_fails_with_a_client_that_does(where: Inside) -> None:
    with kit_of(where, Refusing):
        said = command(where, "--nodes", "2", "--only", "init", "--only", "half")
    assert said.returncode == 1
    assert [line.split()[:2] for line in said.stdout.splitlines()[2:4]] == [["init", "failed"], ["half", "refused"]]
