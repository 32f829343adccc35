"""What a node does with an order."""

from __future__ import annotations

from shoal.core.algorithm import Algorithm, Task
from shoal.core.algorithm import perform as algorithm_part
from shoal.core.errors import LearnerFailed
from shoal.core.learner import Learner, Tick, no_tick
from shoal.core.machine import Result
from shoal.core.message import Bodies, Order, Ref
from shoal.learn.blame import blamed


def perform(
    algorithm: Algorithm, learner: Learner, bodies: Bodies, order: Order, memory: Ref | None, tick: Tick = no_tick
) -> Result:
    """Do an order. Raises `LearnerFailed` for whatever the user's code raises, `Cancelled` when `tick` does."""
    slots = bodies.get(order.body) if order.body is not None else {}
    own = bodies.get(memory) if memory is not None else {}
    task = Task(order.id, order.kind, order.version, order.seed, slots, tick)
    with blamed(f"the learner's {order.kind}"):
        local = algorithm_part(algorithm, learner, task, own)
    if local is None:
        raise LearnerFailed("the algorithm had nothing to report")
    kept = bodies.put(local.memory) if local.memory is not None else None
    return Result(local.weight, bodies.put(local.slots) if local.slots else None, local.metrics, kept)
