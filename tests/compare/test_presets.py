"""One job under several protocols."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.errors import InvalidJob
from shoal.jobs.presets import PRESETS, Preset, apply_preset, parse_presets, with_preset
from shoal.jobs.spec import check_job, parse_job
from shoal.schedules.rounds import Rounds

JOB = {
    "name": "digits",
    "rounds": 7,
    "seed": 5,
    "algorithm": {"name": "fedavg", "lr": 0.03, "epochs": 4.0, "batch_size": 8},
    "schedule": {"name": "rounds", "fraction": 0.5, "cohort": 3, "min_nodes": 6},
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_job(name: str) -> None:
    spec = parse_job(apply_preset(JOB, name))
    assert (spec.name, spec.seed) == (f"digits-{name}", 5)
    assert (spec.build_algorithm().lr, spec.build_schedule().min_nodes) == (0.03, 6)
    assert parse_job(apply_preset({"name": "bare"}, name)).name == f"bare-{name}"


def test_what_a_preset_says_wins() -> None:
    part = parse_job(apply_preset(JOB, "fedavg-c03"))
    assert (part.build_schedule().fraction, part.build_schedule().cohort) == (0.3, 0)
    assert (part.build_algorithm().epochs, part.build_algorithm().batch_size) == (4.0, 8)
    assert parse_job(apply_preset(JOB, "fedavg")).build_schedule().fraction == 1.0
    gradient = parse_job(apply_preset(JOB, "fedsgd")).build_algorithm()
    assert (gradient.name, gradient.epochs, gradient.batch_size) == ("fedsgd", 1.0, 0)


def test_rounds_of_some_epochs_are_so_many_passes() -> None:
    """Otherwise a protocol would look better for having trained longer, or never come to an end."""
    found = parse_job(apply_preset(JOB, "dynamic"))
    assert (found.build_algorithm().epochs, found.rounds) == (7 * 4.0, 0)
    assert (parse_job(apply_preset({"name": "bare"}, "fda")).build_algorithm().epochs, Rounds.versions) == (10.0, 10)
    assert parse_job(apply_preset(JOB, "fedsgd")).rounds == 7
    own = {**JOB, "algorithm": {"name": "dynamic", "epochs": 28.0}, "schedule": {"name": "divergence"}}
    back = parse_job(apply_preset(own, "fedavg"))
    assert (back.build_algorithm().epochs, back.rounds) == (1.0, 28)
    assert parse_job(apply_preset(own, "periodic")).build_algorithm().epochs == 28.0


def test_continuous_averaging_trains_on_as_many_mini_batches() -> None:
    own = {**JOB, "algorithm": {"name": "dynamic", "steps": 20, "local_steps": 600}}
    found = parse_job(apply_preset(own, "continuous")).build_algorithm()
    assert (found.steps, found.local_steps) == (1, 600)
    found = parse_job(apply_preset(own, "periodic")).build_algorithm()
    assert (found.steps, found.local_steps) == (20, 600)


def test_filters_come_with_a_preset() -> None:
    coded, plain = (parse_job(apply_preset(JOB, name)).build_filters() for name in ("dynamic", "dynamic-fp32"))
    assert [one.name for one in coded] == ["quantize"]
    assert plain == []


def test_a_preset_may_bring_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fixed", Preset({"name": "fedavg"}, more={"aggregation_precision": "fixed"}))
    before = repr(JOB)
    assert parse_job(apply_preset(JOB, "fixed")).aggregation_precision == "fixed"
    assert repr(JOB) == before


def test_fields_that_the_other_algorithm_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**JOB, "algorithm": {"name": "other", "lr": 0.5, "strangeness": 3}}
    assert apply_preset(own, "fedavg")["algorithm"] == {"name": "fedavg", "lr": 0.5}


def test_presets_are_chosen_by_name() -> None:
    assert parse_presets(["fedsgd", " fedavg", "", "fedsgd"]) == ["fedsgd", "fedavg"]
    with pytest.raises(InvalidJob) as caught:
        parse_presets(["fedavg", "fedsdg"])
    assert caught.value.hint == "did you mean 'fedsgd'?"
    with pytest.raises(InvalidJob, match="no preset is named"):
        parse_presets([""])


@pytest.mark.parametrize("name", PRESETS)
def test_a_job_file_may_name_a_preset(name: str) -> None:
    spec = parse_job({"name": "a", "preset": name, "algorithm": {"lr": 0.5}, "schedule": {"min_nodes": 3}})
    preset = PRESETS[name]
    assert (spec.algorithm["name"], spec.schedule["name"]) == (preset.algorithm["name"], preset.schedule["name"])
    assert (spec.build_algorithm().lr, spec.build_schedule().min_nodes, spec.preset) == (0.5, 3, name)
    assert spec.filters == preset.more.get("filters", [])
    values = spec.model_dump()
    assert parse_job(values) == spec
    assert with_preset(values) == values


def test_the_file_overrides_its_preset() -> None:
    spec = parse_job(
        {"name": "a", "preset": "dynamic", "schedule": {"name": "divergence", "delta": 0.5}, "filters": []}
    )
    assert (spec.build_schedule().delta, spec.filters) == (0.5, [])


@pytest.mark.parametrize(
    ("more", "place", "text"),
    [
        ({"preset": "dynamc"}, ("preset",), "no preset is called 'dynamc'"),
        ({"preset": 3}, ("preset",), "preset"),
        ({"preset": "dynamic", "algorithm": {"name": "fda"}}, ("algorithm", "name"), "dynamic"),
        ({"preset": "dynamic", "schedule": {"name": "rounds"}}, ("schedule", "name"), "names 'rounds'"),
        ({"preset": "dynamic", "schedule": {"fraction": 0.5}}, ("schedule", "fraction"), "no field 'fraction'"),
    ],
)
def test_a_preset_that_the_file_contradicts_is_refused(more: dict[str, Any], place: tuple[str, ...], text: str) -> None:
    (mistake,) = check_job({"name": "a", **more})
    assert mistake.place == place
    assert text in mistake.text


def test_a_job_with_a_preset_runs_under_another() -> None:
    spec = parse_job(apply_preset({"name": "a", "preset": "dynamic", "algorithm": {"lr": 0.5}}, "fedavg"))
    assert spec.filters == []
    assert (spec.preset, spec.algorithm["name"], spec.schedule["name"], spec.algorithm["lr"]) == (
        "",
        "fedavg",
        "rounds",
        0.5,
    )
