"""Verifier of the requests of one job: admits them by the roster, join certificates and the windows of all senders.

    examine(request)   before the body is read: is it for this peer, of this job, by a member, signed, and new?
    admit(claim, …)    after it: is it the signed body, and do the checks still hold? Uses the number up.

A refusal changes nothing. The time `wall_s` (seconds since 1970) is an argument, and is used for join certificates
only. The coordinator may call as `HUB`; an operator sends signed documents instead.

After a crash, requests since the last `snapshot` could be admitted again. So their effects must be idempotent, as those
of exchanges are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.protocol.machine import HUB
from shoal.trust.codes import refusal
from shoal.trust.documents import Charter, JoinCert, Roster, RosterEntry, supersedes, verify_document
from shoal.trust.envelope import SignedAnswer, SignedRequest, check_answer, check_digest, check_request
from shoal.trust.keys import peer_id_of
from shoal.trust.window import WIDTH, ReplayWindow


@dataclass(frozen=True)
class AuthenticatedRequest:
    """A request whose head was accepted. `node` has sent it, if the body is the signed one."""

    node: str
    request: SignedRequest


class RequestVerifier:
    """The verifier of one peer in one job. One thread at a time."""

    def __init__(self, charter: Charter, peer_id: str) -> None:
        self.charter, self.peer_id = charter, peer_id
        self._hub = RosterEntry(
            HUB, peer_id_of(charter.coordinator_public_key), charter.coordinator_public_key, (), True, 0
        )
        self._roster: Roster | None = None
        self._sealed_roster = b""
        self._listed: dict[str, RosterEntry] = {}
        self._revoked: frozenset[str] = frozenset()
        self._introduced: dict[str, tuple[JoinCert, bytes]] = {}
        self._windows: dict[str, ReplayWindow] = {}

    # Signed documents

    def update_roster(self, sealed: bytes) -> bool:
        """Use this roster from now on; return whether it is newer. Raises what `unseal` and `supersedes` raise."""
        roster = verify_document(sealed, Roster, self.charter)
        if not supersedes(roster, self._roster):
            return False
        self._roster, self._sealed_roster = roster, sealed
        self._listed = {peer.peer_id: peer for peer in roster.peers}
        self._revoked = frozenset(roster.revoked_peer_ids)
        names = {peer.node for peer in roster.peers}
        self._introduced = {
            peer_id: (cert, text)
            for peer_id, (cert, text) in self._introduced.items()
            if peer_id not in self._revoked and peer_id not in self._listed and cert.node not in names
        }
        return True

    def introduce(self, sealed: bytes, wall_s: int) -> str:
        """Let the bearer of a join certificate in, until a newer roster decides or it has run out; the node's name.

        Raises what `unseal` raises, and `NotAllowed`: `trust.revoked`, `trust.expired`, `trust.name-taken`.
        """
        cert = verify_document(sealed, JoinCert, self.charter)
        self._check_not_revoked(cert.peer_id)
        if cert.peer_id in self._listed:
            return self._listed[cert.peer_id].node
        _check_not_expired(cert, wall_s)
        others = [peer for peer in self.members() if peer.node == cert.node and peer.peer_id != cert.peer_id]
        for other in others:
            held = self._introduced.get(other.peer_id)
            if held is None or not held[0].expired(wall_s):
                raise refusal("trust.name-taken", f"{cert.node} is {other.peer_id}; this is {cert.peer_id}")
        for other in others:
            del self._introduced[other.peer_id]
        held = self._introduced.get(cert.peer_id)
        if held is None or held[0].not_after < cert.not_after:
            self._introduced[cert.peer_id] = held = (cert, sealed)
        return held[0].node

    def admit_certificate(self, sealed: bytes, request: SignedRequest, digest: str, wall_s: int) -> RosterEntry:
        """Admit the owner of a join certificate at its own request, and return its roster entry.

        Raises the errors of `introduce`, `examine` and `admit`, and `trust.stranger` if another peer sends it. A
        refusal changes nothing.
        """
        before = dict(self._introduced)
        cert = verify_document(sealed, JoinCert, self.charter)
        if cert.peer_id != request.sender:
            raise refusal("trust.stranger", f"the certificate is that of {cert.peer_id}; {request.sender} shows it")
        try:
            self.introduce(sealed, wall_s)
            self.admit(self.examine(request, wall_s), digest, wall_s)
        except ShoalError:
            self._introduced = before
            raise
        return next(peer for peer in self.members() if peer.peer_id == request.sender)

    @property
    def sealed_roster(self) -> bytes:
        """Return the signed roster in use; empty without one."""
        return self._sealed_roster

    def members(self) -> list[RosterEntry]:
        """Return the admitted nodes by name, with those admitted by certificate, without the coordinator."""
        introduced = (_peer_of(cert) for cert, _ in self._introduced.values())
        return sorted([*self._listed.values(), *introduced], key=lambda peer: peer.node)

    # Requests and answers

    def examine(self, request: SignedRequest, wall_s: int) -> AuthenticatedRequest:
        """Verify the headers of a request; changes nothing.

        Raises `Refused` (`trust.addressee`, `trust.job`) and `NotAllowed` (`trust.revoked`, `trust.stranger`,
        `trust.expired`, `trust.signature`, `trust.process-old`, `trust.replayed`).
        """
        if request.to != self.peer_id:
            raise refusal("trust.addressee", f"for {request.to}; this is {self.peer_id}")
        if request.job != self.charter.job:
            raise refusal("trust.job", f"about job {request.job}; this is {self.charter.job}")
        sender = self._member(request.sender, wall_s)
        check_request(request, sender.public_key, self.charter)
        self._window(request)
        return AuthenticatedRequest(sender.node, request)

    def admit(self, claim: AuthenticatedRequest, digest: str, wall_s: int) -> str:
        """Admit a request once, after its body with this SHA-256 has arrived; return the sender's name.

        Checks are repeated after the body: the second of two copies is refused here, and so is a sender that was
        revoked. Raises `Refused` (`trust.digest`) and the errors of `examine`.
        """
        check_digest(claim.request.digest, digest)
        sender = self._member(claim.request.sender, wall_s)
        self._windows[sender.peer_id] = self._window(claim.request)
        return sender.node

    def verify_answer(self, answer: SignedAnswer, request: SignedRequest, wall_s: int) -> str:
        """Return the name of the node that answered a request. The caller compares the body with `answer.digest`.

        Raises the errors of `examine`; an answer cannot be replayed, because it is bound to the request.
        """
        if answer.sender != request.to:
            raise refusal("trust.addressee", f"{request.to} was asked; {answer.sender} answers")
        sender = self._member(answer.sender, wall_s)
        check_answer(answer, request, sender.public_key, self.charter)
        return sender.node

    def _member(self, peer_id: str, wall_s: int) -> RosterEntry:
        if peer_id == self._hub.peer_id:
            return self._hub
        self._check_not_revoked(peer_id)
        if peer_id in self._listed:
            return self._listed[peer_id]
        if peer_id not in self._introduced:
            raise refusal("trust.stranger", f"{peer_id} is not in job {self.charter.job}")
        cert, _ = self._introduced[peer_id]
        _check_not_expired(cert, wall_s)
        return _peer_of(cert)

    def _check_not_revoked(self, peer_id: str) -> None:
        if peer_id in self._revoked:
            raise refusal("trust.revoked", f"{peer_id} has been revoked in job {self.charter.job}")

    def _window(self, request: SignedRequest) -> ReplayWindow:
        return self._windows.get(request.sender, ReplayWindow()).after(request.process_number, request.seq)

    # State

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as JSON values."""
        return {
            "roster": self._sealed_roster.decode("ascii"),
            "certificates": [sealed.decode("ascii") for _, sealed in self._introduced.values()],
            "windows": {peer_id: [one.process_number, one.top, one.mask] for peer_id, one in self._windows.items()},
        }

    @classmethod
    def restore(cls, charter: Charter, peer_id: str, snapshot: Any) -> RequestVerifier:
        """Return a verifier from a snapshot; all signatures are verified again.

        Raises `StorageFailed` (`trust.snapshot`).
        """
        verifier = cls(charter, peer_id)
        try:
            if snapshot["roster"]:
                verifier.update_roster(snapshot["roster"].encode("ascii"))
            for sealed in snapshot["certificates"]:
                verifier.introduce(sealed.encode("ascii"), wall_s=0)  # its expiry is checked when it is used
            verifier._windows = {sender: _window_of(row) for sender, row in snapshot["windows"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise refusal("trust.snapshot", f"{type(error).__name__}: {str(error)[:100]}") from None
        except ShoalError as error:
            raise refusal("trust.snapshot", error.message) from None
        return verifier


def _peer_of(cert: JoinCert) -> RosterEntry:
    """Return a newcomer's roster entry, without an address yet."""
    return RosterEntry(cert.node, cert.peer_id, cert.public_key, (), False, cert.examples_max)


def _check_not_expired(cert: JoinCert, wall_s: int) -> None:
    if cert.expired(wall_s):
        raise refusal("trust.expired", f"the certificate of {cert.node} ran out at {cert.not_after}; it is {wall_s}")


def _window_of(row: Any) -> ReplayWindow:
    process_number, top, mask = row
    whole = all(type(number) is int for number in row)
    if not (whole and process_number > 0 and top > 0 and mask & 1 and mask < 1 << WIDTH):
        raise ValueError("a window is [process_number, top, mask]")
    return ReplayWindow(process_number, top, mask)
