"""An order in hand, done piece by piece: the same in every world.

Most algorithms do an order in one piece. One that goes on by itself for as long as nobody asks (dynamic averaging)
returns `Going` after each piece; between two pieces the order may be amended, other jobs may have their turn, and the
process may die, which loses the pieces and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.core.algorithm import Algorithm, Local, Task, perform
from shoal.core.anchor import received
from shoal.core.filter import UNSENT, Filter, pack_all
from shoal.core.learner import Learner, Tick, no_tick
from shoal.core.message import Order, Status
from shoal.core.settings_change import adjusted
from shoal.core.tree import Slots


@dataclass
class Piecework:
    """`slots`, `base`, `memory`: the opened bodies that the order and the node's state name; empty where there is none.

    After `piece` has been called, `base` is what the node holds from now on, if the job has a base at all.
    """

    algorithm: Algorithm
    learner: Learner
    slots: Slots
    base: Slots = field(default_factory=dict)
    memory: Slots = field(default_factory=dict)
    filters: Sequence[Filter] = ()
    tick: Tick = no_tick
    check: int = 0
    carry: Slots | None = None
    begun: bool = False

    def piece(self, order: Order) -> Local | Status | None:
        """Do the next piece of the order, as it reads now. None: go on, there is nothing to tell."""
        if not self.begun:
            self._begin(order)
        task = Task(
            order=order.id,
            kind=order.kind,
            version=order.version,
            seed=order.seed,
            slots=self.slots,
            tick=self.tick,
            base=self.base,
            numbers=order.numbers,
            check=self.check,
            carry=self.carry,
            recalled=order.recall,
        )
        mine = {name: value for name, value in self.memory.items() if not name.startswith(UNSENT)}
        made = perform(self.algorithm, self.learner, task, mine)
        if isinstance(made, Local):
            return self._packed(made, order, mine)
        self.carry, self.check = made.carry, self.check + 1
        if made.told is None and not order.until:
            return None
        return Status(order.node, order.id, self.check, made.told or {}, made.state)

    def _packed(self, made: Local, order: Order, mine: Slots) -> Local:
        """The update as it is sent; what it leaves out joins the private memory, and counts only if the update does."""
        unsent = {name: value for name, value in self.memory.items() if name not in mine}
        slots, left = made.slots, unsent
        if order.kind == "train" and self.filters:
            slots, left = pack_all(self.filters, made.slots, unsent, order.seed)
        if made.memory is None and (left is unsent or not left):
            return replace(made, slots=slots)
        return replace(made, slots=slots, memory=(mine if made.memory is None else made.memory) | left)

    def _begin(self, order: Order) -> None:
        self.begun, self.algorithm = True, adjusted(self.algorithm, order.numbers)
        self.slots, self.base = received(order, self.slots, self.base, self.filters)

    def may_go_on(self, order: Order) -> bool:
        """Whether the next piece may be done without waiting for word from the hub."""
        return order.recall or not order.until or self.check < order.until
