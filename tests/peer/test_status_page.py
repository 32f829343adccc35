"""A node's own page, and `shoal peer status`: both show what the node sees, and the page runs and fetches nothing."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.peering.http.node_overview import NodeOverview, PeerOverview, overview
from shoal.peering.http.status_page import HEADERS, STYLE, render
from tests.peer.scenario import folders, node, until
from tests.support.ports import free_ports

HOSTILE = "<script>alert(1)</script>'\""


def test_every_text_on_the_page_is_escaped() -> None:
    row = PeerOverview(HOSTILE, HOSTILE, 1, None, 2, 3, HOSTILE)
    page = render(HOSTILE, [NodeOverview(HOSTILE, HOSTILE, HOSTILE, 1, 2, {}, (row,), (HOSTILE,))])
    assert "<script" not in page
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;alert(1)") >= 7
    assert "http://" not in page
    assert "https://" not in page


def test_nothing_may_be_fetched_or_run_by_the_page() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert STYLE in render("a", [])


def test_both_kinds_of_status_are_read() -> None:
    alone = {"peers": {"b": {"state": "dead", "last_error": "refused"}}, "exchanges_by_peer": {"b": 4}}
    alone |= {"bytes": {"sent": {"b": 5}, "received": {"b": 6}}, "last_exchange_s": {"b": 1.5}, "waiting": ["for b"]}
    found = overview({"job": "j", "node": "a", "phase": "learning", "local_rounds": 1, "rounds": 2, **alone})
    assert found.peers == (PeerOverview("b", "dead", 4, 1.5, 5, 6, "refused"),)
    assert found.problems == ("for b",)
    coordinated = {"peers": {"b": {"state": "alive", "exchanges": 4, "sent": 5, "received": 6}}, "quarantine": ["b"]}
    found = overview({"job": "j", "node": "a", "state": "gossip", "refused": {"machine": 2}, **coordinated})
    assert found.peers == (PeerOverview("b", "alive", 4, None, 5, 6, "in quarantine"),)
    assert (found.phase, found.live, found.problems) == ("gossip", 1, ("machine: 2 refused",))


def test_a_node_shows_whom_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scene() -> None:
        ports = free_ports(2)
        peers = folders(tmp_path, "ab", ports=ports, rounds=3)
        async with node(peers / "a", 1, port=ports[0]) as a, node(peers / "b", 2, port=ports[1]):
            await until(lambda: a.group.router.exchanges.counts["b"])
            url = f"http://127.0.0.1:{ports[0]}"
            async with httpx.AsyncClient() as client:
                answer = await client.get(url)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
            assert "<td>b</td>" in answer.text
            assert "s ago" in answer.text
            for arguments in (
                ("peer", "status", url),
                ("jobs", "peers", "toys", "--via", url),
                ("peer", "status", "peers/a"),
            ):
                call = partial(CliRunner().invoke, app, ["--json", *arguments])
                said = await asyncio.to_thread(call)
                (found,) = json.loads(said.stdout)["data"]["jobs"]
                assert (found["job"], found["node"]) == ("toys", "a")
            said = await asyncio.to_thread(partial(CliRunner().invoke, app, ["peer", "status", url]))
            assert "1 of 1 others here" in said.output

    asyncio.run(scene())


def test_a_coordinator_that_does_not_answer_is_not_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["jobs", "peers", "toys", "--url", f"http://127.0.0.1:{free_ports(1)[0]}"])
    assert said.exit_code == 3
    assert "shoal jobs peers toys --via URL-OF-A-NODE" in " ".join(said.output.split())
