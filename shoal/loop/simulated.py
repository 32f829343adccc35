"""`shoal.simulated`: a training loop tried without a server, over simulated nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import InvalidJob
from shoal.loop.learner import LoopLearner
from shoal.loop.node import LoopNode, MakeLoopLearner
from shoal.results.result import Result
from shoal.simulation import SimulatedJob, simulate


def simulated(job: SimulatedJob | str | Path | Mapping[str, Any], *, nodes: int = 4, **options: Any) -> SimulatedNodes:
    """Return the nodes of a simulated job, for one training loop; `task.index` says whose task it is.

    `options`: those of `shoal.simulate`. Raises `InvalidJob` for fewer than one node.
    """
    if nodes < 1:
        raise InvalidJob(f"nodes is {nodes}", code="job.learners", hint="1 or more")
    return SimulatedNodes(job, nodes, options)


class SimulatedNodes(LoopNode):
    """All nodes of a simulated job; their tasks come one after the other."""

    def __init__(self, job: Any, nodes: int, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._job, self._nodes, self._options = job, nodes, options
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        """The result of the job. Raises `InvalidJob` before it has ended."""
        if self._result is None:
            raise InvalidJob("the simulated job has not ended", hint="go through node.tasks(model) to its end")
        return self._result

    def _runner(self, make: MakeLoopLearner) -> Callable[[], object]:
        return lambda: self._simulate([make(f"node-{index}", index) for index in range(self._nodes)])

    def _simulate(self, learners: Sequence[LoopLearner]) -> None:
        self._result = simulate(self._job, learners, **self._options)

    def _leave(self, *, unfinished: bool) -> None:
        """Do nothing: the next task ends the simulation, because the loop takes none."""
