"""Learners that are made when a task needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from shoal.core.algorithm.learner import Learner
from shoal.core.errors import InvalidJob
from shoal.learn.loading import required_learner, with_device
from shoal.learn.user_errors import user_code

if TYPE_CHECKING:
    from shoal.learn.training.module_pool import ModulePools

MakeLearner = Callable[[int], Learner]
"""Returns the learner of the node with this number."""


class LearnersOnDemand(Mapping[str, Learner]):
    """Learners that a function makes from their numbers, each time that they are asked for, to compute on `device`."""

    def __init__(self, make: MakeLearner, count: int, device: str = "") -> None:
        self._make, self._device = make, device
        self._pools: ModulePools | None = None
        self._numbers = {f"node-{number}": number for number in range(count)}

    def __getitem__(self, node: str) -> Learner:
        number = self._numbers[node]
        try:
            with self._sharing(), user_code(f"making the learner of {node}"):
                made = self._make(number)
        except InvalidJob as error:
            raise InvalidJob(f"the learner of {node}: {error.message}", code=error.code, hint=error.hint) from error
        return with_device(required_learner(made, f"the learner of {node}"), device=self._device)

    def _sharing(self) -> AbstractContextManager[None]:
        """Let learners of torch share modules, once torch is loaded."""
        if "shoal.learn.training.module_learner" not in sys.modules:
            return nullcontext()
        from shoal.learn.training.module_pool import ModulePools, shared_modules

        self._pools = self._pools or ModulePools()
        return shared_modules(self._pools)

    def __reduce__(self) -> tuple[Any, ...]:
        return LearnersOnDemand, (self._make, len(self), self._device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
