"""Durable records of an exchange of models between two peers: see `shoal.mixing.pairwise`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.core.model.tree import Tree
from shoal.core.protocol.message import BlobRef, ref_state
from shoal.core.protocol.peer_message import ExchangeId


@dataclass(frozen=True)
class InDoubt:
    """An exchange that this peer began and offered its model in: `partner` may have taken its step."""

    partner: str
    shown: BlobRef
    weight: float
    longest_step: float
    mass: float
    """Mass of the offered model; `weight` of it takes part."""
    step: int = 0
    """Number of the exchange in `shoal.core.mixing.final_averaging`; 0: none."""
    kept_part: float | None = None
    """This side's part of both masses afterwards; None: masses stay."""

    def values(self) -> list[Any]:
        """Return it as JSON values."""
        return [
            self.partner,
            ref_state(self.shown),
            self.weight,
            self.longest_step,
            self.mass,
            self.step,
            self.kept_part,
        ]

    @classmethod
    def of(cls, partner: str, shown: list[Any], *rest: Any) -> InDoubt:
        """Return it from JSON values."""
        return cls(partner, BlobRef(*shown), *rest)


@dataclass(frozen=True)
class Prepared:
    """A step that this peer has taken on a partner's offer, until the partner has committed its own."""

    shown: BlobRef
    weight: float
    step_fraction: float
    version_vector: dict[str, int]
    step: int = 0
    """As in `InDoubt`."""

    def values(self) -> list[Any]:
        """Return it as JSON values."""
        return [ref_state(self.shown), self.weight, self.step_fraction, self.version_vector, self.step]

    @classmethod
    def of(cls, shown: list[Any], *rest: Any) -> Prepared:
        """Return it from JSON values."""
        return cls(BlobRef(*shown), *rest)


@dataclass(frozen=True)
class ExchangeStep:
    """A step from `mine`, of this weight, towards `theirs` at distance `way`; `share`: the fraction of the distance."""

    mine: Tree
    theirs: Tree
    weight: float
    share: float
    way: float


@dataclass
class PairExchange:
    """The one exchange in flight. `begun`: when this side began it; None: the partner did."""

    id: ExchangeId
    partner: str
    until: float
    begun: float | None = None
    since: float = 0.0
    """Time when a model may have begun to move."""
    step: int = 0
    """As in `InDoubt`."""
