"""The number of threads that torch computes with on a node. Loads no torch."""

from __future__ import annotations

import sys

from shoal.core.model.tree import Layout

SMALL_MODEL_ELEMENTS = 100_000
"""Numbers of a model up to which its steps are fastest on one thread. Several nodes of one machine then leave the cores
to each other: threads that wait for a core make each step many times longer."""


def compute_threads(asked: int, layout: Layout | None) -> int:
    """Return the number of threads: the one asked for, or else 1 for a small model; 0: as many as torch likes.

    `layout`: that of the learner's model; None if it is unknown.
    """
    if asked:
        return asked
    return 1 if layout is not None and layout.elements <= SMALL_MODEL_ELEMENTS else 0


def set_threads(threads: int) -> int:
    """Let torch compute with this number of threads, and return the number before; 0: nothing to change, or no torch
    is loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not threads:
        return 0
    before = int(torch.get_num_threads())
    torch.set_num_threads(threads)
    return before
