"""Split learning applies every batch once, whatever is lost, repeated or killed."""

import pytest

from shoal.core.split.split_plan import TurnOrder
from shoal.sim.network.faults import Faults
from tests.sim.split_toy import direct, plan_of, value_of, world_of

FAULTS = Faults(
    message_loss=0.15, message_duplicates=0.2, delay_s=0.3, coordinator_crashes=8, node_crashes=6, disk_survival=1.0
)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("legs", [1, 2])
def test_each_batch_counts_once(legs: int, order: TurnOrder) -> None:
    crashes = 0
    for seed in range(8):
        plan = plan_of(legs, order, rounds=3, min_nodes=3, checkpoint_every=3, turn_timeout_s=1e6)
        world = world_of(plan, nodes=3, batches=7, faults=FAULTS, seed=seed)
        assert world.run_to_end(1e6), f"seed {seed}"
        assert world.newest is not None
        found = tuple(value_of(world.blobs, ref) for ref in world.newest.parts)
        assert found == direct(plan, 3, 7), f"seed {seed}"
        assert world.newest.metrics == {"train/loss": 3.0}
        crashes += world.crashes
    assert crashes > 100


def test_a_node_that_loses_its_disk_begins_another_turn() -> None:
    plan = plan_of(1, "sequential", rounds=2, min_nodes=2, turn_timeout_s=30.0)
    faults = Faults(node_crashes=3, disk_survival=0.0)
    dropped = 0
    for seed in range(8):
        world = world_of(plan, nodes=2, batches=5, faults=faults, seed=seed)
        assert world.run_to_end(1e6), f"seed {seed}"
        dropped += sum("no progress" in event.text for event in world.events)
    assert dropped


def test_bytes_are_those_of_the_bodies() -> None:
    plan = plan_of(2, "sequential", rounds=2, min_nodes=2)
    world = world_of(plan, nodes=2, batches=5)
    assert world.run_to_end(1e6)
    turn = 8 + 5 * 2 * 8  # a part, and a blob for each leg
    expected = {f"node-{n}": 2 * turn for n in range(2)}
    assert world.traffic.total("up") == world.traffic.total("down") == expected
