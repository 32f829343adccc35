"""The connections of a peer's listener: whose bytes are counted, and how long slow senders are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.peering.state.byte_counts import STRANGER, ByteCounts
from shoal.runtime.http.server.exchange import HttpExchange
from shoal.runtime.http.server.metered_protocol import ServerConnections
from shoal.runtime.http.server.receive_timeouts import ReceiveTimeouts

HEAD_RECEIPT_S = 10
"""Seconds for a request's head to arrive."""
BODY_GRACE_S, BODY_BYTES_PER_S_MIN = 20, 500
"""Seconds after which a body must have come at this mean rate in bytes per second."""
CONNECTIONS_MAX = 1024


@dataclass
class PeerExchange(HttpExchange):
    """A request to a peer and its answer. `byte_counts`: of the job that the sender belongs to."""

    peer: str = STRANGER
    byte_counts: ByteCounts | None = None


class PeerConnections(ServerConnections):
    """Connections whose bytes are counted by sender; those of unknown senders in `stranger_bytes`."""

    def __init__(self, stranger_bytes: ByteCounts) -> None:
        super().__init__(ReceiveTimeouts(HEAD_RECEIPT_S, BODY_GRACE_S, BODY_BYTES_PER_S_MIN), CONNECTIONS_MAX)
        self._stranger_bytes = stranger_bytes

    def exchange(self) -> HttpExchange:
        return PeerExchange()

    def finished(self, done: HttpExchange, scope: dict[str, Any]) -> None:
        assert isinstance(done, PeerExchange)
        (done.byte_counts or self._stranger_bytes).add(done.peer, sent=done.down, received=done.up)
