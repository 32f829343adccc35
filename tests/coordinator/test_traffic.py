"""Bytes: what the coordinator says has crossed the wire is what a proxy on the wire has counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.coordinator import Inside
from tests.support.node import Node
from tests.support.proxy import Fate, Proxy
from tests.support.waiting import until

SIZES = {"inline": 10, "large": 66_000}


def booked(running: Inside, direction: str) -> int:
    """All bytes of the database, of jobs and outside them."""
    query = "SELECT COALESCE(SUM(head_bytes + body_bytes), 0) FROM traffic WHERE direction = ?"
    return int(running.rows(query, direction)[0][0])


def through(proxy: Proxy, running: Inside, swarm: Callable[..., list[Node]], **more: bool) -> None:
    """Two jobs, operator and nodes alike on the far side of the proxy."""
    running.url = proxy.url
    for job in SIZES:
        running.begin(job, nodes=2, rounds=3)
    for node in swarm(running, 2, SIZES, **more):
        node.finish()
    for job in SIZES:
        until("the job to be done", lambda job=job: running.job(job)["state"] == "done")
        running.get(f"/jobs/{job}/versions")
        running.get(f"/jobs/{job}/events")
    running.request("GET", "/api/v1/jobs/large/models/3")
    running.request("GET", "/nowhere")
    assert running.request("GET", "/openapi.json").headers["content-encoding"] == "gzip"  # counted as it crosses
    running.request("POST", "/api/v1/jobs", content=b"{" * 5000)
    running.request("GET", "/api/v1/jobs", headers={"Authorization": "Bearer wrong"})


def test_every_byte_is_counted(tmp_path: Path, swarm: Callable[..., list[Node]]) -> None:
    running = Inside(tmp_path / "data").start()
    direct = running.url
    proxy = Proxy(lambda: direct)
    try:
        through(proxy, running, swarm, beats=True, fails_once=True)
    finally:
        running.stop()
        proxy.close()
    assert proxy.down > 800_000
    assert (booked(running, "up"), booked(running, "down")) == (proxy.up, proxy.down)


@pytest.mark.parametrize("fate", ["drop", "cut"])
def test_bytes_of_broken_exchanges_are_counted(fate: Fate, tmp_path: Path, swarm: Callable[..., list[Node]]) -> None:
    running = Inside(tmp_path / "data").start()
    direct = running.url
    proxy = Proxy(lambda: direct, lambda name, n: fate if n % 5 == 0 and name != "other" else None)
    try:
        through(proxy, running, swarm, breaks_uploads=True)
    finally:
        running.stop()
        proxy.close()
    assert proxy.lost.total() > 3
    assert booked(running, "up") == pytest.approx(proxy.up, rel=0.01)
    assert booked(running, "down") == pytest.approx(proxy.down, rel=0.01)


def test_the_parts_make_the_whole(coordinator: Inside, swarm: Callable[..., list[Node]]) -> None:
    coordinator.begin("large", nodes=2, rounds=3)
    for node in swarm(coordinator, 2, {"large": 66_000}):
        node.finish()
    until("the job to be done", lambda: coordinator.job("large")["state"] == "done")
    whole = coordinator.get("/jobs/large/traffic")
    job = coordinator.job("large")
    assert whole["total"] == {"up": job["up_bytes"], "down": job["down_bytes"]}
    for by in (["version"], ["node"], ["kind"], ["version", "node", "kind"]):
        parts = coordinator.get("/jobs/large/traffic", by=by)
        assert parts["total"] == whole["total"]
        for direction in ("up", "down"):
            sizes = [row["bytes"] for row in parts["rows"] if row["direction"] == direction]
            assert sum(sizes) == whole["total"][direction]
        assert all(row["bytes"] == row["head_bytes"] + row["body_bytes"] for row in parts["rows"])
    rows = coordinator.get("/jobs/large/traffic", by="kind")["rows"]
    kinds = {(row["kind"], row["direction"]): row for row in rows}
    model, blobs = 66_000 * 4, 7  # six updates and the initial model
    assert blobs * model < kinds["blob", "up"]["body_bytes"] < blobs * (model + 200)
    assert kinds["blob", "up"]["requests"] == blobs
    versions = coordinator.get("/jobs/large/versions")["versions"]
    assert all(version["up_bytes"] > 2 * model for version in versions[1:])
    assert versions[-1]["total_bytes"] <= sum(whole["total"].values())
    assert [v["total_bytes"] for v in versions] == sorted(v["total_bytes"] for v in versions)
