"""A TCP proxy that reads along: it counts the bytes of both directions, and loses the answers that it should lose."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S

Fate = Literal["drop", "cut"]
"""Fate of an answer: none of it arrives, or half of it."""

ENDPOINTS: dict[str, str] = {
    "enrol": r"POST /api/v1/enrol",
    "hello": r"POST /api/v1/hello",
    "work": r"GET /api/v1/work",
    "report": r"POST /api/v1/jobs/[^/]+/reports",
    "upload": r"PUT /api/v1/jobs/[^/]+/blobs/",
    "uploaded": r"HEAD /api/v1/jobs/[^/]+/blobs/",
    "download": r"GET /api/v1/jobs/[^/]+/blobs/",
    "failure": r"POST /api/v1/jobs/[^/]+/failures",
    "status": r"POST /api/v1/jobs/[^/]+/status",
    "beat": r"POST /api/v1/heartbeat",
    "leave": r"POST /api/v1/leave",
}


def endpoint_of(line: str) -> str:
    """The endpoint of a request line; "other" for people's."""
    return next((name for name, pattern in ENDPOINTS.items() if re.match(pattern, line)), "other")


@dataclass
class Proxy:
    """Between nodes and the coordinator at `where()`. `fate(endpoint, n)`: of the n-th answer of an endpoint.

    `port`: at which it listens; 0: any.
    """

    where: Callable[[], str]
    fate: Callable[[str, int], Fate | None] = lambda endpoint, n: None
    up: int = 0
    down: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    port: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(PATIENCE_S)
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        """One connection: request, answer, request, answer…"""
        place = urlsplit(self.where())
        with contextlib.ExitStack() as stack:
            stack.enter_context(client)
            stack.enter_context(contextlib.suppress(OSError, _Ended))
            server = stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0), PATIENCE_S))
            with self._lock:
                self._open |= {client, server}
            stack.callback(self._forget, client, server)
            ours, theirs = _Stream(client), _Stream(server)
            while self._exchange(ours, theirs):
                continue

    def _forget(self, *ended: socket.socket) -> None:
        with self._lock:
            self._open -= set(ended)

    def _exchange(self, client: _Stream, server: _Stream) -> bool:
        """One request and its answer; False when the connection ends with it."""
        head = client.head()
        line = head.split(b"\r\n", 1)[0].decode("latin-1")
        self._pass_on(server, [head], "up")
        with contextlib.suppress(_Ended):  # a client that hangs up in its body has sent what it has sent
            self._pass_on(server, client.body(head), "up")
        answer_head = server.head()
        with self._lock:
            name = endpoint_of(line)
            self.answers[name] += 1
            fate = self.fate(name, self.answers[name])
            self.lost[name] += fate is not None
        whole = b"".join(server.body(answer_head, line.startswith("HEAD ")))
        self._count(len(answer_head) + len(whole), "down")
        if fate == "drop":
            return False
        if fate == "cut":
            everything = answer_head + whole
            client.send(everything[: len(everything) // 2])
            return False
        client.send(answer_head + whole)
        return b"\r\nconnection: close" not in answer_head.lower()

    def _pass_on(self, to: _Stream, pieces: Iterator[bytes] | list[bytes], direction: str) -> None:
        for piece in pieces:
            to.send(piece)
            self._count(len(piece), direction)

    def _count(self, count: int, direction: str) -> None:
        with self._lock:
            setattr(self, direction, getattr(self, direction) + count)


class _Ended(Exception):
    """The other side has closed the connection."""


class _Stream:
    """A socket, read by messages of HTTP/1.1."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._ahead = sock, b""

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def _more(self) -> bytes:
        data = self._sock.recv(1 << 16)
        if not data:
            raise _Ended
        return data

    def head(self) -> bytes:
        while b"\r\n\r\n" not in self._ahead:
            self._ahead += self._more()
        head, _, self._ahead = self._ahead.partition(b"\r\n\r\n")
        if head.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"100"]:  # Continue: the answer proper follows
            return self.head()
        return head + b"\r\n\r\n"

    def body(self, head: bytes, is_head: bool = False) -> Iterator[bytes]:
        """The body that follows a head, piece by piece."""
        found = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
        left = 0 if is_head or found is None else int(found[1])
        while left:
            piece = self._ahead or self._more()
            piece, self._ahead = piece[:left], piece[left:]
            left -= len(piece)
            yield piece
