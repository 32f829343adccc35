"""Seeding of the default generators of numpy and random, which needs no torch."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.random import mtrand

from shoal.core.algorithm.learner import Progress, no_progress

# The default generators of torch, numpy and random belong to the whole process. Two trainings that drew from them at
# the same time would depend on each other, so one waits.
_TURN = threading.RLock()
WAIT_S = 0.2

_SPARE: list[np.random.MT19937] = []
"""Bit generators for numpy that are not in use: to make one takes much longer than to seed it."""

_KEPT = threading.local()


@contextmanager
def kept_generator() -> Iterator[None]:
    """Keep the state of numpy's default generator once for all blocks of `seeded_generators` in this one.

    To read and to set this state takes forty times as long as to seed it. Blocks inside restore the generator, but not
    the second of two normal numbers that it makes at a time.
    """
    if getattr(_KEPT, "is_kept", False):
        yield
        return
    with _TURN:
        state = np.random.get_state()  # noqa: NPY002
    _KEPT.is_kept = True
    try:
        yield
    finally:
        _KEPT.is_kept = False
        with _TURN:
            np.random.set_state(state)  # noqa: NPY002


@contextmanager
def seeded_generators(seed: int, progress: Progress = no_progress) -> Iterator[None]:
    """Seed the default generators of numpy and random, and restore their state afterwards.

    Holds a lock of the process; while it waits for it, `progress(0.0)` is called, which may raise `Cancelled`.
    """
    while not _TURN.acquire(timeout=WAIT_S):
        progress(0.0)
    # Legacy generators on purpose: they are the ones that users' data pipelines draw from.
    python_state = random.getstate()
    try:
        with kept_generator():
            own, other = mtrand.get_bit_generator(), _SPARE.pop() if _SPARE else np.random.MT19937()
            mtrand.set_bit_generator(other)
            try:
                np.random.seed(seed % 2**32)  # noqa: NPY002
                random.seed(seed)
                yield
            finally:
                mtrand.set_bit_generator(own)
                _SPARE.append(other)
    finally:
        random.setstate(python_state)
        _TURN.release()
