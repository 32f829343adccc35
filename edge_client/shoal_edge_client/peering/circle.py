"""The others of one job, for a node of a coordinator: its papers, and the company that they make.

There is company once there are papers, which name who takes part: a node that has no order yet may be needed as well,
to carry what others say. Models are taken once there is one that a peer's can be held against. Papers are kept, so that
a node which starts while the coordinator is dead finds the others. A charter comes over the same way as the job itself,
and with a newer roster alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, Refused, ShoalError, message_of
from shoal.core.tree import Tree
from shoal.runtime.node_link import SealedPapers
from shoal.runtime.store import CrashPoint, no_crash
from shoal.spec import JobSpec
from shoal.trust.papers import JoinCert, Peer, Roster, config_sha, open_charter, schema_sha, unseal
from shoal_edge_client.peering.desk import Desk
from shoal_edge_client.peering.porch import Porch
from shoal_peer.company import Company, Ears
from shoal_peer.folder import Papers
from shoal_peer.intake import Standard
from shoal_peer.link import wall_s
from shoal_peer.progress import Tell

RENEW_S = 20 * 24 * 3600
"""A certificate that holds for less than this is exchanged for another, while there is a coordinator."""


class Circle:
    """Made and used in the event loop, but for `offered` and `kept`, which read and write files.

    `ears`: who hears the others; None: nobody does yet, and there is no company.
    """

    def __init__(
        self,
        spec: JobSpec,
        node: str,
        boot: int,
        desk: Desk,
        porch: Porch,
        ears: Ears | None,
        *,
        at: CrashPoint = no_crash,
    ) -> None:
        self.spec, self.node, self.boot = spec, node, boot
        self._desk, self._porch, self._ears, self._at = desk, porch, ears, at
        self.papers: Papers | None = None
        self.company: Company | None = None
        self.is_measured = False
        """Whether the company knows the model's form."""
        self.log: Any = structlog.get_logger("edge_client.peering").bind(job=spec.name)

    @property
    def version(self) -> int:
        """Of the roster that is held; 0: none is."""
        return self.papers.roster.version if self.papers is not None else 0

    @property
    def roster(self) -> frozenset[str] | None:
        """The names of everybody who is admitted; None while that is not known."""
        return self.company.roster if self.company is not None else None

    @property
    def weight_max(self) -> int:
        """The greatest weight that others let this node claim; 0: any."""
        return self.papers.me.examples if self.papers is not None else 0

    @property
    def until(self) -> int:
        """When this node's certificate runs out, in seconds since 1970; 0: it has none."""
        papers = self.papers
        return unseal(papers.certificate, JoinCert, papers.charter).not_after if papers and papers.certificate else 0

    @property
    def ages(self) -> bool:
        """Whether the certificate runs out before long: a new one is to be asked for."""
        return 0 < self.until < wall_s() + RENEW_S

    # Papers

    def kept(self) -> Papers | None:
        """What an earlier process has kept; blocks. What is not right any more is named in the log and given up."""
        found = self._desk.papers()
        try:
            if not found:
                return None
            texts = [found.get(name, "").encode() for name in ("charter", "roster", "certificate")]
            return self._checked(*texts)
        except (ShoalError, KeyError, TypeError, AttributeError) as error:
            self.log.warning("the papers that were kept are given up", why=message_of(error))
            return None

    def offered(self, sealed: SealedPapers) -> Papers:
        """What the coordinator gives, checked, and kept durably; blocks. Raises `NotAllowed`, `Refused`."""
        papers = self.checked(sealed)
        self.keep_papers(sealed)
        return papers

    def checked(self, sealed: SealedPapers) -> Papers:
        """What the coordinator gives, by itself in order. Raises `NotAllowed`, `Refused`."""
        return self._checked(sealed.charter, sealed.roster, sealed.certificate)

    def keep_papers(self, sealed: SealedPapers) -> None:
        """Keep these durably; blocks."""
        texts = {"charter": sealed.charter, "roster": sealed.roster, "certificate": sealed.certificate}
        self._desk.keep_papers({name: text.decode() for name, text in texts.items()})

    def _checked(self, charter_text: bytes, roster_text: bytes, certificate: bytes) -> Papers:
        charter = open_charter(charter_text)
        roster = unseal(roster_text, Roster, charter)
        if charter.job != self.spec.name or charter.config_sha != config_sha(self.spec.model_dump(mode="json")):
            hint = "install the coordinator's release of shoal here as well"
            raise Refused(f"the charter is not of the job {self.spec.name} as it is", code="peer.config", hint=hint)
        me = next((peer for peer in roster.peers if peer.peer_id == self._porch.key.peer_id), None)
        if me is None and certificate:
            me = self._certified(unseal(certificate, JoinCert, charter))
        if me is None or me.node != self.node:
            hint = "it is taken in when it polls for the job; was it removed?"
            raise NotAllowed("the roster does not name this node's key", code="peer.stranger", hint=hint)
        return Papers(self.spec, charter, roster, roster_text, self._porch.key, me, certificate)

    def _certified(self, cert: JoinCert) -> Peer | None:
        """This node, by its certificate."""
        contact = self._porch.contact()
        if cert.pub != contact.pub:
            return None
        return Peer(cert.node, cert.peer_id, cert.pub, contact.urls, contact.inbound, cert.examples_max)

    def take(self, papers: Papers) -> None:
        """From now on these hold. A new charter ends the company: another one follows.

        Raises `Refused`, and those before hold: for an older roster, and for another one of the same version, which two
        coordinators with one key and one term would sign.
        """
        if self.company is not None and self.papers is not None:
            if self.papers.charter.digest == papers.charter.digest:
                self.company.take_papers(papers)
            else:
                self.close()
        self.papers = papers

    # Company

    def open(self) -> None:
        """Meet the others, if there are papers. Until a model is known (`measure`), words alone are taken."""
        if self.papers is None or self.company is not None or self._ears is None:
            return
        filters = self.spec.shown_through()
        standard = Standard(self.spec.name, self._desk.bodies, filters, awaited=self._desk.awaited)
        self.is_measured = False
        folder = self._desk.peer_folder
        self.company = Company(self.papers, folder, self.boot, standard, self._ears, at=self._at)
        self._porch.residents[self.spec.name] = self.company
        self.company.start()
        self.log.info("the others are known", peers=len(self.papers.others), roster=self.version)

    def measure(self, model: Tree, length: Callable[[], float], moved: Tell) -> None:
        """Hold models of others against this one. Raises `Refused` for one that is foreign.

        `length`: the norm of this node's model as it is then; `moved` is told how far models have come."""
        if self.papers is None or self.company is None:
            return
        if schema_sha(model) != self.papers.charter.schema_sha:
            hint = "names, types and shapes must be those that the job began with: is it the same learner?"
            raise Refused("this node's model is not the charter's", code="peer.schema", hint=hint)
        self.is_measured = True
        self.company.standard.expect(model.layout, length)
        self.company.standard.moved = moved

    def keep(self) -> None:
        """Write down what was heard of whom; blocks."""
        if self.company is not None:
            self.company.keep()

    def close(self) -> None:
        """Part from the others."""
        if self.company is not None:
            self.company.close()
            self._porch.residents.pop(self.spec.name, None)
            self.company = None
