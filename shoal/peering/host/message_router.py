"""The outgoing messages of one job: links to peers that can be called, a mailbox for those that cannot."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from shoal.core.membership.failure_detector import POLL_COUNT, Reachability
from shoal.core.protocol.peer_message import ExchangeAccept, PeerMessage, Received
from shoal.peering.host.mailbox import Mailbox
from shoal.peering.http.peer_link import LinkContext, OnMessages, OutgoingMessage, PeerLink, peer_url, split_messages
from shoal.trust.documents import RosterEntry
from shoal.wire import peer_codec

TICK_S = 0.2


class ExchangeCounts:
    """Count of ended exchanges with each peer, and when the last one ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts = Counter[str]()
        self._last: dict[str, tuple[Any, float]] = {}

    def record(self, node: str, message: PeerMessage) -> None:
        """Count the end of an exchange, as this side sees it; a repetition is the same exchange."""
        if isinstance(message, ExchangeAccept | Received) and (
            node not in self._last or self._last[node][0] != message.id
        ):
            self._last[node] = (message.id, self._clock())
            self.counts[node] += 1

    def ages_s(self) -> dict[str, float]:
        """Return the seconds since the last exchange with each peer."""
        now = self._clock()
        return {node: round(now - at, 1) for node, (_, at) in sorted(self._last.items())}


class MessageRouter:
    """The links and the mailbox of one job. Used in the event loop.

    Messages for a peer that cannot be called wait `kept_s` seconds, with at most `BODIES_MAX` times `body_bytes()`
    bytes of models for each. `addresses` are used in place of the roster's. `on_messages` receives the answers.
    """

    def __init__(
        self,
        context: LinkContext,
        on_messages: OnMessages,
        kept_s: float,
        body_bytes: Callable[[], int],
        addresses: Mapping[str, str],
    ) -> None:
        self._context, self._on_messages, self._addresses = context, on_messages, dict(addresses)
        self.links: dict[str, PeerLink] = {}
        self.mailbox = Mailbox(kept_s, lambda: peer_codec.BLOBS_MAX * body_bytes())
        self.callers: frozenset[str] = frozenset()
        """The peers that cannot be called and fetch their messages here."""
        self.exchanges = ExchangeCounts()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closed = False

    def connect(self, others: Mapping[str, RosterEntry]) -> None:
        """Keep the links to these peers as they are described here; close all others."""
        for node, link in list(self.links.items()):
            if others.get(node) != link.peer:
                self.links.pop(node).close()
        for node, peer in others.items():
            if node not in self.links and (peer.urls or node in self._addresses):
                self._add_link(peer, peer_url(peer, self._addresses))

    def use_address(self, peer: RosterEntry, url: str) -> bool:
        """Call a peer at a discovered address, unless it has another one that works; return whether it is used."""
        link = self.links.get(peer.node)
        if peer.node in self._addresses or (link is not None and (link.url == url or not link.last_error)):
            return False
        if link is not None:
            link.close()
        self._add_link(peer, url)
        return True

    def _add_link(self, peer: RosterEntry, url: str) -> None:
        self.links[peer.node] = PeerLink(peer, url, self._context, self._on_messages)

    def reachability(self, others: Iterable[str], is_reachable: bool) -> Reachability:
        """Return how messages reach these peers over the present links. `is_reachable`: this peer can be called."""
        silent = frozenset(others) - self.links.keys()
        self.callers = silent if is_reachable else frozenset()
        return Reachability(callers=silent) if is_reachable else Reachability(unreachable=silent, poll_count=POLL_COUNT)

    @property
    def reachable(self) -> frozenset[str]:
        """Return the peers that a message can reach."""
        return self.callers | self.links.keys()

    def post(self, to: str, messages: Sequence[OutgoingMessage]) -> None:
        """Send to a peer in the background."""
        for message, _ in messages:
            self.exchanges.record(to, message)
        self.spawn(self.send(to, messages))

    async def send(self, to: str, messages: Sequence[OutgoingMessage]) -> None:
        """Send to a peer; messages for one that cannot be called wait in the mailbox until it calls."""
        link = self.links.get(to)
        if link is None:
            if to in self.callers:
                self.mailbox.put(to, messages)
            return
        for batch in split_messages(messages):
            await link.send(batch)

    def spawn(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until `close`."""
        if self.is_closed:
            call.close()
            return
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def status(self) -> dict[str, Any]:
        """Return the numbers of waiting and dropped messages, as JSON values."""
        return {"waiting": self.mailbox.counts(), "dropped": self.mailbox.dropped}

    async def wait_delivered(self, patience_s: float) -> None:
        """Wait until batches under way are answered and callers have fetched theirs, each at most `patience_s`
        seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience_s)
        for _ in range(ceil(patience_s / TICK_S)):
            if not self.mailbox.counts():
                return
            await asyncio.sleep(TICK_S)

    def close(self) -> None:
        """Stop sending and close all connections."""
        self.is_closed = True
        for task in self._tasks:
            task.cancel()
        for link in self.links.values():
            link.close()
