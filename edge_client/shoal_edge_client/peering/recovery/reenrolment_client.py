"""Re-enrolment, by its own key, of a node whose credential the coordinator no longer knows.

This happens when a coordinator has lost its disk: with an empty disk it knows no node, and once a job has been
restored it knows the job's peers by their keys. The first request that gets 401 re-enrols, in its thread; only
other requests wait for it. Until it succeeds the coordinator counts as unreachable. Only a refusal signed by the
coordinator is final.

    FOLDER/pending_credential.json     the credential that this node has made, until the coordinator has accepted it
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from shoal.core.errors import NotAllowed, ShoalError, Unreachable
from shoal.runtime.http.node_client import NodeClient
from shoal.runtime.http.reenrolment import opened, seal
from shoal.runtime.http.relay import send
from shoal.trust.documents import Charter, open_charter
from shoal.trust.envelope import Signer
from shoal.trust.keys import SigningKey
from shoal_edge_client.identity import Identity, StateFolder

PAUSE_S = 1.0
"""Between two times that the coordinator is asked."""
TRIES = 3
"""For one job: the first answer tells the term, and that may change in between."""
FINAL = {"trust.revoked", "trust.stranger", "node.removed", "job.ended"}
UNKNOWN, RENEWED = "auth.unknown", "auth.renewed"

_HINT = "if its disk was lost, an operator rebuilds the job from a node (shoal restore); this one needs nothing"


class ReenrolmentClient:
    """Re-enrolment of one node at one coordinator. `documents`: the saved documents of each job; `clients`: those that
    carry the credential; `hello`: sent first with a new credential. Any thread may call."""

    def __init__(
        self,
        state: StateFolder,
        key: SigningKey,
        next_process_number: Callable[[], int],
        documents: Callable[[], Mapping[str, dict[str, Any]]],
        clients: Iterable[NodeClient],
        open_client: Callable[[], NodeClient],
        hello: Callable[[NodeClient], None],
    ) -> None:
        self._state, self._key, self._next_process_number, self._documents = state, key, next_process_number, documents
        self._clients, self._open_client, self._hello = tuple(clients), open_client, hello
        self.has_token = False
        """True if a token is at hand, which may be faster than waiting."""
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._signers: dict[str, Signer] = {}  # by the charter's digest
        self._terms: dict[str, int] = {}
        self.log: Any = structlog.get_logger("edge_client.re_enrolment")

    def on_unknown_credential(self, used: str, error: NotAllowed) -> ShoalError:
        """Re-enrol because the credential is unknown; return the error to raise in place of the answer."""
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
            return Unreachable("the coordinator has re-enrolled this node: the request is repeated", code=RENEWED)
        text = "the coordinator does not know this node's credential any more, and has not re-enrolled it"
        return (NotAllowed if self.has_token else Unreachable)(text, code=UNKNOWN, hint=_HINT)

    def _ask(self, known: Identity, error: NotAllowed) -> ShoalError | None:
        """Ask for each job; return the final refusal if all refuse or there is no job."""
        charters, refusals = self._charters(), []
        for job, charter in charters.items():
            try:
                with self._open_client() as client:
                    credential = self._state.pending_credential()
                    if self._reenrol(client, job, charter, credential) == known.name:
                        self._use_credential(client, replace(known, credential=credential))
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
        """Return the saved charters by job."""
        found = {}
        for job, documents in self._documents().items():
            try:
                found[job] = open_charter(documents["charter"].encode())
            except (ShoalError, KeyError, TypeError, AttributeError) as damaged:
                self.log.debug("unreadable trust documents", job=job, why=repr(damaged))
        return found

    def _reenrol(self, client: NodeClient, job: str, charter: Charter, credential: str) -> str:
        """Return the name under which the coordinator of that charter accepts this node; empty if it does not."""
        if charter.digest not in self._signers:
            self._signers[charter.digest] = Signer(self._key, charter, self._next_process_number())
        signer = self._signers[charter.digest]
        for _ in range(TRIES):
            carried = seal(signer, self._terms.get(job, 0), credential)
            answer = opened(carried, send(client.link, carried, "application/json"), signer)
            self._terms[job] = answer.term
            if answer.name:
                return answer.name
        return ""

    def _use_credential(self, client: NodeClient, identity: Identity) -> None:
        """Store the accepted credential and use it on all links."""
        self._state.save_identity(identity)
        client.link.credential = identity.credential
        for one in self._clients:
            one.link.credential = identity.credential
        self.log.info("re-enrolled by this node's key", node=identity.name)
        try:
            self._hello(client)
        except ShoalError as error:
            self.log.debug("no hello with the new credential", code=error.code, why=error.message)
