"""The user's data as batches on the device, whatever form they come in.

| given                                | batches                                           | examples       |
| tensors or arrays `(x, …, y)`        | by a seeded permutation, on the device throughout | their length   |
| a `Dataset`, or any list of examples | by the same permutation, through a `DataLoader`   | its length     |
| an `IterableDataset`                 | in its own order, of the job's batch size         | counted        |
| a `DataLoader`                       | its own; the job's batch size must be the same    | of its sampler |

A batch that is a tuple or list is `(*inputs, target)`; any other goes whole to the model and to the loss.

What can be taken by index also makes endless *sequences* of mini-batches: pass after pass, each in an order that
follows from the sequence's seed and the number of the pass. Batch number t of a sequence is then the same whenever it
is asked for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import lru_cache
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.core.learner import Budget, Tick, no_tick
from shoal.learn.seeds import generator_of, seed_of

Data = Any
"""`(x, y)` tensors or numpy arrays, a `Dataset`, an `IterableDataset`, a `DataLoader`, a list of examples, a `Feed`."""

Waiting = Callable[[], None]
"""Called often while a batch is waited for; may raise `Cancelled`."""

PASSES_KEPT = 32
"""Orders of passes that are kept: one for each node that is simulated, or a few."""


class Source(ABC):
    """Data that can be walked through again and again."""

    @property
    @abstractmethod
    def examples(self) -> int | None:
        """How many there are; None where only walking through them tells."""

    @abstractmethod
    def steps(self, batch_size: int) -> int | None:
        """Batches of one pass; None where only walking through them tells."""

    @abstractmethod
    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Any]:
        """One pass, on the device; in the data's own order when `shuffle` is None. Batch size 0: all at once."""

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Any]:
        """An endless sequence of mini-batches from number `position` on. Raises `LearnerFailed` where there is none.

        A pure function of data, batch size, position and the sequence's seed.
        """
        raise LearnerFailed(
            "the order names a position in a sequence of mini-batches, and these data can only be walked through",
            code="learner.data",
            hint="give tensors (x, y), a Dataset with __getitem__, or a shoal.learn.stream.Stream",
        )

    def check_batch_size(self, wanted: int) -> None:
        """Raise `LearnerFailed` where the data make batches of a size of their own, and the job says another."""
        return

    def as_of(self, position: int) -> Source:
        """The data as they are while mini-batch `position` of the sequence is trained on."""
        return self


class Feed(ABC):
    """Data that make their own source, such as `shoal.learn.stream.Stream`."""

    @abstractmethod
    def source(self, options: Options) -> Source:
        """Raises `InvalidJob` for data that cannot be used."""

    @abstractmethod
    def alongside(self, test: Data) -> Feed:
        """Test data to which happens what happens to these."""


class Options(NamedTuple):
    """Where batches are wanted and how they are made."""

    device: torch.device
    resident_bytes_max: int = 1 << 30
    workers: int = 0
    merge_small: bool = False
    """Add a last batch of less than half the size to the one before. BatchNorm cannot train on a single example, and on
    two or three it learns statistics so wrong that they can ruin the model, so its models are never given so few."""
    paced: bool = True
    """Whether a stream with a pace keeps it; without, all its batches are there at once."""


def source_of(data: Data, options: Options) -> Source:
    """The data in a form that can be walked through. Raises `InvalidJob` for what is none, or empty."""
    _check_kind(data)
    if isinstance(data, TensorDataset):
        data = data.tensors
    source: Source
    if isinstance(data, Feed):
        source = data.source(options)
    elif isinstance(data, DataLoader):
        source = Loader(data, options)
    elif isinstance(data, IterableDataset):
        source = Iterated(data, options)
    elif isinstance(data, tuple) and all(isinstance(part, Tensor | np.ndarray) for part in data):
        source = Tensors(data, options)
    elif isinstance(data, Dataset | Sequence) and hasattr(data, "__len__"):
        source = Items(data, options)
    else:
        raise InvalidJob(
            f"{type(data).__name__} is no training data",
            code="learner.data",
            hint="give tensors (x, y), a Dataset, an IterableDataset, a DataLoader or a Stream",
        )
    if source.examples == 0:
        raise InvalidJob("the data hold no example", code="learner.data", hint="check how they were divided")
    return source


def _check_kind(data: Any) -> None:
    """Raise `InvalidJob` for what looks like data and would be taken for something else."""
    if isinstance(data, Feed | Dataset | DataLoader):
        return
    parts = data if isinstance(data, tuple) else (data,)
    for part in parts:
        first = part[0] if isinstance(part, list) and part else part
        for one in (part, first):
            if isinstance(one, str | bytes) or (isinstance(one, np.ndarray) and one.dtype.kind in "SUO"):
                raise InvalidJob(
                    "text and objects are no training data: a model is trained on numbers",
                    code="learner.data",
                    hint="turn it into token ids first, and give tensors (ids, labels) or a Dataset that gives them",
                )
            if hasattr(one, "to_numpy"):
                kind = type(one).__name__
                raise InvalidJob(
                    f"a {kind} is no training data: nothing says which columns are inputs and which is the target",
                    code="learner.data",
                    hint="give arrays: (table[columns].to_numpy(), table[target].to_numpy())",
                )
    lists = [isinstance(part, list) for part in parts]
    arrays = [isinstance(part, Tensor | np.ndarray) for part in parts]
    if isinstance(data, tuple) and (any(lists) or (any(arrays) and not all(arrays))):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InvalidJob(
            f"a tuple is (inputs, target), each a tensor or array; this one holds {kinds}",
            code="learner.data",
            hint="convert lists with torch.tensor(…); single examples go into a list or a Dataset",
        )


class Tensors(Source):
    """Equally long tensors, whole on the device where they fit in `resident_bytes_max`."""

    def __init__(self, parts: Sequence[Tensor | np.ndarray[Any, Any]], options: Options) -> None:
        tensors = tuple(_tensor(part) for part in parts)
        lengths = sorted({len(tensor) if tensor.ndim else 0 for tensor in tensors})
        if len(lengths) != 1:
            raise InvalidJob(f"the data's parts differ in length: {lengths}", code="learner.data")
        self.options, self._length = options, lengths[0]
        fits = sum(tensor.nbytes for tensor in tensors) <= options.resident_bytes_max
        self.tensors = tuple(tensor.to(options.device) for tensor in tensors) if fits else tensors

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
        """The examples with these indices, `int64[n]`, on the device."""
        here = chosen.to(self.tensors[0].device)
        batch: tuple[Tensor, ...] = moved(
            tuple(tensor.index_select(0, here) for tensor in self.tensors), self.options.device
        )
        return batch


class Items(Source):
    """A `Dataset` of single examples, loaded by index and collated."""

    def __init__(self, dataset: Any, options: Options) -> None:
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
        # `shuffle` serves the order alone: it is the same as for tensors.
        yield from self._load([numbers[start:stop] for start, stop in places])

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Any]:
        chosen = endless(self.examples, batch_size, position, seeds=(0, 0, seed), merge_small=self.options.merge_small)
        yield from self._load(numbers.tolist() for numbers in chosen)

    def _load(self, batches: Iterable[list[int]]) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(self.dataset, batch_sampler=batches, num_workers=self.options.workers)
        for batch in loader:
            yield moved(batch, self.options.device)


class Iterated(Source):
    """An `IterableDataset`: examples in its own order, as many as it gives."""

    def __init__(self, dataset: IterableDataset[Any], options: Options) -> None:
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


class Loader(Source):
    """The user's own `DataLoader`: its batches, its order (drawn from the order's seed)."""

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
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


def cuts(examples: int, batch_size: int, *, merge_small: bool = False) -> list[tuple[int, int]]:
    """Where batches begin and end. The last may be smaller, or up to half larger; batch size 0: one batch of all."""
    size = batch_size or examples
    places = [(start, min(start + size, examples)) for start in range(0, examples, max(1, size))]
    if merge_small and len(places) > 1 and 0 < 2 * (examples % size) < size:
        places[-2:] = [(places[-2][0], examples)]
    return places


def _order(examples: int, places: list[tuple[int, int]], shuffle: torch.Generator | None) -> Tensor | None:
    """A fresh order of the examples; None (as they lie) where it would not matter or nobody asked for one."""
    return None if shuffle is None or len(places) < 2 else torch.randperm(examples, generator=shuffle)


def endless(
    examples: int, batch_size: int, position: int, *, seeds: tuple[int, ...], merge_small: bool = False
) -> Iterator[Tensor]:
    """The indices `int64[n]` of batch `position` and all later ones: pass after pass, each in an order of its own."""
    places = cuts(examples, batch_size, merge_small=merge_small)
    first, begun = divmod(position, len(places))
    for number in count(first):
        order = pass_order(examples, seed_of(*seeds, number))
        for start, stop in places[begun:]:
            yield order[start:stop]
        begun = 0


@lru_cache(maxsize=PASSES_KEPT)
def pass_order(examples: int, seed: int) -> Tensor:
    """The order of a pass, kept for a while: a node asks for a few batches of it at a time."""
    return torch.randperm(examples, generator=generator_of(seed))


def training_batches(
    source: Source, budget: Budget, shuffle: torch.Generator, tick: Tick = no_tick
) -> Iterator[tuple[Any, float]]:
    """(batch, fraction of the budget done after it), until the budget is used up: from a position of the data's
    sequence on, or passes with fresh shuffles.

    Part of a pass is rounded up to whole batches. `tick` is called while a batch is waited for. Raises `LearnerFailed`
    for a part of data without a length, and for a position in data without a sequence.
    """
    per_epoch, in_sequence = source.steps(budget.batch_size), budget.position >= 0
    if not budget.steps and per_epoch is None:
        if in_sequence:
            raise LearnerFailed(
                "the data have no passes that epochs could count", code="learner.data", hint="set steps in the job"
            )
        yield from _whole_passes(source, budget, shuffle)
        return
    wanted = budget.steps or math.ceil(budget.epochs * (per_epoch or 0) - 1e-9)
    done = 0

    def waiting() -> None:
        tick(done / wanted)

    batches = (
        source.sequence(budget.batch_size, budget.position, waiting, budget.sequence)
        if in_sequence
        else _passes(source, budget.batch_size, shuffle)
    )
    for batch in islice(batches, wanted):
        done += 1
        yield batch, done / wanted


def _passes(source: Source, batch_size: int, shuffle: torch.Generator) -> Iterator[Any]:
    """Pass after pass, without end."""
    while True:
        empty = True
        for batch in source.epoch(batch_size, shuffle):
            empty = False
            yield batch
        if empty:
            raise LearnerFailed("the training data gave no batch", code="learner.data")


def _whole_passes(source: Source, budget: Budget, shuffle: torch.Generator) -> Iterator[tuple[Any, float]]:
    if budget.epochs != int(budget.epochs):
        raise LearnerFailed(
            f"{budget.epochs} epochs of data without a length",
            code="learner.data",
            hint="set steps in the job, or give the dataset a __len__",
        )
    for epoch in range(int(budget.epochs)):
        for batch in source.epoch(budget.batch_size, shuffle):
            yield batch, epoch / budget.epochs


def split(batch: Any) -> tuple[tuple[Any, ...], Any]:
    """(the model's arguments, the loss's target)."""
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return tuple(batch[:-1]), batch[-1]
    return (batch,), batch


def check_batch(batch: Any) -> None:
    """Raise `LearnerFailed` for a batch without a tensor, such as text. Objects of the user's own are let pass."""
    if size_of(batch) or not isinstance(batch, str | bytes | list | tuple | Mapping):
        return
    inner = batch[0] if isinstance(batch, list | tuple) and batch else batch
    raise LearnerFailed(
        f"a batch of the data holds no tensor: {type(batch).__name__} of {type(inner).__name__}",
        code="learner.data",
        hint="let the data give tensors; turn text into token ids first",
    )


def size_of(batch: Any) -> int:
    """How many examples a batch holds: the length of the first tensor in it; 0 where there is none."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    for part in parts:
        if found := size_of(part):
            return found
    return 0


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(moved(part, device) for part in batch)
    return batch


def _tensor(part: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the part; arrays of float64, numpy's habit, become torch's default type."""
    if isinstance(part, Tensor):
        return part
    tensor = torch.tensor(part)
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
