"""System metrics of nodes: taken, bounded, thinned and forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, select

from shoal_coordinator.storage import tables
from shoal_coordinator.telemetry import system_metrics
from shoal_coordinator.telemetry.system_metrics import FIELDS, SystemMetrics, SystemMetricsSample, thinned
from tests.support.coordinator import Inside
from tests.support.node import Node
from tests.support.scenario import by_hand, problem
from tests.support.waiting import until

SAMPLE = {"cpu": 0.25, "memory_bytes": 2e9, "memory_total_bytes": 8e9, "battery": 0.5, "charging": True}


@pytest.fixture
def node(coordinator: Inside) -> Iterator[Node]:
    made = by_hand(coordinator, "n0")
    yield made
    made.client.close()


def send(coordinator: Inside, node: Node, sample: dict[str, Any]) -> httpx.Response:
    return node.client.post(f"{coordinator.url}/api/v1/system-metrics", json=sample)


def history(coordinator: Inside, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = coordinator.get("/nodes/n0/system-metrics", **asked)
    return found


def test_a_sample_is_shown(coordinator: Inside, node: Node) -> None:
    assert history(coordinator)["at"] == []
    assert send(coordinator, node, SAMPLE).status_code == 204
    found = until("the sample", lambda: (h := history(coordinator))["at"] and h)
    assert found["series"]["cpu"] == [0.25]
    assert found["series"]["charging"] == [True]
    assert found["series"]["gpu"] is None
    assert set(found["series"]) == set(FIELDS)


def test_samples_that_come_too_fast_are_dropped(coordinator: Inside, node: Node) -> None:
    for _ in range(3):
        assert send(coordinator, node, SAMPLE).status_code == 204
    until("one of them", lambda: history(coordinator)["at"])
    coordinator.call(coordinator.coordinator.parts.telemetry_writer.flush_logs())
    assert len(history(coordinator)["at"]) == 1


@pytest.mark.parametrize(
    "wrong", [{"cpu": 2.0}, {"cpu": -0.1}, {"memory_bytes": -1.0}, {"cpu": "NaN"}, {"uptime": 1.0}, {"battery": 1e9}]
)
def test_what_no_machine_can_be_is_refused(coordinator: Inside, node: Node, wrong: dict[str, Any]) -> None:
    assert send(coordinator, node, {**SAMPLE, **wrong}).status_code == 422
    coordinator.call(coordinator.coordinator.parts.telemetry_writer.flush_logs())
    assert history(coordinator)["at"] == []


def test_only_a_node_tells(coordinator: Inside, node: Node) -> None:
    problem(coordinator.request("GET", "/api/v1/nodes/nobody/system-metrics"), 404, "node.unknown")
    assert coordinator.request("POST", "/api/v1/system-metrics", json=SAMPLE).status_code == 403


def test_old_samples_are_forgotten(coordinator: Inside, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_metrics, "CLEAR_S", -1.0)
    system = coordinator.coordinator.telemetry.system_metrics
    rows = [
        {"node": "n0", "at": time.time() - age, **SystemMetricsSample(**SAMPLE).model_dump()}
        for age in (90_000.0, 60.0)
    ]

    async def write() -> None:
        await coordinator.coordinator.database.write(lambda c: system.write(c, rows))

    coordinator.call(write())
    assert len(history(coordinator, seconds=30 * 86_400)["at"]) == 1


def test_older_samples_are_thinned() -> None:
    """Three hours of a sample a minute: of the last hour all are kept, before it the first of each five minutes.

    A part is thinned at each writing; the next process does not thin a part again.
    """
    now, engine = 360_000.0, create_engine("sqlite://")
    ages = {"a": range(1, 180), "b": range(1, 180, 2), "c": range(100, 101)}
    rows = [
        {"node": node, "at": now - 60 * age, **SystemMetricsSample(**SAMPLE).model_dump()}
        for node in ages
        for age in ages[node]
    ]
    found = []
    with engine.begin() as connection:
        tables.system_metrics.create(connection)
        for given in (rows, []):
            system = SystemMetrics(4 * 3600.0, lambda: now)
            for turn in range(100):
                system.write(connection, given if turn == 0 else [])
            found.append(set(connection.execute(select(tables.system_metrics.c.node, tables.system_metrics.c.at))))
    firsts: dict[Any, float] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        age_s, at = now - row["at"], row["at"]
        firsts.setdefault((row["node"], at if age_s <= 3600 else at // 300), at)
    assert found[0] == found[1] == {(node, at) for (node, _), at in firsts.items()}
    assert len(found[0]) == 60 + 24 + 30 + 24 + 1


def test_the_list_that_waits_for_the_disk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_metrics, "WAITING_MAX", 2)
    system = SystemMetrics(60.0)
    for number in range(5):
        system.take(f"n{number}", SystemMetricsSample(**SAMPLE))
    assert [row["node"] for row in system.gather()] == ["n0", "n1"]
    assert system.gather() == []


def test_means_of_parts_of_the_time() -> None:
    rows = [
        {**dict.fromkeys(FIELDS), "at": at, "cpu": cpu, "charging": at > 5}
        for at, cpu in ((1, 0.2), (2, 0.4), (9, None))
    ]
    found = thinned(rows, 0.0, 10.0, 2)
    assert found["at"] == [2, 9]
    assert found["cpu"] == [pytest.approx(0.3), None]
    assert found["charging"] == [False, True]
