"""A party's side of training on vertical data as a state machine: that of a node of split learning, which also says how
many rows it has, and aligns them before if it has ids.

The rows are durable once they are known. A process that ends before that begins again with a new secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.protocol.machine import HUB, MachineState, Save
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.snapshot import from_state, to_state
from shoal.core.protocol.split_message import AlignRows, IdsKept, OtherIds, PartyIds, SplitPoll, TurnFailed
from shoal.core.split.part_state import Compute, Masked, MaskIds, NodeEvent, SplitEffect, SplitSend
from shoal.core.split.split_node import HeldTurn, SplitNode, SplitNodeState
from shoal.core.split.split_plan import SplitPlan


@dataclass(frozen=True)
class PartyState(SplitNodeState):
    """Durable state of a party. `aligned`: the numbers of its rows by the intersection `number`."""

    number: int = 0
    aligned: BlobRef | None = None
    rows: int = 0


class PartyNode(SplitNode):
    """One party's side. `rows`: of its data, 0: unknown, or None to align them first. `batches_of`: the batches of each
    turn by the number of rows."""

    state: PartyState

    def __init__(self, node: str, plan: SplitPlan, rows: int | None, batches_of: Callable[[int], int]) -> None:
        super().__init__(node, plan, 0, 0.0)
        self._batches_of, self._number, self._kept = batches_of, 0, 0
        self._own = ""  # hash of its masked ids
        self._ids: PartyIds | None = None  # sent until it is kept
        self._masking: MaskIds | None = None  # the work under way
        self._take_up(PartyState(rows=rows or 0), is_known=rows is not None)

    def _take_up(self, state: PartyState, *, is_known: bool) -> None:
        self.state, self._number = state, state.number
        self.batches = self._batches_of(state.rows) if is_known else 0
        self.weight = float(state.rows or self.batches)

    def restore(self, values: dict[str, Any]) -> None:
        """Take up the state of an earlier process, before `start`."""
        state = from_state(PartyState, values)
        self._take_up(state, is_known=self.batches > 0 or state.aligned is not None)

    def refs(self) -> Iterator[BlobRef]:
        """Yield the blobs that it refers to."""
        yield from super().refs()
        masking, ids = self._masking, self._ids
        for one in (
            self.state.aligned,
            masking.received if masking is not None else None,
            ids.blob if ids is not None else None,
        ):
            if one is not None:
                yield one

    def on(self, event: NodeEvent, now: float) -> list[SplitEffect]:
        """Handle one event."""
        if self.ended:
            return []
        match event:
            case AlignRows(number=number):
                is_late = number <= self._number or self.state.held is not None
                return [] if is_late else self._mask(MaskIds(number, 0))
            case OtherIds():
                return self._take_other(event)
            case IdsKept():
                return self._note_kept() if self._ids is not None and self._is_due(event) else []
            case Masked():
                return self._masked(event)
        return super().on(event, now)

    def _poll(self) -> SplitSend:
        is_aligned = self._number == self.state.number
        rows, batches = (self.state.rows, self.batches) if is_aligned else (0, 0)
        return SplitSend(HUB, SplitPoll(self.node, rows, batches, self._number, 0 if is_aligned else self._kept))

    def _again(self) -> list[SplitEffect]:
        if self._ids is not None:
            return [SplitSend(HUB, self._ids)]
        return [] if self._masking is not None else super()._again()

    def _compute(self, held: HeldTurn) -> Compute:
        return replace(super()._compute(held), rows=self.state.aligned)

    # Alignment

    def _mask(self, work: MaskIds) -> list[SplitEffect]:
        self._number, self._kept, self._ids, self._masking, self._message = work.number, work.leg, None, work, None
        return [work]

    def _is_due(self, found: IdsKept | OtherIds) -> bool:
        """Return whether a message is about the last leg that this process has sent."""
        sent = self._ids.leg if self._ids is not None else self._kept - 1
        is_open = self._masking is None and self._message is None and self._number > self.state.number
        return is_open and (found.number, found.leg, found.own) == (self._number, sent, self._own)

    def _note_kept(self) -> list[SplitEffect]:
        self._kept, self._ids = self._kept + 1, None
        return [self._poll()]

    def _take_other(self, other: OtherIds) -> list[SplitEffect]:
        if not self._is_due(other):
            return []
        return self._mask(MaskIds(other.number, other.leg + 1, other.blob))

    def _masked(self, done: Masked) -> list[SplitEffect]:
        work = self._masking
        if work is None or (done.number, done.leg) != (work.number, work.leg):
            return []
        self._masking = None
        if done.error or done.blob is None:
            error = done.error or "the parties have no id in common; write the ids alike at both"
            self._message = TurnFailed(self.node, 0, error, done.number)
            return [SplitSend(HUB, self._message)]
        if not done.rows:
            self._own = self._own if done.leg else done.blob.digest
            self._ids = PartyIds(self.node, done.number, done.leg, self._own, done.blob)
            return [SplitSend(HUB, self._ids)]
        state = replace(self.state, number=done.number, aligned=done.blob, rows=done.rows)
        self._take_up(state, is_known=True)
        return [Save(MachineState(to_state(state))), self._poll()]
