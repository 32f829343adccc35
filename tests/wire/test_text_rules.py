"""Text from others is checked by one rule, wherever it comes in: no half of a character and no NUL is taken."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import InvalidPayload, ShoalError
from shoal.peering.http.roster_updates import read_bundle
from shoal.peering.roster.invitation import PREFIX, read_joining, read_token
from shoal.peering.roster.join_certificate import read_entry
from shoal.results.run_record import RunRecord, dump_record, load_record
from shoal.runtime.http import sse
from shoal.runtime.http.client import Link
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.node_client import NodeClient
from shoal.validation.strict_json import text_flaw
from shoal_coordinator.cluster.rpc import RpcReply
from shoal_edge_client.peering.node_state import NodeState
from shoal_edge_client.peering.recovery.local_checkpoints import offers_in
from tests.support.http_servers import Said, answering

BAD = pytest.mark.parametrize("bad", ["\\ud800", "\\u0000"], ids=["half", "nul"])
URLS = ["http://127.0.0.1:9001/TEXT"]
RECORD = RunRecord(
    name="TEXT",
    state="finished",
    algorithm="fedavg",
    schedule="rounds",
    seed=1,
    origin="simulation",
    up_bytes=0,
    down_bytes=0,
    versions=(),
)


def token(text: bytes) -> Any:
    """Read an invitation that holds this JSON."""
    return read_token(PREFIX + urlsafe_b64encode(zlib.compress(text)).decode().rstrip("="))


def event(text: bytes) -> Any:
    """Read an event that has this JSON as its data."""
    return list(sse.parse([b"data: ", text, b"\n\n"]))


def answered(read: Callable[[NodeClient], Any]) -> Callable[[bytes], Any]:
    """Return a reader that gets its JSON as the answer of a server."""

    def reader(text: bytes) -> Any:
        with answering(lambda asked: Said(200, text)) as url, NodeClient(url) as client:
            return read(client)

    return reader


READERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "entry": (read_entry, {"certificate": "c", "urls": URLS}),
    "request to join": (
        read_joining,
        {"invitation": "i", "node": "b", "public_key": f"ed25519:{'0' * 64}", "urls": URLS},
    ),
    "invitation": (token, ["j", URLS, "0" * 64, "i"]),
    "papers for a newcomer": (read_bundle, {"job": "TEXT", "charter": "c", "roster": "r"}),
    "event": (event, {"text": "TEXT"}),
    "answer": (answered(lambda client: client.link.json("GET", "/x")), {"text": "TEXT"}),
    "papers": (
        answered(lambda client: client.trust_documents("j")),
        {"version": 1, "charter": "", "roster": "", "more": "TEXT"},
    ),
    "manifest": (answered(lambda client: client.manifest("j")), {"manifest": "", "more": "TEXT"}),
    "another coordinator's answer": (lambda text: RpcReply(200, {}, text).json(), {"text": "TEXT"}),
    "record": (lambda text: load_record(text.decode(), "a.json"), json.loads(dump_record(RECORD))),
}


SERVED = ("answer", "papers", "manifest")
OVER_HTTP = pytest.mark.usefixtures("sockets")


def refuses(name: str, bad: str) -> None:
    """Let a reader read its text as it should be, and with a text that may not be there."""
    read, values = READERS[name]
    text = json.dumps(values)
    assert read(text.encode()) is not None
    with pytest.raises((ShoalError, ValueError)) as refused:
        read(text.replace("TEXT", bad).encode())
    assert text_flaw(str(refused.value)) == ""


@BAD
@pytest.mark.parametrize("name", [name for name in READERS if name not in SERVED])
def test_a_reader_refuses_such_a_text(name: str, bad: str) -> None:
    refuses(name, bad)


@BAD
@OVER_HTTP
@pytest.mark.parametrize("name", SERVED)
def test_a_client_refuses_an_answer_with_such_a_text(name: str, bad: str) -> None:
    refuses(name, bad)


@BAD
@OVER_HTTP
def test_a_refusal_can_be_shown(bad: str) -> None:
    said = Said(409, b'{"detail": "TEXT", "code": "TEXT", "hint": "TEXT"}'.replace(b"TEXT", bad.encode()))
    with answering(lambda asked: said) as url, Link(url) as link, pytest.raises(ShoalError) as refused:
        link.json("GET", "/x")
    assert text_flaw([refused.value.message, refused.value.code, refused.value.hint]) == ""


@pytest.mark.parametrize("bad", ["\ud800", "\0"], ids=["half", "nul"])
@pytest.mark.parametrize("place", ["http://a{}", "http://{}a:1", "http://a:1/{}", "http{}://a", "{}"])
def test_no_address_holds_one(place: str, bad: str) -> None:
    with pytest.raises(ShoalError, match="is not an address") as refused:
        parse(place.format(bad))
    assert text_flaw(refused.value.message) == ""


# Texts of others that a node keeps


KEPT: dict[str, tuple[Callable[[NodeState], Any], Any]] = {
    "job": (
        lambda state: state.files.job_info(),
        {"spec": {"name": "j", "title": "TEXT"}, "created_at": "2026-01-01T00:00:00Z"},
    ),
    "documents": (lambda state: state.files.documents(), {"charter": "c", "roster": "r", "more": "TEXT"}),
    "grant": (lambda state: state.files.load("grant", dict), {"term": 1, "life": 1, "more": "TEXT"}),
    "checkpoints": (
        lambda state: state.checkpoints() or None,
        {"checkpoints": [{"manifest": "m", "model": ["0" * 64, 8], "more": "TEXT"}]},
    ),
    "machine": (
        NodeState.load_peer,
        {"peer": {"gossip": None, "model": None, "term": 1, "more": "TEXT"}, "sums": None},
    ),
}


def write(folder: Path, bad: str = "TEXT", only: str = "") -> None:
    """Write what a node keeps of a job, one of its files with that text."""
    (folder / "peer").mkdir(parents=True, exist_ok=True)
    for name, (_, values) in KEPT.items():
        text = json.dumps(values).replace("TEXT", bad if name == only else "TEXT")
        (folder / "peer" / f"{name}.json").write_text(text)


@BAD
@pytest.mark.parametrize("name", KEPT)
def test_node_state_discards_a_file_with_invalid_text(tmp_path: Path, name: str, bad: str) -> None:
    read, _ = KEPT[name]
    write(tmp_path / "j")
    assert read(NodeState(tmp_path / "j", "j")) is not None
    write(tmp_path / "j", bad, name)
    assert read(NodeState(tmp_path / "j", "j")) is None


@BAD
@pytest.mark.parametrize("name", ["job", "documents", "checkpoints", "machine"])
def test_a_file_with_invalid_text_is_no_checkpoint_offer(tmp_path: Path, name: str, bad: str) -> None:
    write(tmp_path / "c/jobs/j")
    (offer,) = offers_in(tmp_path)
    assert offer.node == ""
    write(tmp_path / "c/jobs/j", bad, name)
    with pytest.raises(InvalidPayload, match="a text with"):
        offers_in(tmp_path)


@BAD
def test_nor_is_a_node_with_such_a_name(tmp_path: Path, bad: str) -> None:
    write(tmp_path / "c/jobs/j")
    (tmp_path / "c/credential.json").write_text(f'{{"name": "{bad}"}}')
    with pytest.raises(InvalidPayload, match="a text with"):
        offers_in(tmp_path)
