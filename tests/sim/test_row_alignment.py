"""Parties align their rows once for both, whatever is lost, repeated or killed: no batch has rows of two people."""

from collections.abc import Callable, Mapping

import numpy as np

from shoal.core.model.tree import Slots, Tree
from shoal.core.split.part_state import FINISH, Compute, Computed, Masked, MaskIds
from shoal.core.split.party_node import PartyNode
from shoal.core.split.split_plan import SplitPlan, TensorForm
from shoal.core.split.vertical_coordinator import VerticalCoordinator
from shoal.core.split.vertical_plan import VerticalPlan
from shoal.learn.split.row_ids import RowIds, rows_of
from shoal.sim.network.blobs import MemoryBlobs, plain_size
from shoal.sim.network.faults import Faults
from shoal.sim.split.split_world import SplitWorld

ROUNDS = 2
PEOPLE = {"bank": [3, 1, 4, 15, 9, 2, 6], "shop": [6, 5, 35, 8, 9, 7, 3, 1]}
COMMON = sorted({*PEOPLE["bank"]} & {*PEOPLE["shop"]})
FAULTS = Faults(
    message_loss=0.15, message_duplicates=0.2, delay_s=0.3, coordinator_crashes=5, node_crashes=6, disk_survival=0.0
)


def one(value: float) -> Slots:
    """A blob of one number."""
    return {"model": Tree.of({"w": np.array([value])})}


class Alignment:
    """A world of two parties, whose activations are the numbers of the people, and the batches that were computed."""

    def __init__(self, faults: Faults, seed: int, people: Mapping[str, list[int]] = PEOPLE) -> None:
        self.people = people
        self.blobs = MemoryBlobs(plain_size)
        self.batches = dict[tuple[int, int], list[int]]()
        self.finished = list[int]()
        self.aligned = 0
        common = SplitPlan((TensorForm("F32", (1,)),), batch_size=1, rounds=ROUNDS, is_party=True, turn_timeout_s=60.0)
        plan = VerticalPlan(dict.fromkeys(PEOPLE, common), ids_max=10)
        start = [self.blobs.put(one(n)) for n in range(3)]
        self.world = SplitWorld(
            (lambda: VerticalCoordinator(plan, self.blobs, start[:2], start[2]), lambda: self.tail),
            {
                name: (lambda name=name: PartyNode(name, common, None, int), lambda name=name: self.party(name))  # type: ignore[misc]
                for name in PEOPLE
            },
            self.blobs,
            faults=faults,
            seed=seed,
        )

    def tail(self, work: Compute) -> Computed:
        """Note the people of a batch."""
        batch, finish = work.state.next_batch, work.leg == FINISH
        if finish:
            self.finished.append(work.turn)
            return Computed(work.turn, batch, FINISH, checkpoint=work.state.checkpoint)
        assert work.received is not None
        found = [int(np.asarray(self.blobs.get(ref)["model"]["w"])[0]) for ref in work.received.blobs]  # type: ignore[index]
        self.batches[work.turn, batch] = found
        return Computed(work.turn, batch, 0, None, 1, answers=work.received.blobs)

    def party(self, name: str) -> Callable[[Compute | MaskIds], Computed | Masked]:
        """The work of one process of a party."""
        ids = RowIds([f"person-{n}" for n in self.people[name]], self.blobs)

        def compute(work: Compute | MaskIds) -> Computed | Masked:
            if isinstance(work, MaskIds):
                self.aligned += work.leg == 2
                return ids(work)
            batch = work.state.next_batch
            if work.leg == FINISH:
                return Computed(work.turn, batch, FINISH, checkpoint=work.state.checkpoint)
            assert work.rows is not None
            person = self.people[name][rows_of(self.blobs, work.rows)[batch]]
            return Computed(work.turn, batch, 0, self.blobs.put(one(person)), 1)

        return compute


def test_a_batch_has_the_same_person_of_both_parties() -> None:
    aligned = 0
    for seed in range(30):
        found = Alignment(FAULTS, seed)
        assert found.world.run_to_end(1e6), f"seed {seed}: {found.world.refused[-3:]}"
        assert found.world.ended == "all rounds are done"
        assert all(bank == shop for bank, shop in found.batches.values()), f"seed {seed}"
        for turn in found.finished:
            people = sorted(people[0] for (of, _), people in found.batches.items() if of == turn)
            assert people == COMMON, f"seed {seed}"
        aligned += found.aligned
    assert aligned > 2 * 30, "no intersection had to begin again"


def test_parties_without_a_common_id_end_the_job() -> None:
    for seed in range(10):
        found = Alignment(FAULTS, seed, {"bank": [1, 2], "shop": [3, 4]})
        assert found.world.run_to_end(1e6), f"seed {seed}: {found.world.refused[-3:]}"
        assert "no id in common" in found.world.ended
        assert not found.batches
