"""Labels of a request, under which its bytes are counted, and the node that it shows to be alive."""

from __future__ import annotations

from functools import partial

from fastapi import Request

from shoal.runtime.http.server.exchange import SCOPE_KEY
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.telemetry.traffic import Label, LabeledExchange


def label(request: Request, job: str = "", version: int = -1, node: str = "", kind: str = "other") -> None:
    """Count a request's bytes under a job, version, node and kind."""
    exchange = request.scope.get(SCOPE_KEY)
    if isinstance(exchange, LabeledExchange):
        exchange.label = Label(job, version, node, kind)


def mark_alive(request: Request, presence: Presence, node: str) -> None:
    """Take a request, and each byte of it and of its response that moves from now on, as a sign of life of a node."""
    presence.mark_alive(node)
    exchange = request.scope.get(SCOPE_KEY)
    if isinstance(exchange, LabeledExchange):
        exchange.heard = partial(presence.mark_alive, node)
