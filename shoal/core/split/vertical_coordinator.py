"""The coordinator's side of training on vertical data as a state machine; each party runs a `PartyNode`.

In each round all parties have a turn at once, of the same batches. A batch is computed when the request of every party
is there, and each party gets the gradient of its own activations. The round closes when all have reported.

The state is saved once for each batch, before its answers are sent; answers are sent again when their requests are.
Requests that wait for other parties are not saved, because parties send them until they are answered. A round without
progress for `turn_timeout_s` starts again, for a party that has lost its disk.

With ids, the parties align their rows before (see `row_alignment`); a party that loses its rows aligns them again, and
so does the other one. The round then starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import Refused
from shoal.core.protocol.machine import JobEvent, MachineState, Save, Timer, Wake
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.protocol.metrics import TRAIN_LOSS
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.protocol.split_message import (
    AlignRows,
    IdsKept,
    NoTurn,
    PartyIds,
    SplitAnswer,
    SplitEnded,
    SplitPoll,
    SplitRequest,
    SplitTurn,
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
)
from shoal.core.split.row_alignment import AlignmentState
from shoal.core.split.vertical_plan import VerticalPlan


@dataclass(frozen=True)
class PartyTable:
    """The rows of a party, and the batches that they make in each round."""

    node: str
    rows: int
    batches: int


@dataclass
class VerticalState:
    """Durable state. `heads`, `tail`: the parts at the start of the round. `tables`: of the parties that have polled.
    `answers`: those to the last batch, in the order of the parties."""

    heads: list[BlobRef]
    tail: BlobRef
    part: PartState
    round: int = 0
    turn: int = 1
    tables: list[PartyTable] = field(default_factory=list)
    answers: list[BlobRef] = field(default_factory=list)
    alignment: AlignmentState = field(default_factory=AlignmentState)
    examples: int = 0
    loss_sum: float = 0.0
    """Sum of the losses of the round's examples."""
    ended: str = ""

    @property
    def nodes(self) -> list[str]:
        """The parties that have polled."""
        return [one.node for one in self.tables]

    @property
    def has_begun(self) -> bool:
        """True if all parties have polled."""
        return len(self.tables) == len(self.heads)

    @property
    def turn_batches(self) -> dict[str, int]:
        """The computed batches of the turn, by party: each has one from the first turn until the job has ended."""
        return dict.fromkeys(self.nodes, self.part.next_batch) if self.has_begun and not self.ended else {}


class VerticalCoordinator:
    """The coordinator's side. `heads`, in the order of the parties, and `tail`: the initial parts."""

    def __init__(self, plan: VerticalPlan, blobs: Blobs, heads: Sequence[BlobRef], tail: BlobRef) -> None:
        self.plan, self.blobs, self.parties = plan, blobs, list(plan.parties)
        self.state = VerticalState(list(heads), tail, PartState(tail))
        self._waiting: dict[str, SplitRequest | TurnReport] = {}  # of one batch, or of the end of the round
        self._is_computing = False
        self._progress_at = 0.0

    def restore(self, values: dict[str, Any]) -> None:
        """Take up the state of an earlier process, before `start`."""
        self.state = from_state(VerticalState, values)

    def refs(self) -> Iterator[BlobRef]:
        """Yield the blobs that it refers to."""
        state = self.state
        yield from (*state.heads, state.tail, *state.part.refs(), *state.answers)
        for message in self._waiting.values():
            yield message.blob
        for kept in () if self.state.has_begun else state.alignment.kept:
            yield kept.blob

    def start(self, now: float) -> list[SplitEffect]:
        """Begin, or continue with the state of an earlier process."""
        self._progress_at = now
        return [Wake(now + self.plan.common.turn_timeout_s)]

    def on(self, event: CoordinatorEvent, now: float) -> list[SplitEffect]:  # noqa: PLR0911 - one for each event
        """Handle one event. Raises `Refused` for a message that no party of this release sends."""
        match event:
            case Computed():
                return self._computed(event, now)
            case Timer():
                return self._restart_stalled(now)
        self.plan.of(event.node)
        if self.state.ended:
            return [SplitSend(event.node, SplitEnded(self.state.ended))]
        if isinstance(event, SplitPoll):
            return self._polled(event, now)
        if isinstance(event, PartyIds):
            return self._keep_ids(event)
        if isinstance(event, TurnFailed) and event.number:
            return self._failed_to_align(event)
        if event.turn != self.state.turn:
            return [SplitSend(event.node, TurnOver(event.turn, counted=False, why="the turn is over"))]
        match event:
            case SplitRequest():
                return self._asked(event)
            case TurnReport():
                return self._reported(event)
            case TurnFailed():
                return self._end(f"{event.node} failed: {event.error}")

    # Messages of parties

    def _polled(self, poll: SplitPoll, now: float) -> list[SplitEffect]:
        state, node, alignment = self.state, poll.node, self.state.alignment
        if self.plan.ids_max and poll.number != alignment.number:
            return [SplitSend(node, AlignRows(alignment.number))]
        if self.plan.ids_max and not poll.batches:
            return [SplitSend(node, NoTurn() if self.state.has_begun else alignment.standing(node, poll.kept))]
        table = PartyTable(node, poll.rows, poll.batches)
        others = [one for one in state.tables if one.node != node]
        for one in others:
            if (one.rows, one.batches) != (table.rows, table.batches):
                text = f"{node} has {table.rows} rows and {table.batches} batches, {one.node} {one.rows}, {one.batches}"
                raise Refused(text, code="split.rows", hint="give all parties the same rows, in the same order")
        if table.batches < 1:
            raise Refused(f"{node} has no batch", code="split.rows", hint="give it a learner with data")
        if table in state.tables:
            return [SplitSend(node, self._turn_of(node) if self.state.has_begun else NoTurn())]
        state.tables = [*others, table]
        self._progress_at = now
        told = self.parties if self.state.has_begun else []
        return self._saved([SplitSend(one, self._turn_of(one)) for one in told])

    def _keep_ids(self, ids: PartyIds) -> list[SplitEffect]:
        state, number = self.state, self.state.alignment.number
        if not self.plan.ids_max:
            raise Refused("masked ids in a job whose rows are aligned", code="split.ids")
        if ids.number != number:
            return [SplitSend(ids.node, AlignRows(number))]
        if not state.alignment.keep(ids):
            state.alignment, state.tables = AlignmentState(number + 1), []
            self._begin_turn()
            text = f"{ids.node} has lost its rows or its secret: the intersection begins again"
            told = SplitSend(ids.node, AlignRows(number + 1))
            return self._saved([JobEvent("warning", text, state.round), told])
        if self.state.has_begun:
            return [SplitSend(ids.node, IdsKept(number, ids.leg, ids.own))]
        found = state.alignment.standing(ids.node, ids.leg + 1)
        if isinstance(found, NoTurn):
            return self._saved([SplitSend(ids.node, IdsKept(number, ids.leg, ids.own))])
        others = [one for one in self.parties if one != ids.node]
        to_other = [SplitSend(one, state.alignment.standing(one, ids.leg + 1)) for one in others]
        return self._saved([SplitSend(ids.node, found), *to_other])

    def _failed_to_align(self, failed: TurnFailed) -> list[SplitEffect]:
        number = self.state.alignment.number
        if failed.number != number:
            return [SplitSend(failed.node, AlignRows(number))]
        return self._end(f"{failed.node} failed: {failed.error}")

    @property
    def _batches(self) -> int:
        return self.state.tables[0].batches if self.state.has_begun else 0

    def _turn_of(self, node: str) -> SplitTurn:
        state = self.state
        return SplitTurn(state.turn, state.round, state.heads[self.parties.index(node)])

    def _asked(self, request: SplitRequest) -> list[SplitEffect]:
        plan, part = self.plan, self.state.part
        if not (1 <= request.examples <= plan.common.examples_max and 0 <= request.batch < self._batches):
            raise Refused(f"a batch {request.batch} of {request.examples} examples", code="split.batch")
        if request.batch == part.next_batch - 1:
            return [self._answer(self.parties.index(request.node))]
        if request.batch != part.next_batch or request.leg or self._is_computing or request.node in self._waiting:
            return []
        if any(isinstance(one, SplitRequest) and one.examples != request.examples for one in self._waiting.values()):
            hint = "give all parties the same rows, in the same order"
            raise Refused("the parties' batches have different numbers of examples", code="split.batch", hint=hint)
        return self._wait(request, 0, checkpoint=len(part.inputs) >= plan.common.checkpoint_every)

    def _answer(self, place: int) -> SplitSend:
        state = self.state
        return SplitSend(
            self.parties[place], SplitAnswer(state.turn, state.part.next_batch - 1, 0, state.answers[place])
        )

    def _wait(self, message: SplitRequest | TurnReport, leg: int, *, checkpoint: bool) -> list[SplitEffect]:
        """Keep a message until those of all parties are there; then compute."""
        self._waiting[message.node] = message
        if len(self._waiting) < len(self.parties):
            return []
        self._is_computing = True
        state, received = self.state, None if leg == FINISH else self._inputs()
        return [Compute(state.turn, state.round, "", leg, state.part, received, checkpoint)]

    def _inputs(self) -> BatchInputs:
        asked = [self._waiting[party] for party in self.parties]
        examples = max(one.examples for one in asked if isinstance(one, SplitRequest))
        return BatchInputs(examples, tuple(one.blob for one in asked))

    def _reported(self, report: TurnReport) -> list[SplitEffect]:
        if self.state.part.next_batch != self._batches or self._is_computing or report.node in self._waiting:
            return []
        if fault := part_fault(self.blobs, self._turn_of(report.node).blob, report.blob):
            return self._end(f"{report.node} failed: {fault}")
        return self._wait(report, FINISH, checkpoint=True)

    # Work

    def _computed(self, done: Computed, now: float) -> list[SplitEffect]:
        state = self.state
        if not self._is_computing or (done.turn, done.batch) != (state.turn, state.part.next_batch):
            return []
        if done.error:
            return self._end(f"the coordinator's part failed: {done.error}")
        self._is_computing, self._progress_at = False, now
        if done.leg == FINISH:
            assert done.checkpoint is not None
            if fault := part_fault(self.blobs, state.tail, done.checkpoint):
                return self._end(f"the coordinator's part failed: {fault}")
            return self._close_round(done.checkpoint)
        inputs, self._waiting = self._inputs(), {}
        state.part = state.part.compacted(done.checkpoint).after(inputs)
        state.answers = list(done.answers)
        state.examples += inputs.examples
        state.loss_sum += done.metrics.get(TRAIN_LOSS, 0.0) * inputs.examples
        return self._saved([self._answer(place) for place in range(len(self.parties))])

    def _close_round(self, tail: BlobRef) -> list[SplitEffect]:
        state = self.state
        metrics = {TRAIN_LOSS: state.loss_sum / state.examples}
        batches, examples = state.part.next_batch, state.examples
        heads = [self._waiting[party].blob for party in self.parties]
        over = [SplitSend(party, TurnOver(state.turn, counted=True)) for party in self.parties]
        state.heads, state.tail, state.round = heads, tail, state.round + 1
        self._begin_turn()
        if state.round == self.plan.common.rounds:
            state.ended = DONE
        # Before the save: a process that dies in between closes the round again, with the same result.
        version = SplitVersion(state.round, (*heads, tail), metrics, tuple(self.parties), batches, examples)
        return [version, *self._saved(over)]

    def _begin_turn(self) -> None:
        """Start a turn of all parties from the parts at the start of the round."""
        state = self.state
        state.turn += 1
        state.part, state.answers, state.examples, state.loss_sum = PartState(state.tail), [], 0, 0.0
        self._waiting, self._is_computing = {}, False

    def _restart_stalled(self, now: float) -> list[SplitEffect]:
        due, effects = self.plan.common.turn_timeout_s, list[SplitEffect]()
        if self.state.has_begun and not self.state.ended and now - self._progress_at >= due:
            self._progress_at = now
            self._begin_turn()
            effects = self._saved([JobEvent("warning", f"no progress for {due:g} s", self.state.round)])
        return [*effects, Wake(now + due)]

    def _end(self, why: str) -> list[SplitEffect]:
        """End the job: no other node has a party's features."""
        self.state.ended = why
        told = [SplitSend(party, SplitEnded(why)) for party in self.parties]
        return self._saved([JobEvent("warning", why, self.state.round), *told])

    def _saved(self, effects: Sequence[SplitEffect]) -> list[SplitEffect]:
        return [Save(MachineState(to_state(self.state))), *effects]
