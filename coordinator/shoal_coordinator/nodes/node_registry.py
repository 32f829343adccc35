"""Enrolment, availability and removal of nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, null, update

from shoal.core.errors import NotAllowed, Refused
from shoal.core.protocol.machine import HubEvent, NodeLost
from shoal.core.protocol.message import Join, Leave
from shoal.core.scheduling.selection import parse_node_info
from shoal_coordinator.nodes import credentials, reenrolment
from shoal_coordinator.nodes.credentials import Credentials
from shoal_coordinator.nodes.presence import Presence
from shoal_coordinator.nodes.wakeups import Wakeups
from shoal_coordinator.peers.trust_documents import PeerContact, TrustDocuments, revoke_key
from shoal_coordinator.schemas.nodes import Availability
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.tables import nodes
from shoal_coordinator.storage.writer import Database

log = structlog.get_logger()

NAMES_COMPARED_MAX = 5000
"""Names that a wrong one is compared with: at most 0.1 s of a thread."""
NAME_LETTERS_MAX = 63


class NodeRegistry:
    """Enrolment, availability and removal of nodes.

    Args:
        submit_all: submits an event to all running jobs.
        notify_followers: calls a route of the other coordinators, in the name of a node if one is given.
        on_forget: called with the name of a node that was removed.
    """

    def __init__(
        self,
        database: Database,
        credentials_: Credentials,
        presence: Presence,
        trust_documents: TrustDocuments,
        wakeups: Wakeups,
        submit_all: Callable[[HubEvent], Awaitable[None]],
        notify_followers: Callable[..., Awaitable[None]],
        on_forget: Sequence[Callable[[str], object]],
    ) -> None:
        self._database, self._credentials, self._presence = database, credentials_, presence
        self._trust_documents, self._wakeups = trust_documents, wakeups
        self._submit_all, self._notify_followers, self._on_forget = submit_all, notify_followers, on_forget
        self.on_new_key: Callable[[str], object] = str
        """Called with the name of a node that shows a key for the first time."""

    async def enrol(self, token: str, name: str, info: dict[str, Any], key: str = "") -> str:
        """Exchange a one-time token for a credential; see `credentials.enrol`. Raises `Refused` for invalid tags or
        hours, `NotAllowed` for a token of another kind."""
        parse_node_info(info)
        wrong = credentials.wrong_token_error(token, self._credentials.principal_of(token))
        if wrong is not None:
            raise wrong
        credential = await self._database.write(lambda c: credentials.enrol(c, token, name, info, key))
        crashpoint("enrol.committed")
        self._credentials.add(credentials.hash_secret(credential), credentials.Principal("node", name))
        self._presence.set_info(name, info)
        self._presence.joined_at[name] = time.time()
        self._presence.mark_alive(name)
        return credential

    async def reenrol(self, job: str, node: str, secret_sha256: str) -> None:
        """Store the credential of a peer that has proved its key. Raises what `reenrolment.reenrol` raises."""
        peer = self._trust_documents.peers(job)[node]
        await self._database.write(lambda c: reenrolment.reenrol(c, node, peer.public_key, secret_sha256))
        crashpoint("re-enrolment.committed")
        self._credentials.add(secret_sha256, credentials.Principal("node", node))
        await self._notify_followers("/internal/evict", {"node": node})
        self._presence.mark_alive(node)
        log.info("re-enrolled by its key", node=node, job=job)

    async def hello(self, node: str, info: dict[str, Any], contact: PeerContact | None = None) -> None:
        """Register the start of a node's process: it rejoins every running job. `contact`: how it takes part in gossip.

        Raises `Refused` for a key that it may not use, and for invalid tags or hours.
        """
        parse_node_info(info)
        async with self._trust_documents.contact_lock:  # or two nodes could show one key at once
            self._trust_documents.check_key(node, contact)
            shown = contact.row() if contact is not None else null()
            row = update(nodes).where(nodes.c.name == node, ~nodes.c.revoked)
            row = row.values(info=info, last_hello_at=time.time(), peer=shown)
            if not (await self._database.write(lambda c: c.execute(row).rowcount)):
                raise NotAllowed(f"{node} has been removed by an operator", hint="enrol again with a new token")
            if self._trust_documents.set_contact(node, contact):
                self.on_new_key(node)
        await self.introduce(node, info)
        await self._notify_followers("/internal/hello", {"info": info}, node)

    async def introduce(self, node: str, info: dict[str, Any]) -> None:
        """Let a node join the running jobs."""
        self._presence.set_info(node, info)
        self._presence.joined_at.setdefault(node, time.time())
        self._presence.mark_alive(node)
        await self._submit_all(Join(node, node_info=self._presence.node_info(node)))

    async def leave(self, node: str) -> None:
        """Remove a node from its jobs and take its tasks back."""
        await self._submit_all(Leave(node))
        self._presence.leases.forget(node)
        await self._notify_followers("/internal/leave", None, node)

    async def set_availability(self, node: str, availability: Availability) -> None:
        """Drain a node, block it, or let jobs ask it again. Raises `Refused` for an unknown name."""
        row = update(nodes).where(nodes.c.name == node, ~nodes.c.revoked).values(availability=availability)
        if not (await self._database.write(lambda c: c.execute(row).rowcount)):
            raise await self.unknown_node(node)
        await self.apply_availability(node, availability)
        await self._notify_followers("/internal/availability", {"availability": availability}, node)

    async def apply_availability(self, node: str, availability: Availability) -> None:
        """Tell the jobs that run here."""
        self._presence.set_availability(node, availability)
        await self._submit_all(self._presence.drain_event(node))
        self._wakeups[node].set()

    async def revoke(self, node: str) -> None:
        """Take a node's credential away, at once, and its tasks with it."""
        if not await self._database.write(partial(_revoke, node=node)):
            raise await self.unknown_node(node)
        await self.forget(node)
        await self._notify_followers("/internal/evict", {"node": node, "removed": True})

    async def unknown_node(self, node: str) -> Refused:
        """Return the error for a name that no node has, with those that it may have been meant to be."""
        alike = [name for name in self._presence.info if name[:1] == node[:1]][:NAMES_COMPARED_MAX]
        close = await asyncio.to_thread(get_close_matches, node[:NAME_LETTERS_MAX], alike)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        text = f"no node is called {node[:NAME_LETTERS_MAX]!r}"
        return Refused(
            text, code="node.unknown", hint=f"{meant}See `shoal nodes list`" if meant else "see `shoal nodes list`"
        )

    async def forget(self, node: str) -> None:
        """Forget a node that was removed."""
        self._credentials.remove_node(node)
        self._presence.forget(node)
        for forget in self._on_forget:
            forget(node)
        self._trust_documents.revoke(node)
        await self._submit_all(NodeLost(node, "removed by an operator"))
        await self._submit_all(Leave(node))  # for good: jobs count on it no more
        self._wakeups[node].set()  # its open poll ends


def _revoke(connection: Connection, node: str) -> bool:
    """Take a node's credential and its key away, in one transaction; False when there is no such node."""
    revoke_key(connection, node)
    return credentials.revoke(connection, node)
