"""The short way of polls and reports: taken for what is usual, and no different from the long one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal import wire
from shoal_coordinator import express
from shoal_coordinator.express import LISTED_MAX, Asked, asked
from shoal_coordinator.hearing import Hearing
from tests.coordinator.node import Node
from tests.coordinator.raw import answer, connected, head
from tests.coordinator.server import Inside, until
from tests.coordinator.stage import by_hand, set_up

USUAL = {
    "wait_s=25": Asked(25.0, [], []),
    "wait_s=0.25&held=a%3A1.2&held=b:1.2.3&job=a": Asked(0.25, ["a:1.2", "b:1.2.3"], ["a"]),
    "wait_s=300&": Asked(300.0, [], []),
}
UNUSUAL = ["", "wait_s=", "wait_s=-1", "wait_s=301", "wait_s=1e2", "wait_s=nan", "wait_s=1&wait_s=2", "wait_s=1&new=2"]
UNUSUAL += ["wait_s=\u0662", "wait_s=1" + "&job=a" * (LISTED_MAX + 1)]


@pytest.mark.parametrize("query", USUAL)
def test_what_clients_send_is_usual(query: str) -> None:
    assert asked(query) == USUAL[query]


@pytest.mark.parametrize("query", UNUSUAL)
def test_what_is_unusual_goes_the_long_way(query: str) -> None:
    assert asked(query) is None


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has gone the short way."""
    found: list[str] = []
    for name in ("_poll", "_report"):
        real = getattr(express.Express, name)

        async def noted(self: Any, *given: Any, name: str = name, real: Any = real) -> Any:
            found.append(name)
            return await real(self, *given)

        monkeypatch.setattr(express.Express, name, noted)
    return found


LONG = {"params": {"other": "1"}}
"""What makes a request unusual, and changes nothing else."""


def both(node: Node, taken: list[str], method: str, path: str, **more: Any) -> list[Any]:
    """The answers of the short way and of the long one, dates aside; the long one may be compressed for others."""
    found = []
    for given in ({}, LONG):
        params = {**more.get("params", {}), **given.get("params", {})}
        answer = node.once(method, path, **{**more, "params": params})
        kept = {name: value for name, value in answer.headers.items() if name not in ("date", "vary")}
        found.append((answer.status_code, kept, answer.content))
    assert len(taken) == 1
    taken.clear()
    return found


def test_both_ways_say_the_same(coordinator: Inside, taken: list[str]) -> None:
    stage = set_up(coordinator)
    node, order = stage.nodes[0], stage.orders["n0"]
    held = f"main:{order.id[0]}.{order.id[1]}"
    taken.clear()
    for params in ({}, {"held": held}, {"held": held, "job": "main"}, {"held": "gone:1.1"}, {"held": "wrong"}):
        short, long = both(node, taken, "GET", "/work", params={"wait_s": 0, **params})
        assert short == long
    for job in ("main", "unknown"):
        more = {"content": b"nonsense", "headers": {"content-type": wire.MEDIA_TYPE}}
        short, long = both(node, taken, "POST", f"/jobs/{job}/reports", **more)
        assert short == long
        assert short[0] == (422 if job == "main" else 404)
    stage.close()


def test_a_report_that_comes_in_pieces_is_taken_whole(coordinator: Inside, taken: list[str]) -> None:
    stage = set_up(coordinator)
    said = b"".join(stage.frame())
    who = stage.nodes[0].client.headers["Authorization"]
    about = {"Content_Type": wire.MEDIA_TYPE, "Content_Length": len(said), "Connection": "close"}
    taken.clear()
    with connected(coordinator.url) as raw:
        raw.sendall(head("POST", "/api/v1/jobs/main/reports", Authorization=who, **about) + said[:10])
        until("the first piece to be there", lambda: taken)
        for piece in (said[10:20], said[20:]):
            raw.sendall(piece)
            coordinator.call(asyncio.sleep(0))  # so that it is read before the next is sent
        found, _, sent = answer(raw).partition(b"\r\n\r\n")
    assert b" 200 " in found.splitlines()[0]
    assert wire.decode(sent).message.counted  # type: ignore[union-attr]
    assert taken == ["_report"]
    stage.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": "Bearer no"}, 401), ({"authorization": ""}, 401), ({"shoal-protocol": "99"}, 426)],
)
def test_who_may_not_ask_may_not_either_way(
    coordinator: Inside, taken: list[str], headers: dict[str, str], status: int
) -> None:
    node = by_hand(coordinator, "n0")
    taken.clear()
    short, long = both(node, taken, "GET", "/work", params={"wait_s": 0}, headers=headers)
    assert short == long
    assert short[0] == status
    node.client.close()


def test_a_fault_of_ours_is_told_and_logged(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = by_hand(coordinator, "n0")

    async def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Hearing, "report", broken)
    answer = node.once("POST", "/jobs/main/reports", content=b"x", headers={"content-type": wire.MEDIA_TYPE})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    until("the log to have it", lambda: "planted" in caplog.text)  # it is written after the answer
    node.client.close()
