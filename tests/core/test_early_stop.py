"""Jobs that end before their last round, by a metric of the nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.errors import InvalidJob
from shoal.core.job.early_stop import EarlyStop
from shoal.core.model.tree import Tree
from shoal.core.server.hub import Hub
from shoal.jobs.spec import parse_job
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import NODES, hub_of, model, report
from tests.support.learners import VectorLearner


def version_of(hub: Hub, values: list[float], metric: str = "eval/accuracy") -> int:
    """Run rounds whose versions have these values until the job does not go on; return its last version."""
    for value in values:
        if hub.progress.phase != "running":
            break
        for node in NODES:
            made = report(hub, node, {"model": model(1.0, 1.0)}, 1.0)
            hub.on(replace(made, metrics={metric: value, "eval/examples": 4.0}), 1.0)
    return hub.progress.version


def hub(rule: EarlyStop) -> Hub:
    return hub_of(MemoryBlobs(), early_stop=rule, versions=10)


@pytest.mark.parametrize(
    ("rule", "values", "last"),
    [
        (EarlyStop(rounds=2), [0.1, 0.5, 0.4, 0.5, 0.9], 4),
        (EarlyStop(rounds=2), [0.1, 0.5, 0.4, 0.6, 0.5, 0.4, 0.9], 6),
        (EarlyStop(rounds=2, min_change=0.2), [0.1, 0.5, 0.6, 0.65, 0.9], 4),
        (EarlyStop("eval/loss", rounds=2), [3.0, 2.0, 1.0, 1.5, 1.2, 0.1], 5),
        (EarlyStop(target=0.6), [0.1, 0.5, 0.6, 0.9], 3),
        (EarlyStop("eval/loss", target=1.0), [3.0, 2.0, 0.9, 0.1], 3),
        (EarlyStop("eval/loss", rounds=2), [nan, inf, nan, 0.1], 3),
        (EarlyStop("eval/loss", rounds=2), [nan, 2.0, 1.0, 1.5, 1.2, 0.1], 5),
        (EarlyStop(), [0.5] * 9, 9),
        (EarlyStop("eval/other", rounds=1), [0.5] * 9, 9),
    ],
)
def test_the_version_after_the_last_measured_one_is_the_last(rule: EarlyStop, values: list[float], last: int) -> None:
    metric = "eval/loss" if rule.metric == "eval/loss" else "eval/accuracy"
    ended = hub(rule)
    assert version_of(ended, values, metric) == last
    assert ended.progress.phase == ("running" if last == 9 else "evaluating")


def test_a_restart_remembers_the_best_value() -> None:
    before = hub(EarlyStop(rounds=2))
    version_of(before, [0.5, 0.4])
    snapshot = json.loads(json.dumps(before.snapshot()))
    after = Hub(before.settings.plan, Algorithm(), Rounds(min_nodes=5, quorum=5), before.store.blobs, snapshot)
    assert (after.progress.best_value, after.progress.best_version) == (0.5, 0)
    assert version_of(after, [0.3, 0.9]) == 3


class Plateau(VectorLearner):
    """A learner whose accuracy rises for two trainings."""

    def train(self, *given: Any, **more: Any) -> Any:
        trained = super().train(*given, **more)
        self.tree = Tree.of({"w": np.full_like(self.tree["w"], min(2, self.trained))})
        return trained


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbuff"])
def test_a_simulated_job_is_done_early_and_says_why(algorithm: str) -> None:
    line = {"early_stop": {"rounds": 3}, "algorithm": algorithm, "rounds": 50}
    result = shoal.simulate({"name": "early", **line}, [Plateau()], progress=False)
    assert result.state == "done"
    assert len(result.versions) < 12
    said = [event.text for event in result.events if event.kind == "state"]
    assert any("is the last: eval/accuracy has not improved for 3 rounds" in text for text in said)


def test_a_metric_that_no_node_could_have_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"early_stop\.metric"):
        parse_job({"name": "no", "early_stop": {"metric": "accuracy", "rounds": 3}})
