"""A peer's state, which mixers read, and the other peers that are alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Protocol

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.algorithm.filter import Filters, pack, unpack
from shoal.core.errors import InvalidPayload
from shoal.core.gossip.byte_budget import ByteBudget, exchange_bytes
from shoal.core.gossip.counter_bounds import ROUNDS_MAX
from shoal.core.model.joined_trees import join_trees, split_trees
from shoal.core.model.tree import Layout, Slots, Tree, norm, sub
from shoal.core.model.tree_checks import statistics_doubt
from shoal.core.protocol.message import BlobRef, Blobs
from shoal.core.protocol.peer_message import VersionVector

BLUR_KEPT = 0.9
"""Decay of `GossipState.filter_error`: rounding is random, so one small error says little about the next."""


class GossipBlobs(Blobs, Protocol):
    """The blobs of a peer."""

    def put_transient(self, slots: Slots) -> BlobRef:
        """Store slots that no saved state names: they may be gone after a crash."""
        ...


@dataclass(frozen=True)
class LivePeers:
    """The peers that membership reports.

    `absent`: neither live nor left; they may come back. `unreachable`: live, but this peer cannot reach them.
    """

    nodes: frozenset[str]
    absent: frozenset[str] = frozenset()
    unreachable: frozenset[str] = frozenset()
    roster: frozenset[str] | None = None
    """All admitted peers, with this one; None: unchanged, or not known."""

    def others(self, node: str, roster: frozenset[str] | None) -> LivePeers:
        """Return the peers other than `node`. `roster`: the last known one."""
        return LivePeers(self.nodes - {node}, self.absent - {node}, self.unreachable, self.roster or roster)


@dataclass
class RoundCounts:
    """Local rounds of each peer: those that this peer's model holds, and those that peers report."""

    version_vector: VersionVector = field(default_factory=dict)
    rounds_max: int = ROUNDS_MAX
    """Highest count that a peer may claim."""
    rounds: int = 0
    """Local rounds that each peer makes; 0: no limit."""
    rounds_done: bool = False
    """True if this peer has made them; from then on models only converge."""
    reported: VersionVector = field(default_factory=dict)
    """After the local rounds: rounds that each peer has reported, counted as in `version_vector`."""

    def has_reported(self, node: str) -> bool:
        """Return whether that peer has reported the end of its rounds."""
        return self.reported.get(node, 0) >= self.rounds > 0

    def claims_near(self, count: int) -> bool:
        """Return whether a round count signals converged models: see `shoal.core.gossip.termination`."""
        return count > self.rounds > 0 and (count - self.rounds) % 2 == 1

    def merge(self, other: VersionVector) -> None:
        """Merge a version vector into the model's own."""
        both = sorted({*self.version_vector, *other})
        self.version_vector = {
            node: min(self.rounds_max, max(self.version_vector.get(node, 0), other.get(node, 0))) for node in both
        }


@dataclass
class ConvergenceEvidence:
    """The mixer's evidence for termination."""

    distances: list[tuple[str, float]] = field(default_factory=list)
    """After the local rounds: (peer, relative distance of its model), since termination has last counted them."""
    consensus_with: frozenset[str] = frozenset()
    """Peers whose common mean this model is, unchanged since."""
    unanswering: frozenset[str] = frozenset()
    """Live peers that are silent when this peer calls."""
    blocked_until: float = -inf
    """Until then byte budgets keep this peer from exchanges, so that silence means nothing."""


@dataclass
class GossipState:
    """A peer's model and counters. Mixers read them and set `mixed`; `weight` (examples) is fixed, for conservation."""

    node: str
    process_number: int
    weight: float
    slots: Slots
    blobs: GossipBlobs
    rng: Random
    local_rounds: int = 0
    peers: LivePeers = LivePeers(frozenset())
    counts: RoundCounts = field(default_factory=RoundCounts)
    convergence: ConvergenceEvidence = field(default_factory=ConvergenceEvidence)
    budget: ByteBudget = field(default_factory=ByteBudget)
    model_bytes: int = 0
    """Bytes of a model in transit."""
    filters: Filters = ()
    """Filters of models that are sent: see `shoal.core.algorithm.filter.model_filters`."""
    filter_error: float = 0.0
    """Greatest recent distance between the model and its published, filtered form."""
    _joined: tuple[Slots, Tree, float | None] | None = None
    """The slots, all their trees as one, and its norm once it was needed."""

    @property
    def exchange_bytes(self) -> int:
        return exchange_bytes(self.model_bytes)

    def fit(self, model_bytes: int) -> None:
        """Set the bytes of a model in transit."""
        self.model_bytes = model_bytes
        self.budget.ensure_capacity(self.exchange_bytes)

    @property
    def model(self) -> Tree:
        return tree_slot(self.slots, "model")

    @property
    def mixed(self) -> Tree:
        """The model and the other trees that peers mix, such as a momentum, as one tree."""
        return self._present()[1]

    @mixed.setter
    def mixed(self, mixed: Tree) -> None:
        self.slots = split_trees(mixed, self.slots)
        self._joined = self.slots, mixed, None

    @property
    def layouts(self) -> dict[str, Layout | None]:
        """Layouts of the slots that peers mix."""
        return {name: value.layout for name, value in self.slots.items() if isinstance(value, Tree)}

    @property
    def norm(self) -> float:
        """Norm of all that is mixed."""
        slots, mixed, known = self._present()
        if known is None:
            known = norm(mixed)
            self._joined = slots, mixed, known
        return known

    def _present(self) -> tuple[Slots, Tree, float | None]:
        """Return what `_joined` holds of the present slots. Other threads may replace it at any time."""
        kept = self._joined
        if kept is None or kept[0] is not self.slots:
            slots = self.slots
            kept = self._joined = slots, join_trees(slots), None
        return kept

    def record_distance(self, partner: str, distance: float) -> None:
        """Record the distance to a peer's model, or the length of the step towards it.

        Twice the filter error counts as no distance: filtered models never come nearer.
        """
        if self.counts.rounds_done:
            seen = max(0.0, distance - 2 * self.filter_error)
            self.convergence.distances.append((partner, seen / (self.norm or 1.0)))

    def publish_model(self) -> BlobRef:
        """Store the filtered model as a blob for other peers, with all that is mixed with it."""
        sent: Slots = {name: self.slots[name] for name in self.layouts}
        if self.filters:
            sent = pack(self.filters, sent, self.rng.getrandbits(56))
            blur = norm(sub(join_trees(unpack(self.filters, sent, self.layouts)), self.mixed))
            self.filter_error = max(blur, BLUR_KEPT * self.filter_error) if blur < inf else 0.0
        return self.blobs.put(sent)

    def open_model(self, ref: BlobRef) -> Tree:
        """Return all of a published model as one tree, with the same numbers on both sides. Raises `InvalidPayload`."""
        return join_trees(unpack(self.filters, self.blobs.get(ref), self.layouts))

    def share_fault(self, ref: BlobRef, weight: float) -> str:
        """Return why a peer's model with this weight in a mean must not be mixed; "" if it may be."""
        try:
            theirs = self.open_model(ref)
        except InvalidPayload as error:
            return error.message
        if not (norm(theirs) < inf and 0 < weight < inf):
            return "it is not finite"
        return statistics_doubt(theirs, self.mixed)

    def published_model(self, shown: BlobRef) -> Tree:
        """Return the present model as the receivers of `shown` see it."""
        return self.open_model(shown) if self.filters else self.mixed
