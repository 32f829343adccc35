"""A line of a card: a figure that was measured beside the one that the literature or our study has."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A line of the table; `reached` is None where the card asks for nothing."""

    name: str
    card: str
    measured: str
    reached: bool | None = None
