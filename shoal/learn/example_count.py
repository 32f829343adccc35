"""The number of examples of a learner, before its first task."""

from __future__ import annotations

from shoal.core.algorithm.learner import CountsExamples, Learner, TrainConfig, fresh_weights
from shoal.learn.user_errors import user_code


def count_examples(learner: Learner, seed: int) -> float:
    """Return the number of examples that the learner states, or that a discarded training step reports."""
    with user_code("the learner's examples"):
        known = learner.examples if isinstance(learner, CountsExamples) else None
        if known:
            return float(known)
        learner.load(fresh_weights(learner, seed))
        return float(learner.train(TrainConfig(steps=1, batch_size=1, lr=0.0, seed=seed)).weight)
