"""The ranks of a site: processes that do the same tasks on their own rows of each batch.

They talk through torch's default process group: through gloo from the CPU's memory, through NCCL from that of a card.
Every method but `rows_of` is collective: all ranks call it, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.core.algorithm.learner import Progress
from shoal.core.errors import Cancelled

CHUNK_BYTES = 64 << 20
"""Bytes of one broadcast of a longer text or file."""

Rows = TypeVar("Rows", slice, Tensor, list[int], Tensor | slice)
"""The rows of a batch."""


class Ranks:
    """All ranks of the default process group, and the number of this one."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def rows_of(self, batch: Rows, examples: int) -> tuple[Rows, int]:
        """Return this rank's rows of a batch and their number, by the rule of `DistributedSampler`.

        A rank without a row gets all of them, and the number 0: it computes, because the others wait for its
        gradients, which then have no weight.
        """
        own = len(range(self.rank, examples, self.size))
        if not own:
            return batch, 0
        if isinstance(batch, slice):
            return slice(batch.start + self.rank, batch.stop, self.size), own
        return batch[self.rank :: self.size], own

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""
        for alike in _by_kind(tensors):
            flat = torch.cat([one.reshape(-1) for one in alike])
            dist.all_reduce(flat)
            _scatter(flat, alike)

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of rank 0."""
        self.copy_from(0, tensors)

    def copy_from(self, rank: int, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of a rank."""
        for alike in _by_kind(tensors):
            flat = torch.cat([one.detach().reshape(-1) for one in alike])
            dist.broadcast(flat, rank)
            _scatter(flat, alike)

    def broadcast(self, data: bytes = b"") -> bytes:
        """Return the bytes that rank 0 gives."""
        nbytes = torch.tensor([len(data)])
        dist.broadcast(nbytes, 0)
        flat = torch.empty(int(nbytes), dtype=torch.uint8)
        if self.rank == 0 and data:
            flat.numpy()[:] = memoryview(data)
        for piece in torch.split(flat, CHUNK_BYTES) if len(flat) else ():
            dist.broadcast(piece, 0)
        return flat.numpy().tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes that each rank gives, in the order of the ranks, at every rank."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        dist.all_reduce(sizes)
        padded = torch.zeros(max(1, int(sizes.max())), dtype=torch.uint8)
        padded.numpy()[: len(data)] = memoryview(data)
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return [one.numpy()[: int(size)].tobytes() for one, size in zip(found, sizes, strict=True)]

    def is_set(self, flag: bool) -> bool:
        """Return the flag of rank 0."""
        shared = torch.tensor([flag])
        dist.broadcast(shared, 0)
        return bool(shared)


class SharedProgress:
    """A `Progress` that all ranks call equally often, so that a withdrawn task stops at the same step at each of
    them. Only rank 0 knows of the withdrawal."""

    def __init__(self, ranks: Ranks, progress: Progress) -> None:
        self._ranks, self._progress, self._is_withdrawn = ranks, progress, False

    def note(self, fraction: float) -> None:
        """Report progress at this rank only; a withdrawal counts at the next call."""
        try:
            self._progress(fraction)
        except Cancelled:
            self._is_withdrawn = True

    def __call__(self, fraction: float) -> None:
        """Report progress. Raises `Cancelled` at all ranks."""
        self.note(fraction)
        if self._ranks.is_set(self._is_withdrawn):
            raise Cancelled("the task was withdrawn")


def progress_here(progress: Progress) -> Progress:
    """Return a progress that the ranks may call at different times."""
    return progress.note if isinstance(progress, SharedProgress) else progress


def _by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the tensors, those of one type and device together."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for one in tensors:
        groups.setdefault((one.dtype, one.device), []).append(one)
    return list(groups.values())


def _scatter(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the pieces of one vector to the tensors."""
    with torch.no_grad():
        for one, piece in zip(tensors, torch.split(flat, [one.numel() for one in tensors]), strict=True):
            one.copy_(piece.view(one.shape))
