"""The coordinator is killed and its disk is gone: its nodes carry the job on, and it is rebuilt from one of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.trust.documents import Manifest, open_charter, sign_document, verify_document
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import SigningKey, load_key
from tests.peering.scenario import JOB, LONG, ROOT, SHORT, Process, Threaded, acquainted, begin, model, versions
from tests.support.coordinator import OPERATOR, Server
from tests.support.learners import CountingLearner
from tests.support.waiting import PATIENCE_S, until


class Lost:
    """A coordinator's data folder, of which only the key was saved."""

    def __init__(self, server: Server, tmp_path: Path) -> None:
        self.server, self.key = server, tmp_path / "saved.pem"
        self.job = server.job(JOB)
        self.rows = {row["number"]: row for row in versions(server)}
        shutil.copy2(server.folder / "coordinator.pem", self.key)

    def lose(self) -> None:
        """Killed, and the disk with it; then a new one, empty but for the key."""
        self.server.kill()
        shutil.rmtree(self.server.folder)

    def start(self) -> None:
        self.server.folder.mkdir()
        shutil.copy2(self.key, self.server.folder / "coordinator.pem")
        self.server.start()

    def restore(self, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
        """`shoal restore --json`: exit code and envelope."""
        key = self.server.folder / "coordinator.pem"
        command = [sys.executable, "-m", "shoal", "restore", "--json", "--url", self.server.url, "--key", str(key)]
        environment = {**os.environ, "SHOAL_CLIENT__TOKEN": OPERATOR}
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            env=environment,
            cwd=ROOT,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.stdout, done.stderr.decode()
        return done.returncode, json.loads(done.stdout)


def kept(folder: Path) -> Path:
    """Where a node keeps what its coordinator has signed."""
    (found,) = folder.glob(f"*/jobs/{JOB}/peer/checkpoints.json")
    return found


def newest(folder: Path) -> int:
    """The newest version that a node has kept; -1: none."""
    found = list(folder.glob(f"*/jobs/{JOB}/peer/checkpoints.json"))
    rows = json.loads(found[0].read_bytes())["checkpoints"] if found else []
    return max((int(json.loads(row["manifest"])["document"]["version"]) for row in rows), default=-1)


def forge(folder: Path, away: int) -> None:
    """That node claims a much newer version, signed by itself."""
    path = kept(folder)
    rows = json.loads(path.read_bytes())["checkpoints"]
    charter = open_charter(json.loads(path.with_name("documents.json").read_bytes())["charter"].encode())
    true = verify_document(rows[0]["manifest"].encode(), Manifest, charter)
    key = SigningKey.make()
    wrong = sign_document(
        replace(true, version=true.version + away), key, replace(charter, coordinator_public_key=key.public_key)
    )
    rows.insert(0, {**rows[0], "manifest": wrong.decode()})
    path.write_text(json.dumps({"checkpoints": rows}))


@pytest.mark.timeout(300)
def test_a_lost_coordinator_is_rebuilt_from_one_node(
    server: Server, process: Callable[..., Process], tmp_path: Path
) -> None:
    begin(server, 3, **SHORT)
    nodes = {name: process(name, weight=10.0 * at, pause_s=0.3) for at, name in enumerate("abc", 1)}
    for node in nodes.values():
        node.start()
    acquainted(server, list(nodes.values()))
    until("signed versions", lambda: min(newest(tmp_path / name) for name in nodes) >= 1, every_s=0.1)
    lost = Lost(server, tmp_path)
    lost.lose()
    until("all to gossip", lambda: all(node.status().get("state") == "gossip" for node in nodes.values()), every_s=0.1)
    until("rounds", lambda: all(node.status().get("local_rounds", 0) >= 3 for node in nodes.values()), every_s=0.1)
    nodes["c"].kill()
    forge(tmp_path / "c", away=5)
    lost.start()
    made = nodes["b"].status()["local_rounds"]
    nodes["b"].kill()
    nodes["b"].start()  # with a token that it used up long ago
    until(
        "b to carry on though nobody knows it", lambda: nodes["b"].status().get("local_rounds", 0) > made, every_s=0.1
    )
    address = f"http://127.0.0.1:{nodes['a'].port}"
    code, found = lost.restore("--from", address, "--from", tmp_path / "c", "--dry-run")
    assert (code, server.get("/jobs")["jobs"]) == (0, []), "only a look"
    (refused,) = found["data"]["refused"]
    version = found["data"]["jobs"][0]["version"]
    assert (refused["node"], refused["code"]) == ("c", "trust.signature")
    what, _, number = refused["what"].rpartition(" ")
    assert (what, int(number) > version) == ("manifest of version", True)
    code, found = lost.restore("--from", address, "--from", tmp_path / "c", "--yes")
    assert code == 0, found
    (row,) = found["data"]["jobs"]
    assert row["restored"]
    job = server.job(JOB)
    assert job["created_at"] == lost.job["created_at"]
    assert job["restored_from"]["version"] == row["version"]
    restored = versions(server)[0]
    assert restored["number"] == row["version"]
    assert restored["digest"] == row["model_sha256"] == lost.rows.get(row["version"], restored)["digest"]
    nodes["c"].start()
    until("all to be back", lambda: all(n.status().get("state") == "coordinated" for n in nodes.values()), every_s=0.1)
    until("versions to go on", lambda: server.job(JOB)["version"] >= row["version"] + 3)
    rows = versions(server)
    assert [one["number"] for one in rows] == list(range(row["version"], row["version"] + len(rows)))
    merged = next(one for one in rows if one["why"].startswith("back at the server"))
    assert merged["metrics"] or merged["reports"], "what they have learned meanwhile"
    assert model(server, merged["number"]) > model(server, merged["number"] - 1) + 2.0
    assert all(node.status()["term"] > row["term_seen"] for node in nodes.values())
    assert {one["name"] for one in server.get("/nodes")["nodes"]} == set(nodes), "nobody has enrolled anew"


def test_nodes_that_have_not_gone_away_come_back_as_well(
    server: Server, threaded: Callable[..., Threaded], tmp_path: Path
) -> None:
    """They have not missed it for long enough. One was removed before, and stays out."""
    begin(server, 2, **LONG)
    nodes = {name: threaded(name, CountingLearner(10.0, 0.1), retry_pause_max_s=0.5) for name in "abc"}
    acquainted(server, list(nodes.values()))
    server.request("DELETE", "/api/v1/nodes/c")
    until("c to end", lambda: nodes["c"].outcome)
    rosters = [tmp_path / name for name in "ab"]
    until("all to know that c is out", lambda: all('revoked_peer_ids\\":[\\"' in _papers(folder) for folder in rosters))
    until("a signed version", lambda: min(newest(folder) for folder in rosters) >= 1)
    lost = Lost(server, tmp_path)
    lost.lose()
    lost.start()
    code, found = lost.restore("--from", tmp_path, "--yes")
    assert code == 0, found
    version = found["data"]["jobs"][0]["version"]
    until("versions to go on", lambda: server.job(JOB)["version"] >= version + 2)
    assert [nodes[name].outcome for name in "ab"] == [[], []]
    back = threaded("c", CountingLearner(10.0, 0.1), token="")  # with its folder of old
    until("its end", lambda: back.outcome)
    assert getattr(back.outcome[0], "code", "") == "trust.revoked"
    assert {one["name"] for one in server.get("/nodes")["nodes"]} == {"a", "b"}


def _papers(folder: Path) -> str:
    found = list(folder.glob(f"*/jobs/{JOB}/peer/documents.json"))
    return found[0].read_text() if found else ""


def test_only_the_coordinators_key_opens_what_a_node_has_kept(
    server: Server, threaded: Callable[..., Threaded], tmp_path: Path
) -> None:
    begin(server, 2, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.1)) for name in "ab"]
    acquainted(server, nodes)
    until("a signed version", lambda: newest(tmp_path / "a") >= 1)
    assert nodes[0].agent.session.peering is not None
    (address,) = nodes[0].agent.session.peering.listener.contact().urls
    about = httpx.get(f"{address}/p2p").json()
    assert about == {"peer_id": nodes[0].agent.session.peering.listener.key.peer_id, "jobs": [JOB]}
    assert httpx.get(f"{address}/p2p/{JOB}/checkpoint").status_code == 409, "nobody has signed"
    lost = Lost(server, tmp_path)
    code, found = lost.restore("--from", address, "--dry-run")
    assert (code, found["data"]["jobs"][0]["held_by"]) == (0, ["a"])
    code, found = lost.restore("--from", address, "--yes")
    assert code == 1, "the job is there"
    assert found["data"]["jobs"][0]["code"] == "job.exists"
    (server.folder / "coordinator.pem").write_bytes(SigningKey.make().pem())
    code, found = lost.restore("--from", address, "--dry-run")
    assert (code, found["error"]["code"]) == (1, "restore.nothing")


@pytest.mark.parametrize("what", ["a peer's key", "again"])
def test_who_else_asks_is_refused(server: Server, threaded: Callable[..., Threaded], tmp_path: Path, what: str) -> None:
    begin(server, 2, **LONG)
    nodes = [threaded(name, CountingLearner(10.0, 0.1)) for name in "ab"]
    acquainted(server, nodes)
    until("a signed version", lambda: newest(tmp_path / "a") >= 1)
    first, second = (node.agent.session.peering for node in nodes)
    assert first is not None
    assert second is not None
    (address,) = first.listener.contact().urls
    charter = open_charter(json.loads(_papers(tmp_path / "a"))["charter"].encode())
    key = second.listener.key if what == "a peer's key" else load_key(server.folder / "coordinator.pem")
    signer = Signer(key, charter, 2**53)
    request = signer.request(first.listener.key.peer_id, "GET", f"/p2p/{JOB}/checkpoint", "", sha256(b""))
    answer = httpx.get(f"{address}/p2p/{JOB}/checkpoint", headers=request.headers())
    if what == "again":
        assert answer.status_code == 200
        assert answer.json()["node"] == "a"
        answer = httpx.get(f"{address}/p2p/{JOB}/checkpoint", headers=request.headers())
    wanted = "trust.signer" if what == "a peer's key" else "trust.replayed"
    assert (answer.status_code, answer.json()["code"]) == (403, wanted)
