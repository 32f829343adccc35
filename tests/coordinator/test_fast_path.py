"""The short way of polls and reports: taken for what is usual, and no different from the long one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.wire import codec
from shoal_coordinator.api import fast_path
from shoal_coordinator.api.fast_path import LISTED_MAX, PollQuery, parse_poll
from shoal_coordinator.node_protocol.report_pipeline import ReportPipeline
from tests.support.coordinator import Inside
from tests.support.node import Node
from tests.support.raw_http import answer, connected, head
from tests.support.scenario import by_hand, set_up
from tests.support.waiting import until

USUAL = {
    "wait_s=25": PollQuery(25.0, [], []),
    "wait_s=0.25&held=a%3A1.2&held=b:1.2.3&job=a": PollQuery(0.25, ["a:1.2", "b:1.2.3"], ["a"]),
    "wait_s=300&": PollQuery(300.0, [], []),
}
UNUSUAL = ["", "wait_s=", "wait_s=-1", "wait_s=301", "wait_s=1e2", "wait_s=nan", "wait_s=1&wait_s=2", "wait_s=1&new=2"]
UNUSUAL += ["wait_s=\u0662", "wait_s=1" + "&job=a" * (LISTED_MAX + 1)]


@pytest.mark.parametrize("query", USUAL)
def test_requests_of_our_clients_take_the_fast_path(query: str) -> None:
    assert parse_poll(query) == USUAL[query]


@pytest.mark.parametrize("query", UNUSUAL)
def test_unusual_requests_take_the_usual_route(query: str) -> None:
    assert parse_poll(query) is None


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the requests of the fast path."""
    found: list[str] = []
    for name in ("_poll", "_report", "_download", "_upload"):
        real = getattr(fast_path.FastPath, name)

        async def noted(self: Any, *given: Any, name: str = name, real: Any = real) -> Any:
            found.append(name)
            return await real(self, *given)

        monkeypatch.setattr(fast_path.FastPath, name, noted)
    return found


LONG = {"params": {"other": "1"}}
"""Changes that make a request unusual, and nothing else."""


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


def test_fast_path_and_route_give_the_same_answer(coordinator: Inside, taken: list[str]) -> None:
    stage = set_up(coordinator)
    node, task = stage.nodes[0], stage.tasks["n0"]
    held = f"main:{task.id[0]}.{task.id[1]}"
    taken.clear()
    for params in ({}, {"held": held}, {"held": held, "job": "main"}, {"held": "gone:1.1"}, {"held": "wrong"}):
        short, long = both(node, taken, "GET", "/work", params={"wait_s": 0, **params})
        assert short == long
    for job in ("main", "unknown"):
        more = {"content": b"nonsense", "headers": {"content-type": codec.MEDIA_TYPE}}
        short, long = both(node, taken, "POST", f"/jobs/{job}/reports", **more)
        assert short == long
        assert short[0] == (422 if job == "main" else 404)
    stage.close()


def test_blobs_come_and_go_alike_on_both_paths(coordinator: Inside, taken: list[str]) -> None:
    stage = set_up(coordinator)
    node, body = stage.nodes[0], stage.tasks["n0"].blob
    assert body is not None
    blob, other, data = f"/jobs/main/blobs/{body.digest}", f"/jobs/main/blobs/{'0' * 64}", b"".join(stage.frame())
    asked: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", blob, {}, 200),
        ("GET", blob, {"headers": {"range": "bytes=3-9"}}, 206),
        ("GET", blob, {"headers": {"range": f"bytes={body.nbytes}-"}}, 416),
        ("GET", blob, {"headers": {"if-none-match": f'"sha256:{body.digest}"'}}, 304),
        ("GET", blob, {"headers": {"authorization": "Bearer no"}}, 401),
        ("GET", other, {}, 409),
        ("GET", other.replace("main", "unknown"), {}, 404),
        ("PUT", other, {"content": data}, 422),
        ("PUT", other, {"content": b""}, 422),
        ("PUT", blob, {"content": bytes(body.nbytes)}, 200),
        ("PUT", blob, {"content": b"x", "headers": {"content-range": "bytes 5-6/100"}}, 416),
        ("PUT", blob, {"content": b"x", "headers": {"shoal-protocol": "99"}}, 426),
    ]
    taken.clear()
    for method, path, more, status in asked:
        short, long = both(node, taken, method, path, **more)
        assert short == long
        assert short[0] == status
    stage.close()


def test_a_report_in_several_chunks_is_read_whole(coordinator: Inside, taken: list[str]) -> None:
    stage = set_up(coordinator)
    said = b"".join(stage.frame())
    who = stage.nodes[0].client.headers["Authorization"]
    about = {"Content_Type": codec.MEDIA_TYPE, "Content_Length": len(said), "Connection": "close"}
    taken.clear()
    with connected(coordinator.url) as raw:
        raw.sendall(head("POST", "/api/v1/jobs/main/reports", Authorization=who, **about) + said[:10])
        until("the first piece to be there", lambda: taken)
        for piece in (said[10:20], said[20:]):
            raw.sendall(piece)
            coordinator.call(asyncio.sleep(0))  # so that it is read before the next is sent
        found, _, sent = answer(raw).partition(b"\r\n\r\n")
    assert b" 200 " in found.splitlines()[0]
    assert codec.decode(sent).message.counted  # type: ignore[union-attr]
    assert taken == ["_report"]
    stage.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": "Bearer no"}, 401), ({"authorization": ""}, 401), ({"shoal-protocol": "99"}, 426)],
)
def test_credentials_are_checked_on_both_paths(
    coordinator: Inside, taken: list[str], headers: dict[str, str], status: int
) -> None:
    node = by_hand(coordinator, "n0")
    taken.clear()
    short, long = both(node, taken, "GET", "/work", params={"wait_s": 0}, headers=headers)
    assert short == long
    assert short[0] == status
    node.client.close()


def test_an_internal_error_is_answered_and_logged(
    coordinator: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = by_hand(coordinator, "n0")

    async def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ReportPipeline, "handle_report", broken)
    answer = node.once("POST", "/jobs/main/reports", content=b"x", headers={"content-type": codec.MEDIA_TYPE})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    until("the log to have it", lambda: "planted" in caplog.text)  # it is written after the answer
    node.client.close()
