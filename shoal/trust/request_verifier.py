"""Who comes in: the roster, join certificates and the windows of all senders, held together for one job.

    examine(request)   before the body is read: is it for me, of my job, by a member, signed, and new?
    admit(claim, …)    after it: is it the signed body, and does all that still hold? Only then the number is used up.

A refusal leaves everything as it was. Nothing here knows a clock: `wall_s` (seconds since 1970) is an argument, and is
looked at for join certificates alone. The coordinator may call as well, as `HUB`; an operator sends papers instead.

What `snapshot` gave is as old as the moment it was taken: after a crash the requests since then could be taken once
more. So what requests do must bear repetition by ids of its own, as exchanges do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.machine import HUB
from shoal.trust.codes import refusal
from shoal.trust.envelope import Answer, Request, check_answer, check_digest, check_request
from shoal.trust.keys import peer_id_of
from shoal.trust.papers import Charter, JoinCert, Peer, Roster, supersedes, unseal
from shoal.trust.window import WIDTH, Window


@dataclass(frozen=True)
class Claim:
    """A request that was in order when its head had come: `node` says this, if the body is the signed one."""

    node: str
    request: Request


class Gatekeeper:
    """The door of one peer in one job. One thread at a time."""

    def __init__(self, charter: Charter, peer_id: str) -> None:
        self.charter, self.peer_id = charter, peer_id
        self._hub = Peer(HUB, peer_id_of(charter.coordinator_pub), charter.coordinator_pub, (), True, 0)
        self._roster: Roster | None = None
        self._sealed_roster = b""
        self._listed: dict[str, Peer] = {}
        self._revoked: frozenset[str] = frozenset()
        self._introduced: dict[str, tuple[JoinCert, bytes]] = {}
        self._windows: dict[str, Window] = {}

    # Papers

    def take_roster(self, sealed: bytes) -> bool:
        """Go by this roster from now on; whether it is news. Raises what `unseal` and `supersedes` raise."""
        roster = unseal(sealed, Roster, self.charter)
        if not supersedes(roster, self._roster):
            return False
        self._roster, self._sealed_roster = roster, sealed
        self._listed = {peer.peer_id: peer for peer in roster.peers}
        self._revoked = frozenset(roster.revoked)
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
        cert = unseal(sealed, JoinCert, self.charter)
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

    def enter(self, sealed: bytes, request: Request, digest: str, wall_s: int) -> Peer:
        """Let the bearer of a certificate in at its own request; how it is known from now on.

        Raises what `introduce`, `examine` and `admit` raise, and `trust.stranger` where somebody else shows it. What is
        refused changes nothing.
        """
        before = dict(self._introduced)
        cert = unseal(sealed, JoinCert, self.charter)
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
        """The roster that is held, for others; empty if none has come yet."""
        return self._sealed_roster

    def members(self) -> list[Peer]:
        """Who may come in, by name: without the coordinator, and with those whose certificates have just run out."""
        introduced = (_peer_of(cert) for cert, _ in self._introduced.values())
        return sorted([*self._listed.values(), *introduced], key=lambda peer: peer.node)

    # Requests and answers

    def examine(self, request: Request, wall_s: int) -> Claim:
        """Everything that a request's head can show; changes nothing.

        Raises `Refused` (`trust.addressee`, `trust.job`) and `NotAllowed` (`trust.revoked`, `trust.stranger`,
        `trust.expired`, `trust.signature`, `trust.boot-old`, `trust.replayed`).
        """
        if request.to != self.peer_id:
            raise refusal("trust.addressee", f"for {request.to}; this is {self.peer_id}")
        if request.job != self.charter.job:
            raise refusal("trust.job", f"about job {request.job}; this is {self.charter.job}")
        sender = self._member(request.sender, wall_s)
        check_request(request, sender.pub, self.charter)
        self._window(request)
        return Claim(sender.node, request)

    def admit(self, claim: Claim, digest: str, wall_s: int) -> str:
        """Take a request whose body has come, of this SHA-256, once; the name of the node that says it.

        What may have changed while the body came is looked at again: of two copies under way, one is refused here, and
        so is a sender that was revoked. Raises `Refused` (`trust.digest`) and what `examine` raises.
        """
        check_digest(claim.request.digest, digest)
        sender = self._member(claim.request.sender, wall_s)
        self._windows[sender.peer_id] = self._window(claim.request)
        return sender.node

    def recognise(self, answer: Answer, request: Request, wall_s: int) -> str:
        """The name of the node that answered one's own request. Its body is still to be held against `answer.digest`.

        Raises as `examine` does; there is nothing to replay, since the answer is tied to the request.
        """
        if answer.sender != request.to:
            raise refusal("trust.addressee", f"{request.to} was asked; {answer.sender} answers")
        sender = self._member(answer.sender, wall_s)
        check_answer(answer, request, sender.pub, self.charter)
        return sender.node

    def _member(self, peer_id: str, wall_s: int) -> Peer:
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

    def _window(self, request: Request) -> Window:
        return self._windows.get(request.sender, Window()).after(request.boot, request.seq)

    # State

    def snapshot(self) -> dict[str, Any]:
        """Everything that is held, as JSON values."""
        return {
            "roster": self._sealed_roster.decode("ascii"),
            "certificates": [sealed.decode("ascii") for _, sealed in self._introduced.values()],
            "windows": {peer_id: [one.boot, one.top, one.mask] for peer_id, one in self._windows.items()},
        }

    @classmethod
    def restore(cls, charter: Charter, peer_id: str, snapshot: Any) -> Gatekeeper:
        """A gatekeeper that holds what the snapshot says; every signature in it is checked again.

        Raises `StorageFailed` (`trust.snapshot`).
        """
        gate = cls(charter, peer_id)
        try:
            if snapshot["roster"]:
                gate.take_roster(snapshot["roster"].encode("ascii"))
            for sealed in snapshot["certificates"]:
                gate.introduce(sealed.encode("ascii"), wall_s=0)  # whether it has run out is asked when it is used
            gate._windows = {sender: _window_of(row) for sender, row in snapshot["windows"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise refusal("trust.snapshot", f"{type(error).__name__}: {str(error)[:100]}") from None
        except ShoalError as error:
            raise refusal("trust.snapshot", error.message) from None
        return gate


def _peer_of(cert: JoinCert) -> Peer:
    """A newcomer as a member: nobody has said yet where it can be reached."""
    return Peer(cert.node, cert.peer_id, cert.pub, (), False, cert.examples_max)


def _check_not_expired(cert: JoinCert, wall_s: int) -> None:
    if cert.expired(wall_s):
        raise refusal("trust.expired", f"the certificate of {cert.node} ran out at {cert.not_after}; it is {wall_s}")


def _window_of(row: Any) -> Window:
    boot, top, mask = row
    whole = all(type(number) is int for number in row)
    if not (whole and boot > 0 and top > 0 and mask & 1 and mask < 1 << WIDTH):
        raise ValueError("a window is [boot, top, mask]")
    return Window(boot, top, mask)
