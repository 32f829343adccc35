"""Arrays and lists of examples as batches of numpy arrays: for the same seed the batches of `TorchLearner`.

| given                                                 | batches                                       |
| arrays in a tuple `(x, …, y)` or a dictionary         | of the same containers                        |
| a sequence of examples, each an array or a container  | of the containers of an example, stacked      |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import InvalidJob
from shoal.learn.arrays.pytree import leaves, mapped
from shoal.learn.data.kinds import CODE, checked, formatted
from shoal.learn.data.passes import PASSES_KEPT, BatchSource, Waiting, cuts, passes_from

Indices = npt.NDArray[np.int64]


def generator_of(seed: int) -> np.random.RandomState:
    """Return the generator that shuffles the data of a call: torch's CPU generator, whose seed counts modulo 2**32."""
    return np.random.RandomState(seed % 2**32)


def permutation(examples: int, generator: np.random.RandomState) -> Indices:
    """Return an order of the examples: the one of `torch.randperm`, so that a node trains on the same batches by
    either library."""
    order = list(range(examples))
    numbers = generator.randint(0, 2**32, size=max(0, examples - 1), dtype=np.uint32)
    for place, skip in enumerate((numbers % np.arange(examples, 1, -1, dtype=np.uint32)).tolist()):
        order[place], order[place + skip] = order[place + skip], order[place]
    return np.array(order, np.int64)


@lru_cache(maxsize=PASSES_KEPT)
def _pass_order(examples: int, seed: int) -> Indices:
    return permutation(examples, generator_of(seed))


class ArraySource(BatchSource):
    """Batches of arrays or of stacked examples. Raises `InvalidJob` for unusable data."""

    def __init__(self, data: Any, *, text: bool = False) -> None:
        data = formatted(checked(data, "an array", text=text), "numpy")
        is_arrays = hasattr(data, "dtype") or isinstance(data, tuple | Mapping)
        if not is_arrays and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise InvalidJob(
                f"{type(data).__name__} is not training data",
                code=CODE,
                hint="give arrays (x, y), a dictionary of arrays, or a list of examples",
            )
        self._examples = None if is_arrays else data
        self._names = mapped(data, lambda name, _: name) if is_arrays else None
        self.arrays = {name: np.asarray(array) for name, array in leaves(data)} if is_arrays else {}
        parts = self.arrays.values() if is_arrays else [data]
        lengths = sorted({len(part) if getattr(part, "ndim", 1) else 0 for part in parts})
        if len(lengths) != 1:
            raise InvalidJob(f"the data's parts differ in length: {lengths}", code=CODE)
        if not lengths[0]:
            raise InvalidJob("the data hold no example", code=CODE, hint="check how they were divided")
        self._length = lengths[0]

    @property
    def examples(self) -> int:
        return self._length

    def steps(self, batch_size: int) -> int:
        return len(cuts(self._length, batch_size))

    def epoch(self, batch_size: int, shuffle: np.random.RandomState | None) -> Iterator[Any]:
        places = cuts(self._length, batch_size)
        shuffled = shuffle is not None and len(places) > 1
        order = permutation(self._length, shuffle) if shuffle is not None and shuffled else np.arange(self._length)
        for start, stop in places:
            yield self.take(order[start:stop])

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Any]:
        for order, places in passes_from(cuts(self._length, batch_size), position, (0, 0, seed), _pass_order):
            for start, stop in places:
                yield self.take(order[start:stop])

    def take(self, chosen: Indices) -> Any:
        """Return the examples with these indices."""
        if self._examples is None:
            return mapped(self._names, lambda name, _: self.arrays[name][chosen])
        several = getattr(self._examples, "__getitems__", None)
        numbers = chosen.tolist()
        examples = several(numbers) if several else [self._examples[number] for number in numbers]
        parts = [dict(leaves(example)) for example in examples]
        return mapped(examples[0], lambda name, _: np.stack([np.asarray(part[name]) for part in parts]))


def size_of(batch: Any) -> int:
    """Return the number of examples in a batch."""
    return next((len(array) for _, array in leaves(batch)), 0)
