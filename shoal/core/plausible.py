"""Bounds on the counters that admitted peers tell each other, so that no false one can shut an honest peer out.

Terms, incarnations, rounds and versions rise by one at a time. So a number far above all that is known first hand was
made up. It is refused; and where no honest peer can have passed it on, its sender is blamed (`Lie`), which puts it in
quarantine (`peer.jury`). What is accepted from hearsay lies within one leap of what is known first hand, which honest
peers know within another leap of each other: so only what lies further away than that proves that its sender lies.

    seen          names of the roster alone, counts up to what the job's rounds allow (`believable`)
    term          within `TERM_LEAP` of the highest that the hub itself has shown (`implausible_word`)
    version       within `VERSION_LEAP` of the one that is held
    incarnation   within `INCARNATION_LEAP` of what the peer itself has said (`shoal.core.beliefs`)
    mixing round  within `ROUND_LEAP` of the receiver's (`shoal.mixing`)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.machine import Note
from shoal.core.peer_message import Bulletin, Declare, HubMessage, Seen

TERM_LEAP = 500
"""Terms rise when nodes go away or a coordinator starts."""

VERSION_LEAP = 2**20

INCARNATION_LEAP = 2**16

ROUND_LEAP = 2**20

SEEN_SPARE = 2**20
"""How far above the job's rounds a peer may count on, to say that it is near others: see `shoal.core.drain`."""

SEEN_MAX = 2**40
"""The highest count of local rounds, where a job does not say how many there are."""

STRANGERS_MAX = 1000
"""Rosters change, and not everywhere at once: so many names of a version vector may be unknown to its receiver."""


@dataclass(frozen=True)
class Lie(Note):
    """A note that `node` has said what no honest peer can have said."""


def lie(node: str, why: str, version: int = 0) -> Lie:
    """Return the note that blames that node."""
    return Lie("refusal", why, version, node)


def believable(message: Any, roster: Collection[str] | None, most: int) -> tuple[Any, list[Lie]]:
    """Return a mixing message with what can be true of its version vector, and whom to blame for the rest.

    The message is acted on in any case: the two sides of an exchange must agree on whether it took place.
    `roster`: None where it is not known.
    """
    seen: Seen | None = getattr(message, "seen", None)
    if seen is None:
        return message, []
    kept = {node: count for node, count in seen.items() if count <= most and (roster is None or node in roster)}
    if len(kept) == len(seen):
        return message, []
    too_high = [node for node, count in seen.items() if count > most]
    strangers = 0 if roster is None else len(seen.keys() - roster)
    lies = []
    if too_high:
        lies.append(lie(message.node, f"claims {seen[too_high[0]]} local rounds of {too_high[0]}; at most {most}"))
    elif strangers > STRANGERS_MAX:
        lies.append(lie(message.node, f"claims local rounds of {strangers} peers that the roster does not name"))
    return replace(message, seen=kept), lies


def implausible_word(message: HubMessage, heard: int, version: int) -> list[Note]:
    """Return why a word about the hub is not heeded; nothing where it is.

    `heard`: the highest term that the hub itself has shown, 0 for none; `version`: the one that is held, -1 for none.
    """
    if not isinstance(message, Bulletin | Declare):
        return []
    checks = [("term", message.term, heard, TERM_LEAP, heard > 0)]
    if isinstance(message, Declare):
        checks.append(("version", message.version, version, VERSION_LEAP, version >= 0))
    for what, said, known, leap, is_known in checks:
        if said > known + leap:
            why = f"says {what} {said}, which is too far above {known}"
            proven = said > known + 2 * leap if is_known else said > 2**32
            return [lie(message.node, why) if proven else Note("refusal", why, 0, message.node)]
    return []
