"""What a hub needs to know of a job besides its algorithm and its schedule."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.message import Ref
from shoal.core.sums import SumKind


@dataclass(frozen=True)
class Plan:
    """How long a job runs, from where it starts, and how it adds."""

    versions: int
    """How many versions to make; then the job is done."""
    seed: int = 0
    sums: SumKind = "float64"
    start: Ref | None = None
    """The initial model, if the job came with one; None: a member is asked for one."""
    patience_s: float = 300.0
    """Seconds to wait for an initial model before another node is asked, and for the final evaluations."""
