"""Nodes as peers: what they show and tell, and what they are given for it."""

from __future__ import annotations

from typing import Any

import httpx

from shoal.trust.documents import Charter, Roster, open_charter, verify_document
from shoal.trust.keys import SigningKey
from tests.support.scenario import Stage

GOSSIP = {"allowed": True}
KEYS = {name: SigningKey.make() for name in ("n0", "n1", "n2", "other")}
OPEN: dict[str, Any] = {"lease_s": 86_400.0}


def peer_info(name: str, port: int = 9001, key: str = "") -> dict[str, Any]:
    """Return a node's description; without a port it cannot be called."""
    urls = [f"http://10.0.0.{name[-1]}:{port}"] if port else []
    return {"public_key": KEYS[key or name].public_key, "urls": urls, "is_reachable": bool(urls)}


def hello(stage: Stage, name: str, peer: dict[str, Any] | None) -> httpx.Response:
    return stage.send(name, "POST", "/hello", json={"peer": peer})


def poll(stage: Stage, name: str, **params: Any) -> str:
    """The lease that a poll of that node is answered with."""
    found = stage.send(name, "GET", "/work", params={"wait_s": 0, **params})
    assert found.status_code in (200, 204)
    return found.headers.get("shoal-term", "")


def documents(stage: Stage, name: str = "n0", job: str = "main") -> tuple[Charter, Roster]:
    """A job's documents, as a node takes them."""
    found = stage.send(name, "GET", f"/jobs/{job}/trust")
    assert found.status_code == 200, found.text
    answer = found.json()
    charter = open_charter(answer["charter"].encode())
    roster = verify_document(answer["roster"].encode(), Roster, charter)
    assert roster.version == answer["version"]
    assert found.headers["etag"] == f'"{roster.version}"'
    return charter, roster


def join_as_peers(stage: Stage, *names: str) -> None:
    """These nodes become peers."""
    for name in names:
        assert hello(stage, name, peer_info(name)).status_code == 200
        poll(stage, name)


def status_report(process_number: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a peer's status, correct except for the changes."""
    edge = {"state": "alive", "exchanges": 12, "sent": 1000, "received": 900, "rtt_ms": 3.1, "carried": 0}
    told = {
        "process_number": process_number,
        "state": "gossip",
        "term": 2,
        "local_rounds": 17,
        "weight": 1200.0,
        "rounds_by_peer": {"n0": 17, "n1": 16},
    }
    return {**told, "peers": {"n1": edge}, "refused": {"trust.signature": 2}, "model_projection": [0.5] * 32, **changes}


def send_status(stage: Stage, name: str = "n0", **told: Any) -> httpx.Response:
    return stage.send(name, "POST", "/jobs/main/peer-status", json=told)
