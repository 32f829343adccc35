"""The versions of a split job in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.core.algorithm.learner import Learner
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import Metrics
from shoal.core.split.part_state import SplitVersion
from shoal.results.result import VersionResult
from shoal.sim.split.split_world import SplitWorld


def closed_version(
    version: SplitVersion,
    world: SplitWorld,
    earlier: Sequence[VersionResult],
    held_out: Learner | None,
    model: Callable[[], Tree],
) -> VersionResult:
    """Return a version with its time and bytes since those before, and what `held_out` measures of its model."""
    metrics: Metrics = dict(version.metrics)
    if held_out is not None:
        held_out.load(model())
        measured = held_out.evaluate()
        metrics |= {name.replace("eval/", "held_out/", 1): value for name, value in measured.items()}
    nodes = world.traffic.close_version()
    return VersionResult(
        number=version.number,
        why="initial model" if not version.number else "all turns of the round are over",
        opened_s=earlier[-1].closed_s if earlier else 0.0,
        closed_s=world.clock.now,
        reports=len(version.nodes),
        metrics=metrics,
        up_bytes=sum(one.up for one in nodes.values()),
        down_bytes=sum(one.down for one in nodes.values()),
        nodes=nodes,
    )
