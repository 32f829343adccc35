"""Client of a relay: a node's requests to the coordinator through a peer, one at a time, with a poll always open.

The machine's messages through a peer come here (`RelayRequest`). Reports, failures and statuses use the pump's
transport; polls, pings and joins are sent here and answered by events (`RelayResponse`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, ShoalError
from shoal.core.failover.coordinator_reachability import RelayFailed
from shoal.core.failover.failover_peer import FailoverPeer
from shoal.core.protocol.message import CoordinatorPing, Join, Leave, Message, Poll
from shoal.core.protocol.peer_message import RelayResponse
from shoal.runtime.threads import in_thread
from shoal.runtime.worker_ports import HeldTask
from shoal_edge_client.peering.edge_peer_group import EdgePeerGroup
from shoal_edge_client.peering.recovery.incarnation_fence import IncarnationFence
from shoal_edge_client.peering.relay.relay_route import RelayRoute
from shoal_edge_client.peering.relay.relayed_client import RelayedClient

WAIT_S_MAX = 20.0
"""Longest wait of a relayed poll: the relay's own timeout allows no more."""
POLLS_PER_TTL = 3
EMPTY_POLL_S = 0.5
"""A poll that is answered sooner and says nothing new is followed by a pause."""


class RelayClient:
    """The sender of relayed messages. `submit` feeds the machine and waits, `submit_nowait` does not wait, `run_aside`
    runs a named background task."""

    fence: IncarnationFence

    def __init__(
        self,
        peer: FailoverPeer,
        route: RelayRoute,
        group: EdgePeerGroup,
        held: Callable[[], HeldTask | None],
        take: Callable[[Any], Awaitable[bool]],
        put: Callable[[Any], None],
        aside: Callable[[str, Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        self._peer, self._route, self._group, self._held = peer, route, group, held
        self._submit, self._submit_nowait, self._run_aside = take, put, aside
        self._wait_s = min(WAIT_S_MAX, peer.failover.coordinator_timeout_s / POLLS_PER_TTL)
        self.log: Any = structlog.get_logger("edge_client.relay").bind(job=group.spec.name)

    def follow_machine(self) -> bool:
        """Use the route that the machine has chosen; return whether it changed."""
        wanted, group = self._peer.reachability.relay, self._group.group
        if wanted == self._route.relay:
            return False
        link = group.router.links.get(wanted) if group is not None else None
        if wanted and (link is None or group is None):
            self._submit_nowait(RelayFailed(wanted, "its address is unknown"))
            return False
        if link is None or group is None:
            self._route.use(None)
            self.log.info("the coordinator is reached directly again, or by no peer")
            return True
        term, incarnation = self._peer.term, self.fence.incarnation(self._peer.term)
        self._route.use(RelayedClient(wanted, link.url, self._peer.node, group.signer, term, incarnation))
        self.log.warning("the coordinator is not reached directly: a peer relays", relay=wanted)
        return True

    def send(self, message: Message) -> None:
        """Send a message through the relay; its answer is fed to the machine."""
        through = self._route.relay
        match message:
            case Poll() | Join(gossip_rounds=None) if through:
                self._run_aside(f"poll through {through}", partial(self._poll, through, message))
            case Join() if through:
                self._run_aside(f"join through {through}", partial(self._ask, through, message))
            case CoordinatorPing() if through:
                self._run_aside(f"ping through {through}", partial(self._ask, through, message))

    async def leave(self) -> None:
        """Send a farewell through the relay, if one is in use."""
        if self._route.relay:
            await self._try(self._route.leave, Leave(self._peer.node))

    async def _ask(self, through: str, message: Message) -> None:
        found = await self._try(partial(self._route.ask, message), message)
        if isinstance(found, Message):
            await self._submit(RelayResponse(through, found))

    async def _poll(self, through: str, first: Message) -> None:
        """Hold a poll open while this relay is in use."""
        loop, message, empty_polls = asyncio.get_running_loop(), first, 0
        while self._route.relay == through:
            begun = loop.time()
            found = await self._try(partial(self._route.ask, message, self._wait_s, self._held()), message)
            if not isinstance(found, Message):
                return
            news = await self._submit(RelayResponse(through, found)) or loop.time() - begun > EMPTY_POLL_S
            empty_polls, message = 0 if news else empty_polls + 1, Poll(self._peer.node)
            if empty_polls:
                await asyncio.sleep(random.uniform(0.5, 1.0) * min(0.05 * 2.0**empty_polls, 2.0))

    async def _try(self, call: Callable[[], Any], message: Message) -> Any:
        """Return the result of a call; None if it fails."""
        try:
            return await in_thread(call)
        except NotAllowed:
            raise
        except ShoalError as error:
            self.log.debug("the relay did not deliver", what=message.type_name, code=error.code, why=error.message)
        return None
