"""Words for the coordinator that go through another peer: for whom, how much, and what is never looked at."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.core.protocol.message import Poll
from shoal.peering.host.peer_group import PeerGroup
from shoal.peering.http.relay_server import AT_ONCE_EACH_MAX, MODELS_MAX, RelayAllowance, RelayUplink
from shoal.peering.state.byte_counts import ByteCounts
from shoal.peering.state.peer_state import PeerDocuments, read_documents
from shoal.runtime.http.client import Link
from shoal.runtime.http.relay import RelayedRequest, seal, seal_body
from shoal.trust.envelope import Signer
from shoal.trust.keys import SigningKey
from shoal.wire.payload import payload_layout
from tests.peer.scenario import folders, raw_exchange, until
from tests.peer.test_peer_group import running_group, with_roster
from tests.support.http_servers import Asked, Said, answering
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S

LENGTH = 3_000_000
DIGEST = "ab" * 32


HEADERS = {"Shoal-Protocol": "1", "Shoal-Signature": "of the coordinator", "Set-Cookie": "no"}


@dataclass
class Hub:
    """Notes what comes, and answers with its headers and a body of its own."""

    came: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    wait: threading.Event = field(default_factory=threading.Event)
    answer: bytes = b"\x07" * LENGTH
    cut: bool = False
    url: str = ""
    server: ExitStack = field(default_factory=ExitStack)

    def say(self, asked: Asked) -> Said:
        self.came.append((asked.method, asked.target, {k.lower(): v for k, v in asked.headers.items()}, asked.body))
        self.wait.wait(PATIENCE_S)
        status, length = 201 if asked.method == "PUT" else 200, len(self.answer)
        return (
            Said(status, self.answer[: length // 2], HEADERS, length)
            if self.cut
            else Said(status, self.answer, HEADERS)
        )


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    made.wait.set()
    with made.server:
        made.url = made.server.enter_context(answering(made.say))
        yield made
        made.wait.set()


@dataclass
class Scene:
    """`a` carries; `b` and `c` are peers of the same job."""

    carrier: PeerGroup
    folder: Path
    port: int

    def documents(self, name: str = "b") -> PeerDocuments:
        return read_documents(self.folder / name)

    def signer(self, name: str = "b", process_number: int = 1) -> Signer:
        documents = self.documents(name)
        return Signer(documents.key, documents.charter, process_number)

    async def asks(self, carried: RelayedRequest, content: Any = None, **headers: str) -> httpx.Response:
        """Return the relay's answer."""
        signed = carried.request
        url = f"http://127.0.0.1:{self.port}/p2p/toys/relay{signed.path}{'?' if signed.query else ''}{signed.query}"
        body = carried.content if content is None else content
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            return await client.request(signed.method, url, headers={**signed.headers(), **headers}, content=body)


@asynccontextmanager
async def scene(
    tmp_path: Path, hub: Hub, *, mib: float = 100.0, has_way: Callable[[], bool] = lambda: True
) -> AsyncIterator[Scene]:
    ports = free_ports(3)
    peers = folders(tmp_path, "abc", ports=ports)
    async with running_group(read_documents(peers / "a"), tmp_path / "x", ports[0]) as (made, _):
        with Link(hub.url, credential="shn_of_a") as link:
            counts = ByteCounts(tmp_path / "relayed_bytes.json")
            made.enable_relay(RelayUplink(link, RelayAllowance(mib * 2**20)), has_way, counts)
            yield Scene(made, peers, ports[0])
            link.abort()


def code(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["code"])


def test_it_goes_through_as_it_is_and_is_counted(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            signer = stage.signer()
            word = seal(signer, "b", 3, Poll("b"))
            answer = await stage.asks(word, Authorization="Bearer mine", Cookie="x=1")
            assert (answer.status_code, answer.content) == (200, hub.answer)
            assert answer.headers["shoal-signature"] == "of the coordinator"
            assert "set-cookie" not in answer.headers
            method, path, headers, body = hub.came[0]
            assert (method, path, body) == ("POST", "/api/v1/jobs/toys/relay?term=3", word.content)
            assert headers["authorization"] == "Bearer shn_of_a", "by the carrier's own way"
            assert "cookie" not in headers
            assert {name: headers[name.lower()] for name in word.request.headers()} == word.request.headers()
            await until(lambda: stage.carrier.peers()["b"]["carried"] > LENGTH)
            assert stage.carrier.peers()["c"]["carried"] == 0
            assert not stage.carrier.relay.open["b"]  # type: ignore[union-attr]  # it carries

    asyncio.run(play())


def test_long_bodies_go_both_ways_in_pieces(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            stage.carrier.expected_model.__dict__["layout"] = replace_layout(stage)
            signer = stage.signer()
            sent = b"\x05" * LENGTH
            up = await stage.asks(seal_body(signer, "PUT", DIGEST), sent, **{"Content-Range": "bytes 7-9/10"})
            assert up.status_code == 201
            assert hub.came[0][2]["content-range"] == "bytes 7-9/10"
            assert hub.came[0][3] == sent
            there = await stage.asks(seal_body(signer, "HEAD", DIGEST))
            assert (there.headers["content-length"], there.content) == (str(LENGTH), b"")
            down = await stage.asks(seal_body(signer, "GET", DIGEST), Range="bytes=5-")
            assert (down.content, hub.came[2][2]["range"]) == (hub.answer, "bytes=5-")
            long = MODELS_MAX * stage.carrier.expected_model.body_bytes + 2**21
            line = f"PUT /p2p/toys/relay/api/v1/jobs/toys/blobs/{DIGEST} HTTP/1.1"
            head = f"{line}\r\nHost: a\r\nContent-Length: {long}\r\n\r\n"
            assert b"413 " in await raw_exchange(stage.port, head.encode()), "before a byte of it was sent"

    asyncio.run(play())


def replace_layout(stage: Scene) -> Any:
    """A job of longer models than a toy's."""
    import numpy as np

    from shoal.core.model.tree import Tree

    assert stage.carrier.expected_model.body_bytes < LENGTH
    return payload_layout({"model": Tree.of({"w": np.zeros(200_000, np.float32)}).layout})


Try = Callable[[Scene, RelayedRequest], tuple[RelayedRequest, str]]
TRIES: dict[str, Callable[[Scene], tuple[RelayedRequest, int, str]]] = {
    "a stranger": lambda s: (
        seal(Signer(SigningKey.make(), s.documents().charter, 1), "b", 1, Poll("b")),
        403,
        "trust.stranger",
    ),
    "another signature": lambda s: (forged(s), 403, "trust.signature"),
    "for another than the coordinator": lambda s: (
        RelayedRequest(
            s.signer().request(s.documents("a").key.peer_id, "POST", "/api/v1/jobs/toys/relay", "term=1", DIGEST)
        ),
        409,
        "trust.addressee",
    ),
    "another job": lambda s: (path_of(s, "POST", "/api/v1/jobs/other/relay"), 404, "relay.path"),
    "another route": lambda s: (path_of(s, "POST", "/api/v1/jobs"), 404, "relay.path"),
    "another method": lambda s: (path_of(s, "GET", "/api/v1/jobs/toys/relay"), 404, "relay.path"),
    "a way out": lambda s: (path_of(s, "POST", "/api/v1/jobs/toys/relay/%2e%2e/stop"), 404, "relay.path"),
    "nobody's word": lambda s: (RelayedRequest(replace(forged(s).request, signature="x")), 409, "trust.head"),
}


def forged(stage: Scene) -> RelayedRequest:
    """`c` says it is `b`."""
    word = seal(stage.signer("c"), "b", 1, Poll("b"))
    return replace(word, request=replace(word.request, sender=stage.documents("b").key.peer_id))


def path_of(stage: Scene, method: str, path: str) -> RelayedRequest:
    signer = stage.signer()
    to = seal(signer, "b", 1, Poll("b")).request.to
    return RelayedRequest(signer.request(to, method, path, "", DIGEST))


@pytest.mark.parametrize("what", TRIES)
def test_not_for_everybody_and_not_everything(tmp_path: Path, hub: Hub, what: str) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            word, status, expected = TRIES[what](stage)
            assert code(await stage.asks(word), status) == expected
            assert hub.came == []
            assert stage.carrier.refusals.counts[expected] == 1

    asyncio.run(play())


def test_a_request_is_relayed_once(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            word = seal(stage.signer(), "b", 1, Poll("b"))
            assert (await stage.asks(word)).status_code == 200
            assert code(await stage.asks(word), 403) == "trust.replayed"
            assert len(hub.came) == 1

    asyncio.run(play())


def test_who_was_removed_from_the_roster_is_a_stranger(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            documents = stage.carrier.documents
            left = [peer for peer in documents.roster.peers if peer.node != "b"]
            stage.carrier.update_documents(with_roster(documents, stage.folder, left))
            assert code(await stage.asks(seal(stage.signer(), "b", 1, Poll("b"))), 403) == "trust.stranger"

    asyncio.run(play())


def test_who_has_no_way_of_its_own_passes_nothing_on(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub, has_way=lambda: False) as stage:
            answer = await stage.asks(seal(stage.signer(), "b", 1, Poll("b")))
            assert code(answer, 503) == "relay.no-way"
            assert int(answer.headers["retry-after"]) > 0
            assert hub.came == []

    asyncio.run(play())


def test_more_than_is_allowed_is_refused_with_the_time_to_wait(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub, mib=1.0) as stage:
            signer = stage.signer()
            assert (await stage.asks(seal(signer, "b", 1, Poll("b")))).content == hub.answer, "what has begun may end"
            answer = await stage.asks(seal(signer, "b", 1, Poll("b")))
            assert code(answer, 429) == "relay.budget"
            debt_min = (LENGTH - 2**20) / 2**20
            assert 60 * debt_min <= int(answer.headers["retry-after"]) <= 60 * debt_min + 3
            assert len(hub.came) == 1

    asyncio.run(play())


def test_an_allowance_fills_up_again_but_not_beyond_a_minute() -> None:
    now = 0.0
    allowance = RelayAllowance(600.0, lambda: now)
    allowance.spend(700)
    assert allowance.wait_s() == pytest.approx(11.0)
    now = 11.0
    assert allowance.wait_s() == 0.0
    now = 10_000.0
    allowance.spend(599)
    assert allowance.wait_s() == 0.0, "a minute's bytes were saved up"
    allowance.spend(1)
    assert allowance.wait_s() > 0.0, "but no more than that"
    assert RelayAllowance(0.0).is_none


def test_one_peer_cannot_take_all_turns(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            hub.wait.clear()
            signer = stage.signer()
            waiting = [
                asyncio.create_task(stage.asks(seal(signer, "b", 1, Poll("b")))) for _ in range(AT_ONCE_EACH_MAX)
            ]
            await until(lambda: len(hub.came) == AT_ONCE_EACH_MAX)
            assert code(await stage.asks(seal(signer, "b", 1, Poll("b"))), 429) == "relay.busy"
            other = asyncio.create_task(stage.asks(seal(stage.signer("c"), "c", 1, Poll("c"))))
            await until(lambda: len(hub.came) == AT_ONCE_EACH_MAX + 1)
            hub.wait.set()
            assert {one.status_code for one in await asyncio.gather(*waiting, other)} == {200}
            # The receiver of an answer's last byte may be a moment ahead of the relay.
            await until(lambda: stage.carrier.relay.open.total() == 0)  # type: ignore[union-attr]  # it carries

    asyncio.run(play())


def test_an_answer_that_breaks_off_is_not_made_up(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        hub.cut = True
        async with scene(tmp_path, hub) as stage:
            with pytest.raises(httpx.TransportError):
                await stage.asks(seal(stage.signer(), "b", 1, Poll("b")))
            await until(lambda: stage.carrier.relay.open.total() == 0)  # type: ignore[union-attr]  # it carries

    asyncio.run(play())


def test_a_coordinator_that_does_not_answer_is_said_to_be_so(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            hub.server.close()
            assert code(await stage.asks(seal(stage.signer(), "b", 1, Poll("b"))), 502) == "relay.unreachable"
            assert stage.carrier.relay.open.total() == 0  # type: ignore[union-attr]  # it carries

    asyncio.run(play())


def test_where_there_is_no_coordinator_nothing_is_passed_on(tmp_path: Path, hub: Hub) -> None:
    async def play() -> None:
        async with scene(tmp_path, hub) as stage:
            stage.carrier.relay = None
            assert code(await stage.asks(seal(stage.signer(), "b", 1, Poll("b"))), 404) == "relay.none"
            assert "carried" not in stage.carrier.peers()["b"]

    asyncio.run(play())
