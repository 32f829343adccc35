"""Servers for tests of links: each request is answered by a function, or the socket is left to it."""

from __future__ import annotations

import functools
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

CERTIFICATE = Path(__file__).with_name("certificate.pem")


@dataclass
class Asked:
    """A request as it came. `target`: path with query. `address` tells connections apart."""

    method: str
    target: str
    headers: Any
    address: Any
    handler: BaseHTTPRequestHandler

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @functools.cached_property
    def body(self) -> bytes:
        """Read when it is first wanted, so that an answer may break the request off."""
        return self.handler.rfile.read(self.length)

    @property
    def length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Said:
    """An answer. `length`: what Content-Length claims, if not the truth. Pieces go out one by one.

    `sent` is set when the answer has gone out.
    """

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=lambda: {"Shoal-Protocol": "1"})
    length: int | None = None
    sent: threading.Event = field(default_factory=threading.Event)


Answering = Callable[[Asked], Said | None]


class Handler(BaseHTTPRequestHandler):
    """A connection: each request is passed to `reply`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    reply: Answering

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _go(self) -> None:
        asked = Asked(self.command, self.path, self.headers, self.client_address, self)
        said = self.reply(asked)
        if said is None:
            self.close_connection = True
            return
        _ = asked.body
        self._send(said)
        said.sent.set()

    def _send(self, said: Said) -> None:
        whole = isinstance(said.body, bytes)
        self.send_response_only(said.status)
        for name, value in {"Date": self.date_time_string(), **said.headers}.items():
            self.send_header(name, value)
        if whole:
            self.send_header("Content-Length", str(len(said.body) if said.length is None else said.length))
        self.close_connection |= not whole or said.length is not None
        if self.close_connection and said.length is None:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for piece in [said.body] if whole else said.body:
                self.wfile.write(piece)

    do_GET = do_POST = do_PUT = do_PATCH = do_HEAD = do_DELETE = _go


class Server(ThreadingHTTPServer):
    """A server that does not complain of connections that clients break off."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report all errors but broken connections."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


@contextmanager
def answering(answer: Answering, *, tls: bool = False, port: int = 0) -> Iterator[str]:
    """Yield a server's address; None as an answer: the connection is closed without one."""
    server = Server(("127.0.0.1", port), type("Bound", (Handler,), {"reply": staticmethod(answer)}))
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
