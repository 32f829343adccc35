"""The node protocol through a relay: a peer carries this node's signed requests to the coordinator.

The relay is not trusted: an answer counts only if the coordinator has signed it for this request, and a blob only if it
has the SHA-256 that a signed task or report names. Anything else, a refusal by the relay included, raises
`RelayUnanswered`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shoal.core.errors import InvalidPayload, NotAllowed, Refused, Unreachable, message_of
from shoal.core.protocol.message import (
    Ack,
    CoordinatorAlive,
    CoordinatorPing,
    Join,
    Leave,
    Message,
    Poll,
    Report,
    Task,
    TaskFailed,
    TaskId,
    TaskStatus,
)
from shoal.runtime.http.blob_transfers import BlobTransfers
from shoal.runtime.http.client import ANY, Response, TryLater
from shoal.runtime.http.node_link import NodeLink
from shoal.runtime.http.relay import RelayedAnswer, RelayedRequest, opened, seal, seal_body, send, verify
from shoal.trust.envelope import Signer
from shoal.wire import codec

GRACE_S = 10.0
"""Seconds that a relayed poll may take beyond its wait."""


class RelayUnanswered(Unreachable):
    """The relay brought no answer of the coordinator. `pause_s`: seconds that it asks to wait."""

    def __init__(self, carrier: str, error: Exception) -> None:
        super().__init__(f"through {carrier}: {message_of(error)}", code="relay.unanswered")
        self.pause_s = float(getattr(error, "retry_after_s", 0.0) or 0.0)


class _SignedLink(NodeLink):
    """The connection to a relay: requests for blobs are signed here, messages are signed already."""

    def __init__(self, relay_name: str, url: str, signer: Signer) -> None:
        super().__init__(url)
        self._relay_name, self._signer = relay_name, signer

    @contextmanager
    def exchange(self, method: str, path: str, **named: Any) -> Iterator[Response]:
        if "/blobs/" in path:
            sealed = seal_body(self._signer, method, path.rpartition("/")[2])
            named["headers"] = {**(named.get("headers") or {}), **sealed.request.headers()}
        try:
            with super().exchange(method, path, **named) as answer:
                if named.get("accept") == ANY and answer.status >= 300 and "shoal-signature" not in answer.headers:
                    raise self.problem(answer)
                yield answer
        except (Unreachable, Refused, NotAllowed, InvalidPayload) as error:
            raise RelayUnanswered(self._relay_name, error) from error


class RelayedClient:
    """A client of the coordinator through the relay `relay_name` at `url`: `transport.TaskClient`, and polls.

    `term`, `incarnation`: the coordinator's, as far as known.
    """

    def __init__(self, relay_name: str, url: str, node: str, signer: Signer, term: int, incarnation: int = 0) -> None:
        self.link = _SignedLink(relay_name, f"{url.rstrip('/')}/p2p/{signer.charter.job}/relay", signer)
        self.blobs = BlobTransfers(self.link)
        self.relay_name, self._node, self._signer, self.term = relay_name, node, signer, term
        self._known_incarnation = term, incarnation

    def abort(self) -> None:
        """Abort all running requests, from any thread, and close; the client is unusable afterwards."""
        self.blobs.abort()
        self.link.abort()
        self.link.close()

    def report(self, job: str, report: Report, payload: bytes = b"") -> Ack:
        return self._send_for_ack(report, payload)

    def fail(self, job: str, failure: TaskFailed) -> Ack:
        return self._send_for_ack(failure)

    def status(self, job: str, status: TaskStatus) -> None:
        self._exchange(status)

    def ping(self, job: str, term: int) -> CoordinatorAlive:
        found = self._exchange(CoordinatorPing(self._node, term))
        if found is None or not isinstance(found.message, CoordinatorAlive):
            raise self.link.foreign_answer()
        return found.message

    def join(self, job: str, gossip_rounds: TaskId | None) -> codec.Frame:
        found = self._exchange(Join(self._node, gossip_rounds))
        if found is None:
            raise self.link.foreign_answer()
        return found

    def leave(self, read_s: float) -> None:
        self._exchange(Leave(self._node), read_s=read_s)

    def poll(self, wait_s: float, held: tuple[int, ...] | None) -> codec.Frame:
        """Return the current task as soon as it differs from the one held; a lease when the wait ends."""
        query = f"wait_s={wait_s:g}" + (f"&held={'.'.join(map(str, held))}" if held is not None else "")
        found = self._exchange(Poll(self._node), query=query, read_s=wait_s + GRACE_S)
        if found is None:
            raise self.link.foreign_answer()
        return found

    def _send_for_ack(self, message: Report | TaskFailed, payload: bytes = b"") -> Ack:
        found = self._exchange(message, payload)
        if found is not None and isinstance(found.message, CoordinatorAlive):
            text = "the coordinator has restarted: the message is sent again"
            raise Unreachable(text, code="relay.term")
        if found is None or not isinstance(found.message, Ack) or found.message.task != message.task:
            raise self.link.foreign_answer()
        return found.message

    def _exchange(
        self, message: Message, payload: bytes = b"", *, query: str = "", read_s: float | None = None
    ) -> codec.Frame | None:
        """Return the coordinator's answer. Raises `Refused` for its refusals, `TryLater` for temporary ones."""
        term, (known_term, incarnation) = self.term, self._known_incarnation
        asked = query
        if incarnation and known_term == term:
            asked = f"incarnation={incarnation}{'&' if query else ''}{query}"
        carried = seal(self._signer, self._node, term, message, payload, asked)
        answer = send(self.link, carried, read_s=read_s)
        try:
            verify(carried, answer, self._signer)
            found = self._opened(carried, answer)
        except (NotAllowed, InvalidPayload) as error:
            raise RelayUnanswered(self.relay_name, error) from error
        except Refused as error:
            raise (RelayUnanswered(self.relay_name, error) if error.code.startswith("trust.") else error) from error
        if found is not None and isinstance(found.message, CoordinatorAlive):
            self.term = max(self.term, found.message.term)
        if found is not None and isinstance(found.message, Task):  # it answers so in that term alone
            return replace(found, message=replace(found.message, issued_in_term=term))
        return found

    def _opened(self, carried: RelayedRequest, answer: RelayedAnswer) -> codec.Frame | None:
        try:
            return opened(carried, answer, self._signer)
        except Refused as error:
            if answer.status == 429 or answer.status >= 500:
                pause = answer.headers.get("retry-after", "0")
                pause_s = float(pause) if pause.isdecimal() else 0.0
                raise TryLater(error.message, code=error.code, hint=error.hint, retry_after_s=pause_s) from error
            raise
