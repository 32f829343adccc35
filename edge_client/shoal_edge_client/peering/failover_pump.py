"""The pump of a job that its nodes may continue without the coordinator.

The machine reads and writes models, so every event is fed in a thread, and its state is durable before any message is
sent. Membership messages do not come here: a ping must not wait for a model. A gossip task is fed when its model is
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import Refused, ShoalError
from shoal.core.failover.failover import ForcedFailover, ModelHeld
from shoal.core.failover.failover_peer import FailoverPeer
from shoal.core.gossip.gossip import LocalRoundDone, PeerEffect, StopGossip
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.model.tree import Slots
from shoal.core.protocol.machine import HUB, JobEvent, Send, Tell
from shoal.core.protocol.message import (
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    Leave,
    Report,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.core.protocol.peer_message import PeerMessage, RelayRequest, RelayResponse
from shoal.peering.host.gossip_pump import GossipPump
from shoal.peering.host.model_acceptance import Evaluator, ModelAcceptance
from shoal.peering.host.peer_group import PeerCallbacks
from shoal.peering.http.peer_link import OutgoingMessage
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.http.node_client import JobLease
from shoal.runtime.report_delivery import ReportDelivery
from shoal.runtime.task_execution import TaskExecution
from shoal.runtime.threads import SerialExecutor, in_thread
from shoal.runtime.worker_ports import HeldTask, WorkerPorts, task_label
from shoal.runtime.worker_pump import ReportStore, WorkerEffects
from shoal.trust.documents import ModeRecord
from shoal_edge_client.peering.background_tasks import BackgroundTasks
from shoal_edge_client.peering.coordinator_requests import CoordinatorRequests
from shoal_edge_client.peering.edge_listener import EdgeListener
from shoal_edge_client.peering.edge_peer_group import EdgePeerGroup
from shoal_edge_client.peering.failover_machine import FailoverMachine
from shoal_edge_client.peering.handover_download import HandoverDownload, StoringFetcher
from shoal_edge_client.peering.peer_session import PeerSession
from shoal_edge_client.peering.recovery.checkpoint_store import CheckpointStore
from shoal_edge_client.peering.recovery.incarnation_fence import IncarnationFence
from shoal_edge_client.peering.recovery.local_checkpoints import LocalCheckpoints
from shoal_edge_client.peering.relay.relay_client import RelayClient
from shoal_edge_client.peering.relay.relay_route import RelayRoute
from shoal_edge_client.transport import HttpTransport


class FailoverPump:
    """The pump of one job (`JobPump`). `evaluate`: None if the job has no loss filter. `count_examples` runs in the
    executor."""

    def __init__(
        self,
        session: PeerSession,
        ports: WorkerPorts,
        hub: HttpTransport,
        listener: EdgeListener,
        evaluate: Evaluator | None,
        count_examples: Callable[[], float],
    ) -> None:
        job, peer, state, gossip = session.spec.name, session.peer, session.state, session.spec.gossip
        self.session, self.background, number = session, BackgroundTasks(), session.process_number
        self.log: Any = structlog.get_logger("shoal.pump").bind(job=job)
        route = RelayRoute(job, hub, self._submit_threadsafe)
        soon_s = min(ports.backoff.most_s, peer.failover.coordinator_timeout_s / 3)
        ports = replace(ports, transport=route, backoff=replace(ports.backoff, most_s=soon_s))
        self._clock = ports.clock
        reports = ReportStore(peer.worker, ports, self._submit_threadsafe)
        self.machine = FailoverMachine(
            session, reports, ports.clock, lambda: self._handover.task, lambda: self.group.needs_model
        )
        self.group = EdgePeerGroup(session.spec, session.node, number, state, listener, self._callbacks())
        self.group.at = ports.at
        peer.budget.crossed = self.group.bytes_crossed
        acceptance = ModelAcceptance(
            lambda: peer.gossip,
            lambda: self.group.group,
            evaluate,
            gossip.loss_ratio_max,
            timeout_s=gossip.exchange_timeout_s,
        )
        self.pump = GossipPump(self.machine, self._apply, state.blobs, acceptance, self.group.post, ports.clock)
        events, blobs = self.pump.events, StoringFetcher(job, ports, state)
        execution = TaskExecution(job, ports, events.submit_nowait, events.spawn, blobs, self._on_fetched)
        self._worker = WorkerEffects(
            peer.worker, ReportDelivery(job, ports, events.submit_nowait, events.spawn), execution
        )
        self._handover = HandoverDownload(
            blobs, state, events.submit, events.spawn, lambda: peer.worker.pending is not None
        )
        self.coordinator = CoordinatorRequests(hub, self.group, self.background, self.submit, self._use_documents)
        self.relay_client = RelayClient(
            peer, route, self.group, self._held_task, self.submit, events.submit_nowait, self.background.run
        )
        self.fence = self.relay_client.fence = IncarnationFence(state.files, self._on_fenced)
        self.checkpoints = CheckpointStore(job, state)
        self._logged_state = ("", 0)
        self.background.run("weight", partial(self._find_weight, ports.executor, count_examples))
        self.background.run("peering", partial(self.coordinator.report_status, session.process_number))

    def _callbacks(self) -> PeerCallbacks:
        """Return the callbacks of the peer group."""
        session = self.session
        return PeerCallbacks(
            self._handle_messages,
            lambda peers: self.pump.events.submit_nowait(LivePeers(peers.nodes, roster=peers.roster)),
            self.machine.public_status,
            self._on_forced_mode,
            LocalCheckpoints(session.state.folder, session.node, session.state.blobs),
        )

    @property
    def peer(self) -> FailoverPeer:
        """Return the machine."""
        return self.session.peer

    # As the node's agent drives it

    @property
    def held(self) -> TaskId | None:
        return self._worker.held

    @property
    def revision(self) -> int:
        return self._worker.revision

    @property
    def fetching(self) -> HeldTask | None:
        task = self._handover.task
        return (*task.id, task.revision) if task is not None else None

    @property
    def stopped(self) -> str:
        return self.peer.worker.stopped

    def _held_task(self) -> HeldTask | None:
        """Return the task that a poll through a relay reports."""
        task = self.held
        return self.fetching or ((*task, self.revision) if task is not None else None)

    async def submit(self, event: Any) -> bool:
        task = event.message if isinstance(event, RelayResponse) else event
        if isinstance(task, Task) and task.kind == "gossip":
            with self.session.state.holds.holding(task.blob):
                if self.machine.has_blob(task.blob):
                    return (await self.pump.events.submit(event)).changed
            self._handover.start(task, event.node if isinstance(event, RelayResponse) else "")
            return True
        return (await self.pump.events.submit(event)).changed

    def on_lease(self, lease: JobLease) -> None:
        """Record that the coordinator answered a poll; fetch newer trust documents."""
        self.pump.events.submit_nowait(CoordinatorAlive(lease.term))
        if lease.roster > self.group.version or self.group.expires_soon:
            self.background.run("documents", self.coordinator.fetch_documents)

    async def leave(self, *, train_s: float, upload_s: float) -> None:
        if self.peer.gossip is not None:
            train_s = 0.0  # the local round is repeated from the same model
            await self.submit(StopGossip("leaving"))
            if not await self.pump.wait_settled(upload_s):
                self.log.info("leaving while exchanges are open: they are settled when this node is back")
        if self.group.group is not None:
            await self.group.group.leave()
        if not await self._worker.wait_settled(train_s=train_s, upload_s=upload_s):
            self.log.info("leaving before the task is done", task=task_label(self.held))
        await self.submit(Leave(self.peer.worker.node))
        await self.relay_client.leave()

    async def run(self) -> str:
        try:
            documents = await in_thread(self.group.load_documents)
            if documents is not None:
                self._use_documents(documents)
            await self.pump.events.run(None)
        finally:
            self.background.stop()
            self.group.close()
        return self.stopped

    # Effects

    def _apply(self, effects: Sequence[PeerEffect]) -> bool:
        self.background.start(self.pump.events.spawn)
        if self.relay_client.follow_machine():
            self._worker.delivery.restart()
        relayed = [
            one.message.message for one in effects if isinstance(one, Tell) and isinstance(one.message, RelayRequest)
        ]
        reports = [Send(HUB, report) for report in relayed if isinstance(report, Report | TaskFailed | TaskStatus)]
        self._worker.apply([*effects, *reports], is_saved=self.machine.is_report_saved)
        for effect in effects:
            self._apply_own(effect)
        for message in relayed:
            self.relay_client.send(message)
        if (self.peer.state, self.peer.term) != self._logged_state:
            self._logged_state = self.peer.state, self.peer.term
            self.log.info(self.peer.state, term=self.peer.term, base=self.peer.base.version)
            self.coordinator.state_changed.set()
        if self.machine.reference is not None or self.group.group is None:
            self._connect_group()
        if self.group.documents is not None and self.checkpoints.is_due(self.peer.base.version):
            self.background.run("manifest", self._fetch_manifests)
        if self.stopped:
            self.pump.events.stop()
        return bool(effects or self.stopped)

    def _apply_own(self, effect: PeerEffect) -> None:
        group = self.group.group
        match effect:
            case Send(message=CoordinatorPing() | Join() as message):
                self.coordinator.send(message)
            case LocalRoundDone():
                self.machine.round_metrics = effect.metrics
                shown = {name: round(value, 4) for name, value in effect.metrics.items() if name == "train/loss"}
                self.log.info("learned", round=effect.round, **shown)
            case JobEvent(kind="refusal") if group is not None:
                group.record_machine_refusal(effect)
            case JobEvent():
                self.log.info(effect.text)

    def _connect_group(self) -> None:
        """Connect to the peers, and accept models once there is one to compare them with."""
        reference, self.machine.reference = self.machine.reference, None
        try:
            self.group.connect(lambda: self.peer.reachability.is_directly_reachable(self._clock()))
            if reference is not None:
                moved = self.pump.events.submit_threadsafe
                self.group.set_model(reference, self.machine.own_norm, moved)
        except Refused as error:
            self.log.error("no peer group", code=error.code, why=error.message, hint=error.hint)
            self.group.close()
            self.group.documents = None

    def _use_documents(self, documents: PeerDocuments) -> None:
        self.group.update_documents(documents)
        self.session.weight_max = documents.me.examples
        self.peer.population = len(documents.roster.peers)
        if self.group.group is None:
            self.machine.reference = None  # it is loaded again at the next event

    # Background tasks and callbacks

    async def _fetch_manifests(self) -> None:
        """Have the coordinator sign the versions that this node holds, one after the other."""
        while (documents := self.group.documents) is not None and self.checkpoints.is_due(self.peer.base.version):
            version, model = self.peer.base.version, self.peer.base.model
            assert model is not None
            await self.checkpoints.request(documents.charter, version, model, self.coordinator.hub)

    async def _find_weight(self, executor: SerialExecutor, count_examples: Callable[[], float]) -> None:
        try:
            found = await executor.run(count_examples)
        except ShoalError as error:
            self.log.warning("the learner gives no number of examples", why=error.message)
            return
        self.session.weight = self.session.weight or found

    async def _on_fetched(self, task: Task, slots: Slots, reference: Slots) -> None:
        """Tell the machine that the node holds the task's version, once it is stored."""
        if task.kind == "gossip":
            return
        whole = await in_thread(partial(self.session.held_model, task, slots, reference))
        if whole is not None and self.machine.has_blob(whole):
            self.pump.events.submit_nowait(ModelHeld(task.version, whole))

    async def _handle_messages(self, messages: Sequence[PeerMessage]) -> list[OutgoingMessage]:
        return await self.pump.handle_messages(messages)

    def _submit_threadsafe(self, event: Any) -> None:
        self.pump.events.submit_threadsafe(event)

    async def _on_forced_mode(self, record: ModeRecord) -> bool:
        """Apply an operator's verified mode record; return whether the machine followed it."""
        await self.submit(ForcedFailover(record.term, record.why or "an operator says so"))
        return self.peer.gossip is not None and self.peer.term == record.term

    def _on_fenced(self, code: str, why: str) -> None:
        """Count an answer of a fenced coordinator. Any thread may call."""
        self.pump.events.call_threadsafe(partial(self.group.record_refusal, code, why, "the coordinator"))
