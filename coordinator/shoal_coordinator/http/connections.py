"""The connections of a coordinator: their byte counts and client certificates."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from shoal.runtime.http.server.exchange import HttpExchange
from shoal.runtime.http.server.metered_protocol import ServerConnections
from shoal.runtime.http.server.receive_timeouts import ReceiveTimeouts
from shoal_coordinator.http.client_certificates import CERTIFIED_KEY, names_of
from shoal_coordinator.settings import Settings
from shoal_coordinator.telemetry.metrics import FORWARDED, Metrics, route_of
from shoal_coordinator.telemetry.traffic import LabeledExchange, TrafficCounter


class CoordinatorConnections(ServerConnections):
    """Connections whose requests routes label. `traffic`: where their bytes are counted now."""

    def __init__(self, traffic: TrafficCounter, settings: Settings, metrics: Metrics) -> None:
        timeouts = ReceiveTimeouts(settings.header_timeout_s, settings.body_grace_s, settings.body_bytes_per_s_min)
        super().__init__(timeouts, settings.connections_max, settings.lease_s)
        self.traffic, self._metrics = traffic, metrics
        self._asks_certificates = settings.tls_client_ca is not None
        metrics.connections_max.set(self.limit.most)

    def exchange(self) -> HttpExchange:
        return LabeledExchange()

    def opened(self, transport: asyncio.Transport) -> dict[str, Any]:
        self._metrics.connections.inc()
        names = names_of(transport) if self._asks_certificates else None
        return {} if names is None else {CERTIFIED_KEY: names}

    def closed(self) -> None:
        self._metrics.connections.dec()

    def refused(self) -> None:
        self._metrics.connections_refused.inc()
        super().refused()

    def finished(self, done: HttpExchange, scope: dict[str, Any]) -> None:
        assert isinstance(done, LabeledExchange)
        if not done.elsewhere:
            self.traffic.count(done)
        if done.status:
            route = FORWARDED if done.elsewhere else route_of(scope)
            seconds = time.perf_counter() - done.begun if done.begun else 0.0
            self._metrics.answered(scope.get("method", ""), route, done.status, seconds)
