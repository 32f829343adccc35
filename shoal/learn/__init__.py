"""The user's side: wrapping a PyTorch model, data sets and how to cut them up, ready learners, loading a learner file.

Importing this package does not load torch; the names below bring in what they need when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.learn.loading import load_learner
    from shoal.learn.torch_learner import TorchConfig, TorchLearner

__all__ = ["TorchConfig", "TorchLearner", "load_learner"]

_HOME = {
    "TorchConfig": "shoal.learn.torch_learner",
    "TorchLearner": "shoal.learn.torch_learner",
    "load_learner": "shoal.learn.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOME[name])
    except ModuleNotFoundError as error:
        from shoal.extras import extra_of, not_installed

        if not extra_of(error):
            raise
        raise not_installed(error, what=name) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
