"""A node's side of split learning as a state machine.

state       it holds                    it sends at each alarm   it leaves when
idle        nothing                     SplitPoll                a later turn comes
computing   a turn                      nothing                  Computed comes
asking      a turn and its request      the request again        its answer comes
reporting   a turn without a batch left the report again         TurnOver comes

Each answer is saved before the next step, so that a new process continues at the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.protocol.machine import HUB, MachineState, Save, Timer, Wake
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.protocol.split_message import (
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
    FINISH,
    BatchInputs,
    Compute,
    Computed,
    NodeEvent,
    PartState,
    SplitEffect,
    SplitSend,
)
from shoal.core.split.split_plan import SplitPlan


@dataclass(frozen=True)
class HeldTurn:
    """The turn that a node holds; `received`: the answers to earlier legs of the batch under way."""

    turn: int
    round: int
    part: PartState
    received: BatchInputs | None = None


@dataclass(frozen=True)
class SplitNodeState:
    """Durable state of a node. `last_turn`: the newest turn that it has taken."""

    last_turn: int = 0
    held: HeldTurn | None = None


class SplitNode:
    """One node's side. `batches`: of each turn. `weight`: its number of examples. `retry_s`: between two messages."""

    def __init__(self, node: str, plan: SplitPlan, batches: int, weight: float, retry_s: float = 5.0) -> None:
        self.node, self.plan, self.batches, self.weight, self.retry_s = node, plan, batches, weight, retry_s
        self.state = SplitNodeState()
        self.ended = ""
        self._message: SplitRequest | TurnReport | TurnFailed | None = None

    def restore(self, values: dict[str, Any]) -> None:
        """Take up the state of an earlier process, before `start`."""
        self.state = from_state(SplitNodeState, values)

    def refs(self) -> Iterator[BlobRef]:
        """Yield the blobs that it refers to."""
        if (held := self.state.held) is not None:
            yield from held.part.refs()
            yield from held.received.blobs if held.received is not None else ()
        if isinstance(self._message, SplitRequest | TurnReport):
            yield self._message.blob

    def start(self, now: float) -> list[SplitEffect]:
        """Continue the turn that it holds, or ask for one."""
        first = self._poll() if self.state.held is None else self._compute(self.state.held)
        return [first, Wake(now + self.retry_s)]

    def on(self, event: NodeEvent, now: float) -> list[SplitEffect]:  # noqa: PLR0911 - one line for each event
        """Handle one event."""
        if self.ended:
            return []
        match event:
            case SplitTurn():
                return self._take(event)
            case SplitAnswer():
                return self._answered(event)
            case TurnOver():
                return self._over(event)
            case Computed():
                return self._computed(event)
            case Timer():
                return [*self._again(), Wake(now + self.retry_s)]
            case SplitEnded(why=why):
                self.ended = why or "ended"
        return []

    def _again(self) -> list[SplitEffect]:
        if self._message is not None:
            return [SplitSend(HUB, self._message)]
        return [self._poll()] if self.state.held is None else []

    def _poll(self) -> SplitSend:
        return SplitSend(HUB, SplitPoll(self.node))

    def _saved(self, held: HeldTurn | None) -> Save:
        self.state, self._message = replace(self.state, held=held), None
        return Save(MachineState(to_state(self.state)))

    def _take(self, turn: SplitTurn) -> list[SplitEffect]:
        if turn.turn <= self.state.last_turn:
            return []
        held = HeldTurn(turn.turn, turn.round, PartState(turn.blob))
        self.state = replace(self.state, last_turn=turn.turn)
        return [self._saved(held), self._compute(held)]

    def _compute(self, held: HeldTurn) -> Compute:
        """Return the next work of the turn."""
        if held.part.next_batch == self.batches:
            leg = FINISH
        else:
            leg = len(held.received.blobs) if held.received is not None else 0
        checkpoint = leg == FINISH or (leg == 0 and len(held.part.inputs) >= self.plan.checkpoint_every)
        return Compute(held.turn, held.round, self.node, leg, held.part, held.received, checkpoint)

    def _computed(self, done: Computed) -> list[SplitEffect]:
        held = self.state.held
        if held is None or done.turn != held.turn or done.batch != held.part.next_batch or self._message is not None:
            return []
        if done.error:
            self._message = TurnFailed(self.node, held.turn, done.error)
            return [SplitSend(HUB, self._message)]
        effects: list[SplitEffect] = []
        if done.checkpoint is not None:
            held = replace(held, part=held.part.compacted(done.checkpoint))
            effects = [self._saved(held)]
        if done.leg == FINISH:
            self._message = TurnReport(self.node, held.turn, self.weight, held.part.checkpoint)
        else:
            assert done.blob is not None
            self._message = SplitRequest(
                self.node, held.turn, done.batch, done.leg, done.examples, done.blob, done.metrics
            )
        return [*effects, SplitSend(HUB, self._message)]

    def _answered(self, answer: SplitAnswer) -> list[SplitEffect]:
        held, asked = self.state.held, self._message
        if held is None or not isinstance(asked, SplitRequest):
            return []
        if (answer.turn, answer.batch, answer.leg) != (asked.turn, asked.batch, asked.leg):
            return []
        earlier = held.received.blobs if held.received is not None else ()
        received = BatchInputs(asked.examples, (*earlier, answer.blob))
        if len(received.blobs) < self.plan.legs:
            held = replace(held, received=received)
        else:
            held = replace(held, part=held.part.after(received), received=None)
        return [self._saved(held), self._compute(held)]

    def _over(self, over: TurnOver) -> list[SplitEffect]:
        if self.state.held is None or over.turn != self.state.held.turn:
            return []
        return [self._saved(None), self._poll()]
