"""What this node says to the coordinator in the hands of a peer: the node protocol, signed (`shoal.runtime.relay`).

Whoever carries it need not be trusted: an answer counts when the coordinator has signed it for this one request, and a
body when it has the SHA-256 that a signed order or report names. What is no such answer, a refusal of the carrier's own
among them, is nothing that the coordinator has said: `Unbrought`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shoal import wire
from shoal.core.errors import InvalidPayload, NotAllowed, Refused, Unreachable, message_of
from shoal.core.message import Ack, Fail, Join, Knock, Lease, Leave, Message, Order, OrderId, Poll, Report, Status
from shoal.runtime.http import ANY, Answer, TryLater
from shoal.runtime.node_link import NodeLink
from shoal.runtime.relay import Carried, Said, opened, seal, seal_body, verify
from shoal.trust.envelope import Signer

GRACE_S = 10.0
"""Seconds that a carried answer may take beyond what it was asked to wait."""


class Unbrought(Unreachable):
    """The carrier has brought no answer of the coordinator's. `pause_s`: how long it asks to be left alone."""

    def __init__(self, carrier: str, error: Exception) -> None:
        said = message_of(error)
        super().__init__(f"through {carrier}: {said}", code="relay.unbrought")
        self.pause_s = float(getattr(error, "retry_after_s", 0.0) or 0.0)


class CarriedLink(NodeLink):
    """Through the peer `carrier`, which listens at `url`. `term`, `life`: the coordinator's, as far as it is known."""

    def __init__(self, carrier: str, url: str, node: str, signer: Signer, term: int, life: int = 0) -> None:
        super().__init__(f"{url.rstrip('/')}/p2p/{signer.charter.job}/hub")
        self.carrier, self.node, self.signer, self.term = carrier, node, signer, term
        self._granted = term, life

    @contextmanager
    def exchange(self, method: str, path: str, **named: Any) -> Iterator[Answer]:
        """As a link's. A request for a body is signed; words are already."""
        if "/bodies/" in path:
            sealed = seal_body(self.signer, method, path.rpartition("/")[2])
            named["headers"] = {**(named.get("headers") or {}), **sealed.request.headers()}
        try:
            with super().exchange(method, path, **named) as answer:
                if named.get("accept") == ANY and answer.status >= 300 and "shoal-signature" not in answer.headers:
                    raise self.problem(answer)
                yield answer
        except (Unreachable, Refused, NotAllowed, InvalidPayload) as error:
            raise Unbrought(self.carrier, error) from error

    # The node protocol

    def report(self, job: str, said: Report, payload: bytes = b"") -> Ack:
        return self._acknowledged(said, payload)

    def fail(self, job: str, said: Fail) -> Ack:
        return self._acknowledged(said)

    def status(self, job: str, said: Status) -> None:
        self._said(said)

    def knock(self, job: str, term: int) -> Lease:
        found = self._said(Knock(self.node, term))
        if found is None or not isinstance(found.message, Lease):
            raise self.foreign()
        return found.message

    def join(self, job: str, away: OrderId | None) -> wire.Frame:
        found = self._said(Join(self.node, away))
        if found is None:
            raise self.foreign()
        return found

    def leave(self, read_s: float) -> None:
        self._said(Leave(self.node), read_s=read_s)

    def poll(self, wait_s: float, held: tuple[int, ...] | None) -> wire.Frame:
        """What stands, as soon as it differs from what is held; a lease when nothing came in time."""
        query = f"wait_s={wait_s:g}" + (f"&held={'.'.join(map(str, held))}" if held is not None else "")
        found = self._said(Poll(self.node), query=query, read_s=wait_s + GRACE_S)
        if found is None:
            raise self.foreign()
        return found

    def _acknowledged(self, said: Report | Fail, payload: bytes = b"") -> Ack:
        found = self._said(said, payload)
        if found is not None and isinstance(found.message, Lease):
            text = "the coordinator has begun anew: it is told again"
            raise Unreachable(text, code="relay.term")
        if found is None or not isinstance(found.message, Ack) or found.message.order != said.order:
            raise self.foreign()
        return found.message

    def _said(
        self, message: Message, payload: bytes = b"", *, query: str = "", read_s: float | None = None
    ) -> wire.Frame | None:
        """What the coordinator answers. Raises `Refused` for what it refuses, `TryLater` for what it cannot now."""
        term, (granted, life) = self.term, self._granted
        asked = f"life={life}{'&' if query else ''}{query}" if life and granted == term else query
        carried = seal(self.signer, self.node, term, message, payload, asked)
        said = self.carry(carried, read_s=read_s)
        try:
            verify(carried, said, self.signer)
            found = self._opened(carried, said)
        except (NotAllowed, InvalidPayload) as error:
            raise Unbrought(self.carrier, error) from error
        except Refused as error:
            raise (Unbrought(self.carrier, error) if error.code.startswith("trust.") else error) from error
        if found is not None and isinstance(found.message, Lease):
            self.term = max(self.term, found.message.term)
        if found is not None and isinstance(found.message, Order):  # it answers so in that term alone
            return replace(found, message=replace(found.message, given_in=term))
        return found

    def _opened(self, carried: Carried, said: Said) -> wire.Frame | None:
        try:
            return opened(carried, said, self.signer)
        except Refused as error:
            if said.status == 429 or said.status >= 500:
                pause = said.headers.get("retry-after", "0")
                pause_s = float(pause) if pause.isdecimal() else 0.0
                raise TryLater(error.message, code=error.code, hint=error.hint, retry_after_s=pause_s) from error
            raise
