"""What two peers remember of an exchange of models: see `shoal.mixing.pairwise`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.core.message import Ref, ref_state
from shoal.core.peer_message import ExchangeId
from shoal.core.tree import Tree


@dataclass(frozen=True)
class Doubt:
    """An exchange that this peer began, in which it has shown its model: `partner` may have taken its step."""

    partner: str
    shown: Ref
    weight: float
    cap: float
    mass: float
    """Of the model that was shown; `weight` of it takes part."""
    step: int = 0
    """The exchange of `shoal.core.doubling` that this is; 0: none."""
    keeps: float | None = None
    """This side's part of both masses after it; None: they stay."""

    def values(self) -> list[Any]:
        """As JSON values."""
        return [self.partner, ref_state(self.shown), self.weight, self.cap, self.mass, self.step, self.keeps]

    @classmethod
    def of(cls, partner: str, shown: list[Any], *rest: Any) -> Doubt:
        """From JSON values."""
        return cls(partner, Ref(*shown), *rest)


@dataclass(frozen=True)
class Answer:
    """A step that this peer has taken at another's asking, until that one says that it has taken its own."""

    shown: Ref
    weight: float
    share: float
    seen: dict[str, int]
    step: int = 0
    """As in `Doubt`."""

    def values(self) -> list[Any]:
        """As JSON values."""
        return [ref_state(self.shown), self.weight, self.share, self.seen, self.step]

    @classmethod
    def of(cls, shown: list[Any], *rest: Any) -> Answer:
        """From JSON values."""
        return cls(Ref(*shown), *rest)


@dataclass(frozen=True)
class Step:
    """From `mine`, of this weight, towards `theirs`, which is `way` off: so great a share of the way."""

    mine: Tree
    theirs: Tree
    weight: float
    share: float
    way: float


@dataclass
class Meeting:
    """The one exchange in flight. `begun`: when; None: the other side began it."""

    id: ExchangeId
    partner: str
    until: float
    begun: float | None = None
    since: float = 0.0
    """When a model may have begun to move."""
    step: int = 0
    """As in `Doubt`."""
