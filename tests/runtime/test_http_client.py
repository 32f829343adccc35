"""A link's handling of answers and of missing ones."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from shoal.core.errors import InvalidPayload, NotAllowed, Refused, ShoalError, StorageFailed, Unreachable
from shoal.runtime.http import client, link_connections
from shoal.runtime.http.client import Link, TryLater, TryLaterFull
from tests.support.http_servers import CERTIFICATE, Asked, Said, answering
from tests.support.waiting import PATIENCE_S, pause


def ask(said: Said, **more: object) -> ShoalError:
    """The error that an answer becomes."""
    with answering(lambda asked: said) as url, Link(url) as link, pytest.raises(ShoalError) as raised:
        link.json("GET", "/x", **more)
    return raised.value


def problem(status: int, **headers: str) -> Said:
    body = {
        "type": "about:blank",
        "title": "No",
        "status": status,
        "detail": "why",
        "code": "a.code",
        "hint": "do that",
    }
    return Said(status, json.dumps(body).encode(), {"Shoal-Protocol": "1", **headers})


# Requests


def test_json_goes_out_and_comes_in() -> None:
    asked: list[Asked] = []

    def answer(one: Asked) -> Said:
        asked.append(one)
        return Said(201, b'{"loss": "NaN", "n": [1, 2]}')

    with answering(answer) as url, Link(f"{url}/behind/a/proxy/", credential="shn_x") as link:
        assert link.json("POST", "/x", body={"a": 1}, params={"by": "node"}) == {"loss": "NaN", "n": [1, 2]}
    (one,) = asked
    assert (one.method, one.target, one.body) == ("POST", "/behind/a/proxy/x?by=node", b'{"a": 1}')
    assert one.headers["Authorization"] == "Bearer shn_x"
    assert one.headers["Shoal-Protocol"] == "1"
    assert one.headers["Content-Type"] == "application/json"
    assert one.headers["Accept-Encoding"] == "identity"
    assert one.headers["User-Agent"].startswith("shoal/")


def test_an_empty_answer_is_none() -> None:
    with answering(lambda asked: Said(204)) as url, Link(url) as link:
        assert link.json("DELETE", "/x") is None


def test_one_connection_serves_many_requests() -> None:
    connections = set()

    def answer(asked: Asked) -> Said:
        connections.add(asked.address)
        return problem(404) if asked.path == "/missing" else Said(body=b"{}")

    with answering(answer) as url, Link(url) as link:
        for _ in range(3):
            link.json("GET", "/x")
            with pytest.raises(Refused):
                link.json("GET", "/missing")
            with link.exchange("HEAD", "/x") as answered:
                answered.read(0)
    assert len(connections) == 1


def test_bytes_are_counted() -> None:
    with answering(lambda asked: Said(body=b"[1, 2, 3]")) as url, Link(url) as link:
        link.json("POST", "/x", body="abc")
        link.json("GET", "/x")
    assert (link.traffic.requests, link.traffic.up_bytes, link.traffic.down_bytes) == (2, 5, 18)


def test_a_redirect_is_not_followed() -> None:
    error = ask(Said(307, b"", {"Location": "http://elsewhere/"}))
    assert isinstance(error, Refused)
    assert (error.code, "http://elsewhere/" in error.message) == ("http.redirect", True)


# Requests and answers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, Refused),
        (408, TryLater),
        (409, Refused),
        (413, Refused),
        (422, Refused),
        (425, TryLater),
        (426, Refused),
        (429, TryLater),
        (500, TryLater),
        (502, TryLater),
        (503, TryLater),
        (507, TryLaterFull),
        (511, TryLater),
    ],
)
def test_a_status_has_its_error(status: int, kind: type[ShoalError]) -> None:
    error = ask(problem(status))
    assert type(error) is kind
    assert (error.code, error.hint) == ("a.code", "do that")
    assert error.message.endswith("why")


def test_the_tree_holds() -> None:
    assert issubclass(TryLater, Unreachable)
    assert issubclass(TryLaterFull, StorageFailed)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({}, 0.0),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
@pytest.mark.parametrize("status", [503, 507])
def test_retry_after(status: int, header: dict[str, str], seconds: float) -> None:
    error = ask(problem(status, **header))
    assert isinstance(error, TryLater | TryLaterFull)
    assert error.retry_after_s == seconds


def test_retry_after_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    error = ask(problem(503, **{"Retry-After": date}))
    assert isinstance(error, TryLater)
    assert 3000.0 < error.retry_after_s <= 3600.0


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b'{"detail": 3}', b"\xff" * 100, b"x" * 100_000, b"[" * 50_000]
)
def test_a_problem_that_is_none(body: bytes) -> None:
    error = ask(Said(404, body))
    assert isinstance(error, Refused)
    assert error.code == "http.404"
    assert len(error.message) < 100


def test_an_answer_that_is_no_json() -> None:
    error = ask(Said(200, b"<html>welcome to the hotel</html>"))
    assert (type(error), error.code) == (Unreachable, "protocol.foreign")


@pytest.mark.parametrize("status", [200, 204, 400, 401, 403, 404, 422, 500])
def test_only_the_protocols_header_makes_it_the_coordinators_word(status: int) -> None:
    error = ask(Said(status, b"{}" if status == 200 else b"", {}), own=True)
    assert (type(error), error.code) == (Unreachable, "protocol.foreign")


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 1000)
    error = ask(Said(200, b"[" + b" " * 2000 + b"]"))
    assert (type(error), error.code) == (InvalidPayload, "http.too-large")


# Missing answers


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_nobody_listens() -> None:
    with (
        Link(f"http://127.0.0.1:{closed_port()}") as link,
        pytest.raises(Unreachable, match="cannot be reached") as error,
    ):
        link.json("GET", "/x")
    assert "coordinator runs" in error.value.hint


def test_the_connection_is_closed_without_an_answer() -> None:
    with answering(lambda asked: None) as url, Link(url) as link, pytest.raises(Unreachable):
        link.json("GET", "/x")


def test_the_answer_breaks_off() -> None:
    assert isinstance(ask(Said(200, b'{"a"', length=1000)), Unreachable)


def test_the_answer_is_late() -> None:
    over = threading.Event()

    def answer(asked: Asked) -> Said:
        over.wait(PATIENCE_S)
        return Said()

    with answering(answer) as url, Link(url, read_s=0.1) as link:
        with pytest.raises(Unreachable) as error:
            link.json("GET", "/x")
        assert error.value.code == "network.slow"
        over.set()


def test_a_name_that_nobody_knows() -> None:
    with Link("http://no-such-host.invalid") as link, pytest.raises(Unreachable) as error:
        link.json("GET", "/x")
    assert error.value.code == "network.name"


def test_an_early_answer_to_a_large_upload_is_heard() -> None:
    """The other side refuses after the head and hangs up; its answer must not be lost in the broken pipe."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                body = b'{"code": "body.too-large", "detail": "no"}'
                head = (
                    f"HTTP/1.1 413 No\r\nShoal-Protocol: 1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                connection.sendall(head.encode() + body)
                connection.shutdown(socket.SHUT_WR)
                pause(0.2)  # the answer arrives before the reset

        thread = threading.Thread(target=refuse)
        thread.start()

        def pieces() -> Iterator[bytes]:
            for _ in range(64):
                yield b"x" * 2**20

        headers = {"Content-Length": str(64 * 2**20)}
        with (
            Link(f"http://127.0.0.1:{server.getsockname()[1]}") as link,
            pytest.raises(ShoalError) as error,
            link.exchange("PUT", "/x", headers=headers, content=pieces(), own=True),
        ):
            raise AssertionError("it was refused")
        thread.join()
    assert error.value.code in ("body.too-large", "network.unreachable")  # the reset may win, and is tried again


@pytest.mark.parametrize("tls", [False, True])
def test_abort_breaks_off_what_is_under_way(tls: bool) -> None:
    asked, over = threading.Event(), threading.Event()

    def answer(one: Asked) -> Said:
        asked.set()
        over.wait(2 * PATIENCE_S)  # longer than the abort may take
        return Said()

    ca_file = CERTIFICATE if tls else None
    with answering(answer, tls=tls) as url, Link(url, ca_file=ca_file, read_s=2 * PATIENCE_S) as link:
        outcome: list[object] = []

        def call() -> None:
            try:
                link.json("GET", "/x")
            except Unreachable as error:
                outcome.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert asked.wait(PATIENCE_S)
        link.abort()
        thread.join(PATIENCE_S)
        assert not over.is_set(), "the answer is still held"
        assert isinstance(outcome[0], Unreachable)
        with pytest.raises(Unreachable, match="given up"):
            link.json("GET", "/x")
        over.set()


# TLS


def test_a_certificate_of_ones_own() -> None:
    with answering(lambda asked: Said(body=b"1"), tls=True) as url:
        with Link(url, ca_file=CERTIFICATE) as link:
            assert link.json("GET", "/x") == 1
            assert link.warning == ""
        with Link(url) as link, pytest.raises(Unreachable) as error:
            link.json("GET", "/x")
        assert (error.value.code, "ca_file" in error.value.hint) == ("tls.untrusted", True)
        with Link(url, insecure=True) as link:
            assert link.json("GET", "/x") == 1
            assert "not checked" in link.warning


def test_tls_to_a_server_without() -> None:
    with (
        answering(lambda asked: Said()) as url,
        Link(url.replace("http", "https")) as link,
        pytest.raises(Unreachable) as error,
    ):
        link.json("GET", "/x")
    assert (error.value.code, "http://" in error.value.hint) == ("tls.failed", True)


def test_a_ca_file_that_is_none(tmp_path) -> None:
    path = tmp_path / "ca.pem"
    for text in (None, "no certificate"):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ShoalError) as error:
            Link("https://localhost", ca_file=path)
        assert error.value.code == "usage.ca-file"


def test_plain_http_to_a_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with Link("http://9.9.9.9") as link, pytest.raises(NotAllowed) as error:
        link.json("GET", "/x")
    assert error.value.code == "http.insecure"
    with (
        answering(lambda asked: Said(body=b"1")) as url,
        Link(url, insecure=True, check=lambda address, insecure: f"insecure: {insecure}") as link,
    ):
        assert link.json("GET", "/x") == 1
        assert link.warning == "insecure: True"


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the environment name a proxy for plain http, and nothing else."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return lambda address: monkeypatch.setenv("http_proxy", address)


@pytest.mark.parametrize("form", ["http://{}", "{}"])
def test_a_proxy_of_the_environment_is_asked(proxied: Callable[[str], None], form: str) -> None:
    asked: list[str] = []

    def answer(one: Asked) -> Said:
        asked.append(one.target)
        return Said(body=b"1")

    with answering(answer) as url:
        proxied(form.format(url.removeprefix("http://")))
        with Link("http://coordinator.example:8080", check=lambda address, insecure: "") as link:
            assert link.json("GET", "/x") == 1
    assert asked == ["http://coordinator.example:8080/x"]


def test_a_host_that_the_environment_exempts(proxied: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "elsewhere.example,.invalid")
    asked: list[str] = []

    def answer(one: Asked) -> Said:
        asked.append(one.target)
        return Said(body=b"1")

    with answering(answer) as url:
        proxied(url)
        with (
            Link("http://shoal.invalid", check=lambda address, insecure: "") as link,
            pytest.raises(Unreachable),
        ):
            link.json("GET", "/x")
    assert asked == []


def test_a_proxy_of_the_environment_is_not_for_this_machine(proxied: Callable[[str], None]) -> None:
    proxied(f"http://127.0.0.1:{closed_port()}")
    with answering(lambda asked: Said(body=b"1")) as url, Link(url) as link:
        assert link.json("GET", "/x") == 1


# Bodies that wait to be asked for


def conversation(answer: bytes) -> tuple[int, bytes, Link]:
    """Send a mebibyte to a server that answers so as soon as it has the head: (status or 0, what came, the link)."""
    came = b""

    def serve(listener: socket.socket) -> None:
        nonlocal came
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            while b"\r\n\r\n" not in came:
                came += connection.recv(65536)
            connection.sendall(answer)
            if b"100 Continue" in answer:
                while len(came.partition(b"\r\n\r\n")[2]) < 1 << 20:
                    came += connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nShoal-Protocol: 1\r\nContent-Length: 0\r\n\r\n")
            else:
                while piece := connection.recv(65536):
                    came += piece

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        status = 0
        with Link(f"http://127.0.0.1:{listener.getsockname()[1]}") as link:
            headers = {"Expect": "100-continue", "Content-Length": str(1 << 20)}
            content = link.after_continue(iter([bytes(1 << 20)]))
            try:
                with link.exchange("POST", "/x", headers=headers, content=content) as got:
                    status = got.status
            except Refused as error:
                status = int(error.code.rpartition(".")[2])
        thread.join(PATIENCE_S)
    return status, came, link


def test_a_body_is_sent_when_it_is_asked_for() -> None:
    status, came, link = conversation(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert status == 200
    head, _, body = came.partition(b"\r\n\r\n")
    assert len(body) == 1 << 20
    assert link.traffic.up_head_bytes == len(head) + 4
    assert link.traffic.down_head_bytes == 25 + len("HTTP/1.1 200 OK\r\nShoal-Protocol: 1\r\nContent-Length: 0\r\n\r\n")


def test_who_dies_before_it_asks_for_the_body_is_unreachable() -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(10)  # more has come than was read: closing resets
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        with Link(f"http://127.0.0.1:{listener.getsockname()[1]}") as link:
            headers = {"Expect": "100-continue", "Content-Length": str(1 << 24)}
            content = link.after_continue(iter([bytes(1 << 20)] * 16))
            with pytest.raises(Unreachable), link.exchange("POST", "/x", headers=headers, content=content):
                raise AssertionError("it has answered")
        thread.join(PATIENCE_S)


def test_a_body_that_is_refused_is_not_sent() -> None:
    status, came, link = conversation(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n")
    assert status == 409
    assert came.endswith(b"\r\n\r\n")
    assert link.traffic.down_head_bytes == len("HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n")


def test_who_does_not_read_a_body_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_connections, "WRITE_S", 0.2)
    monkeypatch.setattr(client, "CONNECT_S", 10 * PATIENCE_S)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Link(f"http://127.0.0.1:{listener.getsockname()[1]}") as link,
        pytest.raises(Unreachable) as caught,
    ):
        link.json("POST", "/x", body="x" * (1 << 26))
    assert caught.value.code == "network.slow"
