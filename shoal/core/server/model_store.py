"""The slots of a job's newest version, the reference model, and the blobs that tasks carry."""

from __future__ import annotations

from shoal.core.algorithm.filter import Filters
from shoal.core.algorithm.reference_model import ReferenceModel
from shoal.core.algorithm.sharding import ShardedTotals
from shoal.core.model.aggregation import SumKind, Totals
from shoal.core.model.tree import Slots, Tree
from shoal.core.model.vector_parts import Each
from shoal.core.protocol.message import BlobRef, Blobs


class ModelStore:
    """The newest version's slots, and access to the job's blobs."""

    def __init__(self, blobs: Blobs, filters: Filters) -> None:
        self.blobs = blobs
        self.reference = ReferenceModel(filters)
        self.model: BlobRef | None = None
        self.slots: Slots = {}
        self.map_shards: Each = map
        """Applies a function to every shard; the coordinator uses a thread pool."""
        self._stored: dict[tuple[frozenset[str], bool], BlobRef] = {}

    def empty_totals(self, precision: SumKind, shards: int) -> Totals:
        """Return an empty sum of updates, split over that many shards."""
        model = self.slots.get("model")
        if shards == 1 or not isinstance(model, Tree):
            return Totals(precision)
        return ShardedTotals(precision, model.layout, shards, self.map_shards)

    def save_version(self, slots: Slots) -> BlobRef:
        """Store a version's slots and load the stored ones, so that memory holds them once."""
        model = self.blobs.put(slots)
        self.load_version(model)
        return model

    def load_version(self, model: BlobRef) -> None:
        self.model, self.slots = model, self.blobs.get(model)
        self._stored = {(frozenset(self.slots), True): model}

    def store_task_slots(self, slots: Slots) -> BlobRef:
        """Store what a task carries.

        A selection of the version's own slots is stored once for all nodes, and once more with the packed difference
        in place of the model.
        """
        own, packed = self.slots, self.reference.packed_slots(self.slots)
        if any(value is not own.get(name) and value is not packed.get(name) for name, value in slots.items()):
            return self.blobs.put(slots)
        choice = frozenset(slots), slots.get("model") is own.get("model")
        if choice not in self._stored:
            self._stored[choice] = self.blobs.put(slots)
        return self._stored[choice]

    def forget_task_slots(self) -> None:
        self._stored = {}
