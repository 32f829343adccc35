"""Random numbers of several learners that are trained at once, such as the masks of dropout.

Each row of a stack has a generator with the seed of its task, and draws from it as much and in the same order as it
would alone. So the numbers are the same; they are drawn for one row after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.core.errors import LearnerFailed
from shoal.learn.seeds import CPU, generator_of
from shoal.learn.stacked.stacked_batches import Indices

RANDOM = "called random operation"
"""Part of torch's error for a stacked model that draws random numbers without `RowDraws`."""

Draw = Callable[..., Tensor]

_ATEN = torch.ops.aten
IN_PLACE: dict[Any, Draw] = {
    _ATEN.bernoulli_.float: Tensor.bernoulli_,
    _ATEN.exponential_.default: Tensor.exponential_,
    _ATEN.normal_.default: Tensor.normal_,
    _ATEN.uniform_.default: Tensor.uniform_,
}
NEW: dict[Any, Draw] = {
    _ATEN.bernoulli.p: Tensor.bernoulli_,
    _ATEN.rand_like.default: Tensor.uniform_,
    _ATEN.randn_like.default: Tensor.normal_,
}
"""Operations whose result has the shape of their argument, and how torch fills it."""


class RowDraws:
    """The generators of all rows, which are made when `begin` is called: most models draw nothing."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._generators: list[torch.Generator] = []

    @property
    def has_begun(self) -> bool:
        """True if the model is known to draw random numbers."""
        return bool(self._generators)

    def begin(self, error: RuntimeError, device: torch.device) -> None:
        """Make the generators; raise `error` again if that is not torch's error for a model that draws, or if the
        device has kernels that draw in their own way."""
        if RANDOM not in str(error) or device != CPU:
            raise error
        self._generators = [generator_of(seed) for seed in self._seeds]

    def at_once(self, rows: slice | Tensor, sizes: Indices) -> TorchDispatchMode:
        """Return a context in which stacked operations draw for these rows, whose batches have `sizes` examples."""
        chosen = range(len(self._generators))[rows] if isinstance(rows, slice) else rows.tolist()
        return _StackedDraws([self._generators[row] for row in chosen], sizes.tolist())

    @contextmanager
    def alone(self, row: int) -> Iterator[None]:
        """Draw from torch's default generator, in the block, what the row's generator would give."""
        own = self._generators[row]
        torch.default_generator.set_state(own.get_state())
        yield
        own.set_state(torch.default_generator.get_state())

    def check(self, row: int, loss: Tensor, alone: Callable[[], Tensor]) -> None:
        """Compare the loss of a row's first batch with that of the same batch alone. Raises `LearnerFailed` if they
        differ: torch may draw in another order for tensors that lie otherwise in memory."""
        torch.default_generator.manual_seed(self._generators[row].initial_seed())
        if not torch.allclose(loss, alone(), rtol=1e-4, atol=1e-6, equal_nan=True):
            raise LearnerFailed("the model would draw other random numbers than alone", code="learner.model")


class _StackedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode of torch in which random operations on tensors `[row, …]` draw each row by its own generator.

    In padded batches, a row draws for its own examples only.
    """

    def __init__(self, generators: Sequence[torch.Generator], sizes: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators, self._sizes = generators, sizes
        self._is_padded = len(set(sizes)) > 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_random(func):
            return func(*args, **(kwargs or {}))
        found = _filled(func, args)
        if found is None:
            raise LearnerFailed(f"the model draws random numbers by {func}", code="learner.model")
        drawn, draw = found
        if self._is_padded:
            drawn.fill_(1.0)  # which is finite in whatever is computed from it
        for own, size, generator in zip(drawn, self._sizes, self._generators, strict=True):
            draw(own[:size] if self._is_padded else own, *args[1:], generator=generator)
        return drawn


class ConstantDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode of torch in which random operations draw ones, so that outputs can be compared."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lengths: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _filled(func, args) if _is_random(func) else None
        if found is None:
            return func(*args, **(kwargs or {}))
        self._lengths.append(len(found[0]))
        return found[0].fill_(1.0)

    def are_by_example(self, *sizes: int) -> bool:
        """Return True if, for batches of these sizes, each draw was for the examples of the batch."""
        each = len(self._lengths) // len(sizes)
        return self._lengths == [size for size in sizes for _ in range(each)]


@cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _filled(func: Any, args: Any) -> tuple[Tensor, Draw] | None:
    """Return the tensor that a random operation fills, and how; None for other operations."""
    if func in IN_PLACE:
        return args[0], IN_PLACE[func]
    return (torch.empty(args[0].shape, dtype=args[0].dtype), NEW[func]) if func in NEW else None
