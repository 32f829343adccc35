"""Every reason for which trust is refused: its stable code, what it means, what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import NotAllowed, Refused, ShoalError, StorageFailed


@dataclass(frozen=True)
class Reason:
    """What a code means, the remedy, and whose fault it is."""

    kind: type[ShoalError]
    means: str
    hint: str


_SAME_RELEASE = "install the same release of shoal on both sides, and look for a proxy that changes what it passes on"
_FORK = "two coordinators use this job's key: an operator stops one and gives the other a higher term"

REASONS: dict[str, Reason] = {
    "trust.head": Reason(Refused, "a field of the head is missing, doubled or malformed", _SAME_RELEASE),
    "trust.paper": Reason(Refused, "a paper that is not in its one canonical form", _SAME_RELEASE),
    "trust.too-large": Reason(Refused, "a paper of more bytes than its type may have", "put less into it"),
    "trust.signature": Reason(
        NotAllowed,
        "the signature is not of this text by this key",
        "compare the charters of both sides; if they agree, the text was forged or changed on its way",
    ),
    "trust.signer": Reason(
        NotAllowed, "this key may not sign that paper", "sign with the key that the charter names for it"
    ),
    "trust.job": Reason(Refused, "it is of another job", "send it to a peer of that job"),
    "trust.addressee": Reason(
        Refused, "it is meant for another peer, or answered by one", "look up the peer's address in the newest roster"
    ),
    "trust.stranger": Reason(
        NotAllowed,
        "neither the roster nor a certificate names the sender",
        "have the coordinator admit the node, or let the node show its join certificate first",
    ),
    "trust.revoked": Reason(
        NotAllowed,
        "the sender's key has been revoked",
        "if that was a mistake: remove the node's key file and have the node admitted anew",
    ),
    "trust.expired": Reason(
        NotAllowed,
        "the join certificate has run out",
        "have the coordinator sign a new one; if it should still hold, set the clock of the machine that refused it",
    ),
    "trust.name-taken": Reason(
        NotAllowed,
        "another key already speaks for that node's name",
        "wait for a roster with the new key, or have the node admitted under another name",
    ),
    "trust.invitation": Reason(
        NotAllowed,
        "the invitation has run out, or as many have used it as it allows",
        "ask who invited you for a new one (shoal peer invite)",
    ),
    "trust.replayed": Reason(
        NotAllowed, "a request of that number has been here, or is too late", "send it again under a new number"
    ),
    "trust.boot-old": Reason(
        NotAllowed,
        "the sender has started since then, or its boot number went back",
        "if it went back: set the clock of the sender's machine right and start it again; "
        "where its boot number was ahead of the time, write a greater one than the one held into its boot file",
    ),
    "trust.digest": Reason(
        Refused, "the body is not the one that was signed", "send it again; if it happens again, check the network"
    ),
    "trust.roster-old": Reason(Refused, "a newer roster is held", "ask a peer for the newest one"),
    "trust.roster-forked": Reason(Refused, "another roster of the same version is held", _FORK),
    "trust.mode-old": Reason(Refused, "a newer mode record is held", "ask a peer for the newest one"),
    "trust.mode-forked": Reason(Refused, "another mode record of the same term and number is held", _FORK),
    "trust.lease-old": Reason(Refused, "a newer lease is held", "ask the coordinator for a new one"),
    "trust.lease-forked": Reason(Refused, "another coordinator holds that term", _FORK),
    "trust.snapshot": Reason(
        StorageFailed,
        "what was kept of the roster and the windows cannot be read",
        "remove it: roster and certificates come anew from any peer or the coordinator",
    ),
    "key.unreadable": Reason(
        StorageFailed, "the file cannot be read or written", "check its folder, its owner and the disk"
    ),
    "key.mode": Reason(
        StorageFailed,
        "others than its owner may read the key",
        "chmod 600 it; if somebody may have read it, have the node revoked, remove the file and join anew",
    ),
    "key.damaged": Reason(
        StorageFailed,
        "the file holds no key, or no number",
        "restore it from a backup; or remove it, and have the node admitted anew with a new key",
    ),
}


def refusal(code: str, message: str) -> ShoalError:
    """The error of that code, with its remedy."""
    reason = REASONS[code]
    return reason.kind(message, code=code, hint=reason.hint)
