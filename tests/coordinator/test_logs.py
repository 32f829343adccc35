"""Logs of nodes at the coordinator: with node and time, once, bounded, and searchable."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal_coordinator.telemetry import log_store
from tests.support.coordinator import Inside, inside
from tests.support.node import Node
from tests.support.scenario import by_hand, problem
from tests.support.sse import listening
from tests.support.waiting import until

HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J" + "x" * 3000


@pytest.fixture
def node(coordinator: Inside) -> Iterator[Node]:
    made = by_hand(coordinator, "a")
    yield made
    made.client.close()


def say(running: Inside, node: Node, *texts: str, first: int = 1, **more: Any) -> httpx.Response:
    """The node shows lines. Its settings apply to all of them."""
    batch = {name: more.pop(name) for name in ("incarnation", "dropped") if name in more}
    lines = [{"n": first + place, "level": 20, "text": text, **more} for place, text in enumerate(texts)]
    return node.ask("POST", "/logs", json={"incarnation": "5f2c", "lines": lines, **batch})


def shown(running: Inside, **wanted: Any) -> list[dict[str, Any]]:
    running.call(running.coordinator.parts.telemetry_writer.flush_logs())
    found: list[dict[str, Any]] = running.get("/logs", **{"node": "a", **wanted})["lines"]
    return found


def texts(running: Inside, **wanted: Any) -> list[str]:
    return [line["text"] for line in shown(running, **wanted)]


def test_a_line_with_who_when_and_what(coordinator: Inside, node: Node) -> None:
    before = time.time()
    answer = say(coordinator, node, HOSTILE, age_s=60.0, job="digits", round=3, level=30, fields={"why": "no data"})
    assert answer.json() == {"wait_s": 0.0}
    (line,) = shown(coordinator)
    assert (line["node"], line["job"], line["round"], line["level"]) == ("a", "digits", 3, "warning")
    assert line["text"] == "<script>alert(1)</script>" + "x" * 3000, (
        "nobody sees the others, and they could hide a token"
    )
    assert line["fields"] == {"why": "no data"}
    assert coordinator.rows("SELECT at FROM logs WHERE node = 'a'")[0][0] == pytest.approx(before - 60.0, abs=10.0)


def test_a_batch_that_comes_twice_is_kept_once_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with inside(folder) as running:
        node = by_hand(running, "a")
        say(running, node, "one", "two")
        say(running, node, "one", "two")
        assert texts(running) == ["one", "two"]
    with inside(folder) as running:
        node.where = lambda: running.url
        say(running, node, "two", "three", first=2)
        assert texts(running) == ["one", "two", "three"]
        say(running, node, "two", "three", first=2, incarnation="77aa")
        assert len(texts(running)) == 5, "another process counts from the start"
    node.client.close()


def test_levels_jobs_nodes_and_pages(coordinator: Inside, node: Node) -> None:
    other = by_hand(coordinator, "b")
    say(coordinator, node, "quiet", level=10)
    say(coordinator, node, "loud", first=2, level=40, job="x")
    say(coordinator, other, "elsewhere", job="x")
    assert texts(coordinator) == ["quiet", "loud"]
    assert texts(coordinator, level="info") == ["loud"]
    assert texts(coordinator, job="x") == ["loud"]
    assert texts(coordinator, node="b") == ["elsewhere"]
    say(coordinator, node, *(f"{n}" for n in range(10)), first=10)
    newest = coordinator.get("/logs", node="a", limit=3) if shown(coordinator) else {}
    assert [line["text"] for line in newest["lines"]] == ["7", "8", "9"]
    assert newest["older"] is True
    older = coordinator.get("/logs", node="a", limit=20, before=newest["lines"][0]["id"])
    assert [line["text"] for line in older["lines"]][:3] == ["quiet", "loud", "0"]
    assert older["older"] is False
    assert texts(coordinator, after=newest["lines"][1]["id"]) == ["9"]
    other.client.close()


def test_a_text_is_found_wherever_it_stands(coordinator: Inside, node: Node) -> None:
    say(coordinator, node, "Loss is 5%", "loss is 50", "gain_x", "gainyx")
    lines = {line["text"]: line["id"] for line in shown(coordinator)}

    def found(q: str) -> list[int]:
        answer = coordinator.get("/logs/matches", node="a", q=q)
        assert answer["total"] == len(answer["ids"])
        return list(answer["ids"])

    assert found("LOSS") == [lines["Loss is 5%"], lines["loss is 50"]]
    assert found("5%") == [lines["Loss is 5%"]]
    assert found("n_x") == [lines["gain_x"]]
    assert found("nowhere") == []
    assert coordinator.get("/logs/matches", node="b", q="loss") == {"total": 0, "ids": []}


def test_nothing_secret_is_kept(coordinator: Inside, node: Node) -> None:
    say(coordinator, node, "joined with sht_abcdefgh")
    assert texts(coordinator) == ["joined with sht_[redacted]"]


def test_who_says_too_much_waits_and_what_it_says_is_counted(tmp_path: Path) -> None:
    with inside(tmp_path / "data", log_lines_per_s=0.1) as running:
        node, other = by_hand(running, "a"), by_hand(running, "b")
        answer = say(running, node, *map(str, range(8)), dropped=4)
        assert answer.json()["wait_s"] > 3
        assert texts(running) == ["0", "1", log_store.DROPPED % 10]
        assert say(running, other, "mine").json() == {"wait_s": 0.0}
        assert texts(running, node="b") == ["mine"]
        node.client.close(), other.client.close()


def test_what_waits_for_the_disk_is_bounded(coordinator: Inside, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "WAITING_MAX", 3)

    async def both() -> None:
        book = coordinator.coordinator.telemetry.log_store
        lines = [log_store.LogRecord(n, 0.0, 20, str(n)) for n in range(5)]
        book.take("a", "1", lines, 0)
        await coordinator.coordinator.parts.telemetry_writer.flush_logs()

    coordinator.call(both())
    assert texts(coordinator) == ["0", "1", "2", log_store.DROPPED % 2]


def test_lines_go_by_age_and_by_size(tmp_path: Path) -> None:
    with inside(tmp_path / "data", logs_retention_s=3600.0, logs_bytes_max=2**20) as running:
        node = by_hand(running, "a")
        say(running, node, "old", age_s=7200.0)
        say(running, node, "new", first=2)
        shown(running)  # the old one is cleared away after it was written
        assert texts(running) == ["new"]
        for batch in range(3):
            say(running, node, *["y" * 4000] * 130, first=1000 * (batch + 1))
            kept = texts(running, limit=5000)
        assert sum(map(len, kept)) <= 1.3 * 2**20
        assert len(kept) > 100
        assert "new" not in kept
        node.client.close()


def test_the_coordinators_own_lines(coordinator: Inside) -> None:
    logging.getLogger("x").warning("the disk is slow")
    assert "the disk is slow" in texts(coordinator, node="")


def test_who_follows_hears_that_there_is_more(coordinator: Inside, node: Node) -> None:
    with listening(coordinator.url) as events:
        assert next(events).name == "hello"
        say(coordinator, node, "one", job="x")
        said = next(event for event in events if event.name == "logs" and event.data["job"] == "x")
    (line,) = until("the line", lambda: shown(coordinator))
    assert said.data["last"] >= line["id"]


@pytest.mark.parametrize(
    "wrong",
    [{"text": "x" * 4001}, {"n": -1}, {"fields": {"x": "y" * 5000}}, {"level": 101}, {"job": "../x"}, {"age_s": -1.0}],
)
def test_what_no_log_says_is_refused(coordinator: Inside, node: Node, wrong: dict[str, Any]) -> None:
    line = {"n": 1, "level": 20, "text": "x", **wrong}
    problem(node.ask("POST", "/logs", json={"incarnation": "5f2c", "lines": [line]}), 422, "request.invalid")
    many = [{"n": n, "level": 20, "text": "x"} for n in range(1001)]
    problem(node.ask("POST", "/logs", json={"incarnation": "5f2c", "lines": many}), 422, "request.invalid")
    assert shown(coordinator) == []
