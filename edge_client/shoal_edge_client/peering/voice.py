"""How this node speaks to the coordinator while a peer carries what it says: words one by one, a poll always open.

What the machine tells through another comes here (`Relay`). Reports, failures and statuses go as ever, by the pump's
transport, which is the detour then; polls, knocks and joins are asked here, and answered by events (`Relayed`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, ShoalError
from shoal.core.message import Join, Knock, Leave, Message, Poll
from shoal.core.peer import Peer
from shoal.core.peer_message import Relayed
from shoal.core.voices import Unheard
from shoal.runtime.pump import Held
from shoal.runtime.threads import in_thread
from shoal_edge_client.peering.carried import CarriedLink
from shoal_edge_client.peering.circle import Circle
from shoal_edge_client.peering.detour import Detour
from shoal_edge_client.peering.grant import Fence

WAIT_S_MAX = 20.0
"""A carried poll is held open no longer: that much a carrier's own patience allows."""
POLLS_PER_TTL = 3
FRUITLESS_S = 0.5
"""A poll that is answered sooner and says nothing new is followed by a pause."""


class Voice:
    """`take` feeds the machine, `put` soon will, `aside` does something beside it unless that is being done already."""

    fence: Fence

    def __init__(
        self,
        peer: Peer,
        detour: Detour,
        circle: Circle,
        held: Callable[[], Held | None],
        take: Callable[[Any], Awaitable[bool]],
        put: Callable[[Any], None],
        aside: Callable[[str, Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        self._peer, self._detour, self._circle, self._held = peer, detour, circle, held
        self._take, self._put, self._aside = take, put, aside
        self._wait_s = min(WAIT_S_MAX, peer.failover.ttl_s / POLLS_PER_TTL)
        self.log: Any = structlog.get_logger("edge_client.voice").bind(job=circle.spec.name)

    def follow(self) -> bool:
        """Go by the way that the machine has chosen; whether it is another one."""
        wanted, company = self._peer.relay, self._circle.company
        if wanted == self._detour.through:
            return False
        link = company.links.get(wanted) if company is not None else None
        if wanted and (link is None or company is None):
            self._put(Unheard(wanted, "nobody knows where it can be called"))
            return False
        if link is None or company is None:
            self._detour.turn(None)
            self.log.info("the way to the coordinator is whole again, or lost")
            return True
        term, life = self._peer.term, self.fence.life(self._peer.term)
        self._detour.turn(CarriedLink(wanted, link.url, self._peer.node, company.signer, term, life))
        self.log.warning("the way to the coordinator is broken: another carries what is said", carrier=wanted)
        return True

    def say(self, message: Message) -> None:
        """Have this carried, and its answer fed to the machine."""
        through = self._detour.through
        match message:
            case Poll() | Join(away=None) if through:
                self._aside(f"poll through {through}", partial(self._poll, through, message))
            case Join() if through:
                self._aside(f"join through {through}", partial(self._ask, through, message))
            case Knock() if through:
                self._aside(f"knock through {through}", partial(self._ask, through, message))

    async def leave(self) -> None:
        """Say farewell, if others speak for this node: its agent's own cannot be heard."""
        if self._detour.through:
            await self._answered(self._detour.leave, Leave(self._peer.node))

    async def _ask(self, through: str, message: Message) -> None:
        detour = self._detour
        call: Callable[[], Message | None]
        match message:
            case Knock(term=term):
                call = partial(detour.knock, term)
            case Join(away=away):
                call = partial(detour.join, away)
            case _:
                return
        found = await self._answered(call, message)
        if isinstance(found, Message):
            await self._take(Relayed(through, found))

    async def _poll(self, through: str, first: Message) -> None:
        """Hold a poll open for as long as this one carries."""
        loop, said, fruitless = asyncio.get_running_loop(), first, 0
        while self._detour.through == through:
            begun = loop.time()
            if isinstance(said, Join):
                call = partial(self._detour.join, None)
            else:
                call = partial(self._detour.stands, self._wait_s, self._held())
            found = await self._answered(call, said)
            if not isinstance(found, Message):
                return
            news = await self._take(Relayed(through, found)) or loop.time() - begun > FRUITLESS_S
            fruitless, said = 0 if news else fruitless + 1, Poll(self._peer.node)
            if fruitless:
                await asyncio.sleep(random.uniform(0.5, 1.0) * min(0.05 * 2.0**fruitless, 2.0))

    async def _answered(self, call: Callable[[], Any], said: Message) -> Any:
        """What came of it; None when nothing did."""
        try:
            return await in_thread(call)
        except NotAllowed:
            raise
        except ShoalError as error:
            what = type(said).__name__.lower()
            self.log.debug("carried in vain", what=what, code=error.code, why=error.message)
        return None
