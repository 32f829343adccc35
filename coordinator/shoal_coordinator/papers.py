"""What the coordinator signs for jobs whose nodes may carry them on: a charter for each, and a roster of its peers.

Whoever of a job's nodes has shown a key in its hello, and polls for the job, is in the roster; it stays there until its
key, its node or its wish to gossip is gone. Whatever changes that makes a new roster: at the next request for the
papers, or within a tick, so that nodes that come together share one. A roster is on the disk before anybody sees it, so
no two of one version ever differ. Charters do not change, unless they would not be true any more: another release shows
a job with more settings, or the coordinator's key was lost. Then the next roster comes with a new charter.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, select

from shoal.core.algorithm import tree_slot
from shoal.core.errors import Refused, ShoalError
from shoal.trust.keys import Key, load_or_make, peer_id_of
from shoal.trust.papers import (
    PEERS_MAX,
    REVOKED_MAX,
    Charter,
    JoinCert,
    Peer,
    Roster,
    config_sha,
    open_charter,
    schema_sha,
    seal,
    unseal,
)
from shoal_coordinator import tables
from shoal_coordinator.crash import crashpoint
from shoal_coordinator.database import Database
from shoal_coordinator.dialects import insert
from shoal_coordinator.driver import Driver
from shoal_coordinator.tables import nodes, revoked_keys

log = structlog.get_logger()

KEY_FILE = "coordinator.pem"

CERTIFICATE_S = 30 * 24 * 3600
"""So long a node may come in among its peers without the coordinator, from when it was given its papers."""

SLACK = 2
"""A node may claim so many times the weight that it reported last."""

PASS_MASS_ON = ("push_sum",)
"""Ways of mixing in which a peer may rightly hold the weight of many: there is no greatest weight."""

WEIGHT_MAX = 2**53

LEAP = 1000
"""What a lost coordinator has signed or started since the papers that are left of it: less often than that."""


@dataclass(frozen=True)
class Contact:
    """What a node has shown of itself as a peer."""

    pub: str
    urls: tuple[str, ...]
    inbound: bool

    @cached_property
    def peer_id(self) -> str:
        """Who speaks with that key."""
        return peer_id_of(self.pub)

    def row(self) -> dict[str, Any]:
        """As the database keeps it."""
        return {"pub": self.pub, "urls": list(self.urls), "inbound": self.inbound}


@dataclass(frozen=True)
class Sealed:
    """The papers of one job, as they are and as they travel."""

    charter: Charter
    roster: Roster
    charter_text: bytes
    roster_text: bytes


WeightOf = Callable[[str, str], float | None]


class Papers:
    """All jobs' papers. Everything here belongs to the event loop, but for the sealing.

    `weight_of(job, node)`: what the node reported last; None where nothing is known.
    """

    def __init__(self, folder: Path, weight_of: WeightOf) -> None:
        self._folder, self._weight_of = folder, weight_of
        self._key: Key | None = None
        self._held: dict[str, Sealed] = {}
        self._named: dict[str, dict[str, Peer]] = {}  # by job, the peers of its roster by name
        self._versions: defaultdict[str, int] = defaultdict(int)  # by job, that of the last roster
        self._vouched: set[str] = set()  # jobs whose charter this process has looked at
        self._contacts: dict[str, Contact] = {}
        self._revoked: set[str] = set()
        self._partners: defaultdict[str, set[str]] = defaultdict(set)  # by job, the nodes that take part
        self._sealing = asyncio.Lock()
        self.showing = asyncio.Lock()
        """Held from `check` to `show`."""

    def load(self, connection: Connection) -> None:
        """Take up what earlier processes have signed. What cannot be read is signed anew, under a higher number."""
        for row in connection.execute(select(nodes).where(~nodes.c.revoked)):
            if row.peer is not None:
                self._contacts[row.name] = _contact(row.peer)
        self._revoked = set(connection.execute(select(revoked_keys.c.peer_id)).scalars())
        for row in connection.execute(select(tables.papers)):
            try:
                charter = open_charter(row.charter.encode())
                roster = unseal(row.roster.encode(), Roster, charter)
            except ShoalError as error:
                log.error("papers cannot be read; they are made anew", job=row.job, why=error.message)
            else:
                self._hold(Sealed(charter, roster, row.charter.encode(), row.roster.encode()))
                self._partners[row.job] = {peer.node for peer in roster.peers}
            self._versions[row.job] = row.version

    def _hold(self, sealed: Sealed) -> None:
        job = sealed.charter.job
        self._held[job], self._named[job] = sealed, {peer.node: peer for peer in sealed.roster.peers}
        self._versions[job] = sealed.roster.version

    def forget(self, job: str) -> None:
        """Know nothing of a job that was removed."""
        for known in (self._held, self._named, self._versions, self._partners):
            known.pop(job, None)
        self._vouched.discard(job)

    def go_on(self, sealed: Sealed, known: tuple[str, ...]) -> None:
        """Take up the papers of a job that another coordinator has led; `known`: whom this one knows by their keys.

        They are in its next roster, though they are silent; whoever else shows a key takes part again.
        """
        self._hold(sealed)
        self._versions[sealed.charter.job] += LEAP
        self._revoked |= set(sealed.roster.revoked)
        self._partners[sealed.charter.job] = set(known)
        for peer in sealed.roster.peers:
            if peer.node in known:
                self._contacts.setdefault(peer.node, Contact(peer.pub, peer.urls, peer.inbound))

    # Who takes part

    def check(self, node: str, contact: Contact | None) -> None:
        """Raise `Refused` for a key that is not this node's to show."""
        if contact is None:
            return
        if contact.peer_id in self._revoked:
            raise Refused(
                f"the key that {node} shows was revoked",
                code="peer.revoked",
                hint="remove the file of the node's key, so that it makes a new one",
            )
        if any(other.pub == contact.pub for name, other in self._contacts.items() if name != node):
            raise Refused(
                f"the key that {node} shows is another node's",
                code="peer.key-taken",
                hint="give each node a state folder of its own, and never copy one",
            )

    def contact(self, node: str) -> Contact | None:
        """What a node has shown last."""
        return self._contacts.get(node)

    def show(self, node: str, contact: Contact | None) -> bool:
        """From now on the node is known and reached like that; None: it takes no part. Whether its key is a new one."""
        before = self._contacts.pop(node, None)
        if contact is None:
            return False
        self._contacts[node] = contact
        return before is None or before.pub != contact.pub

    def revoke(self, node: str) -> None:
        """Its key is out for good. (`outlaw` has written it down.)"""
        for partners in self._partners.values():
            partners.discard(node)
        contact = self._contacts.pop(node, None)
        if contact is not None:
            self._revoked.add(contact.peer_id)

    def take_part(self, job: str, node: str, *, wanted: bool = True) -> None:
        """A node polls for a job; or it does, but not for this one."""
        if not wanted:
            self._partners[job].discard(node)
        elif len(self._partners[job]) < PEERS_MAX:
            self._partners[job].add(node)

    # What they are given

    def held(self, job: str) -> Sealed | None:
        """The papers as they were signed last."""
        return self._held.get(job)

    def peers(self, job: str) -> dict[str, Peer]:
        """The peers of a job by name, as its roster has them."""
        return self._named.get(job, {})

    async def key(self) -> Key:
        """The coordinator's key, made at the first need. Raises `StorageFailed`."""
        if self._key is None:
            self._key = await asyncio.to_thread(load_or_make, self._folder / KEY_FILE)
        return self._key

    async def of(self, driver: Driver, database: Database) -> Sealed:
        """The papers as they are now. Raises `Refused` (`papers.none`, `papers.early`) and `StorageFailed`."""
        if not driver.spec.gossip.allowed:
            raise Refused(
                f"job {driver.name} does not allow that its nodes carry it on by themselves",
                code="papers.none",
                hint="say allowed = true under [gossip] in its file, and begin it as a new job",
            )
        await driver.settled()
        if not driver.hub.slots:
            raise Refused(
                f"job {driver.name} has no model yet, which its charter must name",
                code="papers.early",
                hint="ask again when the job has made version 0",
            )
        async with self._sealing:
            return await self._renewed(driver, database)

    async def certificate(self, driver: Driver, node: str) -> bytes:
        """What lets a node in among peers that have not heard of it; empty if it has shown no key. See `of`."""
        contact = self._contacts.get(node)
        if contact is None:
            return b""
        key, member = await self.key(), self._member(driver, node, contact)
        until = int(time.time()) + CERTIFICATE_S
        held = self._held[driver.name]
        cert = JoinCert(driver.name, node, member.peer_id, member.pub, member.examples, until)
        return await asyncio.to_thread(seal, cert, key, held.charter)

    async def renew(self, driver: Driver, database: Database) -> None:
        """Sign what has changed, if a job's nodes may carry it on and it can be said what they carry."""
        if driver.spec.gossip.allowed and not driver.restoring and driver.hub.slots and not self._is_right(driver):
            async with self._sealing:
                await self._renewed(driver, database)

    def _is_right(self, driver: Driver) -> bool:
        """Whether nothing is to be signed anew. (A charter can only turn out wrong after a start.)"""
        held = self._held.get(driver.name)
        if held is None or driver.name not in self._vouched:
            return False
        newest = held.roster.version == self._versions[driver.name]
        return newest and (held.roster.peers, held.roster.revoked) == (self._members(driver), self._outlaws(held))

    async def _renewed(self, driver: Driver, database: Database) -> Sealed:
        held = self._held.get(driver.name)
        key = await self.key()
        charter, members = self._charter(driver, key), self._members(driver)
        self._vouched.add(driver.name)
        newest = held is not None and held.roster.version == self._versions[driver.name]
        outlaws = self._outlaws(held)
        right = charter, members, outlaws
        if held is not None and newest and (held.charter, held.roster.peers, held.roster.revoked) == right:
            return held
        roster = Roster(driver.name, self._versions[driver.name] + 1, members, outlaws)
        sealed = await asyncio.to_thread(_sealed, charter, roster, key)
        await database.write(lambda c: keep(c, sealed))
        crashpoint("papers.kept")
        self._hold(sealed)
        log.info("roster", job=driver.name, version=roster.version, peers=len(members), revoked=len(roster.revoked))
        return sealed

    def _charter(self, driver: Driver, key: Key) -> Charter:
        model = tree_slot(driver.hub.slots, "model")
        shown = driver.spec.model_dump(mode="json")
        return Charter(driver.name, config_sha(shown), schema_sha(model), key.pub, key.pub)

    def _members(self, driver: Driver) -> tuple[Peer, ...]:
        names = sorted(self._partners[driver.name] & self._contacts.keys())
        return tuple(self._member(driver, name, self._contacts[name]) for name in names)

    def _member(self, driver: Driver, node: str, contact: Contact) -> Peer:
        known = self.peers(driver.name).get(node)
        most = known.examples if known is not None else 0
        weight = self._weight_of(driver.name, node)
        if driver.spec.gossip.mixing["name"] in PASS_MASS_ON:
            most = 0
        elif weight is not None and (weight > most or not most):
            most = min(math.ceil(SLACK * weight), WEIGHT_MAX)
        return Peer(node, contact.peer_id, contact.pub, contact.urls, contact.inbound, most)

    def _outlaws(self, held: Sealed | None) -> tuple[str, ...]:
        """Who is out for good: whoever's key was revoked, for he may have a certificate, listed or not."""
        before = held.roster.revoked if held is not None else ()
        return tuple(sorted({*before, *self._revoked}))[:REVOKED_MAX]


def _contact(row: dict[str, Any]) -> Contact:
    return Contact(row["pub"], tuple(row["urls"]), row["inbound"])


def _sealed(charter: Charter, roster: Roster, key: Key) -> Sealed:
    return Sealed(charter, roster, seal(charter, key, charter), seal(roster, key, charter))


def keep(connection: Connection, sealed: Sealed, leap: int = 0) -> None:
    """Write a job's papers down, in place of those before; the next roster's version is above theirs by `leap`."""
    texts = {"charter": sealed.charter_text.decode(), "roster": sealed.roster_text.decode()}
    row = {"job": sealed.charter.job, "version": sealed.roster.version + leap, **texts}
    statement = insert(tables.papers)
    changed = {name: statement.excluded[name] for name in ("version", "charter", "roster")}
    connection.execute(statement.on_conflict_do_update(index_elements=["job"], set_=changed), row)


def outlaw(connection: Connection, node: str) -> None:
    """Write down that a node's key is out for good; with the node's credential, in one transaction."""
    shown = connection.execute(select(nodes.c.peer).where(nodes.c.name == node)).scalar()
    if shown is not None:
        row = {"peer_id": peer_id_of(shown["pub"]), "node": node, "at": time.time()}
        connection.execute(insert(revoked_keys).on_conflict_do_nothing(), row)
