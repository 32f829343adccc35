"""The connections of a link: pooled by urllib3, counted byte by byte, and ended from any thread."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import Any
from urllib.request import getproxies, proxy_bypass

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.response import HTTPResponse
from urllib3.util import make_headers, parse_url

from shoal.core.errors import ShoalError
from shoal.runtime.http import coordinator_url as addresses

CONNECTIONS_MAX = 32
WRITE_S = 60.0
"""Seconds that a piece of 1 MiB may take to be sent."""


class LinkTraffic:
    """Bytes of bodies that went over a link, and bytes of heads as HTTP/1.1 writes them."""

    def __init__(self) -> None:
        self.requests, self.up_bytes, self.down_bytes = 0, 0, 0
        self.up_head_bytes, self.down_head_bytes = 0, 0
        self._lock = threading.Lock()

    def count(self, requests: int = 0, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.up_bytes += up
            self.down_bytes += down

    def count_headers(self, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.up_head_bytes += up
            self.down_head_bytes += down

    def take(self) -> tuple[int, int]:
        """Return (bytes up, bytes down) since the previous call, headers and bodies."""
        with self._lock:
            found = self.up_bytes + self.up_head_bytes, self.down_bytes + self.down_head_bytes
            self.up_bytes = self.up_head_bytes = self.down_bytes = self.down_head_bytes = 0
        return found


class OpenSockets:
    """The sockets of a link, to abort their requests from another thread."""

    def __init__(self) -> None:
        self.aborted = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

    def add(self, opened: socket.socket) -> None:
        """Add a socket; end it at once if the link was aborted."""
        with self._lock:
            self._sockets = {*self._open(), opened}
            aborted = self.aborted
        if aborted:
            self.abort()

    def abort(self) -> None:
        """End all sockets, and those that are added later."""
        with self._lock:
            self.aborted = True
            for one in self._sockets:
                with suppress(OSError):  # it has been closed already
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    def only(self) -> socket.socket | None:
        """Return the open socket; None if there is none, or more than one."""
        with self._lock:
            found = self._open()
        return found[0] if len(found) == 1 else None

    def _open(self) -> list[socket.socket]:
        return [one for one in self._sockets if one.fileno() >= 0]


class _LinkConnection(HTTPConnection):
    """A connection that counts sent bytes, and is closed after an incompletely sent body."""

    def __init__(self, *args: Any, traffic: LinkTraffic, sockets: OpenSockets, **options: Any) -> None:
        super().__init__(*args, **options)
        self._traffic, self._sockets = traffic, sockets
        self._in_head = True
        self._is_sent = False

    def connect(self) -> None:
        super().connect()
        self.is_verified = True  # else urllib3 warns at each connection of what a link has said once
        self._sockets.add(self.sock)

    def request(self, method: str, url: str, *args: Any, **options: Any) -> None:
        if self.sock is None:
            self.connect()
        self.timeout = WRITE_S
        self._in_head, self._is_sent = True, False
        super().request(method, url, *args, **options)
        self._is_sent = True

    def send(self, data: Any) -> None:
        if self._in_head:
            self._traffic.count_headers(up=len(data))
        else:
            self._traffic.count(up=len(data))
        self._in_head = False
        super().send(data)

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3
        answer = super().getresponse()
        if not self._is_sent and self.sock is not None:  # the answer is still read; the socket closes after it
            self.sock.close()
            self.sock = None
        return answer


class _SecureConnection(_LinkConnection, HTTPSConnection):
    """The same over TLS."""


def pool(
    address: addresses.Address, context: ssl.SSLContext | None, traffic: LinkTraffic, sockets: OpenSockets
) -> HTTPConnectionPool:
    """Return the connections to an address, through the environment's proxy if there is one."""
    options: dict[str, Any] = {"maxsize": CONNECTIONS_MAX, "block": True}
    if address.scheme == "https":
        options["ssl_context"] = context
    made = _through_proxy(address, options) or _direct(address, options)
    made.ConnectionCls = _SecureConnection if isinstance(made, HTTPSConnectionPool) else _LinkConnection
    made.conn_kw |= {"traffic": traffic, "sockets": sockets}
    return made


def _direct(address: addresses.Address, options: dict[str, Any]) -> HTTPConnectionPool:
    kind = HTTPSConnectionPool if address.scheme == "https" else HTTPConnectionPool
    return kind(address.host, address.port, **options)


def _through_proxy(address: addresses.Address, options: dict[str, Any]) -> HTTPConnectionPool | None:
    """Return connections through the proxy that the environment names for an address. None for this machine."""
    if addresses.is_loopback(address) or proxy_bypass(address.host):
        return None
    known = getproxies()
    named = known.get(address.scheme) or known.get("all")
    if named is None:
        return None
    url = named if "://" in named else f"http://{named}"
    try:
        user = parse_url(url).auth
        headers = make_headers(proxy_basic_auth=user) if user else None
        return ProxyManager(url, proxy_headers=headers, **options).connection_from_url(address.url)
    except (HTTPError, ValueError, AssertionError) as error:
        hint = "set HTTP_PROXY and HTTPS_PROXY to http://HOST:PORT, or NO_PROXY to this host"
        raise ShoalError(f"the environment's proxy {url!r}: {error}", code="usage.proxy", hint=hint) from None
