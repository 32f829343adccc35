"""The versions of a split job in a simulation."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.core.algorithm.learner import Learner
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.message import Metrics
from shoal.core.split.part_state import SplitVersion, whole_model
from shoal.results.result import Result, VersionResult
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.split.split_world import SplitWorld


class VersionLog:
    """The versions so far. `held_out` measures the model of each."""

    def __init__(self, blobs: MemoryBlobs, held_out: Learner | None) -> None:
        self._blobs, self._held_out = blobs, held_out
        self._versions: list[VersionResult] = []

    def close(self, version: SplitVersion, world: SplitWorld) -> None:
        """Add a version, with its time and the bytes since the one before."""
        metrics: Metrics = dict(version.metrics)
        if self._held_out is not None:
            self._held_out.load(whole_model(self._blobs, version.parts))
            measured = self._held_out.evaluate()
            metrics |= {name.replace("eval/", "held_out/", 1): value for name, value in measured.items()}
        nodes = world.traffic.close_version()
        closed = VersionResult(
            number=version.number,
            why="initial model" if not version.number else "all turns of the round are over",
            opened_s=self._versions[-1].closed_s if self._versions else 0.0,
            closed_s=world.clock.now,
            reports=len(version.nodes),
            metrics=metrics,
            up_bytes=sum(one.up for one in nodes.values()),
            down_bytes=sum(one.down for one in nodes.values()),
            nodes=nodes,
        )
        self._versions.append(closed)

    def result(self, job: str, newest: SplitVersion, world: SplitWorld, events: Iterable[JobEvent]) -> Result:
        """Return the result of a job that has ended with `newest`; `events` precede the world's events."""
        return Result(
            name=job,
            state="done",
            versions=tuple(self._versions),
            model=whole_model(self._blobs, newest.parts),
            metrics=self._versions[-1].metrics,
            events=(*events, *world.events),
            up_bytes=world.traffic.total("up"),
            down_bytes=world.traffic.total("down"),
        )
