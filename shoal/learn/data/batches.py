"""The user's data as batches on the device, in any form.

| given                                | batches                                           | examples       |
| tensors or arrays `(x, …, y)`        | by a seeded permutation, on the device throughout | their length   |
| a `Dataset`, or any list of examples | by the same permutation, through a `DataLoader`   | its length     |
| an `IterableDataset`                 | in its own order, of the job's batch size         | counted        |
| a `DataLoader`                       | its own; the job's batch size must be the same    | of its sampler |

A batch that is a tuple or list is `(*inputs, target)`; any other goes whole to the model and to the loss.
`shoal.learn.data.passes` has what needs no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn.data.kinds import checked, formatted
from shoal.learn.data.passes import PASSES_KEPT, BatchSource, Places, Waiting, cuts, passes_from, steps_of
from shoal.learn.seeds import generator_of

Data = Any
"""`(x, y)` tensors or arrays, a `Dataset`, `IterableDataset`, `DataLoader`, `SourceFactory` or a list of examples."""


class SourceFactory(ABC):
    """Data that make their own source, such as `shoal.learn.data.stream.Stream`."""

    @abstractmethod
    def source(self, options: BatchOptions) -> BatchSource:
        """Return the source. Raises `InvalidJob` for unusable data."""

    @abstractmethod
    def alongside(self, test: Data) -> SourceFactory:
        """Return test data that drift like these data."""


class BatchOptions(NamedTuple):
    """The device of batches, and how they are made."""

    device: torch.device
    resident_bytes_max: int = 1 << 30
    workers: int = 0
    merge_small: bool = False
    """Add a last batch of less than half the size to the one before. BatchNorm cannot train on a single example, and on
    two or three it learns statistics so wrong that they can ruin the model, so its models are never given so few."""
    paced: bool = True
    """True if a stream keeps its pace; otherwise all its batches are available at once."""


def source_of(data: Data, options: BatchOptions) -> BatchSource:
    """Return the source for data. Raises `InvalidJob` for an unsupported type or empty data."""
    if not isinstance(data, SourceFactory | Dataset | DataLoader):
        data = checked(data, "a tensor")
    data = formatted(data, "torch")
    if isinstance(data, TensorDataset):
        data = data.tensors
    source: BatchSource
    if isinstance(data, SourceFactory):
        source = data.source(options)
    elif isinstance(data, DataLoader):
        source = LoaderSource(data, options)
    elif isinstance(data, IterableDataset):
        source = IterableSource(data, options)
    elif isinstance(data, tuple) and all(isinstance(part, Tensor | np.ndarray) for part in data):
        source = TensorSource(data, options)
    elif (isinstance(data, Dataset | Sequence) and hasattr(data, "__len__")) or hasattr(data, "__getitems__"):
        source = DatasetSource(data, options)
    else:
        raise InvalidJob(
            f"{type(data).__name__} is no training data",
            code="learner.data",
            hint="give tensors (x, y), a Dataset, an IterableDataset, a DataLoader or a Stream",
        )
    if source.examples == 0:
        raise InvalidJob("the data hold no example", code="learner.data", hint="check how they were divided")
    return source


class TensorSource(BatchSource):
    """Tensors of equal length, kept on the device if they fit in `resident_bytes_max`."""

    def __init__(self, parts: Sequence[Tensor | np.ndarray[Any, Any]], options: BatchOptions) -> None:
        tensors = tuple(_tensor(part) for part in parts)
        lengths = sorted({len(tensor) if tensor.ndim else 0 for tensor in tensors})
        if len(lengths) != 1:
            raise InvalidJob(f"the data's parts differ in length: {lengths}", code="learner.data")
        self.options, self._length = options, lengths[0]
        fits = sum(tensor.nbytes for tensor in tensors) <= options.resident_bytes_max
        self.tensors = tuple(tensor.to(options.device) for tensor in tensors) if fits else tensors
        self.form = tuple((tensor.shape[1:], tensor.dtype, tensor.device) for tensor in self.tensors)
        """Shape, type and place of one example."""

    @property
    def examples(self) -> int:
        return self._length

    def steps(self, batch_size: int) -> int:
        return len(cuts(self._length, batch_size, merge_small=self.options.merge_small))

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[tuple[Tensor, ...]]:
        places = cuts(self._length, batch_size, merge_small=self.options.merge_small)
        order = _order(self._length, places, shuffle)
        if order is not None:
            order = order.to(self.tensors[0].device)
        for start, stop in places:
            if order is None:
                yield moved(tuple(tensor[start:stop] for tensor in self.tensors), self.options.device)
            else:
                yield self.take(order[start:stop])

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[tuple[Tensor, ...]]:
        for chosen in endless(
            self._length, batch_size, position, seeds=(0, 0, seed), merge_small=self.options.merge_small
        ):
            yield self.take(chosen)

    def take(self, chosen: Tensor) -> tuple[Tensor, ...]:
        """Return the examples with these indices, `int64[n]`, on the device."""
        here = chosen.to(self.tensors[0].device)
        batch: tuple[Tensor, ...] = moved(
            tuple(tensor.index_select(0, here) for tensor in self.tensors), self.options.device
        )
        return batch


class DatasetSource(BatchSource):
    """A `Dataset` of single examples, loaded by index and collated."""

    def __init__(self, dataset: Any, options: BatchOptions) -> None:
        self.dataset, self.options = dataset, options

    @property
    def examples(self) -> int:
        return len(self.dataset)

    def steps(self, batch_size: int) -> int:
        return len(cuts(self.examples, batch_size, merge_small=self.options.merge_small))

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Any]:
        places = cuts(self.examples, batch_size, merge_small=self.options.merge_small)
        order = _order(self.examples, places, shuffle)
        numbers = list(range(self.examples)) if order is None else order.tolist()
        # Without a generator of its own the loader seeds its workers from torch's default one, which is seeded, and
        # `shuffle` serves the task alone: it is the same as for tensors.
        yield from self._load([numbers[start:stop] for start, stop in places])

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Any]:
        chosen = endless(self.examples, batch_size, position, seeds=(0, 0, seed), merge_small=self.options.merge_small)
        yield from self._load(numbers.tolist() for numbers in chosen)

    def _load(self, batches: Iterable[list[int]]) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(self.dataset, batch_sampler=batches, num_workers=self.options.workers)
        for batch in loader:
            yield moved(batch, self.options.device)


class IterableSource(BatchSource):
    """An `IterableDataset`, in its own order and length."""

    def __init__(self, dataset: IterableDataset[Any], options: BatchOptions) -> None:
        self.dataset, self.options = dataset, options

    @property
    def examples(self) -> int | None:
        return len(self.dataset) if isinstance(self.dataset, Sized) else None

    def steps(self, batch_size: int) -> int | None:
        examples = self.examples
        return None if examples is None else len(cuts(examples, batch_size))

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Any]:
        examples = iter(self.dataset)
        while chunk := list(islice(examples, batch_size or None)):
            yield moved(default_collate(chunk), self.options.device)


class LoaderSource(BatchSource):
    """The user's `DataLoader`, with its batches and its order, drawn from the seed."""

    def __init__(self, loader: DataLoader[Any], options: BatchOptions) -> None:
        self.loader, self.options = loader, options

    @property
    def examples(self) -> int | None:
        for part in (self.loader.sampler, self.loader.dataset):
            if isinstance(part, Sized):
                return len(part)
        return None

    def steps(self, batch_size: int) -> int | None:
        return None if self.examples is None else len(self.loader)

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Any]:
        if shuffle is not None:
            # Generators of the loader's own are seeded too; without any it draws from torch's, seeded already.
            seed = int(torch.randint(2**62, (), generator=shuffle))
            for owner in (self.loader, self.loader.sampler):
                generator = getattr(owner, "generator", None)
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(seed)
        for batch in self.loader:
            yield moved(batch, self.options.device)

    def check_batch_size(self, wanted: int) -> None:
        own = self.loader.batch_size
        if own is None or own == wanted or (not wanted and self.examples is not None and own >= self.examples):
            return
        raise LearnerFailed(
            f"the DataLoader makes batches of {own}, the job says batch_size = {wanted}",
            code="learner.batch-size",
            hint=f"say batch_size = {own} in the job's [algorithm], or give the Dataset itself, without a DataLoader",
        )


def _order(examples: int, places: Places, shuffle: torch.Generator | None) -> Tensor | None:
    """Return a new order of the examples; None (stored order) where order does not matter or no shuffle is wanted."""
    return None if shuffle is None or len(places) < 2 else torch.randperm(examples, generator=shuffle)


def endless(
    examples: int, batch_size: int, position: int, *, seeds: tuple[int, ...], merge_small: bool = False
) -> Iterator[Tensor]:
    """Yield the indices `int64[n]` of batch `position` and all later ones; each pass has its own order."""
    for order, places in passes_from(cuts(examples, batch_size, merge_small=merge_small), position, seeds, pass_order):
        for start, stop in places:
            yield order[start:stop]


def _shuffled(places: Places, shuffle: torch.Generator) -> Iterator[tuple[Tensor, Places]]:
    examples = places[-1][1]
    while True:
        order = _order(examples, places, shuffle)
        yield torch.arange(examples) if order is None else order, places


def training_passes(places: Places, budget: TrainConfig, shuffle: torch.Generator) -> Iterator[tuple[Tensor, Places]]:
    """Yield the passes of `training_batches` over tensors that are cut in these places: an order `int64[examples]`, and
    the places in it of the batches to train on."""
    left = steps_of(budget, len(places))
    passes = (
        passes_from(places, budget.position, (0, 0, budget.sequence), pass_order)
        if budget.position >= 0
        else _shuffled(places, shuffle)
    )
    while left > 0:
        order, chosen = next(passes)
        yield order, chosen[:left] if left < len(chosen) else chosen
        left -= len(chosen)


@lru_cache(maxsize=PASSES_KEPT)
def pass_order(examples: int, seed: int) -> Tensor:
    """Return the order of a pass, cached because a node asks for a few of its batches at a time."""
    return torch.randperm(examples, generator=generator_of(seed))


def split(batch: Any) -> tuple[tuple[Any, ...], Any]:
    """Return (arguments of the model, target of the loss)."""
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return tuple(batch[:-1]), batch[-1]
    return (batch,), batch


def check_batch(batch: Any) -> None:
    """Raise `LearnerFailed` for a batch without a tensor, such as text. Objects of unknown types pass."""
    if size_of(batch) or not isinstance(batch, str | bytes | list | tuple | Mapping):
        return
    inner = batch[0] if isinstance(batch, list | tuple) and batch else batch
    raise LearnerFailed(
        f"a batch of the data holds no tensor: {type(batch).__name__} of {type(inner).__name__}",
        code="learner.data",
        hint="let the data give tensors; turn text into token ids first",
    )


def size_of(batch: Any) -> int:
    """Return the number of examples in a batch: the length of its first tensor; 0 without one."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    for part in parts:
        if found := size_of(part):
            return found
    return 0


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch with all tensors on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(moved(part, device) for part in batch)
    return batch


def _tensor(part: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor; float64 arrays, numpy's default, become torch's default type."""
    if isinstance(part, Tensor):
        return part
    tensor = torch.tensor(part)
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
