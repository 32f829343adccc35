"""The end in good order: SIGTERM breaks no open request off, and loses no acknowledged message."""

from __future__ import annotations

import signal
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.core.protocol.message import Ack
from shoal.runtime.http.server.metered_protocol import MeteredProtocol
from shoal.wire import codec
from tests.support.coordinator import Inside, inside
from tests.support.http_servers import CERTIFICATE
from tests.support.raw_http import answer, connected, head
from tests.support.scenario import Stage, set_up
from tests.support.sse import Event, listening
from tests.support.waiting import PATIENCE_S, until

LONG_S = 100


def in_hand(running: Inside) -> set[str]:
    """Paths of requests that are not answered yet."""
    cycles = [one.cycle for one in running.server.server_state.connections]  # type: ignore[union-attr]
    return {cycle.scope["path"] for cycle in cycles if cycle is not None and not cycle.response_complete}


def opened(running: Inside, stage: Stage) -> tuple[list[httpx.Response], list[Event], list[threading.Thread]]:
    """A poll and an event stream that are held open: what they will have brought when their threads are done."""
    polled: list[httpx.Response] = []
    events: list[Event] = []
    node, task = stage.nodes[1], stage.tasks["n1"]
    params = {"wait_s": LONG_S, "held": f"main:{task.id[0]}.{task.id[1]}"}

    def poll() -> None:
        polled.extend(filter(None, [node.once("GET", "/work", params=params)]))

    def listen() -> None:
        with listening(running.url, read_s=LONG_S) as stream:
            events.extend(stream)

    threads = [threading.Thread(target=work, daemon=True) for work in (poll, listen)]
    for thread in threads:
        thread.start()
    return polled, events, threads


def test_a_sigterm_lets_everything_come_to_its_end(tmp_path: Path) -> None:
    with inside(tmp_path / "data", poll_s_max=LONG_S) as running:
        stage = set_up(running)
        polled, _, threads = opened(running, stage)
        start, payload = stage.frame(node="n0")
        credential = stage.nodes[0].client.headers["Authorization"]
        path, length = "/api/v1/jobs/main/reports", len(start) + len(payload)
        with connected(running.url) as raw:
            raw.sendall(head("POST", path, Authorization=credential, Content_Length=length) + start)
            until("all to be in hand", lambda: in_hand(running) >= {path, "/api/v1/work", "/api/v1/stream"})
            running.server.handle_exit(signal.SIGTERM, None)
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
            assert [one.status_code for one in polled] == [204], "answered, not broken off"
            raw.sendall(payload)
            said, _, body = answer(raw).partition(b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200 ")
        assert codec.decode(body).message == Ack(stage.tasks["n0"].id, True)
        stage.close()
    assert running.failure is None
    with inside(tmp_path / "data") as running:
        hub = running.runner("main").hub
        assert [report.node for report in hub.state.round.reports] == ["n0"], "what was acknowledged is there"


def test_whoever_keeps_a_connection_and_does_not_listen_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS a goodbye wants an answer. The coordinator hangs up before anything else ends the connection."""
    hung_up: list[MeteredProtocol] = []
    hang_up = MeteredProtocol._hang_up

    def noted(protocol: MeteredProtocol) -> None:
        hung_up.extend({protocol} & protocol.connections)
        hang_up(protocol)

    monkeypatch.setattr(MeteredProtocol, "_hang_up", noted)
    running = Inside(tmp_path / "data", tls_cert=CERTIFICATE, tls_key=CERTIFICATE).start()
    context = ssl.create_default_context(cafile=CERTIFICATE)
    with connected(running.url) as raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped:
        wrapped.sendall(head("GET", "/healthz"))
        assert wrapped.recv(1 << 16).startswith(b"HTTP/1.1 200")
        running.stop()
    assert len(hung_up) == 1


@pytest.mark.parametrize("unsent", [0, 5])
def test_nor_is_anything_cut_off_that_is_still_on_its_way(unsent: int) -> None:
    hung_up: list[bool] = []

    class Transport:
        def get_write_buffer_size(self) -> int:
            return unsent

        def abort(self) -> None:
            hung_up.append(True)

    protocol: Any = object.__new__(MeteredProtocol)
    protocol.transport, protocol.connections = Transport(), {protocol}
    protocol._hang_up()
    assert bool(hung_up) == (not unsent)
