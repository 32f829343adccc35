"""A split model of whole numbers, where each batch that is applied twice, left out or swapped gives another result."""

import numpy as np

from shoal.core.model.tree import Slots, Tree
from shoal.core.protocol.message import BlobRef
from shoal.core.split.part_state import FINISH, BatchInputs, Compute, Computed, PartState
from shoal.core.split.split_coordinator import SplitCoordinator, mean_part
from shoal.core.split.split_node import SplitNode
from shoal.core.split.split_plan import SplitPlan, TensorForm, TurnOrder
from shoal.sim.network.blobs import MemoryBlobs, plain_size
from shoal.sim.network.faults import Faults
from shoal.sim.split.split_world import ComputeLeg, SplitWorld

PRIME = 1_000_003


def plan_of(legs: int, order: TurnOrder, **more: object) -> SplitPlan:
    """Return a plan whose blobs have one number."""
    cut = TensorForm("F32", (1,))
    labels = TensorForm("I64") if legs == 1 else None
    return SplitPlan((cut,) * legs, labels, order, batch_size=1, **more)  # type: ignore[arg-type]


def slots(value: float) -> Slots:
    """Return a part, or a blob, of one number."""
    return {"model": Tree.of({"w": np.array([value])})}


def value_of(blobs: MemoryBlobs, ref: BlobRef) -> float:
    """Return the number of a part or of a blob."""
    model = blobs.get(ref)["model"]
    assert isinstance(model, Tree)
    return float(model["w"][0])


def applied(value: float, batch: int, inputs: list[float]) -> float:
    """Return a part after a batch."""
    for one in inputs:
        value = (value * 31 + one * 7 + batch) % PRIME
    return value


def sent(value: float, batch: int, leg: int, inputs: list[float]) -> float:
    """Return the blob that a part sends."""
    return (value * 13 + sum(inputs) * 17 + batch * 5 + leg) % PRIME


def leg_of(blobs: MemoryBlobs, of_coordinator: bool) -> ComputeLeg:
    """Return the function that computes legs. It has no memory."""

    def values(inputs: BatchInputs | None) -> list[float]:
        return [value_of(blobs, ref) for ref in inputs.blobs] if inputs is not None else []

    def part(state: PartState) -> float:
        found = value_of(blobs, state.checkpoint)
        for number, inputs in enumerate(state.inputs):
            found = applied(found, state.batch + number, values(inputs))
        return found

    def compute(work: Compute) -> Computed:
        value, batch = part(work.state), work.state.next_batch
        checkpoint = blobs.put(slots(value)) if work.checkpoint else None
        if work.leg == FINISH:
            return Computed(work.turn, batch, FINISH, checkpoint=checkpoint)
        blob = blobs.put(slots(sent(value, batch, work.leg, values(work.received)) + of_coordinator))
        return Computed(work.turn, batch, work.leg, blob, 1, {"train/loss": float(batch)}, checkpoint)

    return compute


def world_of(plan: SplitPlan, nodes: int, batches: int, faults: Faults | None = None, seed: int = 0) -> SplitWorld:
    """Return a world of nodes whose weights are 1, 2, …"""
    blobs = MemoryBlobs(plain_size)
    first = blobs.put(slots(3.0)), blobs.put(slots(4.0))

    def node(number: int) -> SplitNode:
        return SplitNode(f"node-{number}", plan, batches, 1.0 + number)

    return SplitWorld(
        (lambda: SplitCoordinator(plan, blobs, *first), lambda: leg_of(blobs, of_coordinator=True)),
        {
            f"node-{n}": (lambda n=n: node(n), lambda: leg_of(blobs, of_coordinator=False))  # type: ignore[misc]
            for n in range(nodes)
        },
        blobs,
        faults=faults,
        seed=seed,
    )


def direct(plan: SplitPlan, nodes: int, batches: int) -> tuple[float, float]:
    """Return both parts at the end, computed without messages."""
    blobs = MemoryBlobs(plain_size)
    mine, theirs = 3.0, 4.0
    for _ in range(plan.rounds):
        ends = []
        for _ in range(nodes):
            a, b = ends[-1] if ends and plan.order == "sequential" else (mine, theirs)
            for batch in range(batches):
                asked, answers = list[float](), list[float]()
                for leg in range(plan.legs):
                    asked.append(sent(a, batch, leg, answers))
                    answers.append(sent(b, batch, leg, asked) + 1)
                a, b = applied(a, batch, answers), applied(b, batch, asked)
            ends.append((a, b))
        if plan.order == "sequential":
            mine, theirs = ends[-1]
            continue
        weights = [1.0 + number for number in range(nodes)]
        mine, theirs = (
            value_of(
                blobs, mean_part(blobs, blobs.put(slots(base)), [blobs.put(slots(end[side])) for end in ends], weights)
            )
            for side, base in enumerate((mine, theirs))
        )
    return mine, theirs
