"""Lightning: a `LightningModule` as a learner. Needs the extra `lightning`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.extras import lazy

if TYPE_CHECKING:
    from shoal.learn.lightning.lightning_learner import LightningLearner

__all__ = ["LightningLearner"]

_HOME = {"LightningLearner": "shoal.learn.lightning.lightning_learner"}


def __getattr__(name: str) -> Any:
    return lazy(_HOME, __name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
