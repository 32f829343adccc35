"""Rules of failover: the timeouts, the quorum, and the state that a node continues from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.algorithm.filter import Filters, unpack
from shoal.core.algorithm.reference_model import NEW_REFERENCE, unpack_task
from shoal.core.errors import InvalidJob, StorageFailed
from shoal.core.model.tree import Slots, add
from shoal.core.protocol.message import BlobRef, Blobs, Report, Task, TaskFailed


@dataclass(frozen=True)
class Failover:
    """Timeouts of failover, in seconds."""

    coordinator_timeout_s: float = 15.0
    """Silence after which the hub is suspected."""
    suspicion_s: float = 15.0
    """Duration of the suspicion before nodes fail over."""
    failover_quorum: Literal["any", "majority"] | int = "any"
    """Nodes, this one included, that must miss the coordinator: any two, more than half of all, or a number."""
    min_gossip_s: float = 60.0
    """Shortest time in gossip, and the time for which the coordinator must have answered before it is trusted."""
    open_exchanges_timeout_s: float = 20.0
    """Timeout of exchanges that are open at a hand-back."""

    def __post_init__(self) -> None:
        if (
            not min(self.coordinator_timeout_s, self.suspicion_s, self.open_exchanges_timeout_s) > 0
            or not self.min_gossip_s >= 0
        ):
            raise InvalidJob(
                "failover: coordinator_timeout_s, suspicion_s, open_exchanges_timeout_s must be above 0, "
                "min_gossip_s at least 0"
            )
        if isinstance(self.failover_quorum, int) and self.failover_quorum < 1:
            raise InvalidJob(f"failover: failover_quorum is {self.failover_quorum}, but a node has at least its own")

    def votes_needed(self, population: int) -> int:
        """Return the quorum among `population` nodes."""
        if isinstance(self.failover_quorum, int):
            return self.failover_quorum
        return 2 if self.failover_quorum == "any" else population // 2 + 1


@dataclass(frozen=True)
class HeldVersion:
    """The newest model version that a node holds; -1: none."""

    version: int = -1
    model: BlobRef | None = None


@dataclass(frozen=True)
class IncarnationGrant:
    """A term, and the incarnation of the coordinator (a random number of its process) that holds it; 0: none."""

    term: int = 0
    incarnation: int = 0

    def after(self, term: int, incarnation: int) -> IncarnationGrant | None:
        """Return the grant after a message of that term and incarnation; None: another coordinator holds the term.

        A message of an older term, which is ignored anyway, or without an incarnation (0) leaves it as it is.
        """
        if not incarnation or term < self.term:
            return self
        if term > self.term:
            return IncarnationGrant(term, incarnation)
        return self if incarnation == self.incarnation else None


@dataclass(frozen=True)
class ModelHeld:
    """An event: the node has stored this version's model, and could continue from it.

    Where reports are relative to a reference model, this is the model with the node's own reports added.
    """

    version: int
    model: BlobRef


@dataclass(frozen=True)
class ForcedFailover:
    """An operator's order, verified by the shell, to continue without the coordinator in this term."""

    term: int
    why: str


MIXED_ROUNDS = "gossip/local_rounds"
"""Metric of a model that is handed back: the local rounds that its node has made among peers."""


def unacknowledged_report(report: Report | TaskFailed | None, held: HeldVersion, base: HeldVersion) -> Report | None:
    """Return the node's unacknowledged report on the version that it now starts from, or None.

    `held`: the version that it held before it knew of `base`. The initial model and models that were handed back do not
    count: a crash may have left them in the spool, and `base` or the version after it holds them.
    """
    if not isinstance(report, Report) or not report.version == held.version == base.version:
        return None
    return report if report.weight > 0 and MIXED_ROUNDS not in report.metrics else None


def starting_state(
    algorithm: Algorithm, filters: Filters, blobs: Blobs, base: BlobRef, work: Report | Task | None
) -> tuple[Slots, Task | None]:
    """Return the slots from which a node continues after a version, and the task that becomes its first round.

    `work`: an unacknowledged report, which is added at once, or a task in progress. A task relative to a reference
    model continues from that model, not from the version, which may hold a part of the node's own work. A task whose
    blobs have not arrived has not begun, and is dropped.
    """
    found = blobs.get(base)
    slots = algorithm.init(tree_slot(found, "model"))
    slots |= {name: found[name] for name in algorithm.mixed_slots if name in found}
    if isinstance(work, Report) and work.blob is not None:
        update = unpack(filters, blobs.get(work.blob), algorithm.update_layout(slots))
        return {**slots, "model": add(tree_slot(slots, "model"), tree_slot(update, "model"))}, None
    if not isinstance(work, Task) or NEW_REFERENCE not in work.numbers or work.blob is None:
        return slots, work if isinstance(work, Task) else None
    try:
        held = blobs.get(work.reference) if work.reference is not None else {}
        _, held = unpack_task(work, blobs.get(work.blob), held, filters)
    except StorageFailed:
        return slots, None
    return {**slots, "model": tree_slot(held, "model")}, work
