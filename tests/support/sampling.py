"""Samples: of many cases of one kind some are tried with every change, the others less often."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def extended(cases: Iterable[Any], but: Collection[Any]) -> list[Any]:
    """Return all cases, for `parametrize`; those outside the sample `but` run with `make test-all` alone."""
    return _marked(cases, but, pytest.mark.extended)


def nightly(cases: Iterable[Any], but: Collection[Any]) -> list[Any]:
    """Return all cases, for `parametrize`; those outside the sample `but` run with `make test-nightly` alone."""
    return _marked(cases, but, pytest.mark.nightly)


def _marked(cases: Iterable[Any], but: Collection[Any], mark: pytest.MarkDecorator) -> list[Any]:
    """Return the cases, tuples unpacked, with a mark on those outside the sample."""
    found = list(cases)
    assert all(case in found for case in but), "a case that is no more"

    def param(case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if case in but else mark)

    return [param(case) for case in found]
