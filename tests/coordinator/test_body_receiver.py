"""Large bodies come past the HTTP parser, and HTTP goes on behind them as if they had not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from shoal.core.protocol.message import BlobRef
from shoal.runtime.http.server import body_receiver
from shoal.runtime.http.server.body_receiver import BodyReceiver
from tests.support.coordinator import OPERATOR, Inside, inside
from tests.support.http_servers import CERTIFICATE
from tests.support.raw_http import answer, await_close, connected, head
from tests.support.waiting import pause_async, until

DATA = bytes(save({"w": np.random.default_rng(0).standard_normal(900_001, np.float32)}))
"""Three blocks and a half."""

DIGEST = hashlib.sha256(DATA).hexdigest()
NEXT = head("GET", "/healthz", Connection="close")


@pytest.fixture(params=["http", "https"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inside]:
    tls = {"tls_cert": CERTIFICATE, "tls_key": CERTIFICATE} if request.param == "https" else {}
    with inside(tmp_path / "data", **tls) as one:
        yield one


@contextlib.contextmanager
def dialled(running: Inside) -> Iterator[socket.socket]:
    with connected(running.url) as raw:
        if running.url.startswith("http:"):
            yield raw
            return
        context = ssl.create_default_context(cafile=CERTIFICATE)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped:
            yield wrapped


def put(data: bytes, digest: str = DIGEST, **headers: object) -> bytes:
    """The head of an upload of an initial model."""
    more = {"Authorization": f"Bearer {OPERATOR}", "Content_Length": len(data), **headers}
    return head("PUT", f"/api/v1/blobs/{digest}", **more)


def files(running: Inside) -> list[str]:
    return [path.name for path in running.coordinator.blobs.starts.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("step", [65_537, len(DATA)])
def test_the_connection_is_reused_after_a_large_body(running: Inside, step: int) -> None:
    stream = put(DATA) + DATA
    with dialled(running) as raw:
        for start in range(0, len(stream), step):
            raw.sendall(stream[start : start + step])
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 201 ")
        raw.sendall(NEXT)
        assert b"HTTP/1.1 200 " in answer(raw)
    assert running.coordinator.blobs.starts.check(BlobRef(DIGEST, len(DATA)))
    assert files(running) == [DIGEST]


def test_a_refused_body_is_heard_to_its_end(running: Inside) -> None:
    wrong = (2**40).to_bytes(8, "little") + DATA[8:]
    with dialled(running) as raw:
        raw.sendall(put(wrong) + wrong + NEXT)
        answers = answer(raw)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"422", b"200"]
    assert b"payload.header" in answers
    assert not files(running)


def test_a_client_that_expects_100_continue_gets_it(running: Inside) -> None:
    with dialled(running) as raw:
        raw.sendall(put(DATA, Expect="100-continue", Connection="close"))
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        raw.sendall(DATA)
        assert answer(raw).startswith(b"HTTP/1.1 201 ")


def test_all_that_came_before_a_break_is_kept(running: Inside) -> None:
    came = 2_500_001
    with dialled(running) as raw:
        raw.sendall(put(DATA) + DATA[:came])
        lines = running.server.server_state.connections
        until("it to have come", lambda: any(cast("Any", one).exchange.up_body == came for one in list(lines)))
    starts = running.coordinator.blobs.starts
    until("it to be kept", lambda: starts.partials.offset("operator", DIGEST) == came)
    rest = f"bytes {came}-{len(DATA) - 1}/{len(DATA)}"
    with dialled(running) as raw:
        raw.sendall(put(DATA[came:], Content_Range=rest, Connection="close") + DATA[came:])
        assert answer(raw).startswith(b"HTTP/1.1 201 ")
    assert files(running) == [DIGEST]


def test_a_body_that_stops_coming_is_not_waited_for(tmp_path: Path) -> None:
    with (
        inside(tmp_path / "data", body_grace_s=2, body_bytes_per_s_min=1_000_000) as running,
        connected(running.url) as raw,
    ):
        raw.sendall(put(DATA) + DATA[:2_000_000])
        await_close(raw, DATA)


def test_what_comes_past_the_parser_counts_as_progress(tmp_path: Path) -> None:
    with (
        inside(tmp_path / "data", body_grace_s=1, body_bytes_per_s_min=50_000) as running,
        connected(running.url) as raw,
    ):
        raw.sendall(put(DATA, Connection="close") + DATA[:1])
        raw.sendall(DATA[1:3_000_000])  # a minute's worth
        lines: set[Any] = running.server.server_state.connections  # type: ignore[assignment]
        until("three looks at the rate", lambda: any(one._receipt._ticks > 2 for one in list(lines)))
        raw.sendall(DATA[3_000_000:])
        assert answer(raw).startswith(b"HTTP/1.1 201 ")


@dataclass
class Wire:
    """A fake lender of an intake that records its calls."""

    paused: bool = False
    came_in: int = 0
    taken_back_at: list[int] = field(default_factory=list)

    @property
    def flow(self) -> Wire:
        return self

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def came(self, count: int) -> None:
        self.came_in += count

    def take_back(self) -> None:
        self.taken_back_at.append(self.came_in)

    def connection_lost(self, exc: Exception | None) -> None:
        pass


async def received(data: bytes, cuts: list[int], wanted: int) -> tuple[bytes, Wire]:
    """Send `data` in pieces of those sizes to a receiver that drops the rest after some blocks."""
    wire, got = Wire(), b""
    one = BodyReceiver(cast("Any", wire), len(data))

    async def read() -> None:
        nonlocal got
        for _ in range(wanted):
            block = await one.block()
            await asyncio.sleep(0)  # the loop turns while the block is in use
            got += block
        one.drop()
        wire.resume_reading()  # as when the answer has been sent

    reader = asyncio.create_task(read())
    place, turn = 0, 0
    while place < len(data):
        await asyncio.sleep(0)
        if wire.paused:
            continue
        room = one.get_buffer(-1)
        assert 0 < len(room) <= len(data) - place, "nothing beyond the body is read, and there is always room"
        count = min(len(room), cuts[turn % len(cuts)])
        room[:count] = data[place : place + count]
        one.buffer_updated(count)
        place, turn = place + count, turn + 1
    await reader
    return got, wire


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 70))
def test_blocks_are_the_body_however_it_is_cut(data: bytes, cuts: list[int], wanted: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_receiver, "BLOCK_BYTES", 7)
        patch.setattr(body_receiver, "BLOCK_BYTES_MIN", 7)
        got, wire = asyncio.run(received(data, cuts, wanted))
    assert data.startswith(got)
    assert len(got) == len(data) if wanted > len(data) else len(got) >= min(7 * wanted, len(data))
    assert wire.taken_back_at == [len(data)]


def test_a_slow_body_is_passed_on_before_a_block_is_full() -> None:
    async def scene() -> None:
        wire = Wire()
        one = BodyReceiver(cast("Any", wire), 100)
        reader = asyncio.create_task(one.block(0.01))
        await pause_async(0.1)
        assert not reader.done(), "nothing has come yet"
        one.get_buffer(-1)[:3] = b"abc"
        one.buffer_updated(3)
        assert bytes(await reader) == b"abc"
        assert wire.paused, "the block is in use"
        one.get_buffer(-1)[:97] = bytes(97)
        one.buffer_updated(97)
        assert len(await one.block(0.01)) == 97

    asyncio.run(scene())


def test_many_uploads_at_once_share_the_memory() -> None:
    intakes: list[BodyReceiver] = []
    for _ in range(1000):
        intakes.append(BodyReceiver(cast("Any", Wire()), 10**9, intakes))
    sizes = [one.nbytes for one in intakes]
    assert sizes[:24] == [body_receiver.BLOCK_BYTES] * 24
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == body_receiver.BLOCK_BYTES_MIN
    assert sum(sizes) <= body_receiver.BLOCKS_BYTES + 1000 * body_receiver.BLOCK_BYTES_MIN


def test_the_memory_of_an_upload_is_given_back(tmp_path: Path) -> None:
    with inside(tmp_path / "data") as running:
        with connected(running.url) as raw:
            raw.sendall(put(DATA, Connection="close") + DATA[:-1])
            until("it to be lent", lambda: protocol_of(running).shared.receivers)
            raw.sendall(DATA[-1:])
            assert answer(raw).startswith(b"HTTP/1.1 201 ")
        until("it to be given back", lambda: not protocol_of(running).shared.receivers)


def protocol_of(running: Inside) -> Any:
    """The class of the coordinator's connections."""
    return running.server.config.http_protocol_class
