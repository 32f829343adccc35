"""The way to the coordinator for one job: this node's own, or through the peer that its machine has chosen.

The machine says through whom (`Peer.relay`), and hears of every answer that was not brought (`Unheard`): then it
chooses another. Its own way is tried all the while, by the agent's poll and by knocks. A report whose delivery was
begun on one way is ended on another: what the coordinator has of it is asked for first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from shoal.core.errors import InvalidPayload, Unreachable
from shoal.core.message import Ack, Fail, Lease, Message, OrderId, Ref, Report, Status
from shoal.core.tree import Slots
from shoal.core.voices import Unheard
from shoal.runtime.pump import Held, Wanted
from shoal.wire import ByteSource
from shoal_edge_client.peering.carried import CarriedLink, Unbrought
from shoal_edge_client.transport import HttpTransport

T = TypeVar("T")

_SPOILT = {"body.missing", "body.short", "body.digest", "payload.digest"}
"""A body that came wrongly, or that the coordinator misses though it was delivered: whoever carried it is to blame."""


class Detour:
    """`shoal.runtime.pump.Transport` for one job. `lost` may be called in any thread."""

    def __init__(self, job: str, own: HttpTransport, lost: Callable[[Unheard], None]) -> None:
        self._job, self._own, self._lost = job, own, lost
        self._carried: HttpTransport | None = None
        self._link: CarriedLink | None = None

    @property
    def through(self) -> str:
        """Who carries; empty: nobody needs to."""
        link = self._link
        return link.carrier if link is not None else ""

    def turn(self, link: CarriedLink | None) -> None:
        """From now on by that way; None: by our own. In the event loop."""
        before, self._link = self._link, link
        self._carried = None
        if link is not None:
            own = self._own
            self._carried = HttpTransport(link, link, own.bodies, wait_s=own.wait_s, leave_s=own.leave_s)
        if before is not None:
            before.abort()
            before.close()

    def _by(self, call: Callable[[HttpTransport], T]) -> T:
        carried, link = self._carried, self._link
        if carried is None or link is None:
            return call(self._own)
        try:
            return call(carried)
        except (Unreachable, InvalidPayload) as error:
            if not isinstance(error, Unbrought) and error.code not in _SPOILT:
                raise
            if link is self._link:  # else it was given up, and broke off for that
                self._lost(Unheard(link.carrier, error.message, getattr(error, "pause_s", 0.0)))
            raise (error if isinstance(error, Unbrought) else Unbrought(link.carrier, error)) from error

    # Transport

    def poll(self, held: Mapping[str, Held]) -> tuple[str, Message] | None:
        return self._own.poll(held)

    def at_hand(self, job: str, ref: Ref) -> Slots | None:
        carried = self._carried
        found = carried.at_hand(job, ref) if carried is not None else None
        return found if found is not None else self._own.at_hand(job, ref)

    def body(self, job: str, ref: Ref, cancelled: Wanted) -> Slots:
        return self._by(lambda way: way.body(job, ref, cancelled))

    def report(self, job: str, said: Report, body: ByteSource | None, cancelled: Wanted) -> Ack:
        def deliver(way: HttpTransport) -> Ack:
            if way is not self._own:
                way.resumed(job, said.order)  # what is there already, by whatever way, is not sent again
            return way.report(job, said, body, cancelled)

        if self._carried is not None:
            self._own.resumed(job, said.order)
        return self._by(deliver)

    def fail(self, job: str, said: Fail) -> Ack:
        return self._by(lambda way: way.fail(job, said))

    def status(self, job: str, said: Status) -> None:
        self._by(lambda way: way.status(job, said))

    def beat(self, job: str, order: OrderId, fraction: float) -> None:
        if self._carried is None:  # a poll that is held open is sign of life enough
            self._own.beat(job, order, fraction)

    def leave(self) -> None:
        if self._carried is not None:
            self._by(lambda way: way.leave())

    # Through another alone

    def stands(self, wait_s: float, held: Held | None) -> Message | None:
        """What stands for us, told when it differs from what is held; None: nobody carries. Blocks."""

        def ask(way: HttpTransport) -> Message:
            assert isinstance(way.link, CarriedLink)
            return way.taken(way.link.poll(wait_s, held))[1]

        return self._by(ask) if self._carried is not None else None

    def knock(self, term: int) -> Lease | None:
        """Whether the coordinator is there, asked through another; None: nobody carries. Blocks."""
        return self._by(lambda way: way.knock(self._job, term)) if self._carried is not None else None

    def join(self, away: OrderId | None) -> Message | None:
        """That we are back; what stands then. None: nobody carries. Blocks."""
        return self._by(lambda way: way.join(self._job, away)) if self._carried is not None else None
