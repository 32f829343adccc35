"""One job under several protocols."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidJob
from shoal.presets import PRESETS, Preset, chosen, under
from shoal.schedules.rounds import Rounds
from shoal.spec import parse_job

JOB = {
    "name": "digits",
    "rounds": 7,
    "seed": 5,
    "algorithm": {"name": "fedavg", "lr": 0.03, "epochs": 4.0, "batch_size": 8},
    "schedule": {"name": "rounds", "fraction": 0.5, "cohort": 3, "min_nodes": 6},
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_job(name: str) -> None:
    spec = parse_job(under(JOB, name))
    assert (spec.name, spec.seed) == (f"digits-{name}", 5)
    assert (spec.build_algorithm().lr, spec.build_schedule().min_nodes) == (0.03, 6)
    assert parse_job(under({"name": "bare"}, name)).name == f"bare-{name}"


def test_what_a_preset_says_wins() -> None:
    part = parse_job(under(JOB, "fedavg-c03"))
    assert (part.build_schedule().fraction, part.build_schedule().cohort) == (0.3, 0)
    assert (part.build_algorithm().epochs, part.build_algorithm().batch_size) == (4.0, 8)
    assert parse_job(under(JOB, "fedavg")).build_schedule().fraction == 1.0
    gradient = parse_job(under(JOB, "fedsgd")).build_algorithm()
    assert (gradient.name, gradient.epochs, gradient.batch_size) == ("fedsgd", 1.0, 0)


def test_rounds_of_some_epochs_are_so_many_passes() -> None:
    """Otherwise a protocol would look better for having trained longer, or never come to an end."""
    found = parse_job(under(JOB, "dynamic"))
    assert (found.build_algorithm().epochs, found.rounds) == (7 * 4.0, 0)
    assert (parse_job(under({"name": "bare"}, "fda")).build_algorithm().epochs, Rounds.versions) == (10.0, 10)
    assert parse_job(under(JOB, "fedsgd")).rounds == 7
    own = {**JOB, "algorithm": {"name": "dynamic", "epochs": 28.0}, "schedule": {"name": "drift"}}
    back = parse_job(under(own, "fedavg"))
    assert (back.build_algorithm().epochs, back.rounds) == (1.0, 28)
    assert parse_job(under(own, "periodic")).build_algorithm().epochs == 28.0


def test_continuous_averaging_trains_on_as_many_mini_batches() -> None:
    own = {**JOB, "algorithm": {"name": "dynamic", "steps": 20, "checks": 30}}
    found = parse_job(under(own, "continuous")).build_algorithm()
    assert (found.steps, found.checks) == (1, 600)
    found = parse_job(under(own, "periodic")).build_algorithm()
    assert (found.steps, found.checks) == (20, 30)
    bare = {**JOB, "algorithm": {"name": "dynamic", "checks": 30}}
    assert parse_job(under(bare, "continuous")).build_algorithm().checks == 300


def test_filters_come_with_a_preset() -> None:
    coded, plain = (parse_job(under(JOB, name)).build_filters() for name in ("dynamic", "dynamic-fp32"))
    assert [one.name for one in coded] == ["quantize"]
    assert plain == []


def test_a_preset_may_bring_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fixed", Preset({"name": "fedavg"}, more={"sums": "fixed"}))
    before = repr(JOB)
    assert parse_job(under(JOB, "fixed")).sums == "fixed"
    assert repr(JOB) == before


def test_fields_that_the_other_algorithm_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**JOB, "algorithm": {"name": "other", "lr": 0.5, "strangeness": 3}}
    assert under(own, "fedavg")["algorithm"] == {"name": "fedavg", "lr": 0.5}


def test_presets_are_chosen_by_name() -> None:
    assert chosen(["fedsgd", " fedavg", "", "fedsgd"]) == ["fedsgd", "fedavg"]
    with pytest.raises(InvalidJob) as caught:
        chosen(["fedavg", "fedsdg"])
    assert caught.value.hint == "did you mean 'fedsgd'?"
    with pytest.raises(InvalidJob, match="no preset is named"):
        chosen([""])
