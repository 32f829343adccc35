"""Hundreds of runs in which a node lies or has far more data than the others: no job stops, and none is led by it."""

import pytest

from shoal.core.job.round_sum import WeightShares
from shoal.sim.__main__ import main
from shoal.sim.scenarios.influence_runs import draw, run_seed
from shoal.sim.scenarios.swarm import SeedFailed
from tests.support.sampling import extended

SEEDS = 1000
CHUNK = 100


@pytest.mark.parametrize("first", extended(range(0, SEEDS, CHUNK), but=[0]))
def test_no_run_breaks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


def test_the_runs_are_varied() -> None:
    drawn = [draw(seed) for seed in range(SEEDS)]
    plans = [scenario.setup.plan for scenario in drawn]
    for share in (
        [plan.aggregation_precision == "fixed" for plan in plans],
        [plan.bounds.weight_fraction_max < 1 for plan in plans],
        [plan.bounds.norm_factor == 0 for plan in plans],
        [scenario.setup.schedule.name == "buffer" for scenario in drawn],
        [bool(scenario.byzantine) for scenario in drawn],
        [bool(scenario.weight_factors) for scenario in drawn],
        [scenario.setup.faults.coordinator_crashes > 0 for scenario in drawn],
    ):
        assert sum(share) > SEEDS / 6


def test_a_node_with_more_than_its_share_breaks_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightShares, "is_excessive", lambda *_: False)
    with pytest.raises(SeedFailed, match=r"share: a node has (.|\n)*--influence"):
        run_all()


def run_all() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


def test_the_command_runs_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--influence", "3", "--count", "2"]) == 0
    assert capsys.readouterr().out.startswith("2 runs, none failed; ")
