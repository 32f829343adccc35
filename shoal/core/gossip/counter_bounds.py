"""Bounds on counters that admitted peers report, so that a false counter cannot shut out an honest peer.

Terms, incarnations, rounds and versions rise by one at a time. A number far above all that is known first hand is
invented. It is refused; where no honest peer can have passed it on, its sender is blamed (`ImplausibleCount`) and
quarantined. A counter from hearsay is accepted within one leap of what is known first hand, and honest peers differ by
at most one more leap: so only what lies further away proves that the sender lies.

    counts        names of the roster only, counts up to what the job's rounds allow (`drop_implausible_counts`)
    term          within `TERM_LEAP` of the highest that the coordinator has shown (`implausible_status`)
    version       within `VERSION_LEAP` of the one that is held
    incarnation   within `INCARNATION_LEAP` of the peer's own (`shoal.core.membership.member_table`)
    mixing round  within `ROUND_LEAP` of the receiver's (`shoal.mixing`)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.peer_message import CoordinatorStatus, DeclareFailover, HubMessage, VersionVector

TERM_LEAP = 500
"""Terms rise when nodes fail over or a coordinator starts."""

VERSION_LEAP = 2**20

INCARNATION_LEAP = 2**16

ROUND_LEAP = 2**20

ROUNDS_SPARE = 2**20
"""Margin above the job's rounds that a peer may count, to report convergence: see `shoal.core.gossip.termination`."""

ROUNDS_MAX = 2**40
"""Highest count of local rounds where a job does not limit them."""

STRANGERS_MAX = 1000
"""Names of a version vector that its receiver may not know: rosters do not change everywhere at once."""


@dataclass(frozen=True)
class ImplausibleCount(JobEvent):
    """A job event: `node` has reported a counter that no honest peer can have."""


def implausible(node: str, why: str, version: int = 0) -> ImplausibleCount:
    """Return the event that blames the node."""
    return ImplausibleCount("refusal", why, version, node)


def drop_implausible_counts(
    message: Any, roster: Collection[str] | None, most: int
) -> tuple[Any, list[ImplausibleCount]]:
    """Return the message without impossible entries of its version vector, and events that blame the sender.

    The message is handled in any case: both sides of an exchange must agree on whether it took place. `roster`: None
    where it is not known.
    """
    vector: VersionVector | None = getattr(message, "version_vector", None)
    if vector is None:
        return message, []
    kept = {node: count for node, count in vector.items() if count <= most and (roster is None or node in roster)}
    if len(kept) == len(vector):
        return message, []
    too_high = [node for node, count in vector.items() if count > most]
    strangers = 0 if roster is None else len(vector.keys() - roster)
    lies = []
    if too_high:
        lies.append(
            implausible(message.node, f"claims {vector[too_high[0]]} local rounds of {too_high[0]}; at most {most}")
        )
    elif strangers > STRANGERS_MAX:
        lies.append(
            implausible(message.node, f"claims local rounds of {strangers} peers that the roster does not name")
        )
    return replace(message, version_vector=kept), lies


def implausible_status(message: HubMessage, heard: int, version: int) -> list[JobEvent]:
    """Return why a claim about the coordinator is ignored; empty if it is plausible.

    `heard`: the highest term that the coordinator has shown, 0 for none; `version`: the one that is held, -1 for none.
    """
    if not isinstance(message, CoordinatorStatus | DeclareFailover):
        return []
    checks = [("term", message.term, heard, TERM_LEAP, heard > 0)]
    if isinstance(message, DeclareFailover):
        checks.append(("version", message.version, version, VERSION_LEAP, version >= 0))
    for what, claimed, known, leap, is_known in checks:
        if claimed > known + leap:
            why = f"says {what} {claimed}, which is too far above {known}"
            proven = claimed > known + 2 * leap if is_known else claimed > 2**32
            return [implausible(message.node, why) if proven else JobEvent("refusal", why, 0, message.node)]
    return []
