"""Ranges of fields: each number that a job file may set has one, and a value outside it is refused where it is set."""

from __future__ import annotations

from dataclasses import fields
from math import inf, nan
from typing import Any, get_type_hints

import pytest

from shoal.core.errors import InvalidJob
from shoal.plugins import KINDS, PEER_KINDS

PARTS = [kind for known in (*KINDS.values(), *PEER_KINDS.values()) for kind in known().values()]


def numbers(kind: type[Any]) -> list[str]:
    """The names of a part's numeric fields."""
    hints = get_type_hints(kind)
    return [one.name for one in fields(kind) if hints[one.name] in (int, float)]


@pytest.mark.parametrize("kind", PARTS, ids=lambda kind: kind.__name__)
def test_every_number_of_a_job_file_has_a_range(kind: type[Any]) -> None:
    for name in numbers(kind):
        for wrong in (nan, inf, -inf, -5):
            with pytest.raises(InvalidJob, match=rf"\b{name}\b"):
                kind(**{name: wrong})
