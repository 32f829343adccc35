"""The coordinator's background tasks: leases of nodes, closed versions, trust documents, and alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from shoal.core.errors import ShoalError
from shoal.core.protocol.machine import NodeLost
from shoal_coordinator.alerts.alert_loop import AlertLoop
from shoal_coordinator.composition.job_lifecycle import JobLifecycle
from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.nodes.load_shedding import LoadShedding
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.peers.peer_status import PeerStatuses
from shoal_coordinator.peers.trust_documents import TrustDocuments
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.repeated_errors import RepeatedErrors
from shoal_coordinator.storage.writer import Database

log = structlog.get_logger()

TICK_S, ALERTS_S = 0.5, 2.0


class Housekeeping:
    """The work that a coordinator does every `TICK_S` seconds."""

    def __init__(
        self,
        settings: Settings,
        registry: JobRegistry,
        lifecycle: JobLifecycle,
        presence: Presence,
        load_shedding: LoadShedding,
        peer_statuses: PeerStatuses,
        trust_documents: TrustDocuments,
        database: Database,
    ) -> None:
        self._settings, self._registry, self._lifecycle, self._presence = settings, registry, lifecycle, presence
        self._load_shedding, self._peer_statuses = load_shedding, peer_statuses
        self._trust_documents, self._database = trust_documents, database

    async def run(
        self,
        hears_nodes: Callable[[], bool],
        after: Sequence[Callable[[], Awaitable[None]]],
        on_lease_lost: Callable[[], None],
    ) -> None:
        """Run until cancelled, or until another coordinator has taken the database over.

        Args:
            hears_nodes: returns whether nodes' signs of life are known now.
            after: further work of each tick.
        """
        failing = RepeatedErrors("tick failed")
        while True:
            await asyncio.sleep(TICK_S)
            if self._database.fenced:
                on_lease_lost()
                return
            self._load_shedding.measure()
            try:
                if hears_nodes():
                    await self._drop_silent_nodes()
                await self._lifecycle.process_closed_versions()
                await self._update_peers()
                for work in after:
                    await work()
                failing.worked()
            except Exception as error:  # noqa: BLE001 - the next tick may succeed
                if not self._database.fenced:
                    failing.failed(error)

    async def _update_peers(self) -> None:
        """Sample peers' statuses, and sign trust documents that have changed."""
        for runner in self._registry.running():
            self._peer_statuses.sample_history(runner.name, self._trust_documents.peers(runner.name))
            try:
                await self._trust_documents.refresh(runner, self._database)
            except ShoalError as error:
                log.error("trust documents not signed; trying again", job=runner.name, error=repr(error))

    async def _drop_silent_nodes(self) -> None:
        """Tell jobs of the nodes whose leases have expired."""
        running = [runner for runner in self._registry.running() if not runner.gate.is_restoring]
        spare_s = self._load_shedding.estimate().pause_s_max  # an earlier process may have asked them to pause
        for runner in running:
            for member in runner.hub.roster.present_members():
                self._presence.ensure_lease(member.node, spare_s)
        for node in self._presence.expired():
            for runner in running:
                found = runner.hub.roster.get(node)
                if found is not None and found.is_present:
                    await runner.submit(NodeLost(node, f"no sign of life for {self._settings.lease_s:g} s"))


async def run_alerts(alert_loop: AlertLoop) -> None:
    """Evaluate the alert rules every `ALERTS_S` seconds, until cancelled."""
    failing = RepeatedErrors("the evaluation of alert rules failed")
    while True:
        try:
            await alert_loop.evaluate()
            failing.worked()
        except Exception as error:  # noqa: BLE001 - the next evaluation may succeed
            failing.failed(error)
        await asyncio.sleep(ALERTS_S)
