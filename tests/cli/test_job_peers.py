"""`shoal jobs peers`: what people read of nodes as each other's peers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.client import api as module
from shoal.runtime.http.retry import Backoff
from tests.cli.conftest import Shoal
from tests.support.coordinator_views import a_job
from tests.support.fake_coordinator import FakeCoordinator, at


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't wait for reconnections."""
    monkeypatch.setattr(module, "TICK_S", 0.02)
    monkeypatch.setattr(module, "RECONNECT", Backoff(0.01, 0.02, 2.0))


def a_peer(name: str, **changes: Any) -> dict[str, Any]:
    """A row of the view."""
    edge = {"state": "alive", "exchanges": 12, "sent": 2000, "received": 3000, "rtt_ms": 3.1}
    row = {
        "name": name,
        "peer_id": "a" * 20,
        "is_reachable": True,
        "state": "gossip",
        "changes": [],
        "told_s": 1.0,
        "process_number": 1,
    }
    row |= {
        "term": 2,
        "local_rounds": 17,
        "weight": 1200.0,
        "rounds_by_peer": {},
        "coverage": 0.875,
        "refused": {},
        "budget": None,
    }
    return {**row, "peers": {"other": edge, "third": {**edge, "state": "dead", "exchanges": 3}}, **changes}


POINT = {"at": "2026-01-02T03:04:05.000Z", "peers": 2, "consensus": 0.034, "residual": 1.5e-7, "coverage": 0.875}
SILENT = dict.fromkeys(("state", "told_s", "process_number", "term", "local_rounds", "weight", "coverage"))


def test_peers_in_a_table(shoal: Shoal, fake: FakeCoordinator) -> None:
    rows = [
        a_peer("a", refused={"trust.replayed": 2}, quarantine=["zoe"]),
        a_peer("b", told_s=40.0),
        a_peer("c", **SILENT, peers={}),
    ]
    fake.answers = {"GET /jobs/digits/peers": {"roster": 3, "peers": rows, "now": POINT, "history": [POINT]}}
    lines = shoal("jobs", "peers", "digits", env=at(fake)).stdout.splitlines()
    first = next(line for line in lines if line.strip().startswith("a "))
    for part in ("gossip", "17", "87.5 %", "1 alive, third dead", "15", "4 kB", "trust.replayed 2, zoe in"):
        assert part in first, (part, first)
    assert "gossip (40 s ago)" in next(line for line in lines if line.strip().startswith("b "))
    assert "alive" not in next(line for line in lines if line.strip().startswith("c "))
    said = "2 peers in mode gossip, consensus distance 3.4 %, coverage 87.5 %, conservation residual 1.5e-07"
    assert said in lines
    fake.answers["GET /jobs/digits/peers"] = {"roster": 3, "peers": rows[2:], "now": None, "history": []}
    assert "no peers: the coordinator runs this job" in shoal("jobs", "peers", "digits", env=at(fake)).stdout


def test_who_is_relayed_and_what_that_costs_the_other(shoal: Shoal, fake: FakeCoordinator) -> None:
    edge = {"state": "alive", "exchanges": 0, "sent": 1, "received": 1, "rtt_ms": 1.0}
    carrier = a_peer("a", state="coordinated", peers={"b": {**edge, "carried": 1_500_000}, "c": {**edge, "carried": 0}})
    rows = [carrier, a_peer("b", **SILENT, peers={}, relayed_by="a"), a_peer("c", relayed_by=None)]
    fake.answers = {"GET /jobs/digits/peers": {"roster": 3, "peers": rows, "now": None, "history": []}}
    lines = shoal("jobs", "peers", "digits", env=at(fake)).stdout.splitlines()
    assert "relayed" in lines[0] + lines[1]
    for name, text in (("a", "1.5 MB"), ("b", "⇄ relayed by a"), ("c", "gossip")):
        assert text in next(line for line in lines if line.strip().startswith(f"{name} ")), text


def test_budgets_are_shown_where_there_are_any(shoal: Shoal, fake: FakeCoordinator) -> None:
    some = {"bytes_per_hour": 1e8, "left": 12_500_000.0, "wait_s": 0.0}
    rows = [a_peer("a", budget=some), a_peer("b", budget={**some, "left": -3.0, "wait_s": 75.0}), a_peer("c")]
    view = {"roster": 3, "peers": rows, "now": POINT, "history": [POINT]}
    fake.answers = {"GET /jobs/digits/peers": view}
    lines = shoal("jobs", "peers", "digits", env=at(fake)).stdout.splitlines()
    for name, text in (("a", "12.5 MB left"), ("b", "limit reached, next exchange in 1 min 15 s")):
        assert text in next(line for line in lines if line.strip().startswith(f"{name} ")), lines
    fake.answers = {"GET /jobs/digits/peers": {**view, "peers": rows[2:]}}
    assert "budget" not in shoal("jobs", "peers", "digits", env=at(fake)).stdout


def test_peers_are_watched_until_the_job_has_ended(shoal: Shoal, fake: FakeCoordinator) -> None:
    def table(turn: int) -> dict[str, Any]:
        return {"roster": 3, "peers": [a_peer("a", local_rounds=turn)], "now": POINT, "history": [POINT]}

    def script() -> Iterator[tuple[str, Any]]:
        for turn, (topic, data) in enumerate((("hello", {}), ("peers", {}), ("job", a_job()), ("peers", {}))):
            fake.answers = {"GET /jobs/digits/peers": table(100 + turn)}
            yield topic, data
        yield "job", a_job(state="done")

    fake.answers = {"GET /jobs/digits/peers": table(100)}
    fake.events = [script()]
    result = shoal("jobs", "peers", "digits", "--watch", env=at(fake))
    assert result.exit_code == 0
    assert result.stdout.count("in mode gossip") == 4, "for three events, and at the end"
    assert "103" in result.stdout
