"""For how many examples a learner speaks, before it has trained in earnest."""

from __future__ import annotations

from shoal.core.learner import Budget, Counted, Learner
from shoal.learn.blame import blamed


def weigh(learner: Learner, seed: int) -> float:
    """What the learner says, or what a step that is thrown away shows."""
    with blamed("the learner's examples"):
        known = learner.examples if isinstance(learner, Counted) else None
        if known:
            return float(known)
        learner.load(learner.init(seed))
        return float(learner.train(Budget(steps=1, batch_size=1, lr=0.0, seed=seed)).weight)
