"""Servers for tests of links: each request is answered by a function, or the socket is left to it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CERTIFICATE = Path(__file__).with_name("certificate.pem")


@dataclass
class Asked:
    """A request as it came. `address` tells connections apart."""

    method: str
    path: str
    headers: Any
    body: bytes
    address: Any
    handler: BaseHTTPRequestHandler


@dataclass
class Said:
    """An answer. `length`: what Content-Length claims, if not the truth."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=lambda: {"Shoal-Protocol": "1"})
    length: int | None = None


Answering = Callable[[Asked], Said | None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections are broken off on purpose here."""


@contextmanager
def answering(answer: Answering, *, tls: bool = False) -> Iterator[str]:
    """A server's address while the block runs; None as an answer: the function has dealt with the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def _go(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            said = answer(Asked(self.command, self.path, self.headers, body, self.client_address, self))
            if said is None:
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body) if said.length is None else said.length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.body)
            if said.length is not None:
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _go

    server = _Server(("127.0.0.1", 0), Handler)
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
