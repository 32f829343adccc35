"""Documents that the coordinator signs for jobs that allow gossip: a charter for each, and a roster of its peers.

A node is in the roster of a job if it has sent a key with its hello and polls for the job; it stays until its key, its
registration or its wish to gossip is gone. A change makes a new roster at the next request for the documents, or within
a tick, so that nodes that come together share one. A roster is on disk before it is sent, so two rosters of one version
never differ. A charter changes only if it has become wrong: another release shows a job with more settings, or the
coordinator's key was lost. Then the next roster comes with a new charter.
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
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection, select

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import Refused, ShoalError
from shoal.core.server.hub import Hub
from shoal.jobs.spec import JobSpec
from shoal.trust.documents import (
    PEERS_MAX,
    REVOKED_MAX,
    Charter,
    JoinCert,
    Roster,
    RosterEntry,
    config_sha,
    open_charter,
    schema_sha,
    sign_document,
    verify_document,
)
from shoal.trust.keys import SigningKey, load_or_create, peer_id_of
from shoal_coordinator.schemas.peers import ContactRequest
from shoal_coordinator.storage import tables
from shoal_coordinator.storage.crashpoints import crashpoint
from shoal_coordinator.storage.dialects import insert
from shoal_coordinator.storage.tables import nodes, revoked_keys
from shoal_coordinator.storage.writer import Database

log = structlog.get_logger()

KEY_FILE = "coordinator.pem"

CERTIFICATE_S = 30 * 24 * 3600
"""Validity of a join certificate in seconds."""

WEIGHT_FACTOR = 2
"""Greatest weight that a peer may claim, relative to its last reported weight."""

MASS_MIXINGS = ("push_sum",)
"""Mixings in which a peer may hold the weight of many, so that no greatest weight applies."""

WEIGHT_MAX = 2**53

LEAP = 1000
"""Upper bound of the documents that a lost coordinator has signed since the ones that are left."""


@dataclass(frozen=True)
class PeerContact:
    """Contact of a node as a peer: its key and addresses."""

    public_key: str
    urls: tuple[str, ...]
    is_reachable: bool

    @classmethod
    def of(cls, view: ContactRequest) -> PeerContact:
        """Return the contact that a node sent."""
        return cls(view.public_key, tuple(view.urls), view.is_reachable)

    @cached_property
    def peer_id(self) -> str:
        """Return the peer id of the key."""
        return peer_id_of(self.public_key)

    def row(self) -> dict[str, Any]:
        """Return the database row."""
        return {"public_key": self.public_key, "urls": list(self.urls), "is_reachable": self.is_reachable}


@dataclass(frozen=True)
class SignedDocuments:
    """The documents of one job, parsed and as signed texts."""

    charter: Charter
    roster: Roster
    charter_text: bytes
    roster_text: bytes


class ReadableHub(Protocol):
    """Access to a job's hub (`jobs.hub_gate.HubGate`)."""

    is_restoring: bool

    async def wait_consistent(self) -> None:
        """Wait until the hub can be read."""


class SignableJob(Protocol):
    """The running job that documents are signed for."""

    spec: JobSpec

    @property
    def name(self) -> str:
        """Return the job's name."""
        ...

    @property
    def hub(self) -> Hub:
        """Return the job's hub."""
        ...

    @property
    def gate(self) -> ReadableHub:
        """Return the access to the hub."""
        ...


WeightOf = Callable[[str, str], float | None]


class TrustDocuments:
    """The documents of all jobs. Use it in the event loop only; signing runs in a thread.

    `weight_of(job, node)`: returns the weight that the node reported last; None if unknown.
    """

    def __init__(self, folder: Path, weight_of: WeightOf) -> None:
        self._folder, self._weight_of = folder, weight_of
        self._key: SigningKey | None = None
        self._current: dict[str, SignedDocuments] = {}
        self._peers: dict[str, dict[str, RosterEntry]] = {}  # by job, the peers of its roster by name
        self._versions: defaultdict[str, int] = defaultdict(int)  # by job, that of the last roster
        self._checked_charters: set[str] = set()  # jobs whose charter this process has looked at
        self._contacts: dict[str, PeerContact] = {}
        self._revoked: set[str] = set()
        self._participants: defaultdict[str, set[str]] = defaultdict(set)  # by job, the nodes that take part
        self._signing = asyncio.Lock()
        self.contact_lock = asyncio.Lock()
        """Held from `check_key` to `set_contact`."""

    def load(self, connection: Connection) -> None:
        """Load the documents of earlier processes. Unreadable ones are signed again, under a higher number."""
        for row in connection.execute(select(nodes).where(~nodes.c.revoked)):
            if row.peer is not None:
                self._contacts[row.name] = _contact(row.peer)
        self._revoked = set(connection.execute(select(revoked_keys.c.peer_id)).scalars())
        for row in connection.execute(select(tables.trust_documents)):
            try:
                charter = open_charter(row.charter.encode())
                roster = verify_document(row.roster.encode(), Roster, charter)
            except ShoalError as error:
                log.error("trust documents cannot be read; they are signed again", job=row.job, why=error.message)
            else:
                self._set(SignedDocuments(charter, roster, row.charter.encode(), row.roster.encode()))
                self._participants[row.job] = {peer.node for peer in roster.peers}
            self._versions[row.job] = row.version

    def _set(self, signed: SignedDocuments) -> None:
        job = signed.charter.job
        self._current[job], self._peers[job] = signed, {peer.node: peer for peer in signed.roster.peers}
        self._versions[job] = signed.roster.version

    def forget(self, job: str) -> None:
        """Forget a job that was removed."""
        for known in (self._current, self._peers, self._versions, self._participants):
            known.pop(job, None)
        self._checked_charters.discard(job)

    def recover(self, signed: SignedDocuments, known: tuple[str, ...]) -> None:
        """Load the documents of a job of another coordinator; `known`: nodes that this one knows by their keys.

        They are in its next roster, although they are silent; other nodes take part again when they send a key.
        """
        self._set(signed)
        self._versions[signed.charter.job] += LEAP
        self._revoked |= set(signed.roster.revoked_peer_ids)
        self._participants[signed.charter.job] = set(known)
        for peer in signed.roster.peers:
            if peer.node in known:
                self._contacts.setdefault(peer.node, PeerContact(peer.public_key, peer.urls, peer.is_reachable))

    # Participation

    def check_key(self, node: str, contact: PeerContact | None) -> None:
        """Raise `Refused` for a key that is revoked or belongs to another node."""
        if contact is None:
            return
        if contact.peer_id in self._revoked:
            raise Refused(
                f"the key that {node} shows was revoked",
                code="peer.revoked",
                hint="remove the file of the node's key, so that it makes a new one",
            )
        if any(other.public_key == contact.public_key for name, other in self._contacts.items() if name != node):
            raise Refused(
                f"the key that {node} shows is another node's",
                code="peer.key-taken",
                hint="give each node a state folder of its own, and never copy one",
            )

    def contact(self, node: str) -> PeerContact | None:
        """Return a node's latest contact."""
        return self._contacts.get(node)

    def set_contact(self, node: str, contact: PeerContact | None) -> bool:
        """Set a node's contact; None: it takes no part. Return whether its key is new."""
        before = self._contacts.pop(node, None)
        if contact is None:
            return False
        self._contacts[node] = contact
        return before is None or before.public_key != contact.public_key

    def revoke(self, node: str) -> None:
        """Exclude a node's key for good. (`revoke_key` has stored that.)"""
        for participants in self._participants.values():
            participants.discard(node)
        contact = self._contacts.pop(node, None)
        if contact is not None:
            self._revoked.add(contact.peer_id)

    def set_participation(self, job: str, node: str, *, wanted: bool = True) -> None:
        """Record whether a node polls for a job."""
        if not wanted:
            self._participants[job].discard(node)
        elif len(self._participants[job]) < PEERS_MAX:
            self._participants[job].add(node)

    # Documents

    def current(self, job: str) -> SignedDocuments | None:
        """Return the documents as they were signed last."""
        return self._current.get(job)

    def peers(self, job: str) -> dict[str, RosterEntry]:
        """Return the peers of a job by name, as in its roster."""
        return self._peers.get(job, {})

    async def key(self) -> SigningKey:
        """Return the coordinator's key, created at the first use. Raises `StorageFailed`."""
        if self._key is None:
            self._key = await asyncio.to_thread(load_or_create, self._folder / KEY_FILE)
        return self._key

    async def up_to_date(self, runner: SignableJob, database: Database) -> SignedDocuments:
        """Return the documents, signed again if needed. Raises `Refused` (`trust.none`, `trust.early`) and
        `StorageFailed`."""
        if not runner.spec.gossip.allowed:
            raise Refused(
                f"job {runner.name} does not allow its nodes to continue it as peers",
                code="trust.none",
                hint="set allowed = true under [gossip] in its file, and start it as a new job",
            )
        await runner.gate.wait_consistent()
        if not runner.hub.store.slots:
            raise Refused(
                f"job {runner.name} has no model yet, which its charter must name",
                code="trust.early",
                hint="ask again when the job has made version 0",
            )
        async with self._signing:
            return await self._sign_changes(runner, database)

    async def certificate(self, runner: SignableJob, node: str) -> bytes:
        """Return the join certificate of a node, for peers that do not know it; empty without a key.

        Call `up_to_date` before.
        """
        contact = self._contacts.get(node)
        if contact is None:
            return b""
        key, member = await self.key(), self._member(runner, node, contact)
        until = int(time.time()) + CERTIFICATE_S
        current = self._current[runner.name]
        cert = JoinCert(runner.name, node, member.peer_id, member.public_key, member.examples, until)
        return await asyncio.to_thread(sign_document, cert, key, current.charter)

    async def refresh(self, runner: SignableJob, database: Database) -> None:
        """Sign changed documents of a job that allows gossip and has a model."""
        if (
            runner.spec.gossip.allowed
            and not runner.gate.is_restoring
            and runner.hub.store.slots
            and not self._is_current(runner)
        ):
            async with self._signing:
                await self._sign_changes(runner, database)

    def _is_current(self, runner: SignableJob) -> bool:
        """Return whether no document needs to be signed again. (A charter can become wrong only after a restart.)"""
        current = self._current.get(runner.name)
        if current is None or runner.name not in self._checked_charters:
            return False
        newest = current.roster.version == self._versions[runner.name]
        return newest and (current.roster.peers, current.roster.revoked_peer_ids) == (
            self._members(runner),
            self._revoked_keys(current),
        )

    async def _sign_changes(self, runner: SignableJob, database: Database) -> SignedDocuments:
        current = self._current.get(runner.name)
        key = await self.key()
        charter, members = self._charter(runner, key), self._members(runner)
        self._checked_charters.add(runner.name)
        newest = current is not None and current.roster.version == self._versions[runner.name]
        revoked = self._revoked_keys(current)
        wanted = charter, members, revoked
        if (
            current is not None
            and newest
            and (current.charter, current.roster.peers, current.roster.revoked_peer_ids) == wanted
        ):
            return current
        roster = Roster(runner.name, self._versions[runner.name] + 1, members, revoked)
        signed = await asyncio.to_thread(_sign, charter, roster, key)
        await database.write(lambda c: store_documents(c, signed))
        crashpoint("trust-documents.stored")
        self._set(signed)
        log.info(
            "roster", job=runner.name, version=roster.version, peers=len(members), revoked=len(roster.revoked_peer_ids)
        )
        return signed

    def _charter(self, runner: SignableJob, key: SigningKey) -> Charter:
        model = tree_slot(runner.hub.store.slots, "model")
        shown = runner.spec.model_dump(mode="json")
        return Charter(runner.name, config_sha(shown), schema_sha(model), key.public_key, key.public_key)

    def _members(self, runner: SignableJob) -> tuple[RosterEntry, ...]:
        names = sorted(self._participants[runner.name] & self._contacts.keys())
        return tuple(self._member(runner, name, self._contacts[name]) for name in names)

    def _member(self, runner: SignableJob, node: str, contact: PeerContact) -> RosterEntry:
        known = self.peers(runner.name).get(node)
        weight_max = known.examples if known is not None else 0
        weight = self._weight_of(runner.name, node)
        if runner.spec.gossip.mixing["name"] in MASS_MIXINGS:
            weight_max = 0
        elif weight is not None and (weight > weight_max or not weight_max):
            weight_max = min(math.ceil(WEIGHT_FACTOR * weight), WEIGHT_MAX)
        return RosterEntry(node, contact.peer_id, contact.public_key, contact.urls, contact.is_reachable, weight_max)

    def _revoked_keys(self, current: SignedDocuments | None) -> tuple[str, ...]:
        """Return all revoked keys, listed in the roster or not, because their owners may have certificates."""
        before = current.roster.revoked_peer_ids if current is not None else ()
        return tuple(sorted({*before, *self._revoked}))[:REVOKED_MAX]


def _contact(row: dict[str, Any]) -> PeerContact:
    return PeerContact(row["public_key"], tuple(row["urls"]), row["is_reachable"])


def _sign(charter: Charter, roster: Roster, key: SigningKey) -> SignedDocuments:
    return SignedDocuments(charter, roster, sign_document(charter, key, charter), sign_document(roster, key, charter))


def store_documents(connection: Connection, signed: SignedDocuments, leap: int = 0) -> None:
    """Store a job's documents; the next roster's version is above theirs by `leap`."""
    texts = {"charter": signed.charter_text.decode(), "roster": signed.roster_text.decode()}
    row = {"job": signed.charter.job, "version": signed.roster.version + leap, **texts}
    statement = insert(tables.trust_documents)
    changed = {name: statement.excluded[name] for name in ("version", "charter", "roster")}
    connection.execute(statement.on_conflict_do_update(index_elements=["job"], set_=changed), row)


def revoke_key(connection: Connection, node: str) -> None:
    """Store that a node's key is revoked, in the transaction that revokes its credential."""
    shown = connection.execute(select(nodes.c.peer).where(nodes.c.name == node)).scalar()
    if shown is not None:
        row = {"peer_id": peer_id_of(shown["public_key"]), "node": node, "at": time.time()}
        connection.execute(insert(revoked_keys).on_conflict_do_nothing(), row)
