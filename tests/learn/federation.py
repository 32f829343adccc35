"""Rounds of an algorithm over learners in this process, with nothing in between."""

from collections.abc import Iterator, Sequence

import numpy as np

from shoal.core.algorithm.algorithm import Algorithm, LocalResult, LocalTask, Update
from shoal.core.algorithm.learner import Learner
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots, Tree, norm
from shoal.learn import TorchLearner, digits


def versions(
    algorithm: Algorithm, model: Tree, learners: Sequence[Learner], fraction: float = 1.0, seed: int = 0
) -> Iterator[Slots]:
    """The slots after each round, for ever; each round asks a random fraction of the learners."""
    rng = np.random.default_rng(seed)
    slots = algorithm.init(model)
    memories: dict[int, Slots] = {}
    while True:
        totals = Totals()
        asked = sorted(rng.choice(len(learners), max(1, round(fraction * len(learners))), replace=False))
        for number in asked:
            task = LocalTask(
                (0, 0), "train", 0, int(rng.integers(2**56)), algorithm.task_slots(slots, str(number), "train")
            )
            local = algorithm.local(learners[number], task, memories.get(number, {}))
            assert isinstance(local, LocalResult)
            memories[number] = local.memory or {}
            greatest = max(norm(tree) for tree in local.slots.values() if isinstance(tree, Tree))
            update = Update(str(number), 0, local.weight, local.slots, greatest)
            totals = algorithm.fold(totals, update, algorithm.staleness_weight(0))
        slots = algorithm.step(slots, totals)
        yield slots


def accuracies(
    algorithm: Algorithm, learners: Sequence[Learner], judge: TorchLearner, fraction: float = 1.0, seed: int = 0
) -> Iterator[float]:
    """The judge's accuracy after each round."""
    for slots in versions(algorithm, judge.init(seed), learners, fraction, seed):
        judge.load(slots["model"])
        yield judge.evaluate()["eval/accuracy"]


def rounds_to(target: float, most: int, reached: Iterator[float]) -> int:
    """How many rounds it took; `most` + 1 where that was not enough."""
    for version, accuracy in enumerate(reached, 1):
        if accuracy >= target or version > most:
            return version
    raise AssertionError("unreachable")


def digit_learners(parts: int, split: str = "iid", seed: int = 0, model: str = "mlp") -> list[TorchLearner]:
    """All of the digits but the held-out ones, divided; no node keeps a test part."""
    return [digits.learner(part, parts, split=split, seed=seed, model=model, test_fraction=0) for part in range(parts)]
