"""Orders in hand, for pumps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.core.machine import Result
from shoal.core.message import Order, Ref
from shoal.core.tree import Slots
from shoal.runtime.pump import Begin, Watch

BODY, MEMORY = Ref("a" * 64, 10), Ref("b" * 64, 20)


def order(n: int, version: int = 0) -> Order:
    return Order((1, n), "a", "train", version, n, BODY)


@dataclass
class InOnePiece:
    """Work that comes to its result at once."""

    do: Callable[[], Result]

    def piece(self, order: Order) -> Result:
        return self.do()

    def may_go_on(self, order: Order) -> bool:
        return True


def begins(do: Callable[[Order, Slots, Ref | None, Watch], Result]) -> Begin:
    """What a pump wants, of a function that does an order at once."""

    def begin(order: Order, slots: Slots, base: Slots, memory: Ref | None, watch: Watch) -> InOnePiece:
        return InOnePiece(partial(do, order, slots, memory, watch))

    return begin
