"""The peers of one job, with or without a coordinator.

    documents    the charter and the newest roster
    admission    the verifier, which authenticates requests, and the peers that certificates admitted
    liveness     the membership, which tells the live peers
    router       links and mailbox

The group answers membership messages at once; all other messages go to the peer's machine (`PeerCallbacks`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from shoal.core.errors import Refused
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.membership.failure_detector import CALLERS_PERIODS
from shoal.core.membership.membership import Membership
from shoal.core.membership.swim_config import SwimConfig
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.peer_message import (
    CoordinatorStatus,
    MembershipMessage,
    PeerMessage,
    RelayRequest,
    RelayResponse,
)
from shoal.peering.host.admitted_peers import AdmittedPeers
from shoal.peering.host.membership_runner import MembershipRunner
from shoal.peering.host.message_router import MessageRouter
from shoal.peering.host.quarantine import Refusals, refusal_code, without_hearsay
from shoal.peering.http.hosted_peer import CheckpointSource
from shoal.peering.http.message_receiver import ExpectedModel, MessageReceiver
from shoal.peering.http.peer_link import LinkContext, OutgoingMessage, PeerLink, wall_s
from shoal.peering.http.relay_server import RelayServer, RelayUplink
from shoal.peering.http.roster_updates import RosterSync
from shoal.peering.roster.join_certificate import CertificateEntry, read_entry
from shoal.peering.state.byte_counts import ByteCounts
from shoal.peering.state.peer_state import PeerDocuments, load_verifier
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.trust.documents import ModeRecord, verify_document
from shoal.trust.envelope import SignedRequest as Signed
from shoal.trust.envelope import Signer

TIMEOUT_SHARE = 0.4
"""The share of a membership period after which others are asked about a peer that does not answer."""


@dataclass(frozen=True)
class PeerCallbacks:
    """The policy of a peer: its machine, and what differs with and without a coordinator."""

    handle_messages: Callable[[Sequence[PeerMessage]], Awaitable[list[OutgoingMessage]]]
    """Handles messages of one peer that are not about membership; returns the answers."""
    on_live_peers: Callable[[LivePeers], None]
    status: Callable[[], dict[str, Any]]
    """Returns the machine's state as JSON values."""
    on_forced_mode: Callable[[ModeRecord], Awaitable[bool]] | None = None
    """Applies an operator's verified mode record; returns whether the machine followed it. None: no coordinator."""
    checkpoints: CheckpointSource | None = None
    """The checkpoints kept for a coordinator that loses its disk."""
    on_event: Callable[[JobEvent], None] | None = None
    """Receives events of membership; without it they are logged."""
    on_quarantined: Callable[[str, str], None] | None = None
    """Receives (peer, code) when a peer is quarantined."""


class PeerGroup:
    """The peers of one job (`HostedPeer`). `folder`: its state. Made and used in the event loop.

    Raises `StorageFailed`, and what `RequestVerifier.update_roster` raises for the roster of the documents.
    """

    def __init__(
        self,
        documents: PeerDocuments,
        folder: Path,
        process_number: int,
        expected_model: ExpectedModel,
        callbacks: PeerCallbacks,
        *,
        addresses: Mapping[str, str] | None = None,
        at: CrashPoint = no_crash,
    ) -> None:
        me, settings = documents.me, documents.spec.gossip
        self.documents, self.expected_model, self._callbacks = documents, expected_model, callbacks
        self.roster_sync: RosterSync | None = None
        """The roster synchronization of a job without a coordinator."""
        self.relay: RelayServer | None = None
        self.log: Any = structlog.get_logger("peer.group").bind(job=expected_model.job)
        self.byte_counts = ByteCounts(folder / "bytes.json")
        self.verifier, self.verifier_lock = load_verifier(folder / "windows.json", documents), threading.Lock()
        self.signer, self.refusals = Signer(documents.key, documents.charter, process_number), Refusals()
        self.admission = AdmittedPeers(self.verifier, self.verifier_lock, folder, documents, at)
        entry = CertificateEntry(documents.certificate, me.urls).text() if documents.certificate else b""
        context = LinkContext(
            expected_model,
            self.signer,
            self.verifier,
            self.verifier_lock,
            self.byte_counts,
            wall_s,
            entry,
            self.record_refusal,
        )
        kept_s, period_s = settings.exchange_timeout_s, settings.probe_interval_s
        self.router = MessageRouter(
            context, self._on_messages, kept_s, lambda: expected_model.body_bytes, addresses or {}
        )
        self.membership = Membership(
            me.node,
            rng=random.Random(f"{documents.spec.seed}/{me.node}/{process_number}/members"),
            pace=SwimConfig(period_s=period_s, timeout_s=TIMEOUT_SHARE * period_s),
        )
        self.liveness = MembershipRunner(
            self.membership, self.router, self.refusals, self._on_membership_event, callbacks.on_live_peers
        )
        self._connect()

    def _connect(self) -> None:
        """Update links and membership to the roster."""
        members, others = self.admission.update(self.documents)
        me = self.documents.me
        self.router.connect(others)
        self.membership.admit(members | {me.node}, self.router.reachability(members - {me.node}, me.is_reachable))

    def on_discovered(self, peer_id: str, url: str) -> None:
        """Call a peer at a discovered address, unless it has another one that works."""
        peer = next((one for one in self.documents.others if one.peer_id == peer_id), None)
        if peer is not None and self.router.use_address(peer, url):
            self.log.info("peer discovered", peer=peer.node, url=url)
            self._connect()

    def start(self) -> None:
        """Announce this peer."""
        self.liveness.start()

    def enable_relay(self, uplink: RelayUplink, has_way: Callable[[], bool], byte_counts: ByteCounts) -> None:
        """Relay requests of peers to the coordinator while this node reaches it."""
        self.relay = RelayServer(self.documents, uplink, byte_counts, has_way)

    def update_documents(self, documents: PeerDocuments) -> None:
        """Use a newer roster. Raises `Refused` for an older one."""
        with self.verifier_lock:
            self.verifier.update_roster(documents.sealed_roster)
        self.documents = documents
        if self.relay is not None:
            self.relay.update_roster(documents.sealed_roster)
        self._connect()
        self.liveness.update_live()

    async def leave(self) -> None:
        """Tell peers that this one leaves, and wait until they have got what was sent to them."""
        await self.liveness.leave()
        await self.router.wait_delivered(CALLERS_PERIODS * self.documents.spec.gossip.probe_interval_s)

    def close(self) -> None:
        """Close all links and tasks; `save` stores windows and byte counts."""
        self.liveness.close()
        self.router.close()

    def save(self) -> None:
        """Save windows, admitted peers and byte counts; blocks. Raises `StorageFailed`."""
        self.byte_counts.save()
        if self.relay is not None:
            self.relay.byte_counts.save()
        self.admission.save()

    # Messages of peers

    async def handle_messages(
        self, messages: Sequence[PeerMessage], receiver: MessageReceiver
    ) -> list[OutgoingMessage]:
        """Handle the messages of one batch; return the answers and the mail that waits for the sender."""
        try:
            answers: list[OutgoingMessage] = []
            rest: list[PeerMessage] = []  # requests for the coordinator come by `relay_server`
            for message in without_hearsay(messages, self.refusals.quarantined) if not self.router.is_closed else ():
                if isinstance(message, MembershipMessage):
                    answers += self.liveness.handle(message)
                elif not isinstance(message, RelayRequest | RelayResponse) and not self._is_unusable_relay(message):
                    self.router.exchanges.record(message.node, message)
                    rest.append(message)
            if rest:
                replies = await self._callbacks.handle_messages(rest)
                for message, _ in replies:
                    self.router.exchanges.record(rest[0].node, message)
                answers += replies
            return [*answers, *self.router.mailbox.take(messages[0].node)]
        finally:
            receiver.release()

    def _is_unusable_relay(self, message: PeerMessage) -> bool:
        """Return whether a peer hears the coordinator but cannot relay to it, as it cannot be called."""
        return isinstance(message, CoordinatorStatus) and message.hears_hub and message.node in self.router.callers

    def _on_messages(self, messages: Sequence[PeerMessage], receiver: MessageReceiver) -> None:
        """Handle a peer's answer, which may lead to more messages."""
        self.router.spawn(self._handle_and_reply(messages, receiver))

    async def _handle_and_reply(self, messages: Sequence[PeerMessage], receiver: MessageReceiver) -> None:
        answers = await self.handle_messages(messages, receiver)
        if answers:
            await self.router.send(messages[0].node, answers)

    def record_refusal(self, code: str, why: str, sender: str) -> None:
        """Count and log a refused input; quarantine its sender after repeated ones."""
        self.log.warning("refused", code=code, why=why, sender=sender)
        if code == "trust.stranger" and self.roster_sync is not None:
            self.roster_sync.notify_stranger()  # others may have a roster that names it
        if self.refusals.record(sender, code):
            self.log.warning("in quarantine: this peer starts no exchange with it", peer=sender, code=code)
            if self._callbacks.on_quarantined is not None:
                self._callbacks.on_quarantined(sender, code)
            self.liveness.update_live()

    def record_machine_refusal(self, event: JobEvent) -> None:
        """Count and log a refusal by a machine."""
        self.record_refusal(refusal_code(event), event.text, event.node)

    def _on_membership_event(self, event: JobEvent) -> None:
        if event.kind == "refusal":
            self.record_machine_refusal(event)
        if self._callbacks.on_event is not None:
            self._callbacks.on_event(event)
        elif event.kind != "refusal":
            self.log.info(event.text)

    # Requests of operators and newcomers

    async def admit_by_certificate(self, request: Signed, text: bytes) -> bytes:
        """Admit a newcomer by its certificate; return the roster. Raises `NotAllowed`, `Refused`."""
        if self._callbacks.on_forced_mode is None:
            hint = "have its operator sign a newer roster (shoal peer init), and bring that"
            raise Refused("no coordinator certifies nodes of this job", code="peer.no-certificates", hint=hint)
        entry = read_entry(text)
        node = self.admission.admit(entry, request, text, self.documents)
        if node:
            self._connect()
            self.liveness.update_live()
            self.log.info("a newcomer is admitted by its certificate", peer=node, urls=list(entry.urls))
        return self.documents.sealed_roster

    async def force_mode(self, sealed: bytes) -> None:
        """Verify and apply an operator's signed mode record. Raises `NotAllowed`, `Refused`."""
        if self._callbacks.on_forced_mode is None:
            hint = "its peers always run it by themselves"
            raise Refused("this job has no coordinator", code="mode.no-server", hint=hint)
        record = verify_document(sealed, ModeRecord, self.documents.charter)
        if record.mode == "server":
            raise Refused(
                "a job returns only when its coordinator is back",
                code="mode.server",
                hint=f"ask the coordinator: shoal switch {self.expected_model.job} server",
            )
        if not await self._callbacks.on_forced_mode(record):
            raise Refused(
                f"not followed: this node hears its coordinator, gossips already, or knows of term {record.term}",
                code="mode.not-now",
                hint="look at its state and term: GET /p2p/JOB/status; while the coordinator answers, ask that",
            )
        self.log.info("an operator has switched the job to gossip", term=record.term, why=record.why)

    @property
    def checkpoints(self) -> CheckpointSource | None:
        """Return the checkpoints kept for a coordinator that loses its disk."""
        return self._callbacks.checkpoints

    # Status

    def live_links(self) -> list[PeerLink]:
        return [self.router.links[node] for node in sorted(self.membership.live()) if node in self.router.links]

    def peers(self) -> dict[str, dict[str, Any]]:
        """Return each peer's state, as JSON values. Bytes and exchanges are those of this process."""
        found = {}
        for held in self.membership.members():
            link = self.router.links.get(held.node)
            rtt_s = link.rtt_s if link is not None else None
            found[held.node] = {
                "state": held.state,
                "exchanges": self.router.exchanges.counts[held.node],
                **self.byte_counts.since_start(held.node),
                **({"carried": sum(self.relay.byte_counts.since_start(held.node).values())} if self.relay else {}),
                **({"rtt_ms": round(1000 * rtt_s, 3)} if rtt_s is not None else {}),
            }
        return found

    def status(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        if self._callbacks.on_forced_mode is None:
            return self._callbacks.status()
        job, node = self.expected_model.job, self.documents.me.node
        about = {"job": job, "node": node, "process_number": self.signer.process_number}
        return {
            **about,
            **self._callbacks.status(),
            "peers": self.peers(),
            "last_exchange_s": self.router.exchanges.ages_s(),
            "mailbox": self.router.status(),
            **self.refusals.status(),
        }
