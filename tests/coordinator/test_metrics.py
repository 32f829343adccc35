"""A coordinator's metrics for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal import __version__
from shoal.core.errors import InvalidPayload
from shoal.core.server.roster import NodeRoster
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.telemetry.metrics import Metrics
from tests.support.coordinator import Inside, inside
from tests.support.node import Node
from tests.support.scenario import by_hand, set_up

Labels = tuple[tuple[str, str], ...]


def told(running: Inside) -> dict[str, dict[Labels, float]]:
    """Every sample of /metrics, by name and labels."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(running.request("GET", "/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_what_happens_in_a_job_is_counted(coordinator: Inside, swarm: Callable[..., list[Node]]) -> None:
    coordinator.begin("a", nodes=2, rounds=3)
    for node in swarm(coordinator, 2, {"a": 10}):
        node.finish()
    found = told(coordinator)
    job = (("job_name", "a"),)
    assert found["shoal_round_duration_seconds_count"][job] == 3
    assert found["shoal_reports_total"][job] == 1 + 3 * 2 + 2, (
        "an initial model, two updates a round, two last evaluations"
    )
    assert found["shoal_fold_duration_seconds_count"][()] == 1 + 3 * 2 + 2
    assert found["shoal_commit_duration_seconds_count"][()] > 3
    assert found["shoal_fsync_duration_seconds_count"][()] >= 4, "a model for each version"
    assert found["shoal_job_running"][job] == 0
    asked = found["shoal_http_request_duration_seconds_count"]
    assert asked[("method", "POST"), ("route", "/api/v1/jobs/{job}/reports")] == 1 + 3 * 2 + 2
    assert asked[("method", "GET"), ("route", "/api/v1/work")] > 0
    assert asked[("method", "POST"), ("route", "/api/v1/jobs")] == 1
    assert sum(found["shoal_http_responses_total"].values()) == sum(asked.values())
    assert found["shoal_build_info"][("protocol", "1"), ("version", __version__)] == 1
    assert found["shoal_connections"][()] >= 1


def test_refused_reports_have_reasons(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        stage = set_up(running)
        assert stage.report(task=(1, 99)).status_code == 409
        assert stage.report(b"no model").status_code == 422
        stage.close()
        refused = told(running)["shoal_reports_refused_total"]
    assert refused == {(("reason", "task.foreign"),): 1, (("reason", "payload.length"),): 1}


def test_answers_without_a_route_are_counted_too(coordinator: Inside) -> None:
    coordinator.request("GET", "/nothing/like/it")
    coordinator.request("GET", "/api/v1/nothing")
    coordinator.request("BREW", "/api/v1/jobs")
    found = told(coordinator)
    routes = {dict(labels)["route"] for labels in found["shoal_http_request_duration_seconds_count"]}
    assert "other" in routes
    assert not any("nothing" in route for route in routes), "else anybody could make series without end"
    assert {dict(labels)["method"] for labels in found["shoal_http_request_duration_seconds_count"]} == {"GET", "other"}
    assert found["shoal_http_responses_total"][(("status", "404"),)] >= 1


def test_nodes_are_counted_by_state(coordinator: Inside) -> None:
    node = by_hand(coordinator, "n0")
    assert told(coordinator)["shoal_nodes"] == {
        (("state", "gone"),): 0,
        (("state", "online"),): 1,
        (("state", "stale"),): 0,
    }
    node.client.close()


def test_states_follow_the_clock() -> None:
    presence, now = Presence(10.0), time.monotonic()
    for name, ago in {"fresh": 1.0, "stale": 6.0, "gone": 11.0, "away": -5.0}.items():
        presence.info[name] = {}
        presence.merge_ages({name: ago})
        presence._last_seen[name] = now - ago
    presence.info["never"] = {}
    assert presence.states() == {"online": 2, "stale": 1, "gone": 2}
    with presence.open_poll("gone"):
        presence._last_seen["gone"] = now - 11.0  # its poll has been open since
        assert presence.states() == {"online": 3, "stale": 1, "gone": 1}
    presence.forget("never")
    assert sum(presence.states().values()) == 4


def test_requests_are_answered_while_browsers_are_told_of_many_nodes(coordinator: Inside) -> None:
    coordinator.begin("a", nodes=1000, rounds=1)
    by_hand(coordinator, "n0").client.close()
    runner, turns = coordinator.runner("a"), []

    async def tell() -> None:
        (member,) = runner.hub.roster.state()
        runner.hub.roster = NodeRoster.restore([member | {"node": f"n{number:03}"} for number in range(500)])
        reader = coordinator.coordinator.telemetry.event_bus.open(None)
        telling = asyncio.ensure_future(coordinator.coordinator.parts.change_publisher.publish())
        while not telling.done():
            await asyncio.sleep(0)
            turns.append(1)
        coordinator.coordinator.telemetry.event_bus.close(reader)

    coordinator.call(tell())
    assert len(turns) > 3


def test_a_refusal_is_raised_on() -> None:
    metrics = Metrics()
    with pytest.raises(InvalidPayload, match="a text"), metrics.counting_refusals():
        raise InvalidPayload("a text", code="update.weight")
    value = metrics.registry.get_sample_value("shoal_reports_refused_total", {"reason": "update.weight"})
    assert value == 1.0
