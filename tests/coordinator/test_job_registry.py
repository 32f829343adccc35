"""The registry of jobs: which names it knows, and what it answers for others."""

from __future__ import annotations

import pytest

from shoal.core.errors import Refused, StorageFailed
from shoal_coordinator.jobs.job_registry import JobRegistry


@pytest.mark.parametrize("owner", ["", "http://follower:7464"])
def test_a_job_that_has_just_moved_away_is_not_unknown(owner: str) -> None:
    """A request that was routed to this coordinator may look for the job after it has left."""
    registry = JobRegistry(owner, lambda name: name == "moved")
    with pytest.raises(StorageFailed, match="moved is moving"):
        registry.job("moved")


def test_an_unknown_job_is_refused_by_the_leader() -> None:
    with pytest.raises(Refused, match="no job is called 'other'"):
        JobRegistry("", lambda name: name == "moved").job("other")
