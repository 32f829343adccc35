"""Learners that are made when a task needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob
from shoal.learn.loading import required_learner, with_device
from shoal.learn.user_errors import user_code

MakeLearner = Callable[[int], Learner]
"""Returns the learner of the node with this number."""


class LearnersOnDemand(Mapping[str, Learner]):
    """Learners that a function makes from their numbers, each time that they are asked for, to compute on `device`."""

    def __init__(self, make: MakeLearner, count: int, device: str = "") -> None:
        self._make, self._device = make, device
        self._numbers = {f"node-{number}": number for number in range(count)}

    def __getitem__(self, node: str) -> Learner:
        number = self._numbers[node]
        try:
            with user_code(f"making the learner of {node}"):
                made = self._make(number)
        except InvalidJob as error:
            raise InvalidJob(f"the learner of {node}: {error.message}", code=error.code, hint=error.hint) from error
        return with_device(required_learner(made, f"the learner of {node}"), device=self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
