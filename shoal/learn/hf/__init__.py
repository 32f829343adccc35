"""Hugging Face: a `transformers.Trainer` as a learner, and adapters as PEFT folders. Needs the extra `hf`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.extras import lazy

if TYPE_CHECKING:
    from shoal.learn.hf.adapters import load_adapter, save_adapter
    from shoal.learn.hf.hf_learner import HFLearner

__all__ = ["HFLearner", "load_adapter", "save_adapter"]

_HOME = {
    "HFLearner": "shoal.learn.hf.hf_learner",
    "load_adapter": "shoal.learn.hf.adapters",
    "save_adapter": "shoal.learn.hf.adapters",
}


def __getattr__(name: str) -> Any:
    return lazy(_HOME, __name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
