"""Metrics of evaluations: over what they are means, and how they may be called."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import shoal
from shoal.core.errors import InvalidJob
from shoal.learn import TorchLearner
from shoal.learn.training.measures import Mean

WORDS = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]])


class Tagger(nn.Module):
    """Says class 1 of every word."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.zeros(x.shape), torch.ones(x.shape)], 1) * self.scale


def tagger(targets: Tensor, **more: Any) -> TorchLearner:
    return TorchLearner(Tagger, (WORDS, WORDS), (WORDS[: len(targets)], targets), device="cpu", **more)


PADDED = torch.tensor([[1, -100, -100], [1, 0, -100], [-100, -100, -100], [1, -100, -100]])


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (cross_entropy, PADDED),
        (nn.CrossEntropyLoss(), PADDED),
        (nn.CrossEntropyLoss(ignore_index=7), PADDED.masked_fill(PADDED == -100, 7)),
        (partial(cross_entropy, ignore_index=7), PADDED.masked_fill(PADDED == -100, 7)),
    ],
    ids=["function", "module", "module with a class", "function with a class"],
)
def test_labels_that_the_loss_ignores_do_not_count(loss: Any, targets: Tensor) -> None:
    one = tagger(targets, loss=loss)
    one.config = shoal.learn.TorchConfig(eval_batch_size=1)  # no mean over ignored labels exists
    found = one.evaluate()
    expected = -math.log(math.e / (1 + math.e)) * 3 / 4 - math.log(1 / (1 + math.e)) / 4
    assert (found["eval/accuracy"], found["eval/examples"]) == (0.75, 4.0)
    assert found["eval/loss"] == pytest.approx(expected, rel=1e-6)


class Readings(TorchDispatchMode):
    """Counts how often Python asks for the value of a tensor: on a card each time waits for all that it has to do."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("targets", [PADDED, WORDS], ids=["some ignored", "none ignored"])
def test_no_batch_of_an_evaluation_waits_for_the_device(targets: Tensor) -> None:
    counts = {}
    for size in (4, 1):
        one = tagger(targets)
        one.config = shoal.learn.TorchConfig(eval_batch_size=size)
        with Readings() as readings:
            one.evaluate()
        counts[size] = readings.count
    assert 0 < counts[1] == counts[4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_sum_of_a_mean_is_that_of_torch_to_the_bit(dtype: torch.dtype) -> None:
    values = torch.randn(99, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    mean, expected = Mean(torch.device("cpu")), torch.zeros((), dtype=torch.float64)
    for weight, value in enumerate(values, 1):
        mean.add(value, weight)
        expected.add_(value, alpha=weight)
    assert torch.equal(mean.total, expected)
    assert mean.named("loss") == {"loss": float(expected) / 4950}


def test_a_mean_of_opposite_infinities_is_not_a_number() -> None:
    mean = Mean(torch.device("cpu"))
    for value in (math.inf, -math.inf):
        mean.add(torch.tensor(value), 1)
    assert math.isnan(mean.named("loss")["loss"])


def test_nodes_weigh_by_the_labels_that_count() -> None:
    few, many = torch.tensor([[0, -100, -100]]), torch.tensor([[1, 1, 1]])
    learners = [tagger(few), tagger(many)]
    job = shoal.JobSpec(name="tags", rounds=1, algorithm={"name": "fedavg", "lr": 0.0})
    found = shoal.simulate(job, learners, progress=False).metrics
    assert found["eval/accuracy"] == 0.75
    assert found["eval/accuracy/examples"] == 4.0


def test_a_metric_may_say_over_how_many_it_is_the_mean() -> None:
    def masked(output: Tensor, target: Tensor) -> tuple[float, int]:
        return float(target[0, 0]), int(1 + 2 * target[0, 0])

    one = tagger(torch.tensor([[1, 1, 1], [0, 0, 0]]), metrics={"masked": masked})
    one.config = shoal.learn.TorchConfig(eval_batch_size=1)
    assert one.evaluate()["eval/masked"] == 0.75


def test_a_metric_that_is_undefined_on_one_node_does_not_spoil_the_others() -> None:
    def learner(auc: float) -> TorchLearner:
        return tagger(WORDS, metrics={"AUC": lambda output, target: auc})

    found = shoal.simulate(
        shoal.JobSpec(name="auc", rounds=1), [learner(math.nan), learner(0.5), learner(1.0)], progress=False
    ).metrics
    assert (found["eval/AUC"], found["eval/AUC/nodes"], found["eval/nodes"]) == (0.75, 2.0, 3.0)


@pytest.mark.parametrize("name", ["loss", "examples", "nodes", "auc/examples", "a\nb", "x" * 70])
def test_a_name_that_cannot_be_reported_is_refused_when_the_learner_is_made(name: str) -> None:
    with pytest.raises(InvalidJob, match="metrics hold") as caught:
        tagger(WORDS, metrics={name: lambda output, target: 0.0})
    assert caught.value.hint


def test_a_learner_has_at_most_256_metrics() -> None:
    tagger(WORDS, metrics={f"recall_{i}": lambda output, target: 0.0 for i in range(256)}).evaluate()
    with pytest.raises(InvalidJob, match="at most 256"):
        tagger(WORDS, metrics={f"recall_{i}": lambda output, target: 0.0 for i in range(257)})
