"""Lists of jobs page by page, jobs that have ended among them, and bytes since a moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import insert

from shoal_coordinator.storage import tables
from shoal_coordinator.telemetry import traffic_buckets
from tests.support.coordinator import Inside
from tests.support.scenario import Stage, problem, set_up
from tests.support.waiting import until

NOW = 1_790_000_000.0  # 2026-09-21T14:13:20Z


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator)
    yield made
    made.close()


def test_jobs_come_page_by_page(coordinator: Inside) -> None:
    for name in ("a", "b", "c"):
        coordinator.begin(name, nodes=1)
    first = coordinator.get("/jobs", limit=2)
    assert ([job["name"] for job in first["jobs"]], first["next"]) == (["c", "b"], "b")
    coordinator.begin("d", nodes=1)  # comes above what was read already
    rest = coordinator.get("/jobs", limit=2, after=first["next"])
    assert ([job["name"] for job in rest["jobs"]], rest["next"]) == (["a"], None)
    problem(coordinator.request("GET", "/api/v1/jobs?after=nobody"), 404, "job.unknown")


def test_a_job_in_a_list_is_what_it_is_alone(stage: Stage) -> None:
    coordinator = stage.running
    for node in ("n0", "n1"):
        assert stage.report(node=node, metrics={"eval/accuracy": 0.5}).status_code == 200
    until("a round", lambda: coordinator.job("main")["version"] == 1)
    coordinator.begin("over", nodes=1)
    coordinator.post("/jobs/over/stop", {"when": "now"})
    until("its end", lambda: coordinator.job("over")["ended_at"])
    listed = {job["name"]: job for job in coordinator.get("/jobs")["jobs"]}
    assert listed["main"]["best"] == {"accuracy": 0.5, "version": 0, "nodes": 2}, (
        "each weighs the model that it begins with"
    )
    assert listed["main"]["started_at"] is not None
    assert listed["over"]["state"] == "stopped"
    for name, job in listed.items():
        alone = coordinator.job(name)
        changing = ("up_bytes", "down_bytes", "eta_s")
        assert {k: v for k, v in alone.items() if k not in changing} == {
            k: v for k, v in job.items() if k not in changing
        }
        assert alone["up_bytes"] >= job["up_bytes"]


def test_bytes_are_counted_since_a_quarter_of_an_hour(stage: Stage) -> None:
    coordinator = stage.running
    job = coordinator.job("main")
    found = coordinator.get("/traffic", since="2020-01-01T00:00:00Z")
    assert found["up_bytes"] >= job["up_bytes"] > 0
    assert found["down_bytes"] >= job["down_bytes"] > 0
    old = {"at": 900, "direction": "up", "bytes": 10**15}

    async def put(row: dict[str, Any]) -> None:
        await coordinator.coordinator.database.write(lambda c: c.execute(insert(tables.traffic_buckets).values(row)))

    coordinator.call(put(old))
    assert coordinator.get("/traffic", since="1970-01-01T00:00:00Z")["up_bytes"] < 10**15, "too old to be told of"
    assert coordinator.get("/traffic", since="9999-01-01T00:00:00Z")["since"] > found["since"]
    problem(coordinator.request("GET", "/api/v1/traffic?since=yesterday"), 422, "request.invalid")


def rows(up: int, down: int, job: str = "main", kind: str = "report") -> list[dict[str, Any]]:
    both = {"up": up, "down": down}
    return [{"job": job, "kind": kind, "direction": d, "head_bytes": 1, "body_bytes": n - 1} for d, n in both.items()]


def test_quarters_are_added_to_and_forgotten(coordinator: Inside) -> None:
    async def book(at: float, *told: dict[str, Any]) -> None:
        await coordinator.coordinator.database.write(lambda c: traffic_buckets.add(c, told, at))

    def kept() -> list[tuple[Any, ...]]:
        return coordinator.rows("SELECT at, direction, bytes FROM traffic_buckets WHERE at < 1800000000 ORDER BY 1, 2")

    first = traffic_buckets.start(NOW, NOW)
    assert (first % 900, NOW - first < 900) == (0, True)
    coordinator.call(book(NOW, *rows(10, 20), *rows(5, 5)))
    coordinator.call(book(NOW + 1, *rows(1, 0 + 1, kind="gossip"), *rows(7, 7, job="")))
    assert kept() == [(first, "down", 25), (first, "up", 16)], "what a peer received, another has sent"
    coordinator.call(book(NOW + traffic_buckets.KEPT_S + 900, *rows(1, 1)))
    assert [row[0] for row in kept()] == [first + traffic_buckets.KEPT_S + 900] * 2


@pytest.mark.parametrize(("since", "at"), [(NOW, NOW), (0.0, NOW - traffic_buckets.KEPT_S), (NOW * 2, NOW)])
def test_a_moment_that_is_not_known_of_becomes_one_that_is(since: float, at: float) -> None:
    assert traffic_buckets.start(since, NOW) == at // 900 * 900
