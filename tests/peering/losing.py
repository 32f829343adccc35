"""The learner of which everything is known, with a loss: how long its numbers are, all together."""

from __future__ import annotations

import numpy as np

from tests.peering.learner import Counting


class Losing(Counting):
    def evaluate(self) -> dict[str, float]:
        return {"eval/loss": float(np.linalg.norm(self.tree["w"])), "eval/examples": self.weight}


def learner() -> Losing:
    return Losing()
