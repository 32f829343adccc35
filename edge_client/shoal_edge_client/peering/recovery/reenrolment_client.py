"""A node whose credential is not known any more asks to be taken in again, by its own key.

It happens where a coordinator has lost its disk: while that is empty it knows nobody, and once a job has been rebuilt
there it knows the job's peers by their keys. Whichever request meets the 401 first asks, in its own thread, and nothing
waits for it but other requests. Until it succeeds the coordinator counts as unreachable: that is what it is to this
node, and what everybody who asks it knows how to bear. Only a refusal that the coordinator itself has signed is final.

FOLDER/rejoining.json     the credential that this node has made, until it is known to be its own
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, ShoalError, Unreachable
from shoal.runtime.node_link import NodeLink
from shoal.runtime.readmission import opened, seal
from shoal.trust.envelope import Signer
from shoal.trust.keys import Key
from shoal.trust.papers import Charter, open_charter
from shoal_edge_client.identity import Identity, State

PAUSE_S = 1.0
"""Between two times that the coordinator is asked."""
TRIES = 3
"""For one job: the first answer tells the term, and that may change in between."""
FINAL = {"trust.revoked", "trust.stranger", "node.removed", "job.ended"}
UNKNOWN, RENEWED = "auth.unknown", "auth.renewed"

_HINT = "if its disk was lost, an operator rebuilds the job from a node (shoal rebuild); this one needs nothing"


class Readmission:
    """Of one node at one coordinator. `papers`: what is kept of each job; `links`: those that carry the credential;
    `hello`: said with a new credential, before anything else is. Any thread may call."""

    def __init__(
        self,
        state: State,
        key: Key,
        next_boot: Callable[[], int],
        papers: Callable[[], Mapping[str, dict[str, Any]]],
        links: Iterable[NodeLink],
        open_link: Callable[[], NodeLink],
        hello: Callable[[NodeLink], None],
    ) -> None:
        self._state, self._key, self._next_boot, self._papers = state, key, next_boot, papers
        self._links, self._open_link, self._hello = tuple(links), open_link, hello
        self.has_token = False
        """Whether a token is at hand, which may be better than to wait."""
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._signers: dict[str, Signer] = {}  # by the charter's digest
        self._terms: dict[str, int] = {}
        self.log: Any = structlog.get_logger("edge_client.readmission")

    def unknown(self, used: str, error: NotAllowed) -> ShoalError:
        """What it means that the coordinator does not know this credential: an error to be raised in its place."""
        with self._lock:
            known = self._state.identity()
            if known is None:
                return error
            if known.credential == used and time.monotonic() >= self._not_before:
                final = self._ask(known, error)
                self._not_before = time.monotonic() + PAUSE_S
                if final is not None:
                    return final
                known = self._state.identity() or known
        if known.credential != used:
            return Unreachable("the coordinator has taken this node in again: asking anew", code=RENEWED)
        text = "the coordinator does not know this node's credential any more, and has not taken it in again"
        return (NotAllowed if self.has_token else Unreachable)(text, code=UNKNOWN, hint=_HINT)

    def _ask(self, known: Identity, error: NotAllowed) -> ShoalError | None:
        """Ask in the name of each job; what is final, if all of them say so, or there is none."""
        charters, refusals = self._charters(), []
        for job, charter in charters.items():
            try:
                with self._open_link() as link:
                    credential = self._state.rejoining()
                    if self._taken_in(link, job, charter, credential) == known.name:
                        self._take(link, replace(known, credential=credential))
                        return None
            except ShoalError as refused:
                refusals.append(refused)
        finals = [refused for refused in refusals if refused.code in FINAL]
        if len(finals) < len(charters):
            why = "; ".join(f"{refused.message} ({refused.code})" for refused in refusals)
            self.log.warning("the coordinator does not know this node's credential; asking again by its key", why=why)
            return None
        if error.code == "node.removed" or not finals:
            return error
        return NotAllowed(finals[0].message, code=finals[0].code, hint=finals[0].hint)

    def _charters(self) -> dict[str, Charter]:
        """By job, whose word counts in it."""
        found = {}
        for job, papers in self._papers().items():
            try:
                found[job] = open_charter(papers["charter"].encode())
            except (ShoalError, KeyError, TypeError, AttributeError) as damaged:
                self.log.debug("papers that cannot be read", job=job, why=repr(damaged))
        return found

    def _taken_in(self, link: NodeLink, job: str, charter: Charter, credential: str) -> str:
        """The name under which the coordinator of that charter has taken this node in; empty: it has not."""
        if charter.digest not in self._signers:
            self._signers[charter.digest] = Signer(self._key, charter, self._next_boot())
        signer = self._signers[charter.digest]
        for _ in range(TRIES):
            carried = seal(signer, self._terms.get(job, 0), credential)
            answer = opened(carried, link.come_back(carried), signer)
            self._terms[job] = answer.term
            if answer.name:
                return answer.name
        return ""

    def _take(self, link: NodeLink, identity: Identity) -> None:
        """The credential is good: from now on it is this node's."""
        self._state.keep(identity)
        link.credential = identity.credential
        for one in self._links:
            one.credential = identity.credential
        self.log.info("taken in again by the coordinator, by this node's key", node=identity.name)
        try:
            self._hello(link)
        except ShoalError as error:
            self.log.debug("it has not heard more of this node", code=error.code, why=error.message)
