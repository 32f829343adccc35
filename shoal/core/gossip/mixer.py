"""Interfaces of a way of mixing (`Mixing`) and of one peer's part in it (`Mixer`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from shoal.core.errors.ranges import check_ranges
from shoal.core.gossip.transfer import Transfer
from shoal.core.protocol.machine import Effect
from shoal.core.protocol.message import BlobRef
from shoal.core.protocol.peer_message import MixingMessage

if TYPE_CHECKING:
    from shoal.core.gossip.gossip_state import GossipState


class Mixer(Protocol):
    """A peer's part in mixing models. It may set `me.mixed` whenever it is called, and at no other time."""

    alarm: float
    """Time when it wants `on_timer`."""

    synchronous: ClassVar[bool]
    """True if other peers wait for this peer's turns."""

    @property
    def is_waiting(self) -> bool:
        """Return whether the next local round has to wait for other peers."""
        ...

    @property
    def is_busy(self) -> bool:
        """Return whether an exchange is under way that needs this process."""
        ...

    def begin_turn(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle the end of a local round."""
        ...

    def halt(self) -> None:
        """Begin nothing new."""
        ...

    def resume(self) -> None:
        """Allow new exchanges again."""
        ...

    def on(self, message: MixingMessage, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle a peer's message. The shell has checked its sender and the form of its blob."""
        ...

    def reject(self, message: MixingMessage, why: str, me: GossipState, now: float) -> Sequence[Effect]:
        """Handle a message without starting an exchange, and without mixing its model if possible."""
        ...

    def on_transfer(self, transfer: Transfer, me: GossipState, now: float) -> Sequence[Effect]:
        """Note the progress of a model in transit: it is not sent again, and its receiver waits longer."""
        ...

    def on_timer(self, me: GossipState, now: float) -> Sequence[Effect]:
        """Do what is due."""
        ...

    @property
    def moving_until(self) -> float:
        """Until when a model is assumed to be in transit, to this peer or from it."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the durable state as JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs that it still needs."""
        ...

    def counters(self) -> dict[str, int]:
        """Return counters for people."""
        ...


class Mixing(ABC):
    """A way of mixing, as a job configures it: a frozen dataclass, as `Algorithm`."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    requests_first: ClassVar[bool] = False
    """True if a model is sent only after its receiver has agreed, so that a byte budget can be kept."""
    supports_filters: ClassVar[bool] = False
    """True if its guarantees hold for models that filters have rounded."""

    def __post_init__(self) -> None:
        """Check the fields' ranges. Raises `InvalidJob`."""
        check_ranges(self)

    @abstractmethod
    def mixer(self) -> Mixer:
        """Return one peer's mixer in its initial state."""
