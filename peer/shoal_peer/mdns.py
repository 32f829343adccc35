"""Discovery of a roster's peers on the local network by multicast DNS, with the extra `lan`.

A peer announces its name, job and peer id at `_shoal-peer._tcp.local.`, and looks for those of its roster. A forged
address has no effect, because the peer there must sign with its key.
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

OnDiscovered = Callable[[str, str], None]
"""`(peer id, url)`; called in a thread of zeroconf's."""


@dataclass(frozen=True)
class MdnsRecord:
    """A peer's announcement. `addresses`: IPv4, as text."""

    job: str
    node: str
    peer_id: str
    addresses: tuple[str, ...]
    port: int


class MdnsDiscovery:
    """Announcement of a peer, with a callback `found` for others of its job and their new addresses. A blocking
    context manager."""

    def __init__(self, own: MdnsRecord, found: OnDiscovered) -> None:
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
            raise Unreachable(text, code="lan.none", hint="give the others' addresses: --join NAME=URL") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._zeroconf.close()  # it says goodbye for the service, too

    def _changed(self, *, zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        """Report a service that appeared or moved; removed ones stay known, as they may return at the same address."""
        if state_change is self._dns.ServiceStateChange.Removed:
            return
        info = zeroconf.get_service_info(service_type, name, ASKED_MS)
        if info is None or not info.port:
            return
        properties = texts(info.properties)
        if properties.get("job") != self._own.job or properties.get("peer", self._own.peer_id) == self._own.peer_id:
            return
        for address in info.parsed_addresses(self._dns.IPVersion.V4Only)[:1]:
            self._found(properties["peer"], f"http://{address}:{info.port}")


def zeroconf() -> Any:
    """Return the package. Raises `ShoalError` if it is not installed."""
    try:
        import zeroconf as package
    except ModuleNotFoundError as error:
        raise not_installed(error, "lan", "--discover") from None
    return package


def own_addresses(host: str) -> tuple[str, ...]:
    """Return the IPv4 addresses at which a listener on `host` is reached."""
    if host not in ALL:
        return (host,)
    found = [str(address) for address in zeroconf().get_all_addresses()]
    return tuple(address for address in found if not address.startswith("127.")) or ("127.0.0.1",)


def texts(properties: Mapping[Any, Any]) -> dict[str, str]:
    """Return a service's properties that are text."""
    found = {}
    for key, value in properties.items():
        try:
            found[bytes(key).decode()] = bytes(value or b"").decode()
        except (UnicodeDecodeError, TypeError):
            continue
    return found
