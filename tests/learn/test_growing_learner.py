"""Jobs whose network grows, trained by `GrowingLearner` in a simulation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Tree, digest
from shoal.learn import GrowingLearner, TorchLearner
from shoal.results.callbacks import RoundCallback
from shoal.results.result import Result

JOB: dict[str, Any] = {
    "name": "growing",
    "rounds": 6,
    "schedule": {"name": "rounds", "min_nodes": 3, "quorum": 3},
    "algorithm": {"name": "scaffold", "lr": 0.1, "batch_size": 8},
    "filters": ["delta", {"name": "top_k", "fraction": 0.5}],
    "stages": [{"rounds": 2}, {"rounds": 1}, {}],
}


def network(stage: int) -> nn.Sequential:
    width = (3, 4, 4)[stage]
    layers: dict[str, nn.Module] = {"first": nn.Conv2d(1, width, 3, padding=1), "relu": nn.ReLU()}
    if stage == 2:
        layers |= {"second": nn.Conv2d(width, width, 3, padding=1), "relu_2": nn.ReLU()}
    layers |= {"pool": nn.AdaptiveAvgPool2d(2), "flat": nn.Flatten(), "scores": nn.Linear(4 * width, 2)}
    return nn.Sequential(OrderedDict(layers))


def learner(part: int, stages: int = 3) -> GrowingLearner:
    """Return a learner of pictures with 4x4 pixels, then with 8x8."""
    drawn = torch.Generator().manual_seed(part)
    pictures = torch.randn(24, 1, 8, 8, generator=drawn)
    labels = (pictures.mean((1, 2, 3)) > 0).long()

    def of_stage(stage: int) -> TorchLearner:
        seen = nn.functional.avg_pool2d(pictures, 2) if stage == 0 else pictures
        return TorchLearner(lambda: network(stage), (seen[:16], labels[:16]), (seen[16:], labels[16:]), device="cpu")

    return GrowingLearner(of_stage, stages)


class NoRound(RoundCallback):
    def round_started(self, number: int, model: Tree) -> None:
        pytest.fail(f"round {number} has started")


def simulated(**more: Any) -> Result:
    return shoal.simulate(JOB, [learner(part) for part in range(3)], held_out=learner(9), progress=False, **more)


def test_a_simulated_job_grows_and_is_the_same_with_journal_and_disks() -> None:
    result = simulated()
    assert result.model.layout == learner(0).learner_of(2).layout
    assert [one.number for one in result.versions if one.why.startswith("stage ")] == [3, 5]
    assert [one.reports for one in result.versions] == [0, 3, 3, 0, 3, 0, 3]
    at = {one.number: one.metrics for one in result.versions}
    assert at[5]["held_out/loss"] == pytest.approx(at[4]["held_out/loss"], abs=1e-6)  # deeper: the same function
    assert digest(simulated(fidelity="wire").model) == digest(result.model)


def test_the_grown_model_computes_the_same_whichever_node_grows_it() -> None:
    one, other = learner(0), learner(1)
    start = one.init(5)
    first = one.grow(start, 7)
    other.learner_of(0).train(TrainConfig(seed=1))
    other.learner_of(1).train(TrainConfig(seed=2))
    assert digest(other.grow(start, 7)) == digest(first)
    pictures = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        small, large = (one.learner_of(stage).module.eval()(pictures) for stage in (0, 1))
    assert torch.allclose(small, large, atol=1e-5)


def test_learners_that_do_not_fit_the_stages_are_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidJob, match="the job has 3 stages, and GrowingLearner has 2 stages"):
        shoal.simulate(JOB, [learner(part, 2) for part in range(3)], progress=False, callbacks=[NoRound()])
    with pytest.raises(InvalidJob, match="the job has 3 stages, and TorchLearner has 1 stage"):
        shoal.simulate(JOB, [learner(part) for part in range(3)], held_out=learner(0).learner_of(2), progress=False)
    with pytest.raises(InvalidJob, match="the network cannot grow: layer first has 3 units, and 4 before"):
        GrowingLearner(lambda stage: learner(0).learner_of(1 - stage), 2)
    with pytest.raises(InvalidJob, match="stages is 1"):
        learner(0, 1)
