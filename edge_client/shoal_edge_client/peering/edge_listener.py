"""Where this node can be called, for all its jobs, and who it is among peers.

FOLDER/peer-key.pem       its private key, made at the first start
FOLDER/peer-boot          the number of the last beginning of a part of it: see `next_boot`
FOLDER/peer-strangers.json   bytes of those who never said who they are
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, Self

import structlog

from shoal.core.errors import InvalidJob
from shoal.runtime.address import Address
from shoal.runtime.node_link import Contact
from shoal.trust.keys import load_or_make, next_boot
from shoal_peer.app import Home, serving_all
from shoal_peer.carriage import Carrier
from shoal_peer.company import Company
from shoal_peer.ledger import Ledger
from shoal_peer.listening import listen

NOBODY = "none"
"""For `peer_listen`: take part, but accept no calls."""

_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what a person may say


class Porch:
    """A context manager, which holds the address; `serve` answers there. `listens`: "host:port", or `NOBODY`."""

    def __init__(self, listens: str, url: str, folder: Path, hub: Address) -> None:
        self._listens, self._url, self._folder, self._hub = listens, url, folder, hub
        self._sock: socket.socket | None = None
        self._closing = asyncio.Event()
        self.residents: dict[str, Company] = {}
        self.carrier: Carrier | None = None
        """With which words of others are passed on to the coordinator; None: none are."""
        self.log: Any = structlog.get_logger("edge_client.porch")

    def __enter__(self) -> Self:
        self.key = load_or_make(self._folder / "peer-key.pem")
        self._strangers = Ledger(self._folder / "peer-strangers.json")
        if self._listens != NOBODY:
            host, port = address_of(self._listens)
            self._sock = listen(host, port)
            self._url = self._url or f"http://{self._reached_at(host)}:{self._sock.getsockname()[1]}"
            self.log.info("peers can call", url=self._url)
        return self

    def __exit__(self, *_: object) -> None:
        for company in self.residents.values():
            company.close()
        if self._sock is not None:
            self._sock.close()

    def _reached_at(self, host: str) -> str:
        """The address of this machine as the coordinator's network sees it, where a person has not said."""
        if host not in _EVERYWHERE:
            return f"[{host}]" if ":" in host else host
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((self._hub.host, self._hub.port or 9))  # nothing is sent: it only chooses a way
                return str(probe.getsockname()[0])
            except OSError:
                return "127.0.0.1"

    def contact(self) -> Contact:
        """What the coordinator is told at the hello."""
        inbound = self._sock is not None
        return Contact(self.key.pub, (self._url,) if inbound else (), inbound)

    def next_boot(self) -> int:
        """The number of a part that begins, greater than ever before."""
        return next_boot(self._folder / "peer-boot")

    async def serve(self) -> None:
        """Answer requests until `close`."""
        if self._sock is None:
            await self._closing.wait()
            return
        home = Home(self.residents.get, self._strangers, self._refuse, self.key.peer_id, lambda: sorted(self.residents))
        async with serving_all(home, self._sock):
            await self._closing.wait()

    def _refuse(self, code: str, why: str, sender: str) -> None:
        """What concerns none of this node's jobs."""
        self.log.warning("refused", code=code, why=why, sender=sender)

    def close(self) -> None:
        """Let `serve` end."""
        self._closing.set()


def address_of(said: str) -> tuple[str, int]:
    """(host, port) of "host:port", ":port" or "[host]:port". Raises `InvalidJob` for anything else."""
    host, _, port = said.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidJob(
            f"peer_listen: {said!r} is no address", code="config.value", hint="say HOST:PORT, 0.0.0.0:0, or none"
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - no host is every host
