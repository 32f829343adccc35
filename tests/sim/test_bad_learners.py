"""A learner that fails among many good ones is named, and the job goes on without it or ends: trained at once, one by
one, or by workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import shoal
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.jobs.spec import parse_job
from shoal.learn import TorchLearner, models
from shoal.learn.digits import digits
from shoal.sim.tasks import simulated_tasks
from tests.sim.one_process import OneProcess

NODES, BAD = 40, 37


class Raising(nn.Sequential):
    """A module with a mistake in it."""

    def forward(self, _: Any) -> Any:
        raise ValueError("no such column")


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def raising() -> nn.Module:
    return Raising(*models.mlp())


MODELS = {"another layout": narrow, "an exception": raising}
SAYS = {
    "not a number": "0.bias[0] is not finite (the training diverged: lower the learning rate, or clip)",
    "another layout": "node-37 failed: 0.bias is F32[32] in one tree, 0.bias is F32[64] in the other",
    "an exception": "ValueError: no such column",
    "an unknown class": "node-37 failed: training failed: IndexError: Target 1",
}
"""Parts of the job events that each fault causes."""


def learner(number: int, fault: str) -> TorchLearner:
    """Make the learner of a node; that of node-37 has a fault."""
    own = slice(8 * number, 8 * number + 8)
    (x, y), model = (part[own] for part in digits()), models.mlp
    if number == BAD:
        model = MODELS.get(fault, model)
        x = x * torch.nan if fault == "not a number" else x
        y = y + 100 if fault == "an unknown class" else y
        x, y = (x[:0], y[:0]) if fault == "no examples" else (x, y)
    return TorchLearner(model, (x, y), device="cpu")


def simulated(how: str, fault: str, **schedule: Any) -> shoal.Result:
    algorithm = {"name": "fedavg", "batch_size": 4}
    job = parse_job({"name": "j", "rounds": 2, "algorithm": algorithm, "schedule": {"name": "rounds", **schedule}})
    make = partial(learner, fault=fault)
    if how == "by workers":
        return shoal.simulate(job, make, nodes=NODES, workers=2)
    if how == "made when needed":
        return shoal.simulate(job, make, nodes=NODES)
    fidelity: Any = "lean" if how == "at once" else "wire"
    return shoal.simulate(job, [make(number) for number in range(NODES)], fidelity=fidelity)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_tasks, "WorkerPool", OneProcess)


@pytest.mark.parametrize("fault", SAYS)
@pytest.mark.parametrize("how", ["at once", "one by one", "by workers"])
def test_a_bad_learner_is_named_and_the_job_goes_on(how: str, fault: str) -> None:
    result = simulated(how, fault, deadline_s=20.0)
    assert [version.reports for version in result.versions] == [0, NODES - 1, NODES - 1]
    told = [event for event in result.events if event.kind in ("warning", "refusal")]
    assert {event.node for event in told} == {"node-37"}
    assert any(SAYS[fault] in event.text for event in told)
    assert result.uncounted == ("node-37",)
    assert ("at once" in result.training) == (how != "one by one" and fault != "an unknown class")


@pytest.mark.parametrize("fault", SAYS)
def test_a_job_that_waits_for_a_bad_learner_ends_with_its_name(fault: str) -> None:
    with pytest.raises(LearnerFailed, match="node-37") as caught:
        simulated("by workers", fault, min_nodes=NODES, quorum=NODES)
    assert SAYS[fault].removeprefix("node-37 failed: ") in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("how", ["made when needed", "by workers"])
def test_a_learner_without_examples_ends_the_job_with_its_name(how: str) -> None:
    with pytest.raises(InvalidJob, match=r"^the learner of node-37: the data hold no example") as caught:
        simulated(how, "no examples")
    assert caught.value.hint == "check how they were divided"
