"""An operator's signed word, where no coordinator answers and the nodes would wait for votes for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.trust.documents import Charter, ModeRecord, canonical, charter_of, sign_document
from shoal.trust.keys import SigningKey, load_key
from tests.peering.scenario import JOB, ROOT, SHORT, Threaded, acquainted, begin
from tests.support.coordinator import Server
from tests.support.learners import CountingLearner
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def nodes(server: Server, threaded: Callable[..., Threaded]) -> list[Threaded]:
    """Three that miss their coordinator, and will not go away by themselves."""
    begin(server, 3, **{**SHORT, "failover_quorum": 9})
    made = [threaded(name, CountingLearner(10.0, 0.02)) for name in "abc"]
    acquainted(server, made)
    server.kill()
    until("all to suspect", lambda: all(node.peer.state == "suspect" for node in made))
    return made


def home(node: Threaded) -> str:
    """Where a node can be called."""
    assert node.agent.session.peering is not None
    return node.agent.session.peering.listener.contact().urls[0]


def address(node: Threaded) -> str:
    return f"{home(node)}/p2p/{JOB}"


def shoal(server: Server, node: Threaded, key: Path | str, to: str = "gossip") -> tuple[int, dict[str, Any]]:
    """Run `shoal switch … --via …`."""
    where = ["--via", home(node), "--key", str(key)]
    command = [sys.executable, "-m", "shoal", "--json", "switch", JOB, to, "--why", "it burns", *where]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return found.returncode, json.loads(found.stdout)


def test_all_nodes_follow_a_forced_failover(server: Server, nodes: list[Threaded]) -> None:
    code, answer = shoal(server, nodes[1], server.folder / "coordinator.pem")
    assert code == 0, answer
    term = answer["data"]["sent"]["term"]
    until("all to gossip", lambda: all(node.peer.state == "gossip" for node in nodes))
    assert {node.peer.term for node in nodes} == {term}
    server.start()
    until("all to be back", lambda: all(node.peer.state == "coordinated" for node in nodes))
    until("the job to go on", lambda: server.job(JOB)["mode"] == "server")
    base = answer["data"]["sent"]["base_version"]
    until("a version of what they learned", lambda: server.job(JOB)["version"] > base)


def test_an_invalid_forced_failover_is_ignored(server: Server, nodes: list[Threaded], tmp_path: Path) -> None:
    """Each is refused with a reason, counted, and moves no node."""
    node = nodes[0]
    (tmp_path / "other.pem").write_bytes(SigningKey.make().pem())
    (tmp_path / "other.pem").chmod(0o600)
    own = server.folder / "coordinator.pem"
    for key, to, code in (
        (tmp_path / "other.pem", "gossip", "mode.key"),
        (tmp_path / "none.pem", "gossip", "key.unreadable"),
        (own, "server", "mode.server"),
    ):
        assert shoal(server, node, key, to)[1]["error"]["code"] == code
    charter, key = charter_of(httpx.get(f"{address(node)}/charter").json()), load_key(own)
    term = node.peer.term
    refused: list[tuple[bytes, int, str]] = [
        (forged(charter), 403, "trust.signature"),
        (sign_document(record(term), key, charter), 409, "mode.not-now"),  # a word of the term that holds already
        (sign_document(record(term + 1, "server"), key, charter), 409, "mode.server"),
        (b"{}", 409, "trust.document"),
        (b"x" * 5000, 413, "body.too-large"),
    ]
    for content, status, code in refused:
        answer = httpx.post(f"{address(node)}/mode", content=content)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    counted = httpx.get(f"{address(node)}/status").json()["refused"]  # among what the dead coordinator's silence makes
    assert {code: counted.get(code) for _, _, code in refused} == {code: 1 for _, _, code in refused}
    assert {one.peer.state for one in nodes} == {"suspect"}
    sealed = sign_document(record(term + 1), key, charter)
    assert httpx.post(f"{address(node)}/mode", content=sealed).status_code == 204
    gossip = node.peer.gossip
    assert httpx.post(f"{address(node)}/mode", content=sealed).status_code == 204, "said twice it is one"
    assert node.peer.gossip is gossip


def record(term: int, mode: Any = "gossip") -> ModeRecord:
    return ModeRecord(JOB, term, 0, mode, 0, "0" * 64, "it burns", "operator")


def forged(charter: Charter) -> bytes:
    """As `seal` makes it, but signed by an unauthorized key."""
    other = SigningKey.make()
    fake = Charter(
        charter.job, charter.config_sha, charter.schema_sha, other.public_key, other.public_key, charter.policy
    )
    values = json.loads(sign_document(record(99), other, fake))
    return canonical(values)
