"""Where a node can be called: what a person says, and what the coordinator is told."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from shoal.core.errors import InvalidJob, Unreachable
from shoal.runtime.address import parse
from shoal_edge_client.peering.porch import Porch, address_of
from shoal_peer.listening import listen

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
    assert address_of(said) == meant


@pytest.mark.parametrize("said", ["", "host", "host:", "host:x", "host:-1", "host:65536"])
def test_what_is_no_address(said: str) -> None:
    with pytest.raises(InvalidJob, match="peer_listen") as caught:
        address_of(said)
    assert "none" in caught.value.hint


def test_it_says_where_it_is(tmp_path: Path) -> None:
    with Porch("127.0.0.1:0", "", tmp_path, HUB) as porch:
        (url,) = porch.contact().urls
        assert url.startswith("http://127.0.0.1:")
        assert porch.contact().inbound
        key = porch.contact().pub
        boots = [porch.next_boot(), porch.next_boot()]
        assert boots[0] < boots[1]
    with Porch(":0", "https://edge.example/a", tmp_path, HUB) as porch:
        assert porch.contact().urls == ("https://edge.example/a",), "a person knows better"
        assert porch.contact().pub == key
        assert porch.next_boot() > boots[1]
    with Porch(":0", "", tmp_path, HUB) as porch:
        assert porch.contact().urls[0].startswith("http://127.0.0.1:"), "the way to the coordinator begins there"


def test_one_that_nobody_can_call(tmp_path: Path) -> None:
    with Porch("none", "", tmp_path, HUB) as porch:
        assert (porch.contact().urls, porch.contact().inbound) == ((), False)


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_first_part() -> None:
    """What asyncio accepts there has Nagle's algorithm turned off."""

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
        with pytest.raises(Unreachable, match=str(port)), Porch(f"127.0.0.1:{port}", "", tmp_path, HUB):
            pass
