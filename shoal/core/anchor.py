"""What both ends hold: the model that reports are relative to, and that models are sent relative to.

Without a base (rounds) an order carries the model itself, and a report is relative to that. With one, whoever has
missed it fetches it by its digest; nobody is told who holds what.

    base        the reference r; a new one only at a full synchronisation
    since       the base that the present version was made from: its holders are sent the difference, if filters are
                at work. Right after a rebase that is the one before.

What filters lose is lost at the hub too: it goes on with the model that the nodes will have, to the last bit.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shoal.core.algorithm import tree_slot
from shoal.core.filter import Filters, pack_onto, unpack_onto
from shoal.core.message import Bodies, Metrics, Order, Ref
from shoal.core.tree import Slots, Tree, dot

SYNC = "sync"
"""In an order's numbers: 1 when its model is the new base, 0 when it is not; absent where there is none."""


class Anchor:
    """A job's base, if it has one."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._ref: Ref | None = None
        self._model: Tree | None = None
        self._since: Ref | None = None
        self._packed: Ref | None = None
        self._sent: Tree | None = None
        self._fresh = False

    @property
    def held(self) -> Slots:
        """The base as slots; none without one."""
        return {"model": self._model} if self._model is not None else {}

    @property
    def base(self) -> Ref | None:
        """What an order of the present version names as its base."""
        return self._since if self._packed is not None or not self._fresh else None

    @property
    def numbers(self) -> Metrics:
        """What an order tells of it."""
        return {SYNC: float(self._fresh)} if self._ref is not None else {}

    def size(self) -> float:
        """The squared norm of the base; 0 without one."""
        return dot(self._model, self._model) if self._model is not None else 0.0

    def refs(self) -> list[Ref]:
        """Bodies that must be kept: the base, and the one before as long as orders build on it."""
        return [ref for ref in (self._ref, self._since, self._packed) if ref is not None]

    def moved(self, bodies: Bodies, slots: Slots, rebase: bool, seed: int) -> Slots:
        """The slots of a new version as its receivers will have them; remembers what is sent."""
        self._since, self._fresh = self._ref, rebase
        if self._model is None or not self._filters:
            return slots
        sent, model = pack_onto(self._filters, tree_slot(slots, "model"), self._model, seed)
        self._packed = bodies.put({"model": sent})
        self._sent = tree_slot(bodies.get(self._packed), "model")
        return {**slots, "model": model}

    def replaced(self) -> None:
        """Send the new version whole to everybody: it was merged from models whose owners may hold no base, and has
        been judged as it is, so no filter may round it."""
        self._since = self._packed = self._sent = None
        self._fresh = True

    def rebase(self, bodies: Bodies, slots: Slots) -> None:
        """From now on all hold this model."""
        self._ref, self._fresh = bodies.put({"model": slots["model"]}), True
        self._model = tree_slot(bodies.get(self._ref), "model")

    def sent(self, slots: Slots) -> Slots:
        """An order's slots as they travel."""
        return {**slots, "model": self._sent} if self._sent is not None and "model" in slots else slots

    def state(self) -> dict[str, Any] | None:
        """As JSON values; None without a base."""
        if self._ref is None:
            return None
        refs = {"ref": self._ref, "since": self._since, "packed": self._packed}
        return {name: asdict(ref) if ref is not None else None for name, ref in refs.items()} | {"fresh": self._fresh}

    @classmethod
    def restore(cls, filters: Filters, state: dict[str, Any] | None, bodies: Bodies) -> Anchor:
        anchor = cls(filters)
        if state is not None:
            anchor._ref, anchor._fresh = Ref(**state["ref"]), state["fresh"]
            anchor._model = tree_slot(bodies.get(anchor._ref), "model")
            anchor._since = Ref(**state["since"]) if state["since"] is not None else None
            if state["packed"] is not None:
                anchor._packed = Ref(**state["packed"])
                anchor._sent = tree_slot(bodies.get(anchor._packed), "model")
        return anchor


def received(order: Order, slots: Slots, base: Slots, filters: Filters) -> tuple[Slots, Slots]:
    """Return an order's slots as the hub has them, and the base that its receiver holds from then on.

    Reports on the order are relative to that base; where it is empty, to the order's own model.
    """
    if order.base is not None and filters:
        model = unpack_onto(filters, tree_slot(slots, "model"), tree_slot(base, "model"))
        slots = {**slots, "model": model}
    return slots, {"model": tree_slot(slots, "model")} if order.numbers.get(SYNC) else base


def anchor_refs(state: dict[str, Any] | None) -> list[Ref]:
    """The bodies that an anchor of that state needs."""
    return [Ref(**state[name]) for name in ("ref", "since", "packed") if state[name] is not None] if state else []
