"""An algorithm and a schedule that cannot work together are refused before the job starts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.spec import parse_job


def job(algorithm: str, **schedule: Any) -> dict[str, Any]:
    return {"name": "j", "algorithm": {"name": algorithm}, "schedule": schedule}


@pytest.mark.parametrize("schedule", ["drift", "periodic"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_a_base_needs_an_algorithm_that_knows_one(algorithm: str, schedule: str) -> None:
    with pytest.raises(InvalidJob, match=f"{schedule} needs an algorithm .* {algorithm} is none") as refused:
        parse_job(job(algorithm, name=schedule))
    assert refused.value.code == "job.fit"
    assert "dynamic" in refused.value.hint


@pytest.mark.parametrize("balancing", ["double", "hedged"])
def test_what_averages_all_cannot_be_balanced_in_part(balancing: str) -> None:
    with pytest.raises(InvalidJob, match=f"cannot be balanced by '{balancing}'"):
        parse_job(job("fda", name="drift", balancing=balancing))


@pytest.mark.parametrize(
    ("algorithm", "schedule"),
    [
        ("dynamic", {"name": "drift", "balancing": "hedged"}),
        ("fda", {"name": "drift"}),
        ("periodic", {"name": "periodic"}),
        ("periodic", {"name": "rounds"}),
        ("fedavg", {"name": "rounds"}),
    ],
)
def test_what_fits_is_taken(algorithm: str, schedule: dict[str, Any]) -> None:
    assert parse_job(job(algorithm, **schedule)).build_algorithm().name == algorithm
