"""What a letter claims of examples, held against the roster: a weight, or a share of all weights that goes round."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.errors import InvalidPayload
from shoal.core.peer_message import Offer, Part, PeerMessage, Push, Swap, Swapped
from shoal.peer_wire import Letter
from shoal.trust.papers import Peer


def check_claims(letter: Letter, sender: str, members: Sequence[Peer]) -> None:
    """Raise `InvalidPayload` (`peer.weight`) for more examples than the roster allows.

    `Swap`, `Swapped` and `Offer` speak for the sender's own; `Push` and `Part` for a share of everybody's. In the last
    averaging (`shoal.core.doubling`) a mass is the mean of several peers' examples, or the sum of two. Where the roster
    says nothing of examples (0), any number is allowed.
    """
    allowed = {peer.node: peer.examples for peer in members}
    known = all(allowed.values())
    for message in letter.messages:
        claimed, most = _claim(message), allowed.get(sender, 0)
        if isinstance(message, Push | Part):
            most = sum(allowed.values()) if known else 0
        elif isinstance(message, Swap | Swapped) and message.step:
            most = 2 * max(allowed.values()) if known else 0
        if most and claimed > most:
            raise InvalidPayload(
                f"{sender} claims a weight of {claimed:g}; the roster allows {most}",
                code="peer.weight",
                hint="have the operator admit the node with more examples",
            )


def _claim(message: PeerMessage) -> float:
    """Return the examples that a message claims its body to speak for."""
    match message:
        case Swap() | Swapped() | Offer() | Part():
            return message.weight
        case Push():
            return message.mass
    return 0.0
