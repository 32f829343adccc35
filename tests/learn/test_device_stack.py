"""Models that stay on the device that has trained them. The CPU stands in for a GPU."""

from __future__ import annotations

from functools import cached_property
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import shoal
from shoal.algorithms.fedavg import FedAvg
from shoal.core.errors import InvalidJob
from shoal.core.model.stack import Stack
from shoal.core.model.tree import Tree, norm, sub
from shoal.learn import TorchLearner, digits, models
from shoal.learn.stacked import stacked_trees
from shoal.learn.stacked.device_stack import DeviceStack
from shoal.learn.stacked.stacked_tasks import StackedTasks
from shoal.learn.stacked.task_chunks import CARD_CHUNK_BYTES, CHUNK_BYTES

NODES = 12


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let models stay on the CPU as on a GPU; the numbers of rows of each stack that is copied to the host."""
    found: list[int] = []

    def values(stack: DeviceStack) -> np.ndarray:
        found.append(len(stack))
        return stack._rows.numpy()

    known = cached_property(values)
    known.__set_name__(DeviceStack, "values")
    monkeypatch.setattr(DeviceStack, "values", known)
    monkeypatch.setattr(stacked_trees, "STAYS_ON", frozenset({"cpu"}))
    return found


def make(number: int) -> TorchLearner:
    x, y = digits.digits()
    part = slice(number * 20, number * 20 + 20)
    return TorchLearner(models.mlp, (x[part], y[part]), device="cpu")


def simulated(**job: object) -> shoal.Result:
    given = {"name": "j", "rounds": 3, "algorithm": {"name": "fedavg", "batch_size": 8}, **job}
    return shoal.simulate(given, [make(number) for number in range(NODES)])


def trees() -> tuple[list[Tree], list[Tree], Tree]:
    """Return the same four models as rows of a stack on the host and on a device, and a base of them."""
    base = make(0).init(0)
    numbers = np.random.default_rng(1).normal(size=(4, base.layout.elements)).astype(np.float32)
    host, rows = Stack(base.layout, numbers), torch.from_numpy(numbers.copy()).view(torch.uint8)
    device = DeviceStack(base.layout, rows)
    return [host.row(one) for one in range(4)], [device.row(one) for one in range(4)], base


def test_a_row_is_the_tree_of_its_bytes() -> None:
    host, device, base = trees()
    for one, two in zip(host, device, strict=True):
        assert_array_equal(one.buffer, two.buffer)
        assert_array_equal(sub(one, base).buffer, sub(two, base).buffer)
        assert norm(two) == pytest.approx(norm(one), rel=1e-6)
        assert_array_equal(ForkingPickler.loads(ForkingPickler.dumps(two)).buffer, one.buffer)


def test_rows_without_weight_have_no_part_in_the_sum() -> None:
    weights = [1.0, 0.5, 0.0, 2.0]
    for rows in trees()[:2]:
        stack = rows[0].known.stack
        expected = np.array(weights) @ stack.values.astype(np.float64)
        assert_allclose(stack.weighted_sum(weights), expected, rtol=1e-12)
        stack.values[2] = np.inf  # of a device that is the CPU, a view
        assert_allclose(stack.weighted_sum(weights), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("job", "copied"),
    [
        ({}, False),
        ({"algorithm": {"name": "fedadam", "batch_size": 8}}, False),
        ({"algorithm": {"name": "scaffold", "batch_size": 8}}, False),
        ({"aggregation_precision": "fixed"}, True),
        ({"filters": [{"name": "quantize", "bits": 8}]}, True),
    ],
)
def test_the_models_are_those_of_the_host(job: dict, copied: bool, request: pytest.FixtureRequest) -> None:
    expected = simulated(**job)
    copies = request.getfixturevalue("copies")
    found = simulated(**job)
    assert found.training == expected.training == "36 tasks at once"
    assert all(np.allclose(found.model[name], expected.model[name], atol=1e-5) for name in expected.model)
    assert (found.up_bytes, found.down_bytes) == (expected.up_bytes, expected.down_bytes)
    assert (copies != []) == copied


def test_a_simulation_tells_its_learners_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(TorchLearner, "use", lambda self, *, device: told.append(device))
    job = {"name": "j", "rounds": 1, "algorithm": {"name": "fedavg"}}
    shoal.simulate(job, [make(0), make(1)], held_out=digits.held_out(), device="cuda:1")
    assert told == ["cuda:1"] * 3
    shoal.simulate(job, make, nodes=2, device="cuda:1")
    assert told == ["cuda:1"] * len(told)
    assert len(told) > 3


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    job = {"name": "j", "rounds": 1, "algorithm": {"name": "fedavg"}}
    with pytest.raises(InvalidJob, match="device cuda: ") as error:
        shoal.simulate(job, [make(0)], device="cuda")
    assert error.value.hint == "use device auto or cpu"
    with pytest.raises(InvalidJob, match="device cuda: "):
        shoal.simulate(job, make, nodes=1, device="cuda")


def test_chunks_are_larger_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make(0)
    tasks = StackedTasks(FedAvg(), {}.__getitem__, dict, str)
    assert tasks.chunk_bytes(learner) == CHUNK_BYTES
    monkeypatch.setattr(TorchLearner, "device", torch.device("cuda"))
    assert tasks.chunk_bytes(learner) == CARD_CHUNK_BYTES
