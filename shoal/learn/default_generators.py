"""Seeding of the default generators of numpy and random, which needs no torch."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from shoal.core.algorithm.learner import Tick, no_tick

# The default generators of torch, numpy and random belong to the whole process. Two trainings that drew from them at
# the same time would depend on each other, so one waits.
_TURN = threading.RLock()
WAIT_S = 0.2


@contextmanager
def seeded_generators(seed: int, tick: Tick = no_tick) -> Iterator[None]:
    """Seed the default generators of numpy and random, and restore their state afterwards.

    Holds a lock of the process; while it waits for it, `tick(0.0)` is called, which may raise `Cancelled`.
    """
    while not _TURN.acquire(timeout=WAIT_S):
        tick(0.0)
    # Legacy generators on purpose: they are the ones that users' data pipelines draw from.
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        _TURN.release()
