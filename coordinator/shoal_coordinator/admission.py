"""Nodes coming and going: who may come in, who is there, who is sent away."""

from __future__ import annotations

import asyncio
import time
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Connection, null, update

from shoal.core.errors import NotAllowed, Refused
from shoal.core.machine import Lost
from shoal.core.message import Join, Leave
from shoal.core.selection import of_info
from shoal_coordinator import auth, readmission
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.inside import node as as_node
from shoal_coordinator.papers import Contact, outlaw
from shoal_coordinator.presence import Availability
from shoal_coordinator.tables import nodes

if TYPE_CHECKING:
    from shoal_coordinator.service import Coordinator

log = structlog.get_logger()

NAMES_COMPARED_MAX = 5000
"""Names that a wrong one is compared with: at most 0.1 s of a thread."""
NAME_LETTERS_MAX = 63


class Admission:
    """Of one coordinator. What the lead decides here, its deputies are told."""

    def __init__(self, of: Coordinator) -> None:
        self._of = of

    async def enrol(self, token: str, name: str, info: dict[str, Any], key: str = "") -> str:
        """A credential for a one-time token; see `auth.enrol`. Raises `Refused` for tags or hours that are none,
        `NotAllowed` for a token of another kind."""
        of_info(info)
        wrong = auth.no_join_token(token, self._of.directory.find(token))
        if wrong is not None:
            raise wrong
        credential = await self._of.database.write(lambda c: auth.enrol(c, token, name, info, key))
        crashpoint("enrol.committed")
        self._of.directory.admit(auth.hashed(credential), auth.Principal("node", name))
        self._of.presence.tell(name, info)
        self._of.presence.joined_at[name] = time.time()
        self._of.presence.heard(name)
        return credential

    async def readmit(self, job: str, node: str, secret_sha256: str) -> None:
        """A peer of that job has shown its key, and made this credential. Raises what `readmission.readmit` raises."""
        peer = self._of.papers.peers(job)[node]
        await self._of.database.write(lambda c: readmission.readmit(c, node, peer.pub, secret_sha256))
        crashpoint("readmission.committed")
        self._of.directory.admit(secret_sha256, auth.Principal("node", node))
        await self._of.deputies.each("POST", "/inside/forget", {"node": node})
        self._of.presence.heard(node)
        log.info("back by its own key", node=node, job=job)

    async def hello(self, node: str, info: dict[str, Any], contact: Contact | None = None) -> None:
        """A node's process has started: it joins every running job anew. `contact`: how it takes part in gossip.

        Raises `Refused` for a key that it may not show, and for tags or hours that are none.
        """
        of_info(info)
        async with self._of.papers.showing:  # or two nodes could show one key at once
            self._of.papers.check(node, contact)
            shown = contact.row() if contact is not None else null()
            row = update(nodes).where(nodes.c.name == node, ~nodes.c.revoked)
            row = row.values(info=info, seen_at=time.time(), peer=shown)
            if not (await self._of.database.write(lambda c: c.execute(row).rowcount)):
                raise NotAllowed(f"{node} has been removed by an operator", hint="enrol again with a new token")
            if self._of.papers.show(node, contact):
                self._of.ledger.begin_anew(node)
        await self.greet(node, info)
        await self._of.deputies.each("POST", "/inside/hello", {"info": info}, as_node(node))

    async def greet(self, node: str, info: dict[str, Any]) -> None:
        """A node that may come in joins the jobs that run here."""
        self._of.presence.tell(node, info)
        self._of.presence.joined_at.setdefault(node, time.time())
        self._of.presence.heard(node)
        await self._of.tell_all(Join(node, about=self._of.presence.about(node)))

    async def leave(self, node: str) -> None:
        """A node goes and hands its orders back."""
        await self._of.tell_all(Leave(node))
        self._of.presence.leases.forget(node)
        await self._of.deputies.each("POST", "/inside/leave", None, as_node(node))

    async def set_availability(self, node: str, availability: Availability) -> None:
        """Drain a node, block it, or let jobs ask it again. Raises `Refused` for a name that is none."""
        row = update(nodes).where(nodes.c.name == node, ~nodes.c.revoked).values(availability=availability)
        if not (await self._of.database.write(lambda c: c.execute(row).rowcount)):
            raise await self.unknown(node)
        await self.hold(node, availability)
        await self._of.deputies.each("POST", "/inside/availability", {"availability": availability}, as_node(node))

    async def hold(self, node: str, availability: Availability) -> None:
        """Tell the jobs that run here."""
        self._of.presence.hold(node, availability)
        await self._of.tell_all(self._of.presence.drain(node))
        self._of.bells[node].set()

    async def revoke(self, node: str) -> None:
        """Take a node's credential away, at once, and its orders with it."""
        if not await self._of.database.write(partial(_outlaw, node=node)):
            raise await self.unknown(node)
        await self.drop(node)
        await self._of.deputies.each("POST", "/inside/forget", {"node": node, "removed": True})

    async def unknown(self, node: str) -> Refused:
        """Return the error for a name that no node has, with those that it may have been meant to be."""
        alike = [name for name in self._of.presence.info if name[:1] == node[:1]][:NAMES_COMPARED_MAX]
        close = await asyncio.to_thread(get_close_matches, node[:NAME_LETTERS_MAX], alike)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        text = f"no node is called {node[:NAME_LETTERS_MAX]!r}"
        return Refused(
            text, code="node.unknown", hint=f"{meant}See `shoal nodes list`" if meant else "see `shoal nodes list`"
        )

    async def drop(self, node: str) -> None:
        """A node is none any more."""
        self._of.directory.remove_node(node)
        self._of.presence.forget(node)
        self._of.turns.forget(node)
        self._of.system_metrics.forget(node)
        self._of.papers.revoke(node)
        await self._of.tell_all(Lost(node, "removed by an operator"))
        await self._of.tell_all(Leave(node))  # for good: jobs count on it no more
        self._of.bells[node].set()  # its open poll ends


def _outlaw(connection: Connection, node: str) -> bool:
    """Take a node's credential and its key away, in one transaction; False when there is no such node."""
    outlaw(connection, node)
    return auth.revoke(connection, node)
