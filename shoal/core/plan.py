"""What a hub needs to know of a job besides its algorithm and its schedule."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from shoal.core.bounds import Bounds
from shoal.core.filter import Filter
from shoal.core.message import Ref
from shoal.core.selection import Selection
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
    filters: tuple[Filter, ...] = ()
    """What happens to updates on their way, and to models that are sent to those who hold a base."""
    return_s: float = 30.0
    """Seconds that peers who are called back have to hand in what they learned, and some of them to measure it."""
    gate: float = 0.0
    """How much accuracy a job may lose on its way back from its peers; beyond, it is paused. 0: it is not measured."""
    first: int = 0
    """Which version `start` is: above 0 where a job goes on that another coordinator has led."""
    term: int = 0
    """The term of that coordinator: this one's are above."""
    selection: Selection = field(default_factory=Selection)
    """Who may be asked, and who is when fewer are wanted."""
    shards: int = 1
    """Parts that the model is split into at the hub (`shoal.core.shards`)."""
    bounds: Bounds = field(default_factory=Bounds)
    """What one node can do to a version at most."""

    @property
    def differs(self) -> bool:
        """Whether every version is sent as a difference to the one before."""
        return any(one.differences for one in self.filters)

    def seed_of(self, version: int, node: str = "", again: int = 0) -> int:
        """An order's randomness, or a version's. (An initial model has the job's own seed: the same from any node.)
        `again`: reports on this version that the node has had counted already."""
        text = f"{self.seed}/{version}/{node}" + (f"/{again}" if again else "")
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
