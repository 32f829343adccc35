"""An algorithm with private memory that counts: after each counted report, and only then, the count is one more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask
from shoal.core.algorithm.learner import Learner
from shoal.core.model.tree import Slots
from shoal.plugins import algorithms


@dataclass(frozen=True)
class Remembering(Algorithm):
    """Federated averaging by nodes that say how many of their reports were counted before."""

    name: ClassVar[str] = "remembering"
    title: ClassVar[str] = "Federated averaging with a count"

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        found = super().local(learner, task, memory)
        before = memory.get("count", 0.0)
        assert found is not None
        assert isinstance(before, float)
        return replace(found, metrics={**found.metrics, "train/count": before}, memory={"count": before + 1.0})


@contextmanager
def installed() -> Iterator[None]:
    """As if another distribution had brought it along."""
    algorithms()["remembering"] = Remembering
    try:
        yield
    finally:
        del algorithms()["remembering"]
