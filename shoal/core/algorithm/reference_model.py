"""The reference model: what both ends hold, and what reports and models are sent relative to.

Without one (rounds) a task carries the model itself, and a report is relative to that. With one, a node that lacks it
fetches it by its digest.

base        the reference r; a new one only at a full synchronisation
since       the reference from which the present version was made: its holders are sent the difference, if there are
                filters. Right after a new reference that is the one before.

The hub continues with exactly the model that the nodes will have, so filters lose nothing between them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import Filters, pack_difference, unpack_difference
from shoal.core.model.tree import Slots, Tree, dot
from shoal.core.protocol.message import BlobRef, Blobs, Metrics, Task

SYNC = "sync"
"""In a task's numbers: 1 when its model is the new base, 0 when it is not; absent where there is none."""


class ReferenceModel:
    """A job's base, if it has one."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._ref: BlobRef | None = None
        self._model: Tree | None = None
        self._since: BlobRef | None = None
        self._packed: BlobRef | None = None
        self._sent: Tree | None = None
        self._fresh = False

    @property
    def slots(self) -> Slots:
        """The base as slots; none without one."""
        return {"model": self._model} if self._model is not None else {}

    @property
    def task_reference(self) -> BlobRef | None:
        """Return the reference that a task of the present version names."""
        return self._since if self._packed is not None or not self._fresh else None

    @property
    def task_numbers(self) -> Metrics:
        """Return the numbers that a task carries about it."""
        return {SYNC: float(self._fresh)} if self._ref is not None else {}

    def squared_norm(self) -> float:
        """Return the squared norm of the reference; 0 without one."""
        return dot(self._model, self._model) if self._model is not None else 0.0

    def refs(self) -> list[BlobRef]:
        """Return the blobs that must be kept: the reference, and the one before while tasks build on it."""
        return [ref for ref in (self._ref, self._since, self._packed) if ref is not None]

    def pack_version(self, bodies: Blobs, slots: Slots, rebase: bool, seed: int) -> Slots:
        """Return the slots of a new version as its receivers will have them, and remember what is sent."""
        self._since, self._fresh = self._ref, rebase
        if self._model is None or not self._filters:
            return slots
        sent, model = pack_difference(self._filters, tree_slot(slots, "model"), self._model, seed)
        self._packed = bodies.put({"model": sent})
        self._sent = tree_slot(bodies.get(self._packed), "model")
        return {**slots, "model": model}

    def send_whole(self) -> None:
        """Send the new version whole to all nodes: it was merged from models whose owners may hold no reference, and
        has been measured as it is, so no filter may round it."""
        self._since = self._packed = self._sent = None
        self._fresh = True

    def rebase(self, bodies: Blobs, slots: Slots) -> None:
        """Make this model the reference."""
        self._ref, self._fresh = bodies.put({"model": slots["model"]}), True
        self._model = tree_slot(bodies.get(self._ref), "model")

    def packed_slots(self, slots: Slots) -> Slots:
        """Return a task's slots as they are sent."""
        return {**slots, "model": self._sent} if self._sent is not None and "model" in slots else slots

    def state(self) -> dict[str, Any] | None:
        """Return the state as JSON values; None without a reference."""
        if self._ref is None:
            return None
        refs = {"ref": self._ref, "since": self._since, "packed": self._packed}
        return {name: asdict(ref) if ref is not None else None for name, ref in refs.items()} | {"fresh": self._fresh}

    @classmethod
    def restore(cls, filters: Filters, state: dict[str, Any] | None, bodies: Blobs) -> ReferenceModel:
        anchor = cls(filters)
        if state is not None:
            anchor._ref, anchor._fresh = BlobRef(**state["ref"]), state["fresh"]
            anchor._model = tree_slot(bodies.get(anchor._ref), "model")
            anchor._since = BlobRef(**state["since"]) if state["since"] is not None else None
            if state["packed"] is not None:
                anchor._packed = BlobRef(**state["packed"])
                anchor._sent = tree_slot(bodies.get(anchor._packed), "model")
        return anchor


def unpack_task(task: Task, slots: Slots, base: Slots, filters: Filters) -> tuple[Slots, Slots]:
    """Return a task's slots as the hub has them, and the base that its receiver holds from then on.

    Reports on the task are relative to that base; where it is empty, to the task's own model.
    """
    if task.reference is not None and filters:
        model = unpack_difference(filters, tree_slot(slots, "model"), tree_slot(base, "model"))
        slots = {**slots, "model": model}
    return slots, {"model": tree_slot(slots, "model")} if task.numbers.get(SYNC) else base


def reference_refs(state: dict[str, Any] | None) -> list[BlobRef]:
    """Return the blobs that a reference of that state needs."""
    return [BlobRef(**state[name]) for name in ("ref", "since", "packed") if state[name] is not None] if state else []
