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
        self.algorithm_state: BlobRef | None = None
        """The version's other slots, which may be about single nodes, so they are not part of the model."""
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

    def save_version(self, slots: Slots) -> tuple[BlobRef, BlobRef | None]:
        """Store a version's model, and apart from it the other slots; load both, so that memory holds them once."""
        others = {name: value for name, value in slots.items() if name != "model"}
        refs = self.blobs.put({"model": slots["model"]}), self.blobs.put(others) if others else None
        self.load_version(*refs)
        return refs

    def load_version(self, model: BlobRef, algorithm_state: BlobRef | None = None) -> None:
        """Load a version from the blobs of its model and of its other slots, if it has any."""
        self.model, self.algorithm_state = model, algorithm_state
        self.slots = load_slots(self.blobs, model, algorithm_state)
        self._stored = {(frozenset({"model"}), True): model}

    def store_task_slots(self, slots: Slots) -> BlobRef:
        """Store what a task carries.

        A selection of the version's own slots is stored once for all nodes, and once more with the packed difference
        in place of the model.
        """
        own, packed = self.slots, self.reference.packed_slots(self.slots)
        for name, value in slots.items():
            if value is not own.get(name) and value is not packed.get(name):
                return self.blobs.put(slots)
        choice = frozenset(slots), slots.get("model") is own.get("model")
        if choice not in self._stored:
            self._stored[choice] = self.blobs.put(slots)
        return self._stored[choice]

    def forget_task_slots(self) -> None:
        self._stored = {}


def load_slots(blobs: Blobs, model: BlobRef, algorithm_state: BlobRef | None) -> Slots:
    """Return all slots of a version."""
    return blobs.get(model) | (blobs.get(algorithm_state) if algorithm_state is not None else {})
