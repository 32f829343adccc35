"""Publication of changes that follow from no event of a hub: nodes, peers, byte counts and progress."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from shoal_coordinator.jobs.job_registry import JobRegistry
from shoal_coordinator.jobs.job_runner import JobRunner
from shoal_coordinator.models.version_history import VersionSummary
from shoal_coordinator.peers.peer_status import PeerStatuses
from shoal_coordinator.peers.relay_auth import RelayAuth
from shoal_coordinator.peers.trust_documents import TrustDocuments
from shoal_coordinator.presenters.job_presenter import JobPresenter, is_open_ended, seconds_left, state_reason
from shoal_coordinator.schemas.peers import JobPeersUpdate
from shoal_coordinator.telemetry.event_bus import EventBus, Item
from shoal_coordinator.telemetry.traffic import TrafficCounter

AT_ONCE = 100
"""Nodes that are compared without a pause in which requests are answered."""


class ChangePublisher:
    """A publisher of changes, each only when it differs from what was sent last."""

    def __init__(
        self,
        presenter: JobPresenter,
        registry: JobRegistry,
        event_bus: EventBus,
        traffic: TrafficCounter,
        trust_documents: TrustDocuments,
        peer_statuses: PeerStatuses,
        relay_auth: RelayAuth,
    ) -> None:
        self._presenter, self._registry, self._event_bus, self._traffic = presenter, registry, event_bus, traffic
        self._trust_documents, self._peer_statuses, self._relay_auth = trust_documents, peer_statuses, relay_auth
        self._sent: dict[tuple[str, str], str] = {}

    async def publish(self) -> None:
        """Send what differs from what was sent last. Nothing is compared while no browser listens."""
        if not self._event_bus.has_readers:
            self._sent.clear()
            return
        for runner in self._registry.runners():
            await self._publish_nodes(runner)
            self._publish_peers(runner)
            totals = self._traffic.totals
            data = {"up_bytes": totals[runner.name, "up"], "down_bytes": totals[runner.name, "down"]}
            if self._is_new((runner.name, ""), data):
                self._event_bus.publish(Item("traffic", runner.name, data))
            share = {"progress": round(self._presenter.progress(runner), 2)} if is_open_ended(runner) else {}
            now = {
                "why": state_reason(runner.hub),
                "idle": runner.hub.state.is_idle,
                "ends": seconds_left(runner) is not None,
                **share,
            }
            now |= {"headline": "" if runner.gate.is_restoring else self._presenter.headline(runner, VersionSummary())}
            if self._is_new((runner.name, "now"), now):
                self._event_bus.publish(Item("job", runner.name, {}))

    async def _publish_nodes(self, runner: JobRunner) -> None:
        fresh = []
        for place, member in enumerate(runner.hub.roster.all_members()):
            if place % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)  # requests come first: of tens of thousands all take a second and more
            data = self._presenter.job_node(runner, member.node).model_dump(mode="json")
            silent_s = data["last_seen_s"]
            if self._is_new(
                (runner.name, member.node), data | {"last_seen_s": None if silent_s is None else silent_s // 5}
            ):
                fresh.append(data)
        if fresh:
            self._event_bus.publish(Item("nodes", runner.name, {"nodes": fresh}))

    def _publish_peers(self, runner: JobRunner) -> None:
        """Publish peers that have reported since the last call, or that a new roster names."""
        job = runner.name
        documents = self._trust_documents.current(job)
        if documents is None:
            return
        version, statuses = documents.roster.version, self._peer_statuses.statuses(job)
        marks = {
            name: {
                "heard": statuses[name].received_at if name in statuses else 0.0,
                "by": self._relay_auth.relayed_by(job, name),
            }
            for name in self._trust_documents.peers(job)
        }
        fresh = {name for name, mark in marks.items() if self._is_new((job, f"peer {name}"), mark)}
        if self._is_new((job, "roster"), {"version": version}) or fresh:
            rows = self._peer_statuses.changed_rows(job, self._trust_documents.peers(job), fresh)
            update = JobPeersUpdate(job=job, roster=version, peers=rows, now=self._peer_statuses.current_point(job))
            self._event_bus.publish(Item("peers", job, update.model_dump(mode="json")))

    def _is_new(self, key: tuple[str, str], data: dict[str, Any]) -> bool:
        text = json.dumps(data, sort_keys=True)
        if self._sent.get(key) == text:
            return False
        self._sent[key] = text
        return True
