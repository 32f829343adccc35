"""The coordinator's address: read once, and refused where a credential would travel in the clear.

    https://…                             always
    http://127.0.0.1, ::1, localhost      always: nothing leaves the machine
    http:// and only private addresses    always: 10/8, 172.16/12, 192.168/16, fc00::/7 and the like
    http:// and a public address          only with `insecure`, and with a warning

"Private" is what `ipaddress` calls so; a name is private when all its addresses are.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from shoal.configuration import correction
from shoal.core.errors import NotAllowed, ShoalError, Unreachable
from shoal.validation.strict_json import text_flaw

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """An address in parts. `path` has no slash at its end."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """Return the address in its canonical form."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    @property
    def slug(self) -> str:
        """Return a file name for this coordinator."""
        return re.sub(r"[^a-z0-9.-]+", "_", f"{self.host}_{self.port}{self.path}".lower()).strip("_")


def parse(url: str) -> Address:
    """Parse an address. Raises `ShoalError` (`usage.address`) that explains the expected form."""
    if why := text_flaw(url):
        raise _wrong(url, f"it is {why}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(url, str(error)) from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise _wrong(url, "it must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.query or parts.fragment:
        raise _wrong(parts.hostname, "it must hold no user, password, query or fragment")
    return Address(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/"))


def _wrong(shown: str, why: str) -> ShoalError:
    return ShoalError(f"{shown!r} is not an address: {why}", code="usage.address", hint=correction(shown))


def is_loopback(address: Address) -> bool:
    """Return whether the address names this machine, judged by its text."""
    if address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def check(address: Address, *, insecure: bool) -> str:
    """Return a warning to show, or an empty text. Raises `NotAllowed` (`http.insecure`) for plain http to a public
    address.

    Raises `Unreachable` when the host's name cannot be resolved; that is the only network access.
    """
    if address.scheme == "https" or is_loopback(address):
        return ""
    public = [ip for ip in lookup(address) if not ip.is_private]
    if not public:
        return ""
    if not insecure:
        raise NotAllowed(
            f"plain http to the public address {public[0]} would send models and credentials in the clear",
            code="http.insecure",
            hint="use https, or a private network; `insecure` allows it where nothing else can be had",
        )
    return f"models and credentials travel in the clear to the public address {public[0]}"


def lookup(address: Address) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the host's addresses. Raises `Unreachable` for an unknown name."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(
            f"host {address.host!r} is not known: {error.strerror or error}",
            code="network.name",
            hint="check the address and the name service",
        ) from None
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
