"""Where the others of a roster are, on one's own network: by multicast DNS, with the extra `lan`.

A peer announces its name, job and peer id at `_shoal-peer._tcp.local.`, and looks for those of its roster there.
An address that somebody makes up is of no use to him: whoever answers there must sign as that peer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from shoal.core.errors import Unreachable
from shoal.extras import not_installed

SERVICE = "_shoal-peer._tcp.local."
ASKED_MS = 3000
ALL = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened at

Found = Callable[[str, str], None]
"""`(peer id, url)`; called in a thread of zeroconf's."""


@dataclass(frozen=True)
class Announced:
    """What is told of a peer. `addresses`: IPv4, as text."""

    job: str
    node: str
    peer_id: str
    addresses: tuple[str, ...]
    port: int


class Lan:
    """Announces a peer, and calls `found` for others of its job, again when one moves. A context manager; it blocks."""

    def __init__(self, own: Announced, found: Found) -> None:
        self._dns, self._own, self._found = zeroconf(), own, found

    def __enter__(self) -> Self:
        own, dns = self._own, self._dns
        try:
            self._zeroconf: Any = dns.Zeroconf()
            self._zeroconf.register_service(
                dns.ServiceInfo(
                    SERVICE,
                    f"{own.peer_id}.{SERVICE}",
                    addresses=[socket.inet_aton(address) for address in own.addresses],
                    port=own.port,
                    properties={"job": own.job, "node": own.node, "peer": own.peer_id},
                )
            )
            self._browser = dns.ServiceBrowser(self._zeroconf, SERVICE, handlers=[self._changed])
        except (OSError, dns.Error) as error:
            text = f"no multicast here: {error or type(error).__name__}"
            raise Unreachable(text, code="lan.none", hint="say where the others are: --join NAME=URL") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._zeroconf.close()  # it says goodbye for the service, too

    def _changed(self, *, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        """Somebody is there, has moved, or has gone: whoever has gone is not forgotten, he may come back there."""
        if state_change is self._dns.ServiceStateChange.Removed:
            return
        info = zeroconf.get_service_info(service_type, name, ASKED_MS)
        if info is None or not info.port:
            return
        said = texts(info.properties)
        if said.get("job") != self._own.job or said.get("peer", self._own.peer_id) == self._own.peer_id:
            return
        for address in info.parsed_addresses(self._dns.IPVersion.V4Only)[:1]:
            self._found(said["peer"], f"http://{address}:{info.port}")


def zeroconf() -> Any:
    """The package. Raises `ShoalError` if it is not installed."""
    try:
        import zeroconf as package
    except ModuleNotFoundError as error:
        raise not_installed(error, "lan", "--lan") from None
    return package


def own_addresses(host: str) -> tuple[str, ...]:
    """Where one that listens at `host` is reached from outside, IPv4."""
    if host not in ALL:
        return (host,)
    found = [str(address) for address in zeroconf().get_all_addresses()]
    return tuple(address for address in found if not address.startswith("127.")) or ("127.0.0.1",)


def texts(properties: Mapping[Any, Any]) -> dict[str, str]:
    """What a service says of itself, as far as it is text."""
    found = {}
    for key, value in properties.items():
        try:
            found[bytes(key).decode()] = bytes(value or b"").decode()
        except (UnicodeDecodeError, TypeError):
            continue
    return found
