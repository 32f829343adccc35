"""Seeding of all randomness of one call, which restores the global random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from shoal.core.algorithm.learner import Progress, no_progress
from shoal.learn.default_generators import seeded_generators

CPU = torch.device("cpu")


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators in use. `torch.manual_seed` seeds those of all devices and takes ten times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def generator_of(seed: int) -> torch.Generator:
    """Return the generator that shuffles the data of a call."""
    return torch.Generator().manual_seed(seed % 2**63)


@contextmanager
def seeded(seed: int, device: torch.device, progress: Progress = no_progress) -> Iterator[torch.Generator]:
    """Seed the default generators of torch (CPU and `device`), numpy and random; yield a CPU generator for shuffling.

    Holds a lock of the process; while it waits for it, `progress(0.0)` is called, which may raise `Cancelled`.
    """
    on_card = torch.random.fork_rng(devices=[device]) if device.type == "cuda" else nullcontext()
    with seeded_generators(seed, progress), on_card:
        before = torch.get_rng_state()  # in a tenth of the time of `fork_rng`
        try:
            seed_torch(seed % 2**63, device)
            yield generator_of(seed)
        finally:
            torch.set_rng_state(before)


@contextmanager
def seeded_to_build(seed: int) -> Iterator[None]:
    """Seed what makes a module: it is built on the CPU, unless it names a device, whose generators are seeded too.

    Opens no card: torch seeds one that nothing has used yet when the module first uses it.
    """
    used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    on_cpu = nullcontext() if torch.get_default_device() == CPU else CPU  # which slows all operations
    with seeded(seed, CPU), torch.random.fork_rng(devices=used, enabled=bool(used)), on_cpu:
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed % 2**63)
        yield
