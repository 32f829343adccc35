"""Many cases of one kind: some are tried with every change, and all of them at night."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def at_night(cases: Iterable[Any], but: Collection[Any]) -> list[Any]:
    """All cases, for `parametrize`; those that are not among `but` are left to the night. Tuples are unpacked."""
    found = list(cases)
    assert all(case in found for case in but), "a case that is no more"
    rest = [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in found]
    return [case if case in but else other for case, other in zip(found, rest, strict=True)]
