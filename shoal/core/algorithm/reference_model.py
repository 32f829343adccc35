"""The reference model: what both ends hold, and what reports and models are sent relative to.

Without one (rounds) a task carries the model itself, and a report is relative to that. With one, a node that lacks it
fetches it by its digest.

reference   the model r; a new one only at a full synchronization
previous    the reference from which the present version was made: its holders are sent the difference, if there are
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

NEW_REFERENCE = "new_reference"
"""In a task's numbers: 1 when its model is the new reference, 0 when it is not; absent where there is none."""


class ReferenceModel:
    """A job's reference, if it has one."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters
        self._reference: BlobRef | None = None
        self._model: Tree | None = None
        self._previous: BlobRef | None = None
        self._difference: BlobRef | None = None
        self._sent: Tree | None = None
        self._is_new = False

    @property
    def slots(self) -> Slots:
        """The reference as slots; none without one."""
        return {"model": self._model} if self._model is not None else {}

    @property
    def task_reference(self) -> BlobRef | None:
        """Return the reference that a task of the present version names."""
        return self._previous if self._difference is not None or not self._is_new else None

    @property
    def task_numbers(self) -> Metrics:
        """Return the numbers that a task carries about it."""
        return {NEW_REFERENCE: float(self._is_new)} if self._reference is not None else {}

    def squared_norm(self) -> float:
        """Return the squared norm of the reference; 0 without one."""
        return dot(self._model, self._model) if self._model is not None else 0.0

    def refs(self) -> list[BlobRef]:
        """Return the blobs that must be kept: the reference, and the one before while tasks build on it."""
        return [ref for ref in (self._reference, self._previous, self._difference) if ref is not None]

    def pack_version(self, blobs: Blobs, slots: Slots, rebase: bool, seed: int) -> Slots:
        """Return the slots of a new version as its receivers will have them, and remember what is sent."""
        self._previous, self._is_new = self._reference, rebase
        if self._model is None or not self._filters:
            return slots
        sent, model = pack_difference(self._filters, tree_slot(slots, "model"), self._model, seed)
        self._difference = blobs.put({"model": sent})
        self._sent = tree_slot(blobs.get(self._difference), "model")
        return {**slots, "model": model}

    def send_whole(self) -> None:
        """Send the new version whole to all nodes: it was merged from models whose owners may hold no reference, and
        has been measured as it is, so no filter may round it."""
        self._previous = self._difference = self._sent = None
        self._is_new = True

    def rebase(self, blobs: Blobs, slots: Slots) -> None:
        """Make this model the reference."""
        self._reference, self._is_new = blobs.put({"model": slots["model"]}), True
        self._model = tree_slot(blobs.get(self._reference), "model")

    def packed_slots(self, slots: Slots) -> Slots:
        """Return a task's slots as they are sent."""
        return {**slots, "model": self._sent} if self._sent is not None and "model" in slots else slots

    def state(self) -> dict[str, Any] | None:
        """Return the state as JSON values; None without a reference."""
        if self._reference is None:
            return None
        refs = {"reference": self._reference, "previous": self._previous, "difference": self._difference}
        return {name: asdict(ref) if ref is not None else None for name, ref in refs.items()} | {"is_new": self._is_new}

    @classmethod
    def restore(cls, filters: Filters, state: dict[str, Any] | None, blobs: Blobs) -> ReferenceModel:
        anchor = cls(filters)
        if state is not None:
            anchor._reference, anchor._is_new = BlobRef(**state["reference"]), state["is_new"]
            anchor._model = tree_slot(blobs.get(anchor._reference), "model")
            anchor._previous = BlobRef(**state["previous"]) if state["previous"] is not None else None
            if state["difference"] is not None:
                anchor._difference = BlobRef(**state["difference"])
                anchor._sent = tree_slot(blobs.get(anchor._difference), "model")
        return anchor


def unpack_task(task: Task, slots: Slots, base: Slots, filters: Filters) -> tuple[Slots, Slots]:
    """Return a task's slots as the hub has them, and the base that its receiver holds from then on.

    Reports on the task are relative to that base; where it is empty, to the task's own model.
    """
    if task.reference is not None and filters:
        model = unpack_difference(filters, tree_slot(slots, "model"), tree_slot(base, "model"))
        slots = {**slots, "model": model}
    return slots, {"model": tree_slot(slots, "model")} if task.numbers.get(NEW_REFERENCE) else base


def reference_refs(state: dict[str, Any] | None) -> list[BlobRef]:
    """Return the blobs that a reference of that state needs."""
    refs = [state[name] for name in ("reference", "previous", "difference")] if state else []
    return [BlobRef(**ref) for ref in refs if ref is not None]
