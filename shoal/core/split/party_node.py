"""A party's side of training on vertical data as a state machine: that of a node of split learning, which also says how
many rows it has."""

from __future__ import annotations

from shoal.core.protocol.machine import HUB
from shoal.core.protocol.split_message import SplitPoll
from shoal.core.split.part_state import SplitSend
from shoal.core.split.split_node import SplitNode
from shoal.core.split.split_plan import SplitPlan


class PartyNode(SplitNode):
    """One party's side. `rows`: of its data; 0: unknown. `batches`: of each turn."""

    def __init__(self, node: str, plan: SplitPlan, rows: int, batches: int) -> None:
        super().__init__(node, plan, batches, float(rows or batches))
        self.rows = rows

    def _poll(self) -> SplitSend:
        return SplitSend(HUB, SplitPoll(self.node, self.rows, self.batches))
