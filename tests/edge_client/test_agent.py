"""A node from its first hello to the end of its job."""

from __future__ import annotations

import numpy as np

from tests.edge_client.conftest import LARGE, PLAN, Place
from tests.edge_client.learners import VectorLearner


def test_a_job_runs_to_its_end(place: Place) -> None:
    learner = VectorLearner()
    assert place.join(learner) is True
    coordinator = place.coordinator
    assert coordinator.hubs["j"].phase == "done"
    assert [version.number for version in coordinator.versions["j"]] == [0, 1, 2, 3]
    assert learner.trained == 3
    assert len(coordinator.counted) == len(set(coordinator.counted)) == 5  # init, three rounds, evaluation
    assert coordinator.failed == []
