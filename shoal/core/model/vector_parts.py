"""Steps on parts of a model, where a number over the whole of it is the sum of what the parts add.

Dean et al.: "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2: shards hold the parameters and all that is
as large, compute side by side, and send nothing but scalars, of which a coordinator makes sums.

A step is a generator. Where it needs a norm or an inner product over the whole model it yields, by names, what its part
adds; it is sent the sums, by the same names; at its end it returns its part of the result. All parts must yield equally
often, as they do if what they decide depends on sums and on numbers alone. `whole` lets one go alone: then each sum is
what it has yielded, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Sums = Mapping[str, float]
Part = Generator[Sums, Sums, T]

ShardScope = Literal["", "weights", "sums"]

Each = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
"""`each(do, numbers)`: what `do` makes of each number, in that order: `map`, or a thread pool's."""


@dataclass(frozen=True)
class _Done(Generic[T]):
    result: T


def whole(part: Part[T]) -> T:
    """Return the result of a part that is the whole."""
    return together([part])[0]


def together(parts: Sequence[Part[T]], each: Each = map) -> list[T]:
    """Return the result of each part. Sums are made in the order of the parts."""
    sums: Sums | None = None
    while True:
        told = list(each(lambda index: _go_on(parts[index], sums), range(len(parts))))  # noqa: B023
        shares = [one for one in told if not isinstance(one, _Done)]
        if not shares:
            return [one.result for one in told]
        assert len(shares) == len(told), "some parts have ended, others ask for a sum"
        sums = {}
        for share in shares:
            for name, value in share.items():
                sums[name] = sums.get(name, 0.0) + value


def _go_on(part: Part[T], sums: Sums | None) -> Sums | _Done[T]:
    """Run to its next sum, or its end."""
    try:
        return next(part) if sums is None else part.send(sums)
    except StopIteration as end:
        return _Done(end.value)
