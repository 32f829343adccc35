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
    from shoal.model_file import load_model
    from shoal.result import Result
    from shoal.sim.faults import Faults
    from shoal.simulation import simulate
    from shoal.spec import JobSpec, load_job
    from shoal_edge_client import join

__version__ = "0.1.0"
__all__ = ["Faults", "JobSpec", "Result", "__version__", "join", "load_job", "load_model", "simulate"]

_HOME = {
    "Faults": "shoal.sim.faults",
    "JobSpec": "shoal.spec",
    "Result": "shoal.result",
    "join": "shoal_edge_client",
    "load_job": "shoal.spec",
    "load_model": "shoal.model_file",
    "simulate": "shoal.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
