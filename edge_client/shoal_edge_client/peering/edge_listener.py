"""Listener and identity of this node as a peer, for all its jobs.

FOLDER/peer-key.pem       its private key, made at the first start
FOLDER/peer-process-number    the number of its last session: see `next_process_number`
FOLDER/unidentified_bytes.json   bytes of senders that were not authenticated
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, Self

import structlog

from shoal.core.errors import InvalidJob
from shoal.peering.host.peer_group import PeerGroup
from shoal.peering.http.hosted_peer import HostedJobs
from shoal.peering.http.peer_app import serve_jobs
from shoal.peering.http.relay_server import RelayUplink
from shoal.peering.state.byte_counts import ByteCounts
from shoal.runtime.http.coordinator_url import Address
from shoal.runtime.http.node_client import NodeContact
from shoal.runtime.http.server.serving import listen
from shoal.trust.keys import load_or_create, next_process_number

NO_CALLS = "none"
"""For `peer_listen`: take part, but accept no calls."""

_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what a person may say


class EdgeListener:
    """The socket at which other nodes call this one, for all its jobs. A context manager; `serve` answers requests.
    `listens`: "host:port", or `NO_CALLS`."""

    def __init__(self, listens: str, url: str, folder: Path, hub: Address) -> None:
        self._listens, self._url, self._folder, self._hub = listens, url, folder, hub
        self._sock: socket.socket | None = None
        self._closing = asyncio.Event()
        self.groups: dict[str, PeerGroup] = {}
        self.uplink: RelayUplink | None = None
        """Uplink with which requests of other nodes are relayed; None: none are."""
        self.log: Any = structlog.get_logger("edge_client.listener")

    def __enter__(self) -> Self:
        self.key = load_or_create(self._folder / "peer-key.pem")
        self._strangers = ByteCounts(self._folder / "unidentified_bytes.json")
        if self._listens != NO_CALLS:
            host, port = parse_listen_address(self._listens)
            self._sock = listen(host, port)
            self._url = self._url or f"http://{self._reached_at(host)}:{self._sock.getsockname()[1]}"
            self.log.info("peers can call", url=self._url)
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.groups.values():
            group.close()
        if self._sock is not None:
            self._sock.close()

    def _reached_at(self, host: str) -> str:
        """Return the address of this machine as seen from the coordinator's network, unless the settings name one."""
        if host not in _EVERYWHERE:
            return f"[{host}]" if ":" in host else host
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((self._hub.host, self._hub.port or 9))  # nothing is sent: it only chooses a way
                return str(probe.getsockname()[0])
            except OSError:
                return "127.0.0.1"

    def contact(self) -> NodeContact:
        """Return the contact that this node announces in its hello."""
        is_reachable = self._sock is not None
        return NodeContact(self.key.public_key, (self._url,) if is_reachable else (), is_reachable)

    def next_process(self) -> int:
        """Return a number for a new session, greater than all before."""
        return next_process_number(self._folder / "peer-process-number")

    async def serve(self) -> None:
        """Answer requests until `close` is called."""
        if self._sock is None:
            await self._closing.wait()
            return
        jobs = HostedJobs(self.groups.get, self._strangers, self._refuse, self.key.peer_id, lambda: sorted(self.groups))
        async with serve_jobs(jobs, self._sock):
            await self._closing.wait()

    def _refuse(self, code: str, why: str, sender: str) -> None:
        """Log a refusal that concerns none of this node's jobs."""
        self.log.warning("refused", code=code, why=why, sender=sender)

    def close(self) -> None:
        """End `serve`."""
        self._closing.set()


def parse_listen_address(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port", ":port" or "[host]:port". Raises `InvalidJob` for other texts."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidJob(
            f"peer_listen: {address!r} is not an address", code="config.value", hint="use HOST:PORT, 0.0.0.0:0, or none"
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - no host is every host
