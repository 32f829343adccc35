"""HTTP by hand, for what no client library would send."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection to the coordinator there."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 0), PATIENCE_S) as raw:
        yield raw


def head(method: str, path: str, **headers: object) -> bytes:
    """A request's head. Underscores in names become hyphens."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def answer(raw: socket.socket) -> bytes:
    """Return all bytes until the other side closes, or breaks the connection off."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := raw.recv(1 << 16):
            found += piece
    return found


def pour(raw: socket.socket, nbytes: int) -> int:
    """Send that many zeros, or as many as the other side takes; return their number."""
    zeros, sent = bytes(1 << 20), 0
    with contextlib.suppress(ConnectionError):
        while sent < nbytes:
            sent += raw.send(zeros[: nbytes - sent])
    return sent


def await_close(raw: socket.socket, trickle: bytes = b"", every_s: float = 0.1) -> None:
    """Send a byte at a time until the other side closes the connection, which it does before it has all of them."""
    deadline, place = time.monotonic() + PATIENCE_S, 0
    raw.settimeout(every_s)
    while time.monotonic() < deadline:
        try:
            if place < len(trickle):
                raw.sendall(trickle[place : place + 1])
                place += 1
            if not raw.recv(1 << 16):
                return
        except TimeoutError:
            continue
        except ConnectionError:
            return
    raise AssertionError(f"still open after {PATIENCE_S:g} s")


def assert_problem(answered: bytes) -> dict[str, Any]:
    """Return the problem that a whole response is, its form checked."""
    first, _, rest = answered.partition(b"\r\n")
    lines, _, text = rest.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines.split(b"\r\n"))
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"connection"] == b"close"
    assert int(headers[b"content-length"]) == len(text)
    found: dict[str, Any] = json.loads(text)
    assert first.split()[1] == str(found["status"]).encode()
    assert found["detail"]
    assert found["hint"]
    return found
