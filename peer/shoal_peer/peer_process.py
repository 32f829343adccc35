"""The process of a peer without a coordinator.

start    read documents and state; without a saved model, make the initial one from the job's seed
run      local rounds, then exchanges until all models have converged (`shoal.core.gossip.termination`)
leave    settle open exchanges, tell the peers
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import structlog

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.gossip.byte_budget import ByteBudget
from shoal.core.gossip.gossip import GossipPeer, LocalRoundDone
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.machine import JobEvent, TaskResult, Work
from shoal.core.protocol.message import Metrics
from shoal.core.protocol.peer_message import PeerMessage
from shoal.peering.host.model_acceptance import ModelAcceptance
from shoal.peering.host.peer_group import PeerCallbacks, PeerGroup
from shoal.peering.host.trainer import PeerTrainer
from shoal.peering.http.message_receiver import ExpectedModel
from shoal.peering.http.peer_link import OutgoingMessage
from shoal.peering.http.roster_updates import RosterSync
from shoal.peering.roster.roster_admission import RosterAdmission
from shoal.peering.state.peer_state import PeerDocuments, PeerState, check_job, read_documents
from shoal.runtime.durable_files import CrashPoint, no_crash, write_file
from shoal.runtime.error_groups import reraise_first
from shoal.runtime.threads import in_thread
from shoal.runtime.training.training_process import TrainingSetup
from shoal.trust.documents import schema_sha
from shoal_peer.peer_status import PeerObserver, PeerProgress, PeerSummary, StartGate, peer_status
from shoal_peer.standalone_pump import StandalonePump

TICK_S = 0.2
HOUSEKEEPING_S = 5.0


@dataclass(frozen=True)
class PeerSettings:
    """The settings of a peer. `join`: addresses of peers by name, in addition to the roster's."""

    folder: Path
    learner: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    threads: int = 0
    join: dict[str, str] = field(default_factory=dict)
    roster: Path | None = None
    lan: bool = False
    """True to announce the peer on its network and look for others."""
    audit: bool = False
    bytes_per_hour: float = 0.0
    """This machine's own limit of bytes among peers, beside the job's; 0: none."""
    settle_s: float = 10.0
    """Time in seconds to wait for open exchanges when the peer leaves."""
    linger_s: float = 60.0
    """Time in seconds to wait at the end for silent peers."""
    min_peers: int = 0
    """Peers to wait for before the first local round, this one included; 0: as the job says."""
    admission: RosterAdmission | None = None
    """The operator's folder, where this peer is to admit newcomers."""


class StandalonePeer:
    """The process of one peer, without its listener. Use it as a context manager, then call `start`, `run`, `leave`."""

    def __init__(self, settings: PeerSettings, observer: PeerObserver, *, at: CrashPoint = no_crash) -> None:
        self.settings, self.observer, self._at = settings, observer, at
        self._documents: PeerDocuments = read_documents(settings.folder, settings.roster)
        self.state = PeerState(settings.folder, audit=settings.audit, at=at)
        self.progress = PeerProgress()
        self.log: Any = structlog.get_logger("peer.node").bind(node=self._documents.me.node)

    def __enter__(self) -> Self:
        self.state.__enter__()
        documents, state = self._documents, self.state
        expected = ExpectedModel(documents.spec.name, state.blobs, documents.spec.shown_through(), holds=state.holds)
        callbacks = PeerCallbacks(
            self._handle_messages,
            self._on_live_peers,
            self.status,
            on_event=lambda event: self.observer.on_event(event.text),
            on_quarantined=lambda peer, code: self.observer.on_event(
                f"{peer} is in quarantine: {code} again and again"
            ),
        )
        addresses, number = self.settings.join, state.process_number
        group = PeerGroup(documents, state.folder, number, expected, callbacks, addresses=addresses, at=self._at)
        group.roster_sync = RosterSync(group, self._save_roster, self._on_removed, self.settings.admission)
        self.group, self.start_gate = group, StartGate(group, self.settings.min_peers, self.observer.on_waiting)
        self.trainer, self.evaluator = self._trainer("training"), self._trainer("evaluation")
        return self

    def __exit__(self, *_: object) -> None:
        self.trainer.close()
        self.evaluator.close()
        self.group.close()
        self.state.__exit__(None, None, None)

    def _trainer(self, folder: str) -> PeerTrainer:
        """Return a training process with its own folder below the state."""
        settings, documents, state = self.settings, self._documents, self.state
        setup = TrainingSetup(
            settings.learner or documents.spec.learner,
            state.folder / folder,
            options={**documents.spec.options, **settings.options},
            device=settings.device,
            precision=settings.precision,
            threads=settings.threads,
        )
        return PeerTrainer(setup, documents.spec.model_dump(mode="json"), state.blobs, state.results)

    # Start

    async def start(self) -> None:
        """Load state, documents and model before peers are contacted. Raises `ShoalError`."""
        spec, state = self._documents.spec, self.state
        algorithm = spec.build_algorithm()
        check_job(spec)
        if algorithm.required_capabilities:
            await self.trainer.check()
        saved = state.load()
        weight, slots = 1.0, {}
        if saved is None:
            model, weight = await self._initial_model()
            slots = algorithm.init(model)
        me = self._gossip_state(weight, slots)
        mixer, rounds = spec.gossip.build_mixing().mixer(), spec.gossip.local_rounds or spec.rounds
        termination = spec.gossip.build_drain(rounds, self.settings.linger_s) if rounds else None
        if saved is None:
            self.gossip = GossipPeer(spec.plan(), algorithm, me, mixer, termination=termination)
        else:
            if saved["local_rounds"]:
                self.start_gate.opened.set()  # the others may have ended meanwhile
            self.gossip = GossipPeer.restore(spec.plan(), algorithm, me, mixer, saved, termination=termination)
        self._check_schema(me.model)
        evaluate = partial(self._evaluate, self.evaluator) if spec.gossip.loss_ratio_max else None
        acceptance = ModelAcceptance(lambda: self.gossip, lambda: self.group, evaluate, spec.gossip.loss_ratio_max)
        self.machine = StandalonePump(
            self.gossip, state, self._perform, self, acceptance, self.group.router.post, time.monotonic
        )
        expected = self.group.expected_model
        expected.set_model(me.layouts, lambda: me.norm)
        expected.on_transfer = self.machine.pump.events.submit_threadsafe

    def _gossip_state(self, weight: float, slots: Slots) -> GossipState:
        spec, number, node = self._documents.spec, self.state.process_number, self._documents.me.node
        budget = ByteBudget(spec.gossip.budget(self.settings.bytes_per_hour), lambda: self.group.byte_counts.crossed)
        rng = random.Random(f"{spec.seed}/{node}/{number}")
        me = GossipState(node, number, weight, slots, self.state.blobs, rng, budget=budget)
        me.filters, me.peers = spec.shown_through(), LivePeers(frozenset(), roster=self._documents.roster_names)
        return me

    async def _initial_model(self) -> tuple[Tree, float]:
        """Return the common initial model and this peer's weight."""
        ref, examples = await self.trainer.init(self._documents.spec.seed)
        await in_thread(partial(self.state.blobs.adopt, self.state.results.path(ref.digest), ref))
        most = self._documents.me.examples
        return tree_slot(self.state.blobs.get(ref), "model"), min(examples, most) if most else examples

    def _check_schema(self, model: Tree) -> None:
        if schema_sha(model) != self._documents.charter.schema_sha:
            raise InvalidJob(
                f"{self.settings.learner or self._documents.spec.learner} makes another model than the charter's",
                code="peer.schema",
                hint="names, types and shapes must be those of the learner that `shoal peer init` was given",
            )

    # Run

    async def run(self) -> None:
        """Run until `leave`, or until all is done. Raises `ShoalError` when the peer cannot continue."""
        self.progress.phase = "learning"
        self.start_gate.start()
        assert self.group.roster_sync is not None
        background = [asyncio.create_task(call) for call in (self._housekeeping(), self.group.roster_sync.run())]
        self.group.start()
        try:
            await self.machine.pump.events.run(None)
        except BaseExceptionGroup as errors:
            reraise_first(errors)
        finally:
            for task in background:
                task.cancel()
            self.group.close()

    async def leave(self) -> PeerSummary:
        """Start no exchanges, wait for open ones, and tell peers that this one leaves."""
        gossip, progress = self.gossip, self.progress
        finished = gossip.finished
        at_end = await self._evaluate_own() if finished else {}
        progress.phase = "leaving"
        settled = await self.machine.stop_gossip("leaving", self.settings.settle_s)
        await self.trainer.end()
        await self.evaluator.end()
        await self.group.leave()
        self.machine.pump.events.close()
        await in_thread(self.group.save)
        rounds = gossip.me.counts.rounds
        return PeerSummary(
            gossip.me.node,
            gossip.me.local_rounds,
            finished,
            settled,
            progress.final_metrics or {},
            at_end,
            {node: min(count, rounds or count) for node, count in gossip.me.counts.version_vector.items()},
            self.group.byte_counts.totals(),
            gossip.has_converged,
        )

    def empty_summary(self) -> PeerSummary:
        """Return the summary of a peer that ended before it started."""
        return PeerSummary(self._documents.me.node, 0, False, True, {}, {}, {}, self.group.byte_counts.totals())

    async def _perform(self, work: Work) -> TaskResult:
        """Run a task once enough peers are there."""
        await self.start_gate.opened.wait()
        return await self.trainer.perform(work)

    async def _housekeeping(self) -> None:
        """Save byte counts and windows now and then, and check whether the peer is done."""
        saved_at, progress = time.monotonic(), self.progress
        while True:
            await asyncio.sleep(TICK_S)
            self.start_gate.check()
            if self.gossip.finished and progress.final_metrics is None:
                progress.phase = "drawing near"
                progress.final_metrics = await self._evaluate_own()
            if self.gossip.may_leave and progress.final_metrics is not None:
                progress.phase = "done"
                progress.done.set()
            if time.monotonic() - saved_at >= HOUSEKEEPING_S:
                await in_thread(self.group.save)
                saved_at = time.monotonic()

    async def _evaluate_own(self) -> Metrics:
        """Evaluate the current model; return no metrics if the learner fails."""
        try:
            return await self._evaluate(self.trainer, self.gossip.me.model)
        except ShoalError as error:
            self.log.warning("not evaluated", why=error.message, hint=error.hint)
            return {}

    async def _evaluate(self, trainer: PeerTrainer, model: Tree) -> Metrics:
        """Return a model's metrics on this peer's data. Raises `ShoalError`."""
        blobs, holds = self.state.blobs, self.state.holds
        ref = await in_thread(partial(holds.put, blobs, {"model": model}))
        try:
            return await trainer.evaluate(ref)
        finally:
            holds.release([ref.digest])

    # Callbacks of the group, of its rosters and of the machine

    async def _handle_messages(self, messages: Sequence[PeerMessage]) -> list[OutgoingMessage]:
        return await self.machine.pump.handle_messages(messages)

    def _on_live_peers(self, peers: LivePeers) -> None:
        self.machine.pump.events.submit_nowait(peers)

    def _save_roster(self, sealed: bytes) -> None:
        """Save a newer roster for the next process; blocks. Raises `StorageFailed`."""
        write_file(self.settings.folder / "roster.json", sealed, "document")

    def _on_removed(self) -> None:
        """Leave, as a newer roster does not name this peer."""
        self.observer.on_event("a newer roster does not name this peer any more: it leaves")
        self.progress.done.set()

    def on_round(self, effect: LocalRoundDone) -> None:
        self.progress.latest = effect.metrics
        self.observer.on_round(effect, len(self.group.membership.live()))

    def on_event(self, note: JobEvent) -> None:
        if note.kind == "refusal":
            self.group.record_machine_refusal(note)
        self.observer.on_event(note.text)

    def status(self) -> dict[str, Any]:
        """Return its state, as JSON values."""
        found = peer_status(self.gossip, self.group, self.progress, self.start_gate.waiting)
        return {**found, "trainer_starts": self.trainer.starts}
