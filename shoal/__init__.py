"""shoal: federated and decentralized deep learning.

    import shoal

    result = shoal.simulate(shoal.JobSpec(name="first", rounds=10), learners)
    print(result)
    result.save("model.safetensors")

Importing this package loads nothing else; the names below bring in what they need when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol, overload

    from shoal.client.client import connect
    from shoal.core.algorithm.learner import Learner
    from shoal.jobs.spec import JobSpec, load_job
    from shoal.learn.split.split_job import SplitJob
    from shoal.learn.split.vertical_job import VerticalJob
    from shoal.loop.node import LoopNode
    from shoal.loop.simulated import simulated
    from shoal.model_file import load_model
    from shoal.results.result import Result
    from shoal.sim.network.faults import Faults
    from shoal.simulation import simulate
    from shoal.split_simulation import simulate_split
    from shoal.vertical_simulation import simulate_vertical

    class JoinFunction(Protocol):
        """The signature of `shoal_edge_client.join`, which is imported when it is first used."""

        @overload
        def __call__(self, url: str, *, learner: None = None, token: str | None = None, **more: Any) -> LoopNode:
            """Return a node for a training loop of the caller's own."""
            ...

        @overload
        def __call__(self, url: str, *, learner: Learner | str, token: str | None = None, **more: Any) -> int:
            """Run a node until its jobs have ended."""
            ...

    join: JoinFunction

__version__ = "0.1.0"
__all__ = [
    "Faults",
    "JobSpec",
    "Result",
    "SplitJob",
    "VerticalJob",
    "__version__",
    "connect",
    "join",
    "load_job",
    "load_model",
    "simulate",
    "simulate_split",
    "simulate_vertical",
    "simulated",
]

_HOME = {
    "Faults": "shoal.sim.network.faults",
    "JobSpec": "shoal.jobs.spec",
    "Result": "shoal.results.result",
    "SplitJob": "shoal.learn.split.split_job",
    "VerticalJob": "shoal.learn.split.vertical_job",
    "connect": "shoal.client.client",
    "join": "shoal_edge_client",
    "load_job": "shoal.jobs.spec",
    "load_model": "shoal.model_file",
    "simulate": "shoal.simulation",
    "simulate_split": "shoal.split_simulation",
    "simulate_vertical": "shoal.vertical_simulation",
    "simulated": "shoal.loop.simulated",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
