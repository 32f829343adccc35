"""Job files that are only looked at: every mistake at its place, nothing begins, and a hostile one breaks nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.coordinator import Inside
from tests.support.scenario import problem

RIGHT = """
name = "digits"
rounds = 3
[algorithm]
name = "fedavg"
lr = 0.5
[[filters]]
name = "quantize"
"""
SPEC = {
    "name": "digits",
    "rounds": 3,
    "algorithm": {"name": "fedavg", "lr": 0.5},
    "filters": [{"name": "quantize"}],
}


def check(running: Inside, **draft: Any) -> dict[str, Any]:
    found: dict[str, Any] = running.post("/jobs:validate", draft)
    return found


def places(found: dict[str, Any]) -> list[list[str | int]]:
    return [mistake["place"] for mistake in found["mistakes"]]


def test_a_right_one_is_read_and_nothing_begins(coordinator: Inside) -> None:
    assert check(coordinator, toml=RIGHT) == check(coordinator, spec=SPEC) == {"spec": SPEC, "mistakes": []}
    assert coordinator.get("/jobs")["jobs"] == []
    assert coordinator.post("/jobs", {"spec": check(coordinator, toml=RIGHT)["spec"]})["name"] == "digits"


def test_every_mistake_stands_at_its_place(coordinator: Inside) -> None:
    spec = {
        "name": "Not A Name",
        "rouns": 3,
        "rounds": -1,
        "algorithm": {"name": "fedavg", "lr": "fast", "epoch": 2},
        "schedule": {"name": "rounds", "quorum": -1},
        "filters": [{"name": "quantize"}, {"name": "quantizes"}],
        "gossip": {"convergence_tol": 2, "mixing": {"name": "pairwise", "partners_asked_max": "many"}},
    }
    found = check(coordinator, spec=spec)
    assert sorted(map(str, places(found))) == sorted(
        map(
            str,
            [
                ["name"],
                ["rouns"],
                ["rounds"],
                ["algorithm", "lr"],
                ["algorithm", "epoch"],
                ["schedule", "quorum"],
                ["filters", 1, "name"],
                ["gossip", "convergence_tol"],
                ["gossip", "mixing", "partners_asked_max"],
            ],
        )
    )
    hints = {str(mistake["place"][-1]): mistake["hint"] for mistake in found["mistakes"]}
    assert hints["rouns"] == "did you mean 'rounds'?"
    assert hints["epoch"] == "did you mean 'epochs'?"


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"schedule": {"name": "divergence"}}, ["algorithm", "name"]),
        ({"algorithm": {"name": "fda"}, "schedule": {"name": "rounds"}}, ["schedule", "name"]),
        ({"algorithm": {"name": "scaffold"}, "gossip": {"allowed": True}}, ["gossip", "allowed"]),
    ],
)
def test_what_does_not_fit_is_said_where_it_is_chosen(
    coordinator: Inside, spec: dict[str, Any], place: list[str]
) -> None:
    assert places(check(coordinator, spec={"name": "a", **spec})) == [place]


def test_a_name_that_is_taken(coordinator: Inside) -> None:
    coordinator.begin("a", nodes=1)
    assert places(check(coordinator, spec={"name": "a"})) == [["name"]]


@pytest.mark.parametrize(
    "text",
    [
        "name = ",
        'name = "a"\nname = "b"',
        "x = " + "[" * 3000,
        "\n".join(["x = ["] * 10_000),
        "when = 1979-05-27",
        "seed = " + "9" * 4000,
        "x = nan",
        ".".join("a" * 4000) + " = 1",
        "a.b." * 10 + "c = 1\n" + "\n".join(f"[{'a.' * 40}t{n}]" for n in range(400)),
        '"\\u0000" = "\\u202e"',
    ],
    ids=lambda text: f"{len(text)} {text[:12]!r}",
)
def test_hostile_texts_are_mistakes(coordinator: Inside, text: str) -> None:
    found = check(coordinator, toml=text)
    assert found["mistakes"]
    assert all(len(mistake["text"]) < 1000 for mistake in found["mistakes"])


def test_more_mistakes_than_anybody_reads(coordinator: Inside) -> None:
    found = check(coordinator, spec={f"k{number}" * 20: 1 for number in range(4000)})
    assert len(found["mistakes"]) == 50


@pytest.mark.parametrize("draft", [{}, {"toml": "", "spec": {}}, {"toml": "#" * 65_537}, {"spec": 3}])
def test_what_is_no_draft(coordinator: Inside, draft: dict[str, Any]) -> None:
    problem(coordinator.request("POST", "/api/v1/jobs:validate", json=draft), 422, "request.invalid")


def test_one_that_is_too_large(coordinator: Inside) -> None:
    draft = {"toml": "#" * 2_000_000}
    problem(coordinator.request("POST", "/api/v1/jobs:validate", json=draft), 413, "body.too-large")


def test_the_schema_describes_every_field(coordinator: Inside) -> None:
    """Forms are made of it."""
    schema = coordinator.get("/schemas/job.json")
    tables = {name: table for name, table in schema["$defs"].items() if "-" in name}
    silent = [
        f"{name}.{key}"
        for name, table in tables.items()
        for key, field in table["properties"].items()
        if key != "name" and not field.get("description")
    ]
    assert tables
    assert silent == []
