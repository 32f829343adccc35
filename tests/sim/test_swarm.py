"""Hundreds of runs with everything going wrong; and the same run again gives the same history."""

import subprocess
import sys

import pytest

from shoal.schedules.divergence import Divergence
from shoal.sim.__main__ import main
from shoal.sim.scenarios.swarm import SeedFailed, draw, run_seed
from tests.support.sampling import extended

SEEDS = 500
CHUNK = 100


@pytest.mark.parametrize("first", extended(range(CHUNK, SEEDS, CHUNK), but=()))
def test_no_run_breaks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000_000, 1_100_000, 5_000))
def test_no_run_of_very_many_breaks(first: int) -> None:
    for seed in range(first, first + 5_000):
        run_seed(seed)


def test_the_swarm_is_varied() -> None:
    drawn = [draw(seed) for seed in range(SEEDS)]
    setups = [scenario.setup for scenario in drawn]
    assert {len(setup.nodes) for setup in setups} == set(range(1, 9))
    assert {setup.plan.versions for setup in setups} == {*range(1, 7), 1000}
    assert {setup.plan.aggregation_precision for setup in setups} == {"float64", "fixed"}
    assert {setup.algorithm.name for setup in setups} == {"fedavg", "ledger", "dynamic"}
    drifting = [setup for setup in setups if isinstance(setup.schedule, Divergence)]
    assert {setup.schedule.balancing for setup in drifting} == {"all", "double", "hedged"}
    assert {setup.schedule.in_step for setup in drifting} == {False, True}
    assert {len(setup.plan.filters) for setup in drifting} == {0, 1, 2}
    assert {len(setup.plan.stages) for setup in setups} == {0, 2, 3}
    assert {one.name for setup in setups for one in setup.plan.filters} == {"delta", "half", "quantize", "top_k"}
    assert {action.what for scenario in drawn for action in scenario.actions} == {
        *("start", "leave", "vanish", "pause", "resume", "drain", "block", "allow", "change", "stop now", "stop round")
    }
    for share in (
        [setup.faults.message_loss > 0 for setup in setups],
        [setup.faults.message_duplicates > 0 for setup in setups],
        [setup.faults.delay_s > 0 for setup in setups],
        [bool(setup.faults.cuts) for setup in setups],
        [setup.faults.coordinator_crashes > 0 for setup in setups],
        [setup.faults.node_crashes > 0 and setup.faults.disk_survival < 1 for setup in setups],
        [setup.timing.sync_s > 0 for setup in setups],
        [setup.timing.jump_s > 0 for setup in setups],
        [scenario.failing > 0 for scenario in drawn],
        [scenario.poison > 0 for scenario in drawn],
        [bool(scenario.unreliable) for scenario in drawn],
        [bool(scenario.late) for scenario in drawn],
    ):
        assert sum(share) > SEEDS / 12


def test_no_run_of_the_first_breaks_and_processes_really_die() -> None:
    worlds = [run_seed(seed) for seed in range(CHUNK)]
    assert sum(world.coordinator.process.number - 1 for world in worlds) > 50
    assert sum(node.process.number - 1 for world in worlds for node in world.nodes.values()) > 50
    assert sum(world.coordinator.hub.progress.stage > 0 for world in worlds) > 5


def test_a_seed_tells_the_same_story_twice() -> None:
    first: list[str] = []
    second: list[str] = []
    for seed in range(8):
        run_seed(seed, first.append)
        run_seed(seed, second.append)
    assert first == second
    assert len(first) > 1000


def test_a_seed_tells_the_same_story_in_another_process() -> None:
    """Nothing hangs on the order of a set of strings, which is another one in each process."""
    here: list[str] = []
    run_seed(31, here.append)
    command = [sys.executable, "-m", "shoal.sim", "31", "--trace"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[1:-1] == here


def test_a_broken_run_says_how_to_repeat_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr("shoal.sim.hosts.node.SimulatedNode._spool", lambda self: True)
    assert main(["0", "--count", "300"]) == 1
    told = capsys.readouterr().out
    command = told.strip().splitlines()[-1].removeprefix("repeat it: ")
    assert command.startswith("python -m shoal.sim ")
    assert command.endswith(" --trace")
    assert main(command.split()[3:]) == 1
    traced = capsys.readouterr().out
    assert told.splitlines()[0] in traced
    assert len(traced.splitlines()) > 20


def test_a_good_run_is_counted(capsys) -> None:
    assert main(["7", "--count", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 runs, none failed; ")


def test_errors_of_the_core_break_a_run(monkeypatch) -> None:
    def off_by_one(self, close, now):
        return self._state.round.reports[len(self._state.round.reports)]

    monkeypatch.setattr("shoal.core.server.round_control.RoundControl.close", off_by_one)
    with pytest.raises(SeedFailed, match="IndexError"):
        run_seed(1)
