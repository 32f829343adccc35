"""Learners of a job whose network grows, which wait in the middle of a growth."""

from __future__ import annotations

from pathlib import Path

from shoal.core.model.tree import Tree
from shoal.learn import GrowingLearner
from tests.learn.test_growing_learner import learner
from tests.support.waiting import until


def held(part: int, folder: str) -> GrowingLearner:
    """A learner that tells by a file `grows-PART` that it grows the model, and goes on when there is a file `go`."""
    made = learner(part)
    grow, place = made.grow, Path(folder)

    def grow_held(model: Tree, seed: int) -> Tree:
        (place / f"grows-{part}").touch()
        until("the growth to go on", (place / "go").exists)
        return grow(model, seed)

    made.grow = grow_held  # type: ignore[method-assign]
    return made
