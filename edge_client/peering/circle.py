"""The others of one job, for a node of a coordinator: its papers, and the company that they make.

There is company once two things are there: papers, which name who takes part, and a model that a peer's can be held
against. Papers are kept, so that a node which starts while the coordinator is dead finds the others. A charter comes
over the same way as the job itself, and with a newer roster alone.
"""

from __future__ import annotations

from typing import Any

import structlog

from edge_client.peering.desk import Desk
from edge_client.peering.porch import Porch
from peer.company import Company, Ears
from peer.folder import Papers
from peer.intake import Standard
from shoal.core.errors import NotAllowed, Refused, ShoalError
from shoal.core.tree import Tree
from shoal.runtime.node_link import SealedPapers
from shoal.runtime.store import CrashPoint, no_crash
from shoal.spec import JobSpec
from shoal.trust.papers import Roster, config_sha, open_charter, schema_sha, unseal
from shoal.wire import payload_layout


class Circle:
    """Made and used in the event loop, but for `offered` and `kept`, which read and write files."""

    def __init__(
        self, spec: JobSpec, node: str, boot: int, desk: Desk, porch: Porch, ears: Ears, *, at: CrashPoint = no_crash
    ) -> None:
        self.spec, self.node, self.boot = spec, node, boot
        self._desk, self._porch, self._ears, self._at = desk, porch, ears, at
        self.papers: Papers | None = None
        self.company: Company | None = None
        self.log: Any = structlog.get_logger("edge_client.peering").bind(job=spec.name)

    @property
    def version(self) -> int:
        """Of the roster that is held; 0: none is."""
        return self.papers.roster.version if self.papers is not None else 0

    @property
    def weight_max(self) -> int:
        """The greatest weight that others let this node claim; 0: any."""
        return self.papers.me.examples if self.papers is not None else 0

    # Papers

    def kept(self) -> Papers | None:
        """What an earlier process has kept; blocks. What is not right any more is named in the log and given up."""
        found = self._desk.papers()
        try:
            return self._checked(found["charter"].encode(), found["roster"].encode()) if found else None
        except (ShoalError, KeyError, TypeError, AttributeError) as error:
            self.log.warning("the papers that were kept are given up", why=str(error))
            return None

    def offered(self, sealed: SealedPapers) -> Papers:
        """What the coordinator gives, checked, and kept durably; blocks. Raises `NotAllowed`, `Refused`."""
        papers = self._checked(sealed.charter, sealed.roster)
        self._desk.keep_papers({"charter": sealed.charter.decode(), "roster": sealed.roster.decode()})
        return papers

    def _checked(self, charter_text: bytes, roster_text: bytes) -> Papers:
        charter = open_charter(charter_text)
        roster = unseal(roster_text, Roster, charter)
        if charter.job != self.spec.name or charter.config_sha != config_sha(self.spec.model_dump(mode="json")):
            hint = "install the coordinator's release of shoal here as well"
            raise Refused(f"the charter is not of the job {self.spec.name} as it is", code="peer.config", hint=hint)
        me = next((peer for peer in roster.peers if peer.peer_id == self._porch.key.peer_id), None)
        if me is None or me.node != self.node:
            hint = "it is taken in when it polls for the job; was it removed?"
            raise NotAllowed("the roster does not name this node's key", code="peer.stranger", hint=hint)
        return Papers(self.spec, charter, roster, roster_text, self._porch.key, me)

    def take(self, papers: Papers) -> None:
        """From now on these hold. A new charter ends the company: another one follows. Raises `Refused`."""
        old, self.papers = self.papers, papers
        if self.company is None or old is None:
            return
        if old.charter.digest == papers.charter.digest:
            self.company.take_papers(papers)
        else:
            self.close()

    # Company

    def open(self, model: Tree, length: float) -> None:
        """Meet the others, if there are papers. `length`: the model's norm. Raises `Refused` for a foreign model."""
        if self.papers is None or self.company is not None:
            return
        if schema_sha(model) != self.papers.charter.schema_sha:
            hint = "names, types and shapes must be those that the job began with: is it the same learner?"
            raise Refused("this node's model is not the charter's", code="peer.schema", hint=hint)
        standard = Standard(self.spec.name, payload_layout({"model": model.layout}), self._desk.bodies)
        standard.awaited, standard.norm = self._desk.awaited, length
        folder = self._desk.peer_folder
        self.company = Company(self.papers, folder, self.boot, standard, self._ears, at=self._at)
        self._porch.residents[self.spec.name] = self.company
        self.company.start()
        self.log.info("the others are known", peers=len(self.papers.others), roster=self.version)

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
