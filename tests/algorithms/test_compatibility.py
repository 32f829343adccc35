"""An algorithm and a schedule that cannot work together are refused before the job starts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.jobs.spec import parse_job
from shoal.plugins import algorithms, schedules


def job(algorithm: str, **schedule: Any) -> dict[str, Any]:
    return {"name": "j", "algorithm": {"name": algorithm}, "schedule": schedule}


SCHEDULES = ("rounds", "buffer", "periodic", "divergence", "variance")
FITS = {
    # ------------- rounds buffer periodic divergence variance
    "admm":           "usual  yes    -        -          -",
    "asgd":           "yes    usual  -        -          -",
    "bagged_trees":   "usual  -      -        -          -",
    "boosted_trees":  "usual  -      -        -          -",
    "codistillation": "usual  yes    -        -          -",
    "diloco":         "usual  -      -        -          yes",
    "downpour":       "-      usual  -        -          -",
    "dynamic":        "-      -      -        usual      -",
    "fda":            "-      -      -        -          usual",
    "fedadagrad":     "usual  yes    -        -          -",
    "fedadam":        "usual  yes    -        -          -",
    "fedasync":       "-      usual  -        -          -",
    "fedavg":         "usual  yes    -        -          -",
    "fedavgm":        "usual  yes    -        -          -",
    "fedbuff":        "-      usual  -        -          -",
    "fedprox":        "usual  yes    -        -          -",
    "fedsgd":         "usual  yes    -        -          -",
    "fedyogi":        "usual  yes    -        -          -",
    "flexlora":       "usual  -      -        -          -",
    "largebatch":     "usual  -      -        -          -",
    "lbfgs":          "usual  -      -        -          -",
    "periodic":       "yes    -      usual    -          -",
    "scaffold":       "usual  -      -        -          -",
}  # fmt: skip
"""For each algorithm and schedule: usual, the schedule of a job that names none; yes, accepted; -, refused.

asgd            Zhang et al. 2016 have hardsync, which is `rounds`, beside n-softsync
dynamic, fda    Kamp et al. 2018, Theologitis et al. 2025: the condition on the models is the method
downpour, fedasync, fedbuff
                Dean et al. 2012, Xie et al. 2019, Nguyen et al. 2022: no node waits, and reports count by their age, of
                which there is none in rounds
fedavg and its kin under `buffer`
                Nguyen et al. 2022, Algorithm 1: its clients are those of federated averaging, and any step of the
                server may follow; a report counts in full, whatever its age
admm, codistillation
                Zhang, Kwok 2014; Anil et al. 2018: asynchronous as well
diloco          Douillard et al. 2023: rounds of H steps; under `variance` divergence decides when a round ends
periodic        McDonald et al. 2010: sigma_b, which is federated averaging by b local steps if all take part
scaffold, lbfgs, largebatch, trees, flexlora
                need reports on one and the same version
"""


def test_each_algorithm_is_in_the_table() -> None:
    assert (FITS.keys(), set(SCHEDULES)) == (algorithms().keys(), schedules().keys())


@pytest.mark.parametrize(("algorithm", "schedule"), [(one, other) for one in FITS for other in SCHEDULES])
def test_a_pair_of_algorithm_and_schedule(algorithm: str, schedule: str) -> None:
    if FITS[algorithm].split()[SCHEDULES.index(schedule)] != "-":
        assert parse_job(job(algorithm, name=schedule)).build_schedule().name == schedule
        return
    with pytest.raises(InvalidJob, match=f"^algorithm {algorithm} .* schedule {schedule} .* do not fit") as refused:
        parse_job(job(algorithm, name=schedule))
    usual = SCHEDULES[FITS[algorithm].split().index("usual")]
    assert refused.value.code == "job.fit"
    assert f"for algorithm {algorithm} leave the schedule out, or choose schedule" in refused.value.hint
    assert usual in refused.value.hint
    assert f"for schedule {schedule} choose algorithm " in refused.value.hint


@pytest.mark.parametrize("algorithm", FITS)
def test_a_schedule_that_is_left_out_follows_from_the_algorithm(algorithm: str) -> None:
    fits = FITS[algorithm].split()
    usual = SCHEDULES[fits.index("usual")]
    values = {"name": "j", "algorithm": {"name": algorithm}}
    assert parse_job(values).build_schedule().name == usual
    waiting = parse_job({**values, "schedule": {"min_nodes": 3}})
    assert (waiting.schedule["name"], waiting.build_schedule().required_nodes) == (usual, 3)


def test_a_schedule_has_the_settings_of_the_preset() -> None:
    """K of FedBuff is 10 in its paper, and the schedule's own default is 1."""
    for name in ("fedbuff", "dynamic", "fda", "periodic"):
        assert parse_job({"name": "j", "algorithm": name}).schedule == parse_job({"name": "j", "preset": name}).schedule
    assert parse_job({"name": "j", "algorithm": "fedbuff"}).schedule["size"] == 10


def test_a_name_alone_is_a_table() -> None:
    short = {"algorithm": "scaffold", "schedule": "rounds", "selection": "uniform", "filters": ["half"]}
    long = {key: {"name": name} for key, name in short.items() if key != "filters"} | {"filters": [{"name": "half"}]}
    given = {"name": "j", "gossip": {"mixing": "push_sum"}}
    assert parse_job({**given, **short}) == parse_job({"name": "j", "gossip": {"mixing": {"name": "push_sum"}}, **long})
    for key, what in (("algorithm", "algorithm"), ("schedule", "schedule"), ("selection", "selection")):
        with pytest.raises(InvalidJob, match=f"no {what} is called 'misspelt'"):
            parse_job({"name": "j", key: "misspelt"})
    preset = {"name": "j", "preset": "dynamic"}
    assert parse_job({**preset, "schedule": "divergence"}) == parse_job(preset)
    with pytest.raises(InvalidJob, match="preset dynamic uses the algorithm dynamic"):
        parse_job({**preset, "algorithm": "fedavg"})


def test_a_selection_without_a_name_is_the_usual_one() -> None:
    spec = parse_job({"name": "j", "selection": {"tags": ["phone"]}})
    assert spec.selection == {"name": "uniform", "tags": ["phone"]}
    with pytest.raises(InvalidJob, match="selection uniform: no field 'measure'"):
        parse_job({"name": "j", "selection": {"measure": True}})


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
def test_a_buffer_that_keeps_no_old_report_goes_with_all_that_make_no_sense_of_them(algorithm: str) -> None:
    """A gradient of L-BFGS at an earlier trial, say, would count as one at this trial."""
    parse_job(job(algorithm, name="buffer", staleness_max=0))
