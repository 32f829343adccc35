"""Where a node can be called: what a person says, and what the coordinator is told."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from shoal.core.errors import InvalidJob, Unreachable
from shoal.runtime.http.coordinator_url import parse
from shoal.runtime.http.server.serving import listen
from shoal_edge_client.peering.edge_listener import EdgeListener, parse_listen_address

HUB = parse("http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("127.0.0.1:9001", ("127.0.0.1", 9001)),
        ("edge-1.example:0", ("edge-1.example", 0)),
        (":9001", ("0.0.0.0", 9001)),
        ("9001", ("0.0.0.0", 9001)),
        ("[::1]:9001", ("::1", 9001)),
    ],
)
def test_addresses(said: str, meant: tuple[str, int]) -> None:
    assert parse_listen_address(said) == meant


@pytest.mark.parametrize("said", ["", "host", "host:", "host:x", "host:-1", "host:65536"])
def test_what_is_no_address(said: str) -> None:
    with pytest.raises(InvalidJob, match="peer_listen") as caught:
        parse_listen_address(said)
    assert "none" in caught.value.hint


def test_it_says_where_it_is(tmp_path: Path) -> None:
    with EdgeListener("127.0.0.1:0", "", tmp_path, HUB) as listener:
        (url,) = listener.contact().urls
        assert url.startswith("http://127.0.0.1:")
        assert listener.contact().is_reachable
        key = listener.contact().public_key
        numbers = [listener.next_process(), listener.next_process()]
        assert numbers[0] < numbers[1]
    with EdgeListener(":0", "https://edge.example/a", tmp_path, HUB) as listener:
        assert listener.contact().urls == ("https://edge.example/a",), "a person knows better"
        assert listener.contact().public_key == key
        assert listener.next_process() > numbers[1]
    with EdgeListener(":0", "", tmp_path, HUB) as listener:
        assert listener.contact().urls[0].startswith("http://127.0.0.1:"), "the way to the coordinator begins there"


def test_one_that_nobody_can_call(tmp_path: Path) -> None:
    with EdgeListener("none", "", tmp_path, HUB) as listener:
        assert (listener.contact().urls, listener.contact().is_reachable) == ((), False)


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_first_part() -> None:
    """Connections that asyncio accepts there have Nagle's algorithm turned off."""

    async def delays() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sock = writer.get_extra_info("socket")
            accepted.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as sock:
            async with await asyncio.start_server(serve, sock=sock):
                _, writer = await asyncio.open_connection(*sock.getsockname())
                found = await asyncio.wait_for(accepted, 60.0)
                writer.close()
                return found

    assert asyncio.run(delays())


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(Unreachable, match=str(port)), EdgeListener(f"127.0.0.1:{port}", "", tmp_path, HUB):
            pass
