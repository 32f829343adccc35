"""The coordinator's side of split learning as a state machine.

In each round every node has a turn: one after another, each from the state that the one before left, or all at once
with a copy of the coordinator's part for each, and the mean of the parts, weighted by examples, closes the round. A
turn is open until its node reports, fails, or makes no progress for `turn_timeout_s`; a turn that is dropped leaves the
parts as they were.

Every answer is saved before it is sent, and is sent again when its request is. Requests of any other position are
duplicates and are ignored, so each batch is applied at most once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from shoal.core.errors import Refused
from shoal.core.model.aggregation import TreeSum
from shoal.core.model.tree import norm, sub
from shoal.core.protocol.machine import JobEvent, JobEventKind, MachineState, Save, Timer, Wake
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.protocol.metrics import TRAIN_LOSS
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.protocol.split_message import (
    FromSplitNode,
    NoTurn,
    PartyIds,
    SplitAnswer,
    SplitEnded,
    SplitPoll,
    SplitRequest,
    SplitTurn,
    ToSplitNode,
    TurnFailed,
    TurnOver,
    TurnReport,
)
from shoal.core.split.part_state import (
    DONE,
    FINISH,
    BatchInputs,
    Compute,
    Computed,
    CoordinatorEvent,
    PartState,
    SplitEffect,
    SplitSend,
    SplitVersion,
    part_fault,
    part_model,
)
from shoal.core.split.split_plan import SplitPlan


@dataclass(frozen=True)
class OpenTurn:
    """A node's turn: the coordinator's part in it, the blobs of the batch under way, and the last answer."""

    turn: int
    node: str
    start: BlobRef
    """The node's part from which the turn starts."""
    part: PartState
    received: BatchInputs | None = None
    answer: SplitAnswer | None = None
    examples: int = 0
    loss_sum: float = 0.0
    """Sum of the losses of all examples."""

    @property
    def position(self) -> tuple[int, int]:
        """(batch, leg) of the next request."""
        return self.part.next_batch, len(self.received.blobs) if self.received is not None else 0


@dataclass(frozen=True)
class FinishedTurn:
    """A turn that counts."""

    node: str
    weight: float
    node_part: BlobRef
    coordinator_part: BlobRef
    batches: int
    examples: int
    loss_sum: float


@dataclass
class SplitState:
    """Durable state. `waiting`: nodes whose turns in this round have not begun. `excluded`: reasons, by node."""

    node_part: BlobRef
    coordinator_part: BlobRef
    round: int = 0
    turns: int = 0
    nodes: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    open: list[OpenTurn] = field(default_factory=list)
    finished: list[FinishedTurn] = field(default_factory=list)
    ended: str = ""

    @property
    def turn_batches(self) -> dict[str, int]:
        """The computed batches of each open turn, by node."""
        return {one.node: one.part.next_batch for one in self.open}


class SplitCoordinator:
    """The coordinator's side. `node_part`, `coordinator_part`: the initial parts; slots "model" and "optimizer"."""

    def __init__(self, plan: SplitPlan, blobs: Blobs, node_part: BlobRef, coordinator_part: BlobRef) -> None:
        self.plan, self.blobs = plan, blobs
        self.state = SplitState(node_part, coordinator_part)
        self._pending: dict[int, SplitRequest | TurnReport] = {}  # messages whose work is under way, by turn
        self._progress_at: dict[int, float] = {}

    def restore(self, values: dict[str, Any]) -> None:
        """Take up the state of an earlier process, before `start`."""
        self.state = from_state(SplitState, values)

    def refs(self) -> Iterator[BlobRef]:
        """Yield the blobs that it refers to."""
        state = self.state
        yield from (state.node_part, state.coordinator_part)
        for one in state.open:
            yield from (one.start, *one.part.refs(), *(one.received.blobs if one.received is not None else ()))
            yield from (one.answer.blob,) if one.answer is not None else ()
        for finished in state.finished:
            yield from (finished.node_part, finished.coordinator_part)
        for message in self._pending.values():
            yield message.blob

    def start(self, now: float) -> list[SplitEffect]:
        """Begin, or continue with the state of an earlier process."""
        self._progress_at = {one.turn: now for one in self.state.open}
        return [Wake(now + self.plan.turn_timeout_s)]

    def on(self, event: CoordinatorEvent, now: float) -> list[SplitEffect]:  # noqa: PLR0911 - one for each event
        """Handle one event. Raises `Refused` or `InvalidPayload` for a message that no node of this release sends."""
        match event:
            case Computed():
                return self._computed(event, now)
            case Timer():
                return self._drop_stalled(now)
        if self.state.ended:
            return [SplitSend(event.node, SplitEnded(self.state.ended))]
        match event:
            case SplitPoll(node=node):
                return self._polled(node, now)
            case SplitRequest():
                return self._asked(event)
            case TurnReport():
                return self._reported(event, now)
            case TurnFailed():
                return self._failed(event, now)
            case PartyIds():
                raise Refused("masked ids in a job without parties", code="split.ids")

    # Messages of nodes

    def _polled(self, node: str, now: float) -> list[SplitEffect]:
        state = self.state
        if node in state.excluded:
            return [SplitSend(node, SplitEnded("a turn of this node has failed, so it has none any more"))]
        changed = node not in state.nodes
        if changed:
            state.nodes = sorted([*state.nodes, node], key=_natural)
        effects = self._advance(now) if changed else []
        told = [one for one in effects if isinstance(one, SplitSend) and one.to == node]
        answer = [] if told else [SplitSend(node, self._standing(node))]
        return self._committed([*effects, *answer]) if changed else [*answer]

    def _standing(self, node: str) -> ToSplitNode:
        """Return the answer to a poll."""
        found = next((one for one in self.state.open if one.node == node), None)
        return NoTurn() if found is None else SplitTurn(found.turn, self.state.round, found.start)

    def _find(self, turn: int, node: str = "") -> OpenTurn | None:
        return next((one for one in self.state.open if one.turn == turn and node in ("", one.node)), None)

    def _over(self, message: FromSplitNode) -> list[SplitEffect]:
        """Answer a message of a turn that is not open. A report that has counted may be one of those."""
        assert not isinstance(message, SplitPoll | PartyIds)
        return [SplitSend(message.node, TurnOver(message.turn, counted=False, why="the turn is over"))]

    def _asked(self, request: SplitRequest) -> list[SplitEffect]:
        one = self._find(request.turn, request.node)
        if one is None:
            return self._over(request)
        if not 1 <= request.examples <= self.plan.examples_max:
            text = f"a batch of {request.examples} examples; at most {self.plan.examples_max}"
            raise Refused(text, code="split.batch")
        if one.answer is not None and (request.batch, request.leg) == (one.answer.batch, one.answer.leg):
            return [SplitSend(one.node, one.answer)]
        if (request.batch, request.leg) != one.position or one.turn in self._pending:
            return []
        if one.received is not None and one.received.examples != request.examples:
            raise Refused("the legs of one batch have different numbers of examples", code="split.batch")
        self._pending[one.turn] = request
        due = request.leg == 0 and len(one.part.inputs) >= self.plan.checkpoint_every
        return [self._compute(one, request.leg, _joined(one, request), checkpoint=due)]

    def _compute(self, one: OpenTurn, leg: int, received: BatchInputs | None, *, checkpoint: bool) -> Compute:
        return Compute(one.turn, self.state.round, one.node, leg, one.part, received, checkpoint)

    def _reported(self, report: TurnReport, now: float) -> list[SplitEffect]:
        one = self._find(report.turn, report.node)
        if one is None:
            return self._over(report)
        if one.turn in self._pending:
            return []
        if fault := self._fault(one, report):
            return self._failed(TurnFailed(one.node, one.turn, fault), now)
        self._pending[one.turn] = report
        return [self._compute(one, FINISH, None, checkpoint=True)]

    def _fault(self, one: OpenTurn, report: TurnReport) -> str:
        """Return the reason why a report cannot count; empty if it can."""
        if one.received is not None:
            return "it ends in the middle of a batch"
        if not (isfinite(report.weight) and report.weight > 0):
            return f"its weight is {report.weight}"
        return part_fault(self.blobs, one.start, report.blob)

    def _failed(self, failed: TurnFailed, now: float) -> list[SplitEffect]:
        """Exclude the node from the job, because its next turn would fail too."""
        one, state = self._find(failed.turn, failed.node), self.state
        if one is None:
            return self._over(failed)
        state.excluded[one.node] = failed.error
        effects = self._dropped(one, f"failed: {failed.error}", now)
        if len(state.nodes) < self.plan.min_nodes:
            state.ended = f"{one.node} failed: {failed.error}"
            effects.append(SplitSend(one.node, SplitEnded(state.ended)))
        return self._committed(effects)

    # Work

    def _computed(self, done: Computed, now: float) -> list[SplitEffect]:
        one, message = self._find(done.turn), self._pending.pop(done.turn, None)
        if one is None or message is None or done.batch != one.part.next_batch:
            return []
        if done.error:
            return self._failed(TurnFailed(one.node, one.turn, f"the coordinator's part failed: {done.error}"), now)
        self._progress_at[one.turn] = now
        if isinstance(message, TurnReport):
            assert done.checkpoint is not None
            if fault := part_fault(self.blobs, self.state.coordinator_part, done.checkpoint):
                return self._failed(TurnFailed(one.node, one.turn, f"at the coordinator {fault} after its turn"), now)
            return self._finish(one, message, done.checkpoint, now)
        assert done.blob is not None
        answer = SplitAnswer(one.turn, done.batch, done.leg, done.blob)
        part, received = one.part.compacted(done.checkpoint), _joined(one, message)
        after = replace(one, part=part, received=received, answer=answer)
        if len(received.blobs) == self.plan.legs:
            loss = (done.metrics | message.metrics).get(TRAIN_LOSS, 0.0)
            after = replace(
                after,
                part=part.after(received),
                received=None,
                examples=one.examples + message.examples,
                loss_sum=one.loss_sum + loss * message.examples,
            )
        self.state.open = [after if each is one else each for each in self.state.open]
        return self._committed([SplitSend(one.node, answer)])

    def _finish(self, one: OpenTurn, report: TurnReport, checkpoint: BlobRef, now: float) -> list[SplitEffect]:
        state = self.state
        state.open.remove(one)
        state.finished.append(
            FinishedTurn(
                one.node,
                report.weight,
                report.blob,
                checkpoint,
                one.part.next_batch,
                one.examples,
                one.loss_sum,
            )
        )
        if self.plan.order == "sequential":
            state.node_part, state.coordinator_part = report.blob, checkpoint
        return self._committed([*self._advance(now), SplitSend(one.node, TurnOver(one.turn, counted=True))])

    # Rounds

    def _advance(self, now: float) -> list[SplitEffect]:
        """Close the round if all its turns are over, and start the turns that are due. The caller saves the state."""
        state, effects = self.state, list[SplitEffect]()
        if not state.open and not state.waiting and state.finished:
            effects += self._close_round()
        if not state.open and not state.waiting and not state.ended and len(state.nodes) >= self.plan.min_nodes:
            state.waiting = list(state.nodes)
        count = len(state.waiting) if self.plan.order == "parallel" else min(1 - len(state.open), len(state.waiting))
        for node in state.waiting[:count]:
            effects.append(self._begin(node, now))
        del state.waiting[:count]
        return effects

    def _begin(self, node: str, now: float) -> SplitSend:
        state = self.state
        state.turns += 1
        state.open.append(OpenTurn(state.turns, node, state.node_part, PartState(state.coordinator_part)))
        self._progress_at[state.turns] = now
        return SplitSend(node, SplitTurn(state.turns, state.round, state.node_part))

    def _close_round(self) -> list[SplitEffect]:
        state = self.state
        finished = sorted(state.finished, key=lambda one: _natural(one.node))
        if self.plan.order == "parallel":
            weights = [one.weight for one in finished]
            nodes, mine = [one.node_part for one in finished], [one.coordinator_part for one in finished]
            state.node_part = mean_part(self.blobs, state.node_part, nodes, weights)
            state.coordinator_part = mean_part(self.blobs, state.coordinator_part, mine, weights)
        batches, examples = sum(one.batches for one in finished), sum(one.examples for one in finished)
        metrics = {TRAIN_LOSS: sum(one.loss_sum for one in finished) / examples} if examples else {}
        state.round, state.finished = state.round + 1, []
        if state.round == self.plan.rounds:
            state.ended = DONE
        parts, names = (state.node_part, state.coordinator_part), tuple(one.node for one in finished)
        return [SplitVersion(state.round, parts, metrics, names, batches, examples)]

    def _drop_stalled(self, now: float) -> list[SplitEffect]:
        """Drop turns without progress; their nodes take part again when they poll."""
        due = self.plan.turn_timeout_s
        stalled = [one for one in self.state.open if now - self._progress_at[one.turn] >= due]
        effects = [effect for one in stalled for effect in self._dropped(one, f"no progress for {due:g} s", now)]
        times = [self._progress_at[one.turn] for one in self.state.open]
        return [*(self._committed(effects) if stalled else []), Wake(min(times, default=now) + due)]

    def _dropped(self, one: OpenTurn, why: str, now: float) -> list[SplitEffect]:
        """Drop a turn and its node. The caller saves the state."""
        state = self.state
        state.open.remove(one)
        state.nodes = [node for node in state.nodes if node != one.node]
        self._pending.pop(one.turn, None)
        over = SplitSend(one.node, TurnOver(one.turn, counted=False, why=why))
        return [*self._advance(now), over, self._note("warning", f"{one.node}: {why}", one.node)]

    def _committed(self, effects: Sequence[SplitEffect]) -> list[SplitEffect]:
        """Return the effects with a save of the state before all but new versions, which a new process would lose."""
        versions = [one for one in effects if isinstance(one, SplitVersion)]
        others = [one for one in effects if not isinstance(one, SplitVersion)]
        return [*versions, Save(MachineState(to_state(self.state))), *others]

    def _note(self, kind: JobEventKind, text: str, node: str = "") -> JobEvent:
        return JobEvent(kind, text, self.state.round, node)


def mean_part(blobs: Blobs, base: BlobRef, parts: Sequence[BlobRef], weights: Sequence[float]) -> BlobRef:
    """Return the mean of the parts' models, as FedAvg makes it: the base plus the mean difference. Without the state
    of the optimizers."""
    before = part_model(blobs, base)
    total = TreeSum(before.layout)
    for ref, weight in zip(parts, weights, strict=True):
        difference = sub(part_model(blobs, ref), before)
        total.add(difference, weight, norm(difference))
    return blobs.put({"model": total.mean_onto(before)})


def _joined(one: OpenTurn, request: SplitRequest) -> BatchInputs:
    """Return the blobs of the batch under way with this one."""
    earlier = one.received.blobs if one.received is not None else ()
    return BatchInputs(request.examples, (*earlier, request.blob))


def _natural(node: str) -> tuple[int, str]:
    """Return the key of an order in which node-2 comes before node-10."""
    return len(node), node
