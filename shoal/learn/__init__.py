"""PyTorch models, functions over arrays and estimators as learners, data, ready learners, and loading of learner files.

Importing this package does not load torch; the names below bring in what they need when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.extras import lazy

if TYPE_CHECKING:
    from shoal.learn.arrays.array_learner import ArrayConfig, ArrayLearner
    from shoal.learn.estimators.sklearn_learner import SklearnLearner
    from shoal.learn.growth.growing_learner import GrowingLearner
    from shoal.learn.loading import load_learner
    from shoal.learn.pipeline.plan import Pipeline
    from shoal.learn.shards.plan import FullyShard, TensorParallel
    from shoal.learn.training.learner_callback import LearnerCallback
    from shoal.learn.training.torch_learner import TorchConfig, TorchLearner

__all__ = [
    "ArrayConfig",
    "ArrayLearner",
    "FullyShard",
    "GrowingLearner",
    "LearnerCallback",
    "Pipeline",
    "SklearnLearner",
    "TensorParallel",
    "TorchConfig",
    "TorchLearner",
    "load_learner",
]

_HOME = {
    "ArrayConfig": "shoal.learn.arrays.array_learner",
    "ArrayLearner": "shoal.learn.arrays.array_learner",
    "SklearnLearner": "shoal.learn.estimators.sklearn_learner",
    "GrowingLearner": "shoal.learn.growth.growing_learner",
    "FullyShard": "shoal.learn.shards.plan",
    "TensorParallel": "shoal.learn.shards.plan",
    "Pipeline": "shoal.learn.pipeline.plan",
    "LearnerCallback": "shoal.learn.training.learner_callback",
    "TorchConfig": "shoal.learn.training.torch_learner",
    "TorchLearner": "shoal.learn.training.torch_learner",
    "load_learner": "shoal.learn.loading",
}


def __getattr__(name: str) -> Any:
    return lazy(_HOME, __name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
