"""A mapping from names to arrays as the model of a loop; torch is not loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from shoal.core.algorithm.learner import Progress, TrainConfig
from shoal.core.errors import InvalidJob, InvalidPayload
from shoal.core.model.tree import DTYPES, Layout, Tree
from shoal.learn.default_generators import seeded_generators
from shoal.loop.loop_model import different, lacking


class ArrayModel:
    """Arrays by name. A task hands them out by `task.arrays()`, and its report gives them back."""

    device = ""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._first = Tree.of({str(name): np.asarray(array) for name, array in arrays.items()})
        if not self._first:
            raise InvalidJob("the model of a loop has no array", code="learner.model")

    @property
    def layout(self) -> Layout:
        return self._first.layout

    @contextmanager
    def training(self, model: Tree, kept: Any, seed: int) -> Iterator[None]:
        with seeded_generators(seed):
            yield

    @contextmanager
    def evaluating(self, model: Tree) -> Iterator[Any]:
        with seeded_generators(0):
            yield arrays_of(model)

    def initial(self) -> Tree:
        return self._first

    def pack(self, model: Any) -> Tree:
        """Return the arrays as a tree, in the job's types. Raises `InvalidPayload` where they are not the job's."""
        if not isinstance(model, Mapping):
            hint = "report the mapping of names to arrays that task.arrays() gave"
            raise InvalidPayload(f"the reported model is {type(model).__name__}", code="payload.layout", hint=hint)
        if missing := [leaf.name for leaf in self.layout.leaves if leaf.name not in model]:
            raise lacking(missing)
        return Tree.of({leaf.name: self._cast(leaf.name, model[leaf.name]) for leaf in self.layout.leaves})

    def _cast(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        array, leaf = np.asarray(value), self.layout.index[name]
        if array.shape != leaf.shape or not np.can_cast(array.dtype, DTYPES[leaf.dtype], "same_kind"):
            raise different(self.layout, name, f"{array.dtype}{list(array.shape)}")
        return array.astype(DTYPES[leaf.dtype])

    def local(self) -> None:
        return None

    def state_dict(self, model: Tree) -> dict[str, Any]:
        return arrays_of(model)

    def batches(self, data: Any, config: TrainConfig, progress: Progress) -> Iterator[tuple[Any, float]]:
        hint = "divide the data by task.batch_size, task.epochs and task.seed"
        raise InvalidJob("task.batches is for torch modules", code="learner.data", hint=hint)


def arrays_of(model: Tree) -> dict[str, np.ndarray[Any, Any]]:
    """Return copies of a model's tensors by name; bfloat16 as float32."""
    return {name: np.array(array) for name, array in model.items()}
