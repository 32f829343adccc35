"""The trust documents and the peer group of one job, for a node of a coordinator.

The group opens once there are documents, which name its members: a node without a task may already relay for others.
It accepts models once this node has one to compare them with. Documents are saved, so that a node that starts while
the coordinator is away finds its peers. The charter comes by the same route as the job, and only with a newer roster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, Refused, ShoalError, message_of
from shoal.core.model.tree import Tree
from shoal.jobs.spec import JobSpec
from shoal.peering.host.peer_group import PeerCallbacks, PeerGroup
from shoal.peering.http.message_receiver import ExpectedModel
from shoal.peering.http.peer_link import OutgoingMessage, wall_s
from shoal.peering.state.byte_counts import ByteCounts
from shoal.peering.state.peer_state import PeerDocuments
from shoal.peering.state.progress_report import OnTransfer
from shoal.runtime.durable_files import CrashPoint, no_crash
from shoal.runtime.http.node_client import JobDocuments
from shoal.trust.documents import JoinCert, Roster, RosterEntry, config_sha, open_charter, schema_sha, verify_document
from shoal.wire.payload import layouts_of
from shoal_edge_client.peering.edge_listener import EdgeListener
from shoal_edge_client.peering.node_state import NodeState

RENEW_S = 20 * 24 * 3600
"""A certificate that holds for less than this is exchanged for another, while there is a coordinator."""


class EdgePeerGroup:
    """The trust documents and the peer group of one job. Used in the event loop, except `verify_and_save` and
    `load_documents`, which block.

    `callbacks`: callbacks for messages of the peers; None: there is no group of peers yet.
    """

    def __init__(
        self,
        spec: JobSpec,
        node: str,
        process_number: int,
        state: NodeState,
        listener: EdgeListener,
        callbacks: PeerCallbacks | None,
    ) -> None:
        self.spec, self.node, self.process_number = spec, node, process_number
        self._state, self._listener, self._callbacks = state, listener, callbacks
        self.at: CrashPoint = no_crash
        self.documents: PeerDocuments | None = None
        self.group: PeerGroup | None = None
        self.has_model = False
        """True if the group knows the model's layout."""
        self.log: Any = structlog.get_logger("edge_client.peering").bind(job=spec.name)

    @property
    def version(self) -> int:
        """Return the version of the roster in use; 0 without one."""
        return self.documents.roster.version if self.documents is not None else 0

    @property
    def roster(self) -> frozenset[str] | None:
        """Return the names of all admitted nodes; None while they are unknown."""
        return self.group.liveness.roster if self.group is not None else None

    @property
    def weight_max(self) -> int:
        """Return the greatest weight that peers accept from this node; 0: any."""
        return self.documents.me.examples if self.documents is not None else 0

    @property
    def expires_at(self) -> int:
        """Return when this node's certificate expires, in seconds since 1970; 0 without one."""
        documents = self.documents
        return (
            verify_document(documents.certificate, JoinCert, documents.charter).not_after
            if documents and documents.certificate
            else 0
        )

    @property
    def expires_soon(self) -> bool:
        """Return whether the certificate expires soon, so that a new one must be requested."""
        return 0 < self.expires_at < wall_s() + RENEW_S

    @property
    def needs_model(self) -> bool:
        """Return whether there is a peer group that does not know the model's form yet."""
        return self.group is not None and not self.has_model

    def bytes_crossed(self) -> int:
        """Return the bytes to and from peers since this process began."""
        return self.group.byte_counts.crossed if self.group is not None else 0

    def post(self, to: str, messages: Sequence[OutgoingMessage]) -> None:
        """Send to a peer in the background, if there is a peer group."""
        if self.group is not None:
            self.group.router.post(to, messages)

    def record_refusal(self, code: str, why: str, sender: str) -> None:
        """Count a refused input, if there is a peer group."""
        if self.group is not None:
            self.group.record_refusal(code, why, sender)

    # Trust documents

    def load_documents(self) -> PeerDocuments | None:
        """Return the saved documents; None, with a warning, if they are missing or invalid. Blocks."""
        found = self._state.files.documents()
        try:
            if not found:
                return None
            texts = [found.get(name, "").encode() for name in ("charter", "roster", "certificate")]
            return self._verify(*texts)
        except (ShoalError, KeyError, TypeError, AttributeError) as error:
            self.log.warning("the saved trust documents are discarded", why=message_of(error))
            return None

    def verify_and_save(self, sealed: JobDocuments) -> PeerDocuments:
        """Verify documents from the coordinator and save them durably; blocks. Raises `NotAllowed`, `Refused`."""
        documents = self.verify(sealed)
        self.save_documents(sealed)
        return documents

    def verify(self, sealed: JobDocuments) -> PeerDocuments:
        """Verify documents from the coordinator. Raises `NotAllowed`, `Refused`."""
        return self._verify(sealed.charter, sealed.roster, sealed.certificate)

    def save_documents(self, sealed: JobDocuments) -> None:
        """Save documents durably; blocks."""
        texts = {"charter": sealed.charter, "roster": sealed.roster, "certificate": sealed.certificate}
        self._state.files.save("documents", {name: text.decode() for name, text in texts.items()})

    def _verify(self, charter_text: bytes, roster_text: bytes, certificate: bytes) -> PeerDocuments:
        charter = open_charter(charter_text)
        roster = verify_document(roster_text, Roster, charter)
        if charter.job != self.spec.name or charter.config_sha != config_sha(self.spec.model_dump(mode="json")):
            hint = "install the coordinator's release of shoal here as well"
            raise Refused(f"the charter is not of the job {self.spec.name} as it is", code="peer.config", hint=hint)
        me = next((peer for peer in roster.peers if peer.peer_id == self._listener.key.peer_id), None)
        if me is None and certificate:
            me = self._certified(verify_document(certificate, JoinCert, charter))
        if me is None or me.node != self.node:
            hint = "the coordinator adds it when it polls for the job; check that it was not removed"
            raise NotAllowed("the roster does not name this node's key", code="peer.stranger", hint=hint)
        return PeerDocuments(self.spec, charter, roster, roster_text, self._listener.key, me, certificate)

    def _certified(self, cert: JoinCert) -> RosterEntry | None:
        """Return this node's roster entry by its certificate."""
        contact = self._listener.contact()
        if cert.public_key != contact.public_key:
            return None
        return RosterEntry(
            cert.node, cert.peer_id, cert.public_key, contact.urls, contact.is_reachable, cert.examples_max
        )

    def update_documents(self, documents: PeerDocuments) -> None:
        """Use these documents. A new charter closes the peer group; `connect` opens another.

        Raises `Refused`, and those before hold: for an older roster, and for another one of the same version, which two
        coordinators with one key and one term would sign.
        """
        if self.group is not None and self.documents is not None:
            if self.documents.charter.digest == documents.charter.digest:
                self.group.update_documents(documents)
            else:
                self.close()
        self.documents = documents

    # Peer group

    def connect(self, has_way: Callable[[], bool]) -> None:
        """Open the peer group once there are documents, unless it is open. Models are refused until `set_model`.

        Requests of peers are relayed to the coordinator while `has_way()`.
        """
        if self.documents is None or self.group is not None or self._callbacks is None:
            return
        filters = self.spec.shown_through()
        expected = ExpectedModel(self.spec.name, self._state.blobs, filters, holds=self._state.holds)
        self.has_model = False
        folder = self._state.files.folder
        self.group = PeerGroup(self.documents, folder, self.process_number, expected, self._callbacks, at=self.at)
        if self._listener.uplink is not None:
            self.group.enable_relay(self._listener.uplink, has_way, ByteCounts(folder / "relayed_bytes.json"))
        self._listener.groups[self.spec.name] = self.group
        self.group.start()
        self.log.info("peer group opened", peers=len(self.documents.others), roster=self.version)

    def set_model(self, model: Tree, length: Callable[[], float], moved: OnTransfer) -> None:
        """Accept models of this form. Raises `Refused` if the charter names another form.

        `length`: the norm of this node's model as it is then; `moved` is told how far models have come.
        """
        if self.documents is None or self.group is None:
            return
        if schema_sha(model) != self.documents.charter.schema_sha:
            hint = "use the learner that the job started with: names, types and shapes must be equal"
            raise Refused("this node's model is not the charter's", code="peer.schema", hint=hint)
        self.has_model = True
        self.group.expected_model.set_model(layouts_of(self.spec.build_algorithm().init(model)), length)
        self.group.expected_model.on_transfer = moved

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
            self._listener.groups.pop(self.spec.name, None)
            self.group = None
