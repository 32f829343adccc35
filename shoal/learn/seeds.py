"""All randomness of one piece of work from one seed, and the world's own random state left as it was."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from shoal.core.learner import Tick, no_tick

# The default generators of torch, numpy and random belong to the whole process. Two trainings that drew from them at
# the same time would depend on each other, so one waits.
_TURN = threading.RLock()
WAIT_S = 0.2


def _seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators in use. `torch.manual_seed` seeds those of all devices, and takes ten times as long."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def seed_of(*numbers: int) -> int:
    """One seed from several numbers of 0 or more; other numbers, or another order of them, give another seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def generator_of(seed: int) -> torch.Generator:
    """The generator that shuffles the data of a call with this seed."""
    return torch.Generator().manual_seed(seed % 2**63)


@contextmanager
def seeded(seed: int, device: torch.device, tick: Tick = no_tick) -> Iterator[torch.Generator]:
    """Seed the default generators of torch (CPU and `device`), numpy and random; yield a CPU generator for shuffling.

    Holds a lock of the process; while it waits for it, `tick(0.0)` is called, which may raise `Cancelled`.
    """
    while not _TURN.acquire(timeout=WAIT_S):
        tick(0.0)
    # Legacy generators on purpose: they are the ones that users' data pipelines draw from.
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _seed_torch(seed % 2**63, device)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield generator_of(seed)
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        _TURN.release()
