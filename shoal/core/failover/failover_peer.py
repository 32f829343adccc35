"""The state machine of a node in a job that may fail over; the package's docstring has its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.filter import Filters
from shoal.core.client.worker import Worker
from shoal.core.failover import states
from shoal.core.failover.coordinator_reachability import CoordinatorReachability, RelayFailed, RelaySearch
from shoal.core.failover.failover import (
    MIXED_ROUNDS,
    Failover,
    ForcedFailover,
    HeldVersion,
    ModelHeld,
    starting_state,
    unacknowledged_report,
)
from shoal.core.failover.states import State
from shoal.core.gossip.busy_reply import deny_exchange
from shoal.core.gossip.byte_budget import ByteBudget, exchange_bytes
from shoal.core.gossip.gossip import GossipPeer, ModelRejected, PeerEffect, PeerEvent, StopGossip
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.gossip.transfer import Transfer
from shoal.core.model.tree import Slots, sub
from shoal.core.protocol.machine import (
    HUB,
    Amend,
    Cancel,
    Effect,
    JobEvent,
    MachineState,
    Memory,
    ReportRejected,
    Save,
    Send,
    TaskDone,
    TaskProgress,
    TaskResult,
    Tell,
    Timer,
    Wake,
    Work,
)
from shoal.core.protocol.message import (
    Ack,
    Amendment,
    BlobRef,
    Blobs,
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    Leave,
    Message,
    NodeMessage,
    NoTask,
    OperatorMessage,
    Report,
    Stop,
    Task,
    ref_from_state,
    ref_state,
    term_of,
)
from shoal.core.protocol.peer_message import (
    CoordinatorProbe,
    CoordinatorStatus,
    DeclareFailover,
    HubMessage,
    RelayRequest,
    RelayResponse,
)

Event = Message | HubMessage | PeerEvent | TaskProgress | ReportRejected | ModelHeld | ForcedFailover | RelayFailed


@dataclass(frozen=True)
class GossipBuilder:
    """A maker of a node's gossip peers: `begin` makes one from slots, `revive` one from a saved state."""

    begin: Callable[[Slots], GossipPeer]
    revive: Callable[[dict[str, Any]], GossipPeer]
    algorithm: Algorithm
    blobs: Blobs
    filters: Filters = ()

    def build(self, base: BlobRef, work: Report | Task | None) -> tuple[GossipPeer, Task | None]:
        """Return a gossip peer that continues from a version, and the task that becomes its first local round."""
        slots, task = starting_state(self.algorithm, self.filters, self.blobs, base, work)
        return self.begin(slots), task

    def hand_back(self, gossip: GossipPeer, task: Task) -> TaskDone:
        """Return the result of a gossip task: the model relative to the version in the task."""
        assert task.blob is not None
        me = gossip.me
        moved = sub(me.model, tree_slot(self.blobs.get(task.blob), "model"))
        result = TaskResult(
            me.weight, self.blobs.put({**me.slots, "model": moved}), {MIXED_ROUNDS: float(me.local_rounds)}
        )
        return TaskDone(task.id, result)


@dataclass
class _Timers:
    """The time when the present state was entered, and the alarms of the state and of the worker."""

    entered: float = 0.0
    state: float = inf
    worker: float = inf


class FailoverPeer:
    """Composition of `worker` and, while the node gossips, a gossip peer. `population`: nodes of the job."""

    def __init__(self, worker: Worker, builder: GossipBuilder, *, failover: Failover, population: int) -> None:
        self.worker, self.node, self._builder = worker, worker.node, builder
        self.failover, self.population = failover, population
        self.state: State = "coordinated"
        self.term, self.base = 0, HeldVersion()
        self.gossip: GossipPeer | None = None
        self.task: Task | None = None  # the coordinator's gossip task, if it knows that this node gossips
        self.peers = LivePeers(frozenset())
        self.reachability = CoordinatorReachability(self.node, failover.coordinator_timeout_s)
        self.budget = ByteBudget()  # of all bytes among peers; shared with the gossip peer
        self._timers = _Timers()
        self._saved: dict[str, Any] | None = None

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore the state of an earlier process."""
        self.state, self.term, self.reachability.term = kept["state"], kept["term"], kept["heard"]
        self._hold(HeldVersion(kept["version"], ref_from_state(kept["model"])))
        self.budget.restore(kept.get("budget"))
        self.worker.settings = kept.get("settings", {})
        if kept["gossip"] is not None:  # an interrupted handover is assigned again
            self.gossip, self.state = self._builder.revive(kept["gossip"]), "gossip"
            self.worker.drop_work((self.term, 0))  # the model contains the spooled report

    def snapshot(self) -> dict[str, Any]:
        """Return all durable state as JSON values."""
        return {
            "state": self.state if self.gossip is not None else "coordinated",
            "term": self.term,
            "heard": self.reachability.term,
            "version": self.base.version,
            "model": ref_state(self.base.model),
            "gossip": self.gossip.state() if self.gossip is not None else None,
            "budget": self.budget.state(),
            "settings": self.worker.settings,
        }

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs that this machine needs, in addition to the worker's."""
        own = [self.base.model, self.task.blob if self.task is not None else None]
        return [ref for ref in own if ref is not None] + (self.gossip.blob_refs() if self.gossip is not None else [])

    def start(self, now: float) -> list[PeerEffect]:
        """Start the machine, in the state that was restored."""
        self._timers.entered = now
        self.reachability.start(now)
        if self.gossip is not None:
            self._timers.state = now
            return self._complete(_without_state(self.gossip.start(now)), now)
        return self._complete(self._from_worker(self.worker.start(now), now), now)

    def on(self, event: Event, now: float) -> list[PeerEffect]:
        """Handle one event and return its effects."""
        self.budget.refresh(now)
        return self._complete([*self._take(event, now), *self._move(now)], now)

    def _take(self, event: Event, now: float) -> list[PeerEffect]:  # noqa: PLR0911 - one line for each event
        match event:
            case Timer():
                return self._handle_timer(now)
            case LivePeers():
                self.peers = event.others(self.node, self.peers.roster)
                return self._gossip(event, now)
            case ModelHeld():
                self._hold(HeldVersion(event.version, event.model))
                return []
            case TaskDone() if self.gossip is not None:
                return self._gossip(event, now)
            case TaskDone() | TaskProgress() | Leave():
                return self._from_worker(self.worker.on(event, now), now)
            case Task() | Amendment() | NoTask() | Ack() | CoordinatorAlive() | Stop() | ReportRejected():
                relayed = self.reachability.relay != "" and isinstance(
                    event, Ack | ReportRejected
                )  # it may have gone either way
                return self._obey(event, now, direct=not relayed)
            case RelayRequest():
                return [Send(HUB, event.message)]
            case RelayResponse():
                return self._obey(event.message, now, direct=False) if event.node == self.reachability.relay else []
            case CoordinatorProbe() | CoordinatorStatus() | DeclareFailover() | ForcedFailover() | RelayFailed():
                return self._hear_peer(event, now)
            case StopGossip() | ModelRejected() | Transfer():
                return self._gossip(event, now)
            case _ if isinstance(event, NodeMessage | OperatorMessage):
                return []
            case _:
                return self._gossip(event, now) if self.gossip is not None else list(deny_exchange(self.node, event))

    def _handle_timer(self, now: float) -> list[PeerEffect]:
        effects: list[PeerEffect] = []
        if now >= self._timers.worker:
            self._timers.worker = inf
            if self._speaks:
                effects += self._from_worker(self.worker.on(Timer(), now), now)
            if self.reachability.relay:
                effects.append(Send(HUB, CoordinatorPing(self.node, -1)))  # test the direct connection
        effects += self._gossip(Timer(), now)
        return effects

    @property
    def _speaks(self) -> bool:
        """Return whether the worker talks to the coordinator: not while the node gossips without its knowledge."""
        return self.gossip is None or self.task is not None

    def _gossip(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        return _without_state(self.gossip.on(event, now)) if self.gossip is not None else []

    # The coordinator

    def _obey(self, message: Message | ReportRejected, now: float, *, direct: bool) -> list[PeerEffect]:
        """Handle the coordinator's message, unless it is of an earlier term than this node's own."""
        term_seen = term_of(message, self.worker.task) if not isinstance(message, ReportRejected) else None
        if term_seen is not None and term_seen < self.term:
            return []
        self.reachability.record_coordinator(now, direct=direct, term=term_seen or 0)
        self.term = max(self.term, term_seen or 0) if self._speaks else self.term
        if isinstance(message, CoordinatorAlive):
            return []
        if self.gossip is not None and _is_withdrawn(self.task, message, self.worker):
            return self._left_out(now)
        if self.gossip is not None and isinstance(message, Task) and message.kind != "gossip":
            return []  # it does not know yet that this node has a model to hand back
        if isinstance(message, Ack) and self.task is not None and message.task == self.task.id:
            return self._handed_back(message, now)
        return self._from_worker(self.worker.on(message, now), now, _task_in_progress(self.worker))

    def _left_out(self, now: float) -> list[PeerEffect]:
        """Go back to gossip: the coordinator has closed without this node's model."""
        assert self.task is not None
        self.worker.drop_work(self.task.id)
        self.task, self._timers.state = None, now
        return self._resume(now) if self.state == "returning" else []

    def _from_worker(self, effects: Sequence[Effect], now: float, in_hand: Task | None = None) -> list[PeerEffect]:
        """Return the worker's effects; a task "gossip" is handled here, and keeps the task in progress."""
        found: list[PeerEffect] = []
        carry_on = next((e.task for e in effects if isinstance(e, Work | Amend) and e.task.kind == "gossip"), None)
        for effect in effects:
            match effect:
                case Wake(at):
                    self._timers.worker = at
                case Work(task) | Amend(task) if task.kind == "gossip":
                    self.task = task
                case Cancel() if carry_on is not None:
                    pass
                case Send(_, body) if self.reachability.relay:
                    found.append(Tell(self.reachability.relay, RelayRequest(self.node, body)))
                case _:
                    found.append(effect)
        if carry_on is not None and self.gossip is None and carry_on.blob is not None:
            base = HeldVersion(carry_on.version, carry_on.blob)
            self._hold(base)
            found += self._start_gossip(base, in_hand, None, now)
        return found

    def _hold(self, held: HeldVersion) -> None:
        """Replace an older version, and make room in the byte budget for an exchange of such models."""
        self.base = max(self.base, held, key=lambda base: base.version)
        if self.base.model is not None:
            self.budget.ensure_capacity(exchange_bytes(self.base.model.nbytes))

    def _handed_back(self, ack: Ack, now: float) -> list[PeerEffect]:
        """Become a worker again when a version contains the model; else keep gossiping."""
        effects = self._from_worker(self.worker.on(ack, now), now)
        self.task = None
        if not ack.counted:
            return effects + self._resume(now)
        if self.gossip is not None and self.gossip.memory is not None:
            self.worker.memory = self.gossip.memory
            effects.insert(0, Save(Memory(self.gossip.memory)))
        if self.gossip is not None and self.gossip.task is not None:
            effects.append(Cancel(self.gossip.task.id))  # not finished in time
        self.gossip = None
        self._enter("coordinated", now)
        return effects

    # The peers

    def _hear_peer(
        self, message: CoordinatorProbe | CoordinatorStatus | DeclareFailover | ForcedFailover | RelayFailed, now: float
    ) -> list[PeerEffect]:
        if isinstance(message, CoordinatorStatus | DeclareFailover) and (
            refused := self.reachability.implausible_claims(message, self.base.version)
        ):
            return [*refused]
        may_leave = self.gossip is None and not self.reachability.is_reachable(now)
        match message:
            case RelayFailed():
                if message.node == self.reachability.relay:
                    self._timers.state = now
                self.reachability.record_failure(message.node, now, message.pause_s)
            case CoordinatorProbe():
                status = self.reachability.status(now, self.term, self.base, is_gossiping=self.gossip is not None)
                return [Tell(message.node, self._declaration() or status)]
            case CoordinatorStatus():
                self.reachability.record_status(message, now)
            case DeclareFailover() if message.term > self.term and self.gossip is not None and self.task is None:
                self.term = message.term
            case DeclareFailover() if message.term > self.term and may_leave:
                self.term, why = message.term, f"{message.node}: {message.why}"
                return self._leave_hub(why, now, HeldVersion(message.version, message.model))
            case ForcedFailover() if message.term > self.term and may_leave and self.base.model is not None:
                self.term = message.term  # an operator's order needs no quorum
                return self._declare(self._leave_hub(message.why, now))
        return []

    def _declaration(self) -> DeclareFailover | None:
        """Return this node's declaration of failover, if it has failed over by itself."""
        if self.gossip is None or self.task is not None or self.base.model is None:
            return None
        return DeclareFailover(self.node, self.term, self.base.version, self.base.model, "the hub is silent")

    def _leave_hub(self, why: str, now: float, theirs: HeldVersion = HeldVersion()) -> list[PeerEffect]:  # noqa: B008 - frozen
        """Continue from the newest known version, with the work that is not reported on it."""
        worker, in_hand = self.worker, _task_in_progress(self.worker)
        held, self.base = self.base, max(self.base, theirs, key=lambda base: base.version)
        work = unacknowledged_report(worker.unacknowledged, held, self.base)
        if work is not None and worker.pending is not None:
            worker.memory = worker.pending
        worker.drop_work((self.term, 0))
        event = JobEvent(
            "state", f"without the hub from version {self.base.version}: {why}", self.base.version, self.node
        )
        return [event, *self._start_gossip(self.base, in_hand, work, now)]

    def _declare(self, gone: list[PeerEffect]) -> list[PeerEffect]:
        """Add the declaration to all live peers."""
        declaration = self._declaration()
        assert declaration is not None
        return [*gone, *(Tell(node, declaration) for node in sorted(self.peers.nodes))]

    def _start_gossip(
        self, base: HeldVersion, in_hand: Task | None, work: Report | None, now: float
    ) -> list[PeerEffect]:
        assert base.model is not None
        gossip, in_hand = self._builder.build(base.model, work or in_hand)
        self.gossip = gossip
        gossip.me.peers = self.peers
        gossip.memory, gossip.settings = self.worker.memory, self.worker.settings
        self._enter("gossip", now)
        effects = list(gossip.adopt(in_hand)) if in_hand is not None else []
        return effects + _without_state(gossip.start(now))

    def _resume(self, now: float) -> list[PeerEffect]:
        """Continue to gossip after an interrupted handover."""
        assert self.gossip is not None
        self._enter("gossip", now)
        return _without_state(self.gossip.resume())

    # The states

    def _enter(self, state: State, now: float) -> None:
        self.state, self._timers.entered, self._timers.state = state, now, now
        self.reachability.forget_answers()

    def _move(self, now: float) -> list[PeerEffect]:
        """Carry out the decisions of the present state that are due."""
        if self.worker.stopped:
            return []
        decision = self._decide(now)
        self._timers.state = decision.due
        effects: list[PeerEffect] = self._follow_search(decision.search, now) if decision.search is not None else []
        match decision.action:
            case "enter":
                self._enter(decision.state, now)
                if decision.state == "returning":
                    effects += self._gossip(StopGossip("handing back"), now)
                if decision.state != "coordinated":
                    effects += self._move(now)
            case "fail over":
                self.term = max(self.term, decision.term) + 1
                effects += self._declare(self._leave_hub(decision.why, now))
            case "join" | "ping":
                rounds = self.gossip.me.local_rounds if self.gossip is not None else 0
                ping = CoordinatorPing(self.node, self.term)
                term_seen = Join(self.node, (self.term, rounds)) if decision.action == "join" else ping
                effects += self.reachability.send(term_seen, self.peers.nodes, self.term, now)
            case "report":
                assert self.gossip is not None
                assert self.task is not None
                done = self._builder.hand_back(self.gossip, self.task)
                effects += self._from_worker(self.worker.on(done, now), now)
            case "give up":
                self.term, self.task = self.term + 1, None
                self.worker.drop_work((self.term, 0))
                effects += self._resume(now)
        return effects

    def _decide(self, now: float) -> states.Decision:
        gossip, task, reachability = self.gossip, self.task, self.reachability
        facts = states.Facts(
            self._timers.entered,
            self._timers.state,
            self.peers.nodes,
            has_model=self.base.model is not None,
            has_task=task is not None,
            is_recalled=task is not None and task.recall,
            is_idle=gossip is None or gossip.idle,
            moving_until=gossip.mixer.moving_until if gossip is not None else -inf,
            has_reported=self.worker.unacknowledged is not None,
        )
        match self.state:
            case "coordinated":
                return states.coordinated(reachability, now)
            case "suspect":
                quorum = self.failover.votes_needed(self.population)
                return states.suspect(facts, reachability, self.failover, now, quorum)
            case "gossip":
                return states.gossip(facts, reachability, self.failover, now)
            case "returning":
                return states.returning(facts, reachability, self.failover, now)

    def _follow_search(self, search: RelaySearch, now: float) -> list[PeerEffect]:
        if search.is_found:
            self._timers.worker = now if self._speaks else inf
            text = f"the way to the hub is broken: through {self.reachability.relay}"
            return [JobEvent("state", text, self.base.version, self.node)]
        return [Tell(node, CoordinatorProbe(self.node, self.term)) for node in search.asked]

    def _complete(self, effects: list[PeerEffect], now: float) -> list[PeerEffect]:
        """Put a `Save` of changed state first, and set the alarm last."""
        kept = self.snapshot()
        if kept != self._saved:
            self._saved = kept
            effects.insert(0, Save(MachineState(kept)))
        if self._timers.worker == inf and self._speaks and not self.worker.stopped:
            self._timers.worker = now + self.worker.heartbeat_s
        alarm = min(self._timers.worker, self._timers.state, self.gossip.alarm if self.gossip is not None else inf)
        return [*effects, Wake(alarm)] if alarm < inf else effects


def _task_in_progress(worker: Worker) -> Task | None:
    task = worker.task
    return task if task is not None and worker.is_working and task.kind == "train" else None


def _is_withdrawn(task: Task | None, message: Message | ReportRejected, worker: Worker) -> bool:
    """Return whether the coordinator no longer waits for a hand-back by this gossip task.

    While a report is unacknowledged, its acknowledgement says so.
    """
    if task is None or worker.unacknowledged is not None:
        return False
    if isinstance(message, Task):
        return message.kind != "gossip" and message.id > task.id
    return isinstance(message, NoTask) and message.newest_task >= task.id


def _without_state(effects: Sequence[PeerEffect]) -> list[PeerEffect]:
    """Return the gossip peer's effects without its state and alarm, which are part of this machine's."""
    own = [effect for effect in effects if isinstance(effect, Save) and isinstance(effect.what, MachineState)]
    return [effect for effect in effects if not isinstance(effect, Wake) and effect not in own]
