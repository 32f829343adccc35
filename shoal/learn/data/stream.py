"""Data as a stream that may drift. Batch number t is a pure function of the stream, the seed of the node's sequence,
and t.

    stream = Stream((x, y), drifts=(Permute(at=500), Rotate(at=800, degrees=30)))
    learner = TorchLearner(model, stream, (x_test, y_test))

A *drift* begins with mini-batch number `at`, counted in the node's own sequence. Drifts that have begun go on, and act
one after the other in the order of their beginnings. To the test data given beside a stream happens what happens to
the stream: an evaluation measures on the test data as of the mini-batch last trained on.

With `per_second`, mini-batches come over time, and training waits for one that has not come yet.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from shoal.core.errors import InvalidJob, LearnerFailed
from shoal.learn.data.batches import Batch, BatchOptions, Data, SourceFactory, TensorSource, endless
from shoal.learn.data.passes import BatchSource, Waiting, seed_of
from shoal.learn.seeds import generator_of

WAIT_S = 0.2
"""Longest sleep between two calls of `waiting`."""

FOREVER = sys.maxsize

FORMS = "permute@BATCH, permute:SHARE@BATCH, rotate:DEGREES@BATCH or new:CLASS+CLASS@BATCH"

Parts = tuple[Tensor, ...]
"""A batch: the inputs, and the target last."""


# ------------------------------------------------------------------------------------------------------------- drifts
@dataclass(frozen=True)
class Drift(ABC):
    """A change of the data from mini-batch `at` on."""

    at: int

    def __post_init__(self) -> None:
        if self.at < 0:
            raise _invalid(f"a drift at mini-batch {self.at}; the first is 0")

    @abstractmethod
    def check(self, parts: Parts) -> None:
        """Raise `InvalidJob` for data that cannot drift so."""

    @abstractmethod
    def apply(self, parts: Parts) -> Parts:
        """Return the examples as they are from `at` on."""


@dataclass(frozen=True)
class Permute(Drift):
    """A permutation of class labels. With the same `seed` it is the same on every node."""

    fraction: float = 1.0
    """Fraction of the classes that change places; at least two do."""
    seed: int = 0
    classes: int = 10
    """Number of classes over all nodes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction <= 1 or self.classes < 2 or self.seed < 0:
            raise _invalid(f"cannot permute a share of {self.fraction} of {self.classes} classes by seed {self.seed}")

    def check(self, parts: Parts) -> None:
        _check_labels(parts[-1])
        if len(parts[-1]) and not 0 <= int(parts[-1].min()) <= int(parts[-1].max()) < self.classes:
            raise _invalid(
                f"labels reach {int(parts[-1].max())}, but {self.classes} classes are permuted", "give classes=…"
            )

    def apply(self, parts: Parts) -> Parts:
        renamed = permutation(self.classes, self.fraction, self.seed).to(parts[-1])
        return (*parts[:-1], renamed[parts[-1].long()])


@dataclass(frozen=True)
class Rotate(Drift):
    """A counter-clockwise rotation of images `[n, h, w]`, `[n, channels, h, w]` or, if square, `[n, h * w]`."""

    degrees: float = 90.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.degrees):
            raise _invalid(f"cannot turn images by {self.degrees} degrees")

    def check(self, parts: Parts) -> None:
        images = parts[0]
        is_image = images.ndim in {3, 4} or (images.ndim == 2 and math.isqrt(images.shape[1]) ** 2 == images.shape[1])
        if len(parts) < 2 or not images.is_floating_point() or not is_image:
            raise _invalid(f"{images.dtype} of shape {tuple(images.shape)} are not images that could be turned")

    def apply(self, parts: Parts) -> Parts:
        return (rotated(parts[0], self.degrees), *parts[1:])


@dataclass(frozen=True)
class NewClasses(Drift):
    """Classes without examples before `at`, named as in the data, before any permutation."""

    classes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.classes:
            raise _invalid("new classes, but none is named")

    def check(self, parts: Parts) -> None:
        _check_labels(parts[-1])

    def apply(self, parts: Parts) -> Parts:
        return parts  # it selects examples and does not change them


@lru_cache(maxsize=16)
def permutation(classes: int, share: float, seed: int) -> Tensor:
    """Return the new label of each class, `int64[classes]`. The permuted classes form one cycle, so that all change."""
    rng = np.random.default_rng(seed)
    moving = rng.permutation(classes)[: max(2, round(share * classes))]
    names = np.arange(classes)
    names[moving] = np.roll(moving, 1)
    return torch.from_numpy(names)


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Return images rotated counter-clockwise about their center; pixels from outside repeat the edge."""
    if images.ndim == 2:
        side = math.isqrt(images.shape[1])
        shaped = images.reshape(len(images), 1, side, side)
    else:
        shaped = images.unsqueeze(1) if images.ndim == 3 else images
    height, width = shaped.shape[-2:]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # The grid is in shares of height and width, which differ where the image is not a square.
    turn = torch.tensor([[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]], device="cpu").to(
        shaped
    )
    grid = torch.nn.functional.affine_grid(turn.expand(len(shaped), 2, 3), list(shaped.shape), align_corners=False)
    turned = torch.nn.functional.grid_sample(shaped, grid, padding_mode="border", align_corners=False)
    return turned.reshape(images.shape)


# ------------------------------------------------------------------------------------------------------------- stream
@dataclass(frozen=True)
class Stream(SourceFactory):
    """A stream of a finite data set, for `TorchLearner` as training data."""

    data: Data
    """Tensors or arrays `(x, …, y)`, or a `TensorDataset`."""
    drifts: tuple[Drift, ...] = ()
    seed: int = 0
    """Seed of the order of the examples, beside the seed of the node's sequence, which differs by job seed and node."""
    passes: bool = True
    """Pass after pass over the examples, each once per pass; else each mini-batch is drawn with replacement."""
    per_second: float = 0.0
    """Mini-batches that come in a second; 0: they are there at once. The first asked for by a process has just come."""

    def __post_init__(self) -> None:
        if self.seed < 0 or not 0 <= self.per_second < math.inf:
            raise _invalid(f"a stream of {self.per_second} batches per second with seed {self.seed}")

    def source(self, options: BatchOptions) -> StreamSource:
        return StreamSource(self, options)

    def alongside(self, test: Data) -> Stream:
        return replace(self, data=test, per_second=0.0)


class Era(NamedTuple):
    """Mini-batches `start` to `stop` - 1, from the examples with these indices, `int64[n]`."""

    number: int
    start: int
    stop: int
    eligible: Tensor


class StreamSource(BatchSource):
    """A stream's batches on the device."""

    def __init__(self, stream: Stream, options: BatchOptions) -> None:
        data = stream.data.tensors if isinstance(stream.data, TensorDataset) else stream.data
        if not isinstance(data, tuple) or not all(isinstance(part, Tensor | np.ndarray) for part in data):
            raise _invalid(f"a stream cannot be made of {type(data).__name__}", "give tensors or arrays (x, y)")
        self._stream, self._options, self._base = stream, options, TensorSource(data, options)
        self._drifts = sorted(stream.drifts, key=lambda drift: drift.at)
        for drift in self._drifts:
            drift.check(self._base.tensors)
        self._eras = eras(self._drifts, self._base.tensors[-1])
        self._pace = Pace(stream.per_second if options.paced else 0.0)
        self._shown: tuple[int, TensorSource] | None = None

    @property
    def examples(self) -> int:
        return self._base.examples

    def steps(self, batch_size: int) -> int | None:
        return self._base.steps(batch_size) if self._stream.passes else None

    def epoch(self, batch_size: int, shuffle: torch.Generator | None) -> Iterator[Batch]:
        if shuffle is not None and (self._drifts or self._stream.per_second):
            raise LearnerFailed(
                "the data are a stream, and the order does not say where in it to train",
                code="learner.data",
                hint="use an algorithm that consumes streams, or data without drift and pace",
            )
        return self._base.epoch(batch_size, shuffle)

    def sequence(self, batch_size: int, position: int, waiting: Waiting, seed: int = 0) -> Iterator[Batch]:
        number = position
        for era in [era for era in self._eras if position < era.stop]:
            for chosen in islice(self._chosen(era, batch_size, number, seed), era.stop - number):
                self._pace.wait(number, waiting)
                yield Batch(self._drifted(self._base.take(chosen), number), len(chosen))
                number += 1

    def as_of(self, position: int) -> TensorSource:
        position = max(0, position)
        begun = sum(drift.at <= position for drift in self._drifts)
        if self._shown is None or self._shown[0] != begun:
            era = next(era for era in self._eras if position < era.stop)
            parts = self._drifted(self._base.take(era.eligible), position) if begun or len(self._eras) > 1 else None
            self._shown = begun, self._base if parts is None else TensorSource(parts, self._options)
        return self._shown[1]

    def _chosen(self, era: Era, batch_size: int, number: int, seed: int) -> Iterator[Tensor]:
        """Yield the indices of batch `number` and later ones, as if the era had no end."""
        examples, own = len(era.eligible), self._stream.seed
        if not examples:
            raise LearnerFailed(
                f"before mini-batch {era.stop} the stream has no example: all its classes are new then",
                code="learner.data",
                hint="give the node examples of other classes too",
            )
        if self._stream.passes:
            seeds, merge = (own, era.number, seed), self._options.merge_small
            places = endless(examples, batch_size, number - era.start, merge_small=merge, seeds=seeds)
        else:
            places = drawn(examples, batch_size or examples, number, seed_of(own, seed))
        return (era.eligible[place] for place in places)

    def _drifted(self, parts: Parts, number: int) -> Parts:
        for drift in self._drifts:
            if drift.at <= number:
                parts = drift.apply(parts)
        return parts


def eras(drifts: list[Drift], labels: Tensor) -> list[Era]:
    """Return the eras of a stream: where new classes appear, an era begins, and with it a new pass."""
    coming = [drift for drift in drifts if isinstance(drift, NewClasses) and drift.at > 0]
    starts = sorted({0, *(drift.at for drift in coming)})
    found = []
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], FOREVER], strict=True)):
        hidden = [label for drift in coming if drift.at > start for label in drift.classes]
        there = torch.ones(len(labels), dtype=torch.bool, device="cpu")
        if hidden:
            there = ~torch.isin(labels.cpu(), torch.tensor(hidden, device="cpu"))
        found.append(Era(number, start, stop, torch.nonzero(there).flatten()))
    return found


def drawn(examples: int, size: int, number: int, seed: int) -> Iterator[Tensor]:
    """Yield indices of batch `number` and all later ones, drawn with replacement, each with its own seed."""
    for at in count(number):
        yield torch.randint(examples, (size,), generator=generator_of(seed_of(seed, at)))


class Pace:
    """The rate of batches per second, counted from the first request."""

    def __init__(
        self,
        per_second: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._per_second, self._now, self._sleep = per_second, now, sleep
        self._began: float | None = None

    def wait(self, number: int, waiting: Waiting) -> None:
        """Return when batch `number` is due; overdue batches are available at once."""
        if not self._per_second:
            return
        due = number / self._per_second
        if self._began is None:
            self._began = self._now() - due
        while (left := self._began + due - self._now()) > 0:
            waiting()
            self._sleep(min(left, WAIT_S))


# -------------------------------------------------------------------------------------------------------------- texts
def streamed(data: Data, drift: str = "", per_second: float = 0.0, seed: int = 0) -> Data:
    """Return the data as a stream with the drifts that a text names; unchanged for an empty text.

    `drift`: permute@BATCH, permute:SHARE@BATCH, rotate:DEGREES@BATCH, new:CLASS+CLASS@BATCH; several with commas
    between. Raises `InvalidJob` for any other.
    """
    if not drift and not per_second:
        return data
    return Stream(data, drifts_of(drift), seed=seed, per_second=per_second)


def drifts_of(text: str) -> tuple[Drift, ...]:
    """Return the drifts that a text names. Permutations differ from each other, and are the same on every node."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return tuple(_drift_of(word, place) for place, word in enumerate(words))


def _drift_of(word: str, place: int) -> Drift:
    what, _, at = word.partition("@")
    kind, _, value = what.partition(":")
    try:
        match kind:
            case "permute":
                return Permute(int(at), fraction=float(value or 1), seed=place)
            case "rotate":
                return Rotate(int(at), degrees=float(value))
            case "new":
                return NewClasses(int(at), tuple(int(label) for label in value.split("+")))
    except ValueError as error:
        raise _invalid(f"drift {word!r}: {error}", f"use {FORMS}") from error
    raise _invalid(f"no drift is called {word!r}", f"use {FORMS}")


def _check_labels(labels: Tensor) -> None:
    if labels.ndim != 1 or labels.is_floating_point():
        raise _invalid(f"{labels.dtype} of shape {tuple(labels.shape)} are not labels of classes")


def _invalid(message: str, hint: str = "") -> InvalidJob:
    return InvalidJob(message, code="learner.stream", hint=hint)
