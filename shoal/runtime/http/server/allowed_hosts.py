"""The hosts under which a server is asked: the `Host` header against DNS rebinding.

A web page of any site can have its own name resolve to 127.0.0.1 and then read, in the visitor's browser, everything
that a server on that machine answers without a credential. The browser sends the page's name as `Host`, so a server
that answers under its own names only is safe. An address in place of a name cannot be rebound.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache

HOST_CHARS_MAX = 255
EVERY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on
_CACHED = 256


def host_of(value: str) -> str:
    """Return the name or address in a `Host` header, in lower case, without port, brackets and final dot."""
    host = value.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".") if host.count(":") < 2 else host


def is_loopback(host: str) -> bool:
    """Return whether this name or address is the machine itself, wherever it is asked."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


class KnownHosts:
    """The names under which a server answers: those of loopback, `names`, and any address unless only loopback is
    listened on."""

    def __init__(self, names: Iterable[str], *, addresses: bool) -> None:
        self._names, self._addresses = frozenset(map(host_of, names)) - {""}, addresses
        self.knows = lru_cache(_CACHED)(self._knows)

    def _knows(self, value: str) -> bool:
        """Return whether this is the `Host` of a request to this server."""
        host = host_of(value[: HOST_CHARS_MAX + 1])
        return host in self._names or is_loopback(host) or (self._addresses and _address(host) is not None)


def names_of(listens: str) -> list[str]:
    """Return the names of a server that listens on this address: beside it, the machine's own."""
    if is_loopback(listens):
        return [listens]
    own = socket.gethostname()
    return [own, f"{own.partition('.')[0]}.local", *([listens] if listens not in EVERY_ADDRESS else [])]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
