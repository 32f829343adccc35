"""The machine of a job that its nodes may continue, with its durable state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.failover.failover import ModelHeld
from shoal.core.gossip.gossip import GossipPeer, PeerEffect
from shoal.core.model.tree import Tree, norm
from shoal.core.protocol.machine import MachineState, Memory, Save, TaskDone
from shoal.core.protocol.message import BlobRef, Metrics, Task
from shoal.core.protocol.peer_message import DeclareFailover
from shoal.runtime.worker_pump import ReportStore
from shoal.wire.codec import plain
from shoal_edge_client.peering.peer_session import PeerSession


@dataclass
class StatusQuery:
    """A question for the machine's state, answered between two events."""

    values: dict[str, Any] = field(default_factory=dict)


class FailoverMachine:
    """A `FailoverPeer` and its durable state (`shoal.peering.host.gossip_pump.PeerMachine`).

    Models are read and written here, so `feed` and `sweep` run in a thread. `handover` returns the gossip task whose
    model is being fetched. `needs_reference` returns whether a model is wanted to compare those of peers with.
    """

    def __init__(
        self,
        session: PeerSession,
        reports: ReportStore,
        clock: Callable[[], float],
        handover: Callable[[], Task | None],
        needs_reference: Callable[[], bool],
    ) -> None:
        self.session, self.peer, self._reports, self._clock = session, session.peer, reports, clock
        self._handover, self._needs_reference = handover, needs_reference
        self.is_report_saved = True
        """False if the worker's report could not be stored, so that it must not be sent."""
        self.reference: Tree | None = None
        """A model that peers' models can be compared with, until it is taken."""
        self.round_metrics: Metrics = {}
        """The metrics of the last local round."""

    @property
    def gossip(self) -> GossipPeer | None:
        return self.peer.gossip

    def feed(self, event: Any) -> Sequence[PeerEffect]:
        effects = self._feed(event)
        if self.reference is None and self._needs_reference() and (self.gossip or self.peer.base.model):
            self.reference = self.own_model()
        return effects

    def _feed(self, event: Any) -> Sequence[PeerEffect]:
        peer, session = self.peer, self.session
        if isinstance(event, StatusQuery):
            event.values = self._status_with_sums()
            return []
        if isinstance(event, DeclareFailover) and (event := self._with_own_model(event)) is None:
            return []
        if isinstance(event, ModelHeld) and not self.has_blob(event.model):
            return []  # a newer task has come, and it was swept away
        gossip = peer.gossip
        before = gossip.me.model if gossip is not None else None
        effects = peer.start(self._clock()) if event is None else peer.on(event, self._clock())
        self._record_update(event, gossip, before)
        self._save(effects)
        if isinstance(event, TaskDone):
            session.weight = session.weight or (event.result.weight if event.result is not None else 0.0)
            session.state.release_result(event.result)
        return [effect for effect in effects if not isinstance(effect, Save)]

    def _with_own_model(self, declared: DeclareFailover) -> DeclareFailover | None:
        """Return the declaration with the version that this node holds, if it lacks the declared model."""
        base = self.peer.base
        if self.peer.gossip is not None or self.has_blob(declared.model):
            return declared
        return replace(declared, version=base.version, model=base.model) if base.model is not None else None

    def _record_update(self, event: Any, gossip: GossipPeer | None, before: Tree | None) -> None:
        after, sums = self.peer.gossip, self.session.sums
        if after is None:
            sums.close()
        elif gossip is not after:
            sums.start(after.me.weight, after.me.model)
        elif isinstance(event, TaskDone) and before is not None:
            sums.add_update(after.me.weight, before, after.me.model)

    def _save(self, effects: Sequence[PeerEffect]) -> None:
        """Save private memory, then the machine's state, as a worker resumes from that memory; then the report."""
        state, saved = self.session.state, [effect.what for effect in effects if isinstance(effect, Save)]
        for what in saved:
            if isinstance(what, Memory):
                state.commit_memory(what.blob)
        for what in saved:
            if isinstance(what, MachineState):
                state.save_peer(what.state, self.session.sums.state())
        self.is_report_saved = self._reports.save_report()

    def sweep(self) -> None:
        worker, gossip = self.peer.worker, self.peer.gossip
        tasks = [worker.task, gossip.task if gossip is not None else None, self._handover()]
        refs = [ref for task in tasks if task is not None for ref in (task.blob, task.reference)]
        refs += [worker.memory, worker.pending, getattr(worker.unacknowledged, "blob", None)]
        self.session.state.sweep([*self.peer.blob_refs(), *(ref for ref in refs if ref is not None)])

    def has_blob(self, ref: BlobRef | None) -> bool:
        """Return whether the whole blob is here; True for None."""
        return ref is None or self.session.state.blobs.size(ref.digest) == ref.nbytes

    def own_model(self) -> Tree:
        """Return the model that this node holds. Blocks."""
        if self.peer.gossip is not None:
            return self.peer.gossip.me.model
        assert self.peer.base.model is not None
        return tree_slot(self.session.state.blobs.get(self.peer.base.model), "model")

    def own_norm(self) -> float:
        """Return the norm of that model, with all that peers mix with it. Blocks; any thread may call."""
        gossip = self.peer.gossip
        return gossip.me.norm if gossip is not None else norm(self.own_model())

    def status(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        peer, gossip = self.peer, self.peer.gossip
        exchange_bytes = gossip.me.exchange_bytes if gossip is not None else 0
        return {
            "state": peer.state,
            "term": peer.term,
            "local_rounds": gossip.me.local_rounds if gossip is not None else 0,
            "weight": gossip.me.weight if gossip is not None else 0.0,
            "rounds_by_peer": dict(gossip.me.counts.version_vector) if gossip is not None else {},
            "budget": peer.budget.status(exchange_bytes),
            "metrics": plain(self.round_metrics) if gossip is not None else {},
        }

    def public_status(self) -> dict[str, Any]:
        """Return the state with the version from which the peers continue, as JSON values."""
        base, model = self.peer.base, self.peer.base.model
        return {**self.status(), "base": {"version": base.version, "sha256": model.digest} if model else None}

    def _status_with_sums(self) -> dict[str, Any]:
        gossip = self.peer.gossip
        model = gossip.me.model if gossip is not None else None
        weight = gossip.me.weight if gossip is not None else 0.0
        return {**self.status(), **self.session.sums.report(weight, model)}
