"""Steps that two peers take towards each other, and their greatest lengths."""

from __future__ import annotations

from math import inf
from statistics import median

from shoal.core.gossip.gossip_state import GossipState
from shoal.core.mixing.exchange import ExchangeStep, InDoubt
from shoal.core.mixing.exchange_pacing import NORM_TIMES_MAX, PairwisePolicy
from shoal.core.mixing.final_averaging import FREE, FinalAveraging
from shoal.core.model.tree import Tree, norm, sub
from shoal.core.model.tree_steps import towards, towards_owing
from shoal.core.protocol.peer_message import ExchangeAccept, ExchangeOffer

REMEMBERED = 15
"""Recent steps whose median gives the usual length."""

CAP_FACTOR = 2.0
"""Greatest length of a step, relative to the usual one."""

PLANNED_FACTOR = 8.0
"""The same for final averaging, which many models take together. In simulations 5 was the most."""

UNCAPPED = float(2.0**1000)

HALVES = frozenset({"F16", "BF16"})


def norm_mismatch(theirs: float, mine: float) -> str:
    """Return why models of these norms are not exchanged; empty: they may be."""
    if theirs <= NORM_TIMES_MAX * max(mine, 1.0) and mine <= NORM_TIMES_MAX * max(theirs, 1.0):
        return ""
    times = f"one is more than {NORM_TIMES_MAX:g} times as long as the other"
    return f"models of norms {theirs:.4g} and {mine:.4g}: {times}"


def is_acceptable(message: ExchangeAccept, doubt: InDoubt, way: float) -> bool:
    """Return whether an honest partner would have taken this step, rounding aside."""
    fair = 0 <= message.weight < inf and message.weight + doubt.weight > 0 and 0 < message.step_fraction <= 1
    return fair and way < inf and message.step_fraction * way <= doubt.longest_step * 1.001


class StepLimiter:
    """One peer's steps. `clip`: True if steps far longer than usual are shortened."""

    def __init__(self, *, clip: bool) -> None:
        self._clip = clip
        self._lengths: list[float] = []
        self._owed: Tree | None = None  # rounding error of past steps; a crash loses it

    def cap(self, *, planned: bool) -> float:
        """Return the longest step that this peer takes. `planned`: in final averaging."""
        if not self._clip or len(self._lengths) < REMEMBERED // 3:
            return UNCAPPED
        return (PLANNED_FACTOR if planned else CAP_FACTOR) * median(self._lengths) or UNCAPPED

    def apply(
        self,
        me: GossipState,
        message: ExchangeOffer | ExchangeAccept,
        step: ExchangeStep,
        mass: float,
        mass_after: float,
    ) -> None:
        """Move the model, so that mass times model changes by as much as the partner's, with the opposite sign."""
        part = message.weight / (step.weight + message.weight)
        if mass_after not in (mass, 0.0):  # later moves and roundings keep their weight
            me.mixed = towards(me.mixed, step.mine, me.mixed, mass / mass_after - 1)
        elif mass_after and step.weight:
            part *= step.weight / mass
        steps_end = not me.filters and not any(one.dtype in HALVES for one in me.mixed.layout.segments)
        if steps_end:
            me.mixed = towards(me.mixed, step.mine, step.theirs, part * step.share)
        else:  # carry the error: roundings of endless steps would add up
            me.mixed, self._owed = towards_owing(me.mixed, step.mine, step.theirs, part * step.share, self._owed)
        me.convergence.consensus_with = frozenset()
        if message.step <= FREE:
            me.record_distance(message.node, part * step.way if step.share == 1.0 else step.way)
        if not me.counts.rounds_done:  # short steps among near models say nothing about a late one
            self._lengths = [*self._lengths, step.share * step.way][-REMEMBERED:]


class ModelSteps:
    """One peer's steps towards its partners. In final averaging they also divide the masses."""

    def __init__(self, policy: PairwisePolicy, averaging: FinalAveraging) -> None:
        self.limits = StepLimiter(clip=policy.clip_long_steps)
        self.refused = 0
        """Steps that were not taken, because the partner's model must not be mixed."""
        self._averaging, self._delta = averaging, policy.delta
        self._reference: Tree | None = None

    def is_near_last(self, model: Tree) -> bool:
        """Return whether the model has moved by at most `delta` since the last step."""
        return self._reference is not None and norm(sub(model, self._reference)) ** 2 <= self._delta

    def take(
        self,
        me: GossipState,
        message: ExchangeOffer | ExchangeAccept,
        step: ExchangeStep,
        kept_part: float | None,
        now: float,
    ) -> None:
        """Move the model; if it went the whole distance and `kept_part` is given, divide the masses."""
        before, whole = self._averaging.mass_of(me), step.share == 1.0
        after = kept_part * (before + message.weight) if kept_part is not None and whole else before
        self.limits.apply(me, message, step, before, after)
        self._averaging.record_step(me, message.step, after, now, whole=whole)
        if self._delta:
            self._reference = me.mixed
