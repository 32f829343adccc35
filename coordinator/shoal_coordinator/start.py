"""Where a job begins."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.message import Ref


@dataclass(frozen=True)
class Start:
    """Where a job begins: at a model that came with it, if one did; and which version that is, of which term."""

    model: Ref | None = None
    version: int = 0
    term: int = 0
    """0: it began here; else this coordinator goes on with it, and its own terms are above."""
    node: str = ""
    """Who had kept that model."""
