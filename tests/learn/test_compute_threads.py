"""How many threads a node computes with."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch

from shoal.core.algorithm.learner import Learner
from shoal.learn.compute_threads import SMALL_MODEL_ELEMENTS, compute_threads, set_threads
from shoal.learn.model_form import layout_of
from shoal.runtime.training.child import MessageWriter, TrainingChild
from tests.support.learners import VectorLearner


class Shapeless(VectorLearner):
    """A learner without a model before the first one comes."""

    def __init__(self) -> None:
        super().__init__()
        del self.layout

    def model(self) -> None:  # type: ignore[override]
        raise ValueError("no model yet")


@pytest.mark.parametrize(
    ("asked", "learner", "threads"),
    [
        (0, VectorLearner(SMALL_MODEL_ELEMENTS), 1),
        (0, VectorLearner(SMALL_MODEL_ELEMENTS + 1), 0),
        (0, Shapeless(), 0),
        (2, VectorLearner(8), 2),
        (2, VectorLearner(SMALL_MODEL_ELEMENTS + 1), 2),
    ],
    ids=["small", "large", "not known", "small, asked", "large, asked"],
)
def test_a_small_model_takes_one_thread(asked: int, learner: Learner, threads: int) -> None:
    assert compute_threads(asked, layout_of(learner)) == threads


def test_the_number_before_is_told(three_threads: None) -> None:
    assert set_threads(2) == 3
    assert torch.get_num_threads() == 2
    assert set_threads(0) == 0
    assert torch.get_num_threads() == 2


def test_without_torch_there_is_nothing_to_set(three_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert set_threads(2) == 0


@pytest.mark.parametrize(("asked", "threads"), [(0, 1), (2, 2)])
def test_the_training_process_has_its_threads(three_threads: None, tmp_path: Path, asked: int, threads: int) -> None:
    given = {"learner": "shoal.learn.digits:learner", "options": {}, "device": "cpu", "precision": "", "base": ""}
    TrainingChild({**given, "folder": str(tmp_path), "threads": asked}, MessageWriter(io.StringIO()))
    assert torch.get_num_threads() == threads
