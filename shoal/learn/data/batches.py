"""The user's data as batches on the device, in any form.

| given                                | batches                                           | examples       |
| tensors or arrays `(x, …, y)`        | by a seeded permutation, on the device throughout | their length   |
| some of them `numpy.memmap`          | by the same permutation, read when needed         | their length   |
| a `Dataset`, or any list of examples | by the same permutation, through a `DataLoader`   | its length     |
| an `IterableDataset`                 | in its own order, of the job's batch size         | counted        |
| a `DataLoader`                       | its own, of its own size, with a note in the log  | of its sampler |

A batch that is a tuple or list is `(*inputs, target)`, one of a single part has the input as its target; any other
batch goes whole to the model and to the loss. The examples of a batch are those that were collated, not the length of
a tensor: sequences may have time first, or be packed.
`shoal.learn.data.passes` has what needs no torch.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn.data.kinds import checked, formatted
from shoal.learn.data.passes import PASSES_KEPT, BatchSource, Places, Waiting, cuts, passes_from, steps_of
from shoal.learn.seeds import generator_of

if TYPE_CHECKING:
    from shoal.learn.site.divided_module import Site

log = logging.getLogger(__name__)

Data = Any
"""`(x, y)` tensors or arrays, a `Dataset`, `IterableDataset`, `DataLoader`, `SourceFactory` or a list of examples."""


class Batch(NamedTuple):
    """One batch for the model and the loss, and the number of its examples."""

    data: Any
    examples: int
    own: int | None = None
    """The number of them whose rows this rank of a site has; None: it has all."""

    @property
    def weight(self) -> float:
        """The fraction of the batch that this rank has."""
        return 1.0 if self.own is None else self.own / self.examples


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
    two or three it learns statistics that can ruin the model, so its models never get such a small batch."""
    paced: bool = True
    """True if a stream keeps its pace; otherwise all its batches are available at once."""
    examples_in: Callable[[Any], int] | None = None
    """The number of examples of a batch, where a `DataLoader` does not make it of single examples."""
    site: Site | None = None
    """The site whose ranks take their rows of each batch; see `shoal.learn.data.divided`."""


def source_of(data: Data, options: BatchOptions) -> BatchSource:
    """Return the source for data. Raises `InvalidJob` for an unsupported type or empty data."""
    if not isinstance(data, SourceFactory | Dataset | DataLoader):
        data = checked(data, "a tensor")
    data = formatted(data, "torch")
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Tensor):
        data = (data,)
    source: BatchSource
    if isinstance(data, SourceFactory):
        source = data.source(options)
    elif isinstance(data, DataLoader):
        source = LoaderSource(data, options)
    elif isinstance(data, IterableDataset):
        source = IterableSource(data, options)
    elif isinstance(data, tuple) and all(isinstance(part, Tensor | np.ndarray) for part in data):
        source = (MappedSource if any(isinstance(part, np.memmap) for part in data) else TensorSource)(data, options)
    elif _is_indexable(data):
        source = DatasetSource(data, options)
    else:
        raise InvalidJob(
            f"{type(data).__name__} is not training data",
            code="learner.data",
            hint="give tensors (x, y), a Dataset, an IterableDataset, a DataLoader or a Stream",
        )
    if source.examples == 0:
        raise InvalidJob("the data hold no example", code="learner.data", hint="check how they were divided")
    return source


def _is_indexable(data: Any) -> bool:
    """Return whether a `DataLoader` could take the data by index: they need not be a `Dataset` of torch's."""
    by_index = hasattr(data, "__getitem__") or hasattr(data, "__getitems__")
    return by_index and hasattr(data, "__len__") and not isinstance(data, Mapping | tuple)


class IndexedSource(BatchSource):
    """Parts of equal length whose examples are taken by their indices."""

    def __init__(self, lengths: Iterable[int], options: BatchOptions) -> None:
        found = sorted(set(lengths))
        if len(found) != 1:
            raise InvalidJob(f"the data's parts differ in length: {found}", code="learner.data")
        self.options, self._length = options, found[0]

    @property
    def examples(self) -> int:
        return self._length

    def steps(self, batch_size: int) -> int:
        return len(cuts(self._length, batch_size, merge_small=self.options.merge_small))

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Batch]:
        places = cuts(self._length, batch_size, merge_small=self.options.merge_small)
        order = _order(self._length, places, shuffle)
        for start, stop in places:
            yield self._batch(slice(start, stop) if order is None else order[start:stop], stop - start)

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Batch]:
        for chosen in endless(
            self._length, batch_size, position, seeds=(0, 0, seed), merge_small=self.options.merge_small
        ):
            yield self._batch(chosen, len(chosen))

    def _batch(self, chosen: Tensor | slice, examples: int) -> Batch:
        """Return a batch, or this rank's rows of it."""
        if self.options.site is None:
            return Batch(self.take(chosen), examples)
        rows, own = self.options.site.rows_of(chosen, examples)
        return Batch(self.take(rows), examples, own)

    @abstractmethod
    def take(self, chosen: Tensor | slice) -> tuple[Tensor, ...]:
        """Return the examples with these indices, `int64[n]`, or those of a slice, on the device."""


class TensorSource(IndexedSource):
    """Tensors of equal length, kept on the device if they fit in `resident_bytes_max`."""

    def __init__(self, parts: Sequence[Tensor | np.ndarray[Any, Any]], options: BatchOptions) -> None:
        tensors = tuple(_tensor(part) for part in parts)
        super().__init__((len(tensor) if tensor.ndim else 0 for tensor in tensors), options)
        self._fits = sum(tensor.nbytes for tensor in tensors) <= options.resident_bytes_max
        self.tensors = tuple(tensor.to(options.device) for tensor in tensors) if self._fits else tensors
        self.form = tuple((tensor.shape[1:], tensor.dtype, tensor.device) for tensor in self.tensors)
        """Shape, type and place of one example."""

    def take(self, chosen: Tensor | slice) -> tuple[Tensor, ...]:
        if isinstance(chosen, slice):
            found = [tensor[chosen] for tensor in self.tensors]
        else:
            here = chosen.to(self.tensors[0].device)
            found = [tensor.index_select(0, here) for tensor in self.tensors]
        return tuple(found if self._fits else moved(found, self.options.device))


class MappedSource(IndexedSource):
    """Arrays of which some are in a file (`numpy.memmap`): each batch is read when it is needed."""

    def __init__(self, parts: Sequence[Tensor | np.ndarray[Any, Any]], options: BatchOptions) -> None:
        super().__init__((len(part) if part.ndim else 0 for part in parts), options)
        self._parts = tuple(part if isinstance(part, np.memmap) else _tensor(part) for part in parts)

    def take(self, chosen: Tensor | slice) -> tuple[Tensor, ...]:
        numbers = np.arange(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, slice) else chosen.numpy()
        read = tuple(
            _tensor(np.asarray(part[numbers])) if isinstance(part, np.memmap) else part[torch.from_numpy(numbers)]
            for part in self._parts
        )
        batch: tuple[Tensor, ...] = moved(read, self.options.device)
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
        numbers: deque[tuple[int, int | None]] = deque()  # of the examples and own rows of batches that are loaded
        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=self._own(batches, numbers),
            num_workers=self.options.workers,
            collate_fn=default_collate,
        )
        for data in loader:
            yield Batch(moved(data, self.options.device), *numbers.popleft())

    def _own(self, batches: Iterable[list[int]], numbers: deque[tuple[int, int | None]]) -> Iterator[list[int]]:
        """Yield the rows to load of each batch, and note their numbers."""
        site = self.options.site
        for batch in batches:
            rows, own = (batch, None) if site is None else site.rows_of(batch, len(batch))
            numbers.append((len(batch), own))
            yield rows


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

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Batch]:
        examples = iter(self.dataset)
        while chunk := list(islice(examples, batch_size or None)):
            yield Batch(moved(default_collate(chunk), self.options.device), len(chunk))


class CountedCollate:
    """A `collate_fn` that also counts the examples. It can be pickled if the original can."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, examples: Any) -> Batch:
        return Batch(self._collate(examples), len(examples))


class LoaderSource(BatchSource):
    """The user's `DataLoader`, with its batches and its order, drawn from the seed.

    Each pass starts the loader's workers again, persistent ones too: their random numbers follow from the seed that
    they started with.
    """

    def __init__(self, loader: DataLoader[Any], options: BatchOptions) -> None:
        self.loader, self.options = copy.copy(loader), options
        self._noted: set[int] = set()  # batch sizes of jobs
        self._collates = loader.batch_sampler is not None
        if self._collates:
            self.loader.collate_fn = CountedCollate(loader.collate_fn)
        vars(self.loader)["persistent_workers"] = False  # no attribute that may be set; the copy has no workers yet
        if self.steps(0) == 0 and self.examples != 0:
            raise InvalidJob(
                f"the DataLoader gives no batch of its {self.examples or 0} examples",
                code="learner.data",
                hint="use a smaller batch_size, or drop_last=False",
            )

    @property
    def examples(self) -> int | None:
        """The examples of its sampler; None where batches are not made of single examples."""
        for part in (self.loader.sampler, self.loader.dataset) if self._collates else ():
            if isinstance(part, Sized):
                return len(part)
        return None

    def steps(self, batch_size: int) -> int | None:
        return len(self.loader) if isinstance(self.loader.dataset, Sized) or self.examples is not None else None

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Batch]:
        if shuffle is not None:
            # Generators of the loader's own are seeded too; without any it draws from torch's, seeded already.
            seed = int(torch.randint(2**62, (), generator=shuffle))
            for owner in (self.loader, self.loader.sampler):
                generator = getattr(owner, "generator", None)
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(seed)
        for batch in self.loader:
            yield moved(batch if self._collates else self._counted(batch), self.options.device)

    def _counted(self, batch: Any) -> Batch:
        """Return a batch that the data made, with its number of examples. Raises `LearnerFailed` if nothing tells."""
        if self.options.examples_in is None:
            raise LearnerFailed(
                "the DataLoader has batch_size=None, so the number of examples in a batch is unknown",
                code="learner.data",
                hint="give it: TorchConfig(examples=lambda batch: len(batch[1]))",
            )
        return Batch(batch, int(self.options.examples_in(batch)))

    def note_batch_size(self, wanted: int) -> None:
        own, all_at_once = self.loader.batch_size, self.examples is not None and not wanted
        if own is None or own == wanted or wanted in self._noted or (all_at_once and own >= (self.examples or 0)):
            return
        self._noted.add(wanted)
        log.warning(
            "the DataLoader's batches of %d are trained on, and the job's batch_size = %d has no effect; give the "
            "Dataset itself for batches of the job's size",
            own,
            wanted,
        )


def _order(examples: int, places: Places, shuffle: torch.Generator | None) -> Tensor | None:
    """Return a new order of the examples; None (stored order) where order does not matter or no shuffle is wanted."""
    return None if shuffle is None or len(places) < 2 else torch.randperm(examples, generator=shuffle, device="cpu")


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
        yield torch.arange(examples, device="cpu") if order is None else order, places


def training_passes(places: Places, config: TrainConfig, shuffle: torch.Generator) -> Iterator[tuple[Tensor, Places]]:
    """Yield the passes of `training_batches` over tensors that are cut in these places: an order `int64[examples]`, and
    the places in it of the batches to train on."""
    left = steps_of(config, len(places))
    passes = (
        passes_from(places, config.batch_index, (0, 0, config.sequence_seed), pass_order)
        if config.batch_index >= 0
        else _shuffled(places, shuffle)
    )
    while left > 0:
        order, chosen = next(passes)
        yield order, chosen[:left] if left < len(chosen) else chosen
        left -= len(chosen)


@lru_cache(maxsize=PASSES_KEPT)
def pass_order(examples: int, seed: int) -> Tensor:
    """Return the order of a pass, cached because a node asks for a few of its batches at a time."""
    return torch.randperm(examples, generator=generator_of(seed), device="cpu")


def split(batch: Any) -> tuple[tuple[Any, ...], Any]:
    """Return (arguments of the model, target of the loss). Without a target the input is the target."""
    if isinstance(batch, PackedSequence) or not isinstance(batch, tuple | list) or not batch:
        return (batch,), batch
    return tuple(batch[:-1] or batch), batch[-1]


def check_batch(batch: Any) -> None:
    """Raise `LearnerFailed` for a batch without a tensor, such as text. Objects of unknown types pass."""
    if _holds_tensor(batch):
        return
    inner = batch[0] if isinstance(batch, list | tuple) and batch else batch
    raise LearnerFailed(
        f"a batch of the data holds no tensor: {type(batch).__name__} of {type(inner).__name__}",
        code="learner.data",
        hint="let the data give tensors; turn text into token ids first",
    )


def _holds_tensor(part: Any) -> bool:
    """Return whether there is a tensor, or an object of the user's that may have one."""
    if isinstance(part, Tensor):
        return True
    if isinstance(part, tuple | list):
        return any(map(_holds_tensor, part))
    if isinstance(part, Mapping):
        return any(map(_holds_tensor, part.values()))
    return not isinstance(part, str | bytes | int | float | None)


def moved(batch: Any, device: torch.device) -> Any:
    """Return the batch with all tensors on the device, in containers of the same types.

    Objects with a method `to` move themselves, as packed sequences and graphs do.
    """
    if isinstance(batch, Tensor):
        if device.type == "cuda" and batch.device.type == "cpu":  # a copy from other memory blocks
            # Pinning keeps the strides: it fails for an expanded tensor, and for some of the rows it pins all of them.
            batch = batch.pin_memory() if batch.layout == torch.strided and batch.is_contiguous() else batch
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    return rebuilt(batch, lambda part: moved(part, device))


def rebuilt(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container of the same type with each part changed; a batch that is not a container as it is."""
    if isinstance(batch, Mapping):
        return _filled(batch, {name: change(part) for name, part in batch.items()})
    if isinstance(batch, tuple | list):
        parts = [change(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if is_dataclass(batch) and not isinstance(batch, type):
        made = copy.copy(batch)
        for field in fields(batch):
            object.__setattr__(made, field.name, change(getattr(batch, field.name)))
        return made
    return batch


def _filled(batch: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return a mapping of a batch's type with these parts; a plain dict where the type cannot be filled."""
    if not isinstance(batch, MutableMapping):
        return parts
    made = copy.copy(batch)
    made.update(parts)
    return made


def _tensor(part: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor, without a copy where possible; float64 arrays, numpy's default, become torch's default type."""
    if isinstance(part, Tensor):
        return part
    shared = part.flags.writeable and min(part.strides, default=0) >= 0
    tensor = torch.from_numpy(part) if shared else torch.tensor(part, device="cpu")
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
