"""The state machine of a gossiping peer: it trains, and mixes its model with those of other peers.

A peer makes *local rounds*: the job's algorithm trains on its data as for a coordinator, and the algorithm's `step` is
applied to the peer's own model. After each round its *mixer* has a turn (`shoal.mixing`: pairwise exchange by default).
An update is added to the model as it is by then, so training and mixing do not wait for each other, unless the mixer
asks for it.

    x_k  <-  x_k + d_k                      a local round of peer k
    x_k  <-  x_k + the mixer's step         at any time

`state()` holds all durable state; whenever it changes, a `Save` comes before all other effects. A process that dies has
either not handled an event, or handled it and perhaps not sent its messages; every mixer tolerates repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from shoal.core.algorithm.algorithm import Algorithm, Update
from shoal.core.algorithm.filter import packed_layout, unpack
from shoal.core.errors import InvalidPayload
from shoal.core.gossip.counter_bounds import ROUNDS_MAX, ROUNDS_SPARE, drop_implausible_counts
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.gossip.mixer import Mixer
from shoal.core.gossip.termination import Termination, TerminationRule
from shoal.core.gossip.transfer import Transfer
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.settings_change import scheduled_settings
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, norm
from shoal.core.protocol.machine import (
    Amend,
    Effect,
    JobEvent,
    MachineState,
    Save,
    TaskDone,
    TaskResult,
    Tell,
    Timer,
    Wake,
    Work,
)
from shoal.core.protocol.message import BlobRef, Metrics, Task, ref_from_state, ref_state
from shoal.core.protocol.peer_message import MixingMessage

RETRY_S = (1.0, 60.0)
"""Seconds until a failed local round is repeated: the first pause, doubled each time up to the second."""


@dataclass(frozen=True)
class ModelRejected:
    """A message whose model must not be mixed, for a reason that only the shell can see."""

    message: MixingMessage
    why: str


@dataclass(frozen=True)
class StopGossip:
    """A request to begin neither local rounds nor exchanges; those under way are completed."""

    why: str


@dataclass(frozen=True)
class LocalRoundDone:
    """The end of a local round, with its metrics, for people and for a coordinator that returns."""

    round: int
    weight: float
    metrics: Metrics


PeerEvent = MixingMessage | ModelRejected | Timer | TaskDone | LivePeers | StopGossip | Transfer
PeerEffect = Effect | LocalRoundDone


class RoundRetry:
    """The pause after a failed local round; it doubles with each failure in a row."""

    def __init__(self) -> None:
        self.at = inf
        """Time of the next attempt; infinite: none is pending."""
        self._failures = 0

    @property
    def is_pending(self) -> bool:
        """True if a failed round waits for its next attempt."""
        return self.at < inf

    def fail(self, now: float) -> float:
        """Record a failure, and return the pause in seconds."""
        self._failures += 1
        pause: float = min(RETRY_S[1], RETRY_S[0] * 2 ** (self._failures - 1))
        self.at = now + pause
        return pause

    def succeed(self) -> None:
        """Record a completed round."""
        self._failures = 0

    def expire(self, now: float) -> None:
        """Allow the next attempt, if its time has come."""
        if now >= self.at:
            self.at = inf


class GossipPeer:
    """One peer's part in one job, until `may_leave`, if there is a termination rule; else without end."""

    def __init__(
        self,
        plan: JobPlan,
        algorithm: Algorithm,
        me: GossipState,
        mixer: Mixer,
        *,
        termination: TerminationRule | None = None,
    ) -> None:
        self.plan, self.algorithm, self.me, self.mixer = plan, algorithm, me, mixer
        self.may_leave = False
        """True if all peers have all rounds and models have converged."""
        self._termination = Termination(termination, in_step=mixer.synchronous) if termination is not None else None
        me.counts.rounds_max = termination.rounds + ROUNDS_SPARE if termination is not None else ROUNDS_MAX
        me.counts.rounds = termination.rounds if termination is not None else 0
        self.memory: BlobRef | None = None
        self.task: Task | None = None
        self.halted, self._adopted = "", False
        self._begun = 0
        self._retry = RoundRetry()
        self.settings: Metrics = {}  # changed by the coordinator; apply to every local round
        self._kept: tuple[Slots, BlobRef] | None = None
        self._saved: dict[str, Any] | None = None

    @classmethod
    def restore(
        cls,
        plan: JobPlan,
        algorithm: Algorithm,
        me: GossipState,
        mixer: Mixer,
        state: dict[str, Any],
        *,
        termination: TerminationRule | None = None,
    ) -> GossipPeer:
        """Return the peer of a saved state; `me` carries the new process number."""
        gossip = cls(plan, algorithm, me, mixer, termination=termination)
        ref = BlobRef(*state["slots"])
        me.slots, me.weight, me.local_rounds = me.blobs.get(ref), state["weight"], state["local_rounds"]
        me.counts.version_vector = state["version_vector"]
        gossip._kept = me.slots, ref
        gossip.memory, gossip.settings = ref_from_state(state["memory"]), state.get("settings", {})
        mixer.restore(state["mixer"])
        gossip._measure_model()
        me.budget.restore(state.get("budget"))
        return gossip

    def state(self) -> dict[str, Any]:
        """Return all durable state as JSON values."""
        me = self.me
        return {
            "process_number": me.process_number,
            "weight": me.weight,
            "local_rounds": me.local_rounds,
            "version_vector": me.counts.version_vector,
            "slots": ref_state(self._slots_ref()),
            "memory": ref_state(self.memory),
            "mixer": self.mixer.state(),
            "budget": me.budget.state(),
            "settings": self.settings,
        }

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs that this peer still needs."""
        own = [self._slots_ref(), self.memory, self.task.blob if self.task else None]
        return [*(ref for ref in own if ref is not None), *self.mixer.blob_refs()]

    @property
    def idle(self) -> bool:
        """Return whether no local round and no exchange is under way."""
        return self.task is None and not self.mixer.is_busy

    @property
    def finished(self) -> bool:
        """Return whether all local rounds are made."""
        return 0 < self.me.counts.rounds <= self.me.local_rounds

    def start(self, now: float) -> list[PeerEffect]:
        """Start the machine."""
        self._measure_model()
        self.me.budget.refresh(now)
        return self._complete([*self.mixer.on_timer(self.me, now), *self._start_round(), *self._mix_after_rounds(now)])

    def resume(self) -> list[PeerEffect]:
        """Continue after a `StopGossip`."""
        self.halted = ""
        self.mixer.resume()
        return self._complete([*self._start_round()])

    def adopt(self, task: Task) -> list[Effect]:
        """Take a coordinator's task that starts from this peer's version as the first local round."""
        self.task, self._adopted = task, True
        return [Amend(replace(task, revision=task.revision + 1, recall=True))] if self.algorithm.continual else []

    @property
    def alarm(self) -> float:
        """Return the time when it wants a `Timer`."""
        turn_at = self._termination.turn_at if self._termination is not None else inf
        return min(self.mixer.alarm, self._retry.at, turn_at)

    def on(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        """Handle one event and return its effects."""
        effects: list[PeerEffect] = []
        self.me.budget.refresh(now)
        match event:
            case Timer():
                effects += self.mixer.on_timer(self.me, now)
                self._retry.expire(now)
            case TaskDone():
                effects += self._finish_round(event, now)
            case LivePeers():
                self.me.peers = event.others(self.me.node, self.me.peers.roster)
                if event.roster:  # drops names that were merged before the roster was known
                    counts, known = self.me.counts, {*event.roster, self.me.node}
                    counts.version_vector = {
                        node: count for node, count in counts.version_vector.items() if node in known
                    }
                effects += self.mixer.on_timer(self.me, now)
            case StopGossip():
                self.halted = event.why
                self.mixer.halt()
                effects += self.mixer.on_timer(self.me, now)
            case ModelRejected():
                message, lies = drop_implausible_counts(event.message, self.me.peers.roster, self.me.counts.rounds_max)
                effects += [*lies, *self.mixer.reject(message, event.why, self.me, now)]
            case Transfer():
                effects += self.mixer.on_transfer(event, self.me, now)
            case _:
                effects += self._handle_message(event, now)
        return self._complete([*effects, *self._start_round(), *self._mix_after_rounds(now)])

    def _handle_message(self, message: MixingMessage, now: float) -> Sequence[Effect]:
        message, lies = drop_implausible_counts(message, self.me.peers.roster, self.me.counts.rounds_max)
        try:
            return [*lies, *self.mixer.on(message, self.me, now)]
        except InvalidPayload as error:
            return [JobEvent("refusal", error.message, self.me.local_rounds, message.node)]

    def _start_round(self) -> list[Effect]:
        """Begin the next local round, if one may begin. Its kind "gossip" exempts it from filters."""
        if self.task is not None or self.halted or self.finished or self.mixer.is_waiting or self._retry.is_pending:
            return []
        me = self.me
        self._begun += 1
        seed = self.plan.task_seed(me.local_rounds + 1, me.node)
        sent = self.algorithm.task_slots(me.slots, me.node, "train")
        whole = sent.keys() == me.slots.keys() and all(value is me.slots[name] for name, value in sent.items())
        body = self._slots_ref() if whole else me.blobs.put(sent)
        once = self.algorithm.continual  # a continual algorithm reports after one piece
        number = me.process_number, self._begun
        settings = self.settings or scheduled_settings(self.plan, self.algorithm, me.local_rounds)
        self.task = Task(number, me.node, "gossip", me.local_rounds, seed, body, numbers=settings, recall=once)
        return [Work(self.task, self.memory)]

    def _finish_round(self, done: TaskDone, now: float) -> list[PeerEffect]:
        if self.task is None or done.task != self.task.id:
            return []
        self.task = None
        try:
            result = self._apply_result(done)
        except InvalidPayload as error:
            pause = self._retry.fail(now)
            return [
                JobEvent("warning", f"local round failed, again in {pause:g} s: {error.message}", self.me.local_rounds)
            ]
        self._retry.succeed()
        me = self.me
        me.local_rounds += 1
        me.counts.merge({me.node: me.local_rounds})
        effects: list[PeerEffect] = [LocalRoundDone(me.local_rounds, result.weight, result.metrics)]
        resting = self.finished and self._termination is not None
        return effects if self.halted or resting else [*effects, *self.mixer.begin_turn(me, now)]

    def _apply_result(self, done: TaskDone) -> TaskResult:
        """Take the algorithm's step with the round's one update. Raises `InvalidPayload`."""
        result, me = done.result, self.me
        if result is None:
            raise InvalidPayload(done.error)
        if result.blob is not None:
            slots = me.blobs.get(result.blob)
            if self._adopted:
                slots = unpack(self.plan.filters, slots, self.algorithm.update_layout(me.slots))
            length = max((norm(value) for value in slots.values() if isinstance(value, Tree)), default=0.0)
            if not length < inf:
                raise InvalidPayload("the update is not finite: the training has diverged", hint="lower the lr")
            totals = self.algorithm.fold(Totals(), Update(me.node, me.local_rounds, 1.0, slots, length), 1.0)
            me.slots = self.algorithm.step(me.slots, totals)
        self._adopted = False
        self.memory = result.memory or self.memory
        return result

    # After the local rounds

    @property
    def has_converged(self) -> bool:
        """Return whether models had converged when this peer last reached others."""
        return self._termination is not None and self._termination.has_converged

    def _mix_after_rounds(self, now: float) -> Sequence[Effect]:
        """Begin a turn of mixing, if one is due and the last one has ended."""
        termination, me = self._termination, self.me
        if termination is None:
            return []
        termination.turn_at = inf
        if not self.finished or self.halted:
            return []
        me.counts.rounds_done = True
        self.may_leave = termination.may_leave(me, now)
        if self.mixer.is_waiting or self.may_leave or not termination.take_turn(me, now):
            return []
        effects = self.mixer.begin_turn(me, now)
        termination.plan_turn(me, now)
        return effects

    # Around every event

    def _measure_model(self) -> None:
        me = self.me
        saved = me.mixed.layout.nbytes - packed_layout(me.filters, me.mixed.layout).nbytes
        me.fit(self._slots_ref().nbytes - saved)

    def _slots_ref(self) -> BlobRef:
        if self._kept is None or self._kept[0] is not self.me.slots:
            self._kept = self.me.slots, self.me.blobs.put(self.me.slots)
        return self._kept[1]

    def _complete(self, effects: list[PeerEffect]) -> list[PeerEffect]:
        """Put a `Save` of changed state first, and set the alarm last."""
        for effect in effects:
            if isinstance(effect, Tell) and (blob := getattr(effect.message, "blob", None)) is not None:
                self.me.budget.charge(blob.nbytes)
        state = self.state()
        if state != self._saved:
            self._saved = state
            effects.insert(0, Save(MachineState(state)))
        return [*effects, Wake(self.alarm)] if self.alarm < inf else effects
