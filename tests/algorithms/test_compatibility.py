"""An algorithm and a schedule that cannot work together are refused before the job starts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.jobs.spec import parse_job


def job(algorithm: str, **schedule: Any) -> dict[str, Any]:
    return {"name": "j", "algorithm": {"name": algorithm}, "schedule": schedule}


@pytest.mark.parametrize("schedule", ["divergence", "periodic"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_a_base_needs_an_algorithm_that_knows_one(algorithm: str, schedule: str) -> None:
    with pytest.raises(InvalidJob, match=f"{schedule} needs an algorithm .* {algorithm} is none") as refused:
        parse_job(job(algorithm, name=schedule))
    assert refused.value.code == "job.fit"
    assert "dynamic" in refused.value.hint


@pytest.mark.parametrize("schedule", ["divergence", "periodic", "rounds"])
def test_nodes_that_wait_for_a_watcher_need_one(schedule: str) -> None:
    with pytest.raises(InvalidJob, match=f"fda waits for a schedule .* {schedule} does not") as refused:
        parse_job(job("fda", name=schedule))
    assert "variance" in refused.value.hint
    assert "theta" in refused.value.hint


@pytest.mark.parametrize("algorithm", ["dynamic", "periodic"])
def test_a_watcher_needs_nodes_that_tell(algorithm: str) -> None:
    with pytest.raises(InvalidJob, match=f"schedule variance needs .* {algorithm} does not") as refused:
        parse_job(job(algorithm, name="variance"))
    assert "fda" in refused.value.hint


@pytest.mark.parametrize(("schedule", "field"), [("variance", "delta"), ("divergence", "theta")])
def test_a_threshold_has_one_name(schedule: str, field: str) -> None:
    algorithm = "fda" if schedule == "variance" else "dynamic"
    with pytest.raises(InvalidJob, match=f"no field '{field}'"):
        parse_job(job(algorithm, name=schedule, **{field: 1.0}))


@pytest.mark.parametrize(
    ("algorithm", "schedule"),
    [
        ("dynamic", {"name": "divergence", "balancing": "hedged"}),
        ("fda", {"name": "variance", "theta": "auto"}),
        ("fda", {"name": "variance", "theta": 0.5}),
        ("periodic", {"name": "periodic"}),
        ("periodic", {"name": "rounds"}),
        ("fedavg", {"name": "rounds"}),
    ],
)
def test_what_fits_is_taken(algorithm: str, schedule: dict[str, Any]) -> None:
    assert parse_job(job(algorithm, **schedule)).build_algorithm().name == algorithm


def test_only_who_asks_first_can_keep_to_a_budget_of_bytes() -> None:
    """The job's and the machine's own: the smaller one holds."""
    gossip = {"bytes_per_hour": 1e6, "mixing": {"name": "push_sum"}}
    with pytest.raises(InvalidJob, match="push_sum sends models without a request") as refused:
        parse_job({**job("fedavg", name="rounds"), "gossip": gossip})
    assert "pairwise" in refused.value.hint
    free = parse_job({**job("fedavg", name="rounds"), "gossip": {"mixing": {"name": "push_sum"}}}).gossip
    assert free.budget() == 0
    with pytest.raises(InvalidJob, match="push_sum sends models without a request"):
        free.budget(1e6)
    metered = parse_job({**job("fedavg", name="rounds"), "gossip": {"bytes_per_hour": 1e6}}).gossip
    assert [metered.budget(), metered.budget(1e5), metered.budget(1e7)] == [1e6, 1e5, 1e6]


@pytest.mark.parametrize("algorithm", ["bagged_trees", "boosted_trees", "largebatch", "lbfgs", "scaffold"])
def test_who_makes_no_sense_of_old_reports_gets_none(algorithm: str) -> None:
    """A gradient of L-BFGS at an earlier trial, say, would count as one at this trial."""
    with pytest.raises(InvalidJob, match=f"buffer counts reports of older versions, which {algorithm}") as refused:
        parse_job(job(algorithm, name="buffer", size=2))
    assert "schedule rounds" in refused.value.hint
    parse_job(job(algorithm, name="buffer", staleness_max=0))
    parse_job(job(algorithm, name="rounds"))
