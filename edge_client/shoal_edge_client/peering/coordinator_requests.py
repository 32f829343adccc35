"""The requests of one job to the coordinator, besides polls and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.core.protocol.message import CoordinatorPing, Join, Stop
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.threads import in_thread
from shoal_edge_client.peering.background_tasks import BackgroundTasks
from shoal_edge_client.peering.edge_peer_group import EdgePeerGroup
from shoal_edge_client.peering.failover_machine import StatusQuery
from shoal_edge_client.transport import HttpTransport

PEERING_S = 5.0
"""Seconds between two reports of the peer status, besides each change of state."""


class CoordinatorRequests:
    """The requests of one job. `submit` feeds the machine and waits, `use` takes verified trust documents."""

    def __init__(
        self,
        hub: HttpTransport,
        group: EdgePeerGroup,
        background: BackgroundTasks,
        submit: Callable[[Any], Awaitable[bool]],
        use: Callable[[PeerDocuments], None],
    ) -> None:
        self.hub, self._group, self._background, self._submit, self._use = hub, group, background, submit, use
        self._job = group.spec.name
        self.state_changed = asyncio.Event()
        """Set when the coordinator should learn of the peer's state soon."""
        self.log: Any = structlog.get_logger("shoal.pump").bind(job=self._job)

    def send(self, message: CoordinatorPing | Join) -> None:
        """Send a message in the background, unless one of its kind is under way; its answer is fed to the machine."""
        if isinstance(message, CoordinatorPing):
            self._background.run("ping", partial(self._ask_and_feed, partial(self.hub.ping, self._job, message.term)))
        elif message.gossip_rounds is not None:
            self._background.run(
                "join", partial(self._ask_and_feed, partial(self.hub.join, self._job, message.gossip_rounds))
            )

    async def _ask_and_feed(self, call: Callable[[], Any]) -> None:
        found = await self._ask(call)
        if found is not None:
            await self._submit(found)

    async def _ask(self, call: Callable[[], Any]) -> Any:
        """Call the coordinator once; return None if it fails."""
        try:
            return await in_thread(call)
        except NotAllowed:
            raise
        except ShoalError as error:
            self.log.debug("the coordinator did not answer", code=error.code, why=error.message)
            if isinstance(error, Refused) and error.code == "job.over":
                await self._submit(Stop(error.message))
        return None

    async def fetch_documents(self) -> None:
        """Fetch newer trust documents, save and use them."""
        group = self._group
        held = group.version if not group.expires_soon else 0
        sealed = await self._ask(partial(self.hub.trust_documents, self._job, held))
        if sealed is None:
            return
        try:
            self._use(await in_thread(partial(group.verify, sealed)))
            await in_thread(partial(group.save_documents, sealed))
        except (Refused, NotAllowed) as error:
            self.log.warning("the trust documents cannot be used", code=error.code, why=error.message, hint=error.hint)
            group.record_refusal(error.code, error.message, "the coordinator")

    async def report_status(self, process_number: int) -> None:
        """Report this node's state on each change and every `PEERING_S`, and save windows, until cancelled."""
        while True:
            with suppress(TimeoutError):  # nothing has changed: the state is reported all the same
                async with asyncio.timeout(PEERING_S):
                    await self.state_changed.wait()
            self.state_changed.clear()
            group, query = self._group.group, StatusQuery()
            if group is None:
                continue
            await self._submit(query)
            known = {"process_number": process_number, "peers": group.peers(), **group.refusals.status()}
            await self._ask(partial(self.hub.report_peer_status, self._job, {**query.values, **known}))
            await in_thread(group.save)
