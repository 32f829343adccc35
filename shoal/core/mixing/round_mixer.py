"""The common part of mixers that average in rounds: an open round, and messages to be acknowledged."""

from __future__ import annotations

from math import inf
from typing import ClassVar, Generic, TypeVar

from shoal.core.membership.retransmission import Retransmissions
from shoal.core.protocol.peer_message import ExchangeId

Round = TypeVar("Round")
Key = TypeVar("Key", str, ExchangeId)


class RoundMixer(Generic[Round, Key]):
    """The part of a `Mixer` that follows from its open round and from messages that are sent again until acknowledged.

    Rounds begin in `begin_turn` only, and end by themselves, so that a halt needs no further state.
    """

    synchronous: ClassVar[bool] = True

    def __init__(self, retransmit_s: float) -> None:
        self.round = 0
        self.alarm = inf
        self.open: Round | None = None
        self._unacknowledged: Retransmissions[Key] = Retransmissions(retransmit_s)

    @property
    def is_waiting(self) -> bool:
        return self.open is not None

    @property
    def is_busy(self) -> bool:
        return self.open is not None or len(self._unacknowledged) > 0

    @property
    def moving_until(self) -> float:
        return self._unacknowledged.moving_until

    def halt(self) -> None:
        """Do nothing: no round begins by itself."""

    def resume(self) -> None:
        """Do nothing: the next `begin_turn` begins a round."""
