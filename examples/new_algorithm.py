"""A new algorithm in one file: signSGD with majority vote (Bernstein et al., ICML 2018).

w_{t+1} = w_t + step_size * sign(sum_k n_k sign(d_k)),   d_k: how node k's training would change the model
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, Continue, LocalResult, LocalTask, tree_slot
from shoal.core.algorithm.learner import Learner
from shoal.core.model.aggregation import Totals
from shoal.core.model.flat_view import row, with_row
from shoal.core.model.tree import Slots, Tree, add, sub


def signs(tree: Tree) -> Tree:
    return with_row(tree, np.sign(row(tree)))


@dataclass(frozen=True)
class Majority(Algorithm):
    """Sign SGD with majority vote: for each number of the model, nodes vote on the direction of the step."""

    name: ClassVar[str] = "majority"
    title: ClassVar[str] = "Majority vote (Bernstein et al. 2018)"
    step_size: float = 0.01
    """Length of each number's step in a round."""

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult | Continue:
        made = super().local(learner, task, memory)
        assert isinstance(made, LocalResult)
        return replace(made, slots={"model": signs(tree_slot(made.slots, "model"))})

    def step(self, slots: Slots, totals: Totals) -> Slots:
        model = tree_slot(slots, "model")
        votes = sub(totals.mean_onto("model", model), model)
        return {**slots, "model": add(model, signs(votes), self.step_size)}
