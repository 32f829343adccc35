"""Reasons for which trust is refused: a stable code, a meaning, a remedy."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import NotAllowed, Refused, ShoalError, StorageFailed


@dataclass(frozen=True)
class Reason:
    """The meaning of a code, the remedy, and the kind of error."""

    kind: type[ShoalError]
    means: str
    hint: str


_SAME_RELEASE = "install the same release of shoal on both sides, and look for a proxy that changes requests"
_FORK = "two coordinators use this job's key: an operator stops one and gives the other a higher term"

REASONS: dict[str, Reason] = {
    "trust.head": Reason(Refused, "a field of the head is missing, repeated or malformed", _SAME_RELEASE),
    "trust.document": Reason(Refused, "the document is not in canonical form", _SAME_RELEASE),
    "trust.too-large": Reason(Refused, "the document is larger than its type allows", "shorten it"),
    "trust.signature": Reason(
        NotAllowed,
        "the signature is not valid for this text and key",
        "compare the charters of both sides; if they agree, the text was forged or changed on the way",
    ),
    "trust.signer": Reason(
        NotAllowed, "this key may not sign that document", "sign with the key that the charter names for it"
    ),
    "trust.job": Reason(Refused, "it belongs to another job", "send it to a peer of that job"),
    "trust.addressee": Reason(
        Refused,
        "it is addressed to another peer, or answered by another one",
        "look up the peer's address in the newest roster",
    ),
    "trust.stranger": Reason(
        NotAllowed,
        "neither the roster nor a certificate names the sender",
        "admit the node at the coordinator, or have the node send its join certificate first",
    ),
    "trust.revoked": Reason(
        NotAllowed,
        "the sender's key has been revoked",
        "if that was a mistake, remove the node's key file and enrol the node again",
    ),
    "trust.expired": Reason(
        NotAllowed,
        "the join certificate has expired",
        "have the coordinator sign a new one; if it should be valid, check the clock of the machine that refused it",
    ),
    "trust.name-taken": Reason(
        NotAllowed,
        "another key already uses that node's name",
        "wait for a roster with the new key, or enrol the node under another name",
    ),
    "trust.invitation": Reason(
        NotAllowed,
        "the invitation has expired or has no uses left",
        "ask for a new one (shoal peer invite)",
    ),
    "trust.replayed": Reason(
        NotAllowed,
        "a request with that number was received before, or it is too old",
        "send it again with a new number",
    ),
    "trust.process-old": Reason(
        NotAllowed,
        "the sender has restarted since then, or its process number went back",
        "if it went back, correct the clock of the sender's machine and restart it; "
        "if its process number was ahead of the time, write a number above the known one into the file that holds it",
    ),
    "trust.digest": Reason(
        Refused, "the body differs from the signed one", "send it again; if this repeats, check the network"
    ),
    "trust.roster-old": Reason(Refused, "a newer roster is known", "ask a peer for the newest one"),
    "trust.roster-forked": Reason(Refused, "another roster of the same version is known", _FORK),
    "trust.mode-old": Reason(Refused, "a newer mode record is known", "ask a peer for the newest one"),
    "trust.mode-forked": Reason(Refused, "another mode record of the same term and number is known", _FORK),
    "trust.term-forked": Reason(Refused, "another coordinator holds that term", _FORK),
    "trust.snapshot": Reason(
        StorageFailed,
        "the stored roster and request numbers cannot be read",
        "remove the file; the node gets roster and certificates from a peer or the coordinator",
    ),
    "key.unreadable": Reason(
        StorageFailed, "the file cannot be read or written", "check its folder, its owner and the disk"
    ),
    "key.mode": Reason(
        StorageFailed,
        "the key file can be read by others than its owner",
        "chmod 600 it; if it may have been read, revoke the node, remove the file and join again",
    ),
    "key.damaged": Reason(
        StorageFailed,
        "the file contains no key or no number",
        "restore it from a backup, or remove it and enrol the node again with a new key",
    ),
}


def refusal(code: str, message: str) -> ShoalError:
    """Return the error of that code with its hint."""
    reason = REASONS[code]
    return reason.kind(message, code=code, hint=reason.hint)
