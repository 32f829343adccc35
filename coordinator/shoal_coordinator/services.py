"""The parts of a coordinator that the drivers of all its jobs share."""

from __future__ import annotations

from dataclasses import dataclass

from shoal_coordinator.bells import Bells
from shoal_coordinator.database import Database
from shoal_coordinator.metrics import Metrics
from shoal_coordinator.settings import Settings
from shoal_coordinator.stream import Broadcast
from shoal_coordinator.unreported import NodeBytes


@dataclass(frozen=True)
class Services:
    """The same for all jobs of a coordinator."""

    database: Database
    broadcast: Broadcast
    settings: Settings
    bells: Bells
    """By node: set when something was sent to it, in any job."""
    node_bytes: NodeBytes
    metrics: Metrics
