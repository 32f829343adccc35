"""The threads that torch computes with, in a simulation and in its worker processes. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.core.errors import InvalidJob
from shoal.learn.compute_threads import set_threads


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads in a block, if torch is loaded, and restore it afterwards.

    Learners train one after the other, and each step of a small model takes longer on several threads than on one.
    Raises `InvalidJob` for less than one.
    """
    if threads < 1:
        raise InvalidJob(f"threads is {threads}", code="job.threads", hint="1 or more")
    before = set_threads(threads)
    try:
        yield
    finally:
        set_threads(before)
