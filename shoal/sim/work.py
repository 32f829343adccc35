"""What a node does with an order, over the bodies of the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from shoal.core.algorithm import Algorithm, Local
from shoal.core.filter import Filter
from shoal.core.learner import Learner
from shoal.core.machine import Result
from shoal.core.message import Bodies, Order, Ref, Status
from shoal.core.piecework import Piecework
from shoal.core.tree import Slots
from shoal.learn.blame import blamed


class Hand(Protocol):
    """An order in hand."""

    @property
    def held(self) -> Ref | None:
        """The base that the node holds from now on."""
        ...

    def piece(self, order: Order) -> Result | Status | None:
        """Do the next piece of the order. Raises `LearnerFailed` for whatever the user's code raises."""
        ...

    def may_go_on(self, order: Order) -> bool: ...


class Begun:
    """An order begun over these bodies. What a node has held since its last order need not travel: `held`."""

    def __init__(
        self,
        algorithm: Algorithm,
        learner: Learner,
        bodies: Bodies,
        order: Order,
        memory: Ref | None,
        filters: Sequence[Filter] = (),
    ) -> None:
        self._bodies = bodies
        self._work = Piecework(
            algorithm,
            learner,
            slots=_opened(bodies, order.body),
            base=_opened(bodies, order.base),
            memory=_opened(bodies, memory),
            filters=filters,
        )
        self.held: Ref | None = None

    def piece(self, order: Order) -> Result | Status | None:
        with blamed(f"the learner's {order.kind}"):
            made = self._work.piece(order)
            if isinstance(made, Local):  # users' numbers may be numpy's
                made = replace(made, weight=float(made.weight), metrics={n: float(v) for n, v in made.metrics.items()})
        if self._work.base and self.held is None:
            self.held = self._bodies.put(self._work.base)
        if not isinstance(made, Local):
            return made
        kept = self._bodies.put(made.memory) if made.memory is not None else None
        return Result(made.weight, self._bodies.put(made.slots) if made.slots else None, made.metrics, kept)

    def may_go_on(self, order: Order) -> bool:
        return self._work.may_go_on(order)


def _opened(bodies: Bodies, ref: Ref | None) -> Slots:
    return bodies.get(ref) if ref is not None else {}
