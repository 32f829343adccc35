"""Sweeps: many cases of one kind, of which a sample is tried with every change, and all at night."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def at_night(cases: Iterable[Any], but: Collection[Any]) -> list[Any]:
    """Return all cases, for `parametrize`: those of the sample `but` marked `sweep`, the others `nightly`.

    Tuples are unpacked.
    """
    found = list(cases)
    assert all(case in found for case in but), "a case that is no more"

    def marked(case: Any) -> Any:
        mark = pytest.mark.sweep if case in but else pytest.mark.nightly
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)

    return [marked(case) for case in found]
