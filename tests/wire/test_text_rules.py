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
from shoal.record import RunRecord, dumped, loaded
from shoal.runtime import sse
from shoal.runtime.address import parse
from shoal.runtime.http import Link
from shoal.runtime.node_link import NodeLink
from shoal.strict_json import flaw
from shoal_coordinator.inside import Reply
from shoal_edge_client.peering.desk import Desk
from shoal_edge_client.peering.offers import offers_in
from shoal_peer.entry import read_entry
from shoal_peer.invitation import PREFIX, read_joining, read_token
from shoal_peer.rosters import read_bundle
from tests.runtime.servers import Said, answering

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


def answered(read: Callable[[NodeLink], Any]) -> Callable[[bytes], Any]:
    """Return a reader that gets its JSON as the answer of a server."""

    def reader(text: bytes) -> Any:
        with answering(lambda asked: Said(200, text)) as url, NodeLink(url) as link:
            return read(link)

    return reader


READERS: dict[str, tuple[Callable[[bytes], Any], Any]] = {
    "entry": (read_entry, {"certificate": "c", "urls": URLS}),
    "request to join": (
        read_joining,
        {"invitation": "i", "node": "b", "pub": f"ed25519:{'0' * 64}", "urls": URLS},
    ),
    "invitation": (token, ["j", URLS, "0" * 64, "i"]),
    "papers for a newcomer": (read_bundle, {"job": "TEXT", "charter": "c", "roster": "r"}),
    "event": (event, {"text": "TEXT"}),
    "answer": (answered(lambda link: link.json("GET", "/x")), {"text": "TEXT"}),
    "papers": (answered(lambda link: link.papers("j")), {"version": 1, "charter": "", "roster": "", "more": "TEXT"}),
    "manifest": (answered(lambda link: link.manifest("j")), {"manifest": "", "more": "TEXT"}),
    "another coordinator's answer": (lambda text: Reply(200, {}, text).json(), {"text": "TEXT"}),
    "record": (lambda text: loaded(text.decode(), "a.json"), json.loads(dumped(RECORD))),
}


@BAD
@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_such_a_text(name: str, bad: str) -> None:
    read, values = READERS[name]
    text = json.dumps(values)
    assert read(text.encode()) is not None
    with pytest.raises((ShoalError, ValueError)) as refused:
        read(text.replace("TEXT", bad).encode())
    assert flaw(str(refused.value)) == ""


@BAD
def test_a_refusal_can_be_shown(bad: str) -> None:
    said = Said(409, b'{"detail": "TEXT", "code": "TEXT", "hint": "TEXT"}'.replace(b"TEXT", bad.encode()))
    with answering(lambda asked: said) as url, Link(url) as link, pytest.raises(ShoalError) as refused:
        link.json("GET", "/x")
    assert flaw([refused.value.message, refused.value.code, refused.value.hint]) == ""


@pytest.mark.parametrize("bad", ["\ud800", "\0"], ids=["half", "nul"])
@pytest.mark.parametrize("place", ["http://a{}", "http://{}a:1", "http://a:1/{}", "http{}://a", "{}"])
def test_no_address_holds_one(place: str, bad: str) -> None:
    with pytest.raises(ShoalError, match="is no address") as refused:
        parse(place.format(bad))
    assert flaw(refused.value.message) == ""


# What a node keeps of others


KEPT: dict[str, tuple[Callable[[Desk], Any], Any]] = {
    "job": (Desk.page, {"spec": {"name": "j", "title": "TEXT"}, "created_at": "2026-01-01T00:00:00Z"}),
    "papers": (Desk.papers, {"charter": "c", "roster": "r", "more": "TEXT"}),
    "grant": (lambda desk: desk.grant().term or None, {"term": 1, "life": 1, "more": "TEXT"}),
    "checkpoints": (
        lambda desk: desk.checkpoints() or None,
        {"checkpoints": [{"manifest": "m", "model": ["0" * 64, 8], "more": "TEXT"}]},
    ),
    "standing": (Desk.standing, {"peer": {"gossip": None, "model": None, "term": 1, "more": "TEXT"}, "books": None}),
}


def write(folder: Path, bad: str = "TEXT", only: str = "") -> None:
    """Write what a node keeps of a job, one of its files with that text."""
    (folder / "peer").mkdir(parents=True, exist_ok=True)
    for name, (_, values) in KEPT.items():
        text = json.dumps(values).replace("TEXT", bad if name == only else "TEXT")
        (folder / "peer" / f"{name}.json").write_text(text)


@BAD
@pytest.mark.parametrize("name", KEPT)
def test_a_desk_gives_such_a_file_up(tmp_path: Path, name: str, bad: str) -> None:
    read, _ = KEPT[name]
    write(tmp_path / "j")
    assert read(Desk(tmp_path / "j", "j")) is not None
    write(tmp_path / "j", bad, name)
    assert read(Desk(tmp_path / "j", "j")) is None


@BAD
@pytest.mark.parametrize("name", ["job", "papers", "checkpoints", "standing"])
def test_such_a_file_is_no_offer(tmp_path: Path, name: str, bad: str) -> None:
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
