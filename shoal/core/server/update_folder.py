"""The folding of updates into a round's sum, within the bounds of `shoal.core.job.update_bounds`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import fsum

from shoal.core.algorithm.algorithm import Update, tree_slot
from shoal.core.algorithm.filter import unpack
from shoal.core.errors import InvalidPayload, Refused
from shoal.core.job.round_sum import HELD_MAX, HeldReport, WeightShares
from shoal.core.job.update_bounds import (
    NODES_LEAST,
    describe_first_norm,
    describe_norm,
    describe_weight,
    plausible_norm,
)
from shoal.core.model.tree import Slots, norm
from shoal.core.protocol.machine import Effect
from shoal.core.protocol.message import Ack, Report, Task
from shoal.core.server.hub_state import HubState
from shoal.core.server.roster import RosterMember


class UpdateFolder:
    """Folds updates, refuses implausible ones and limits each node's share of the weight."""

    def __init__(self, state: HubState) -> None:
        self._state = state

    def fold(self, report: Report, task: Task, update: Update, packed: Slots, now: float) -> list[Effect]:
        """Fold an update, or hold its report while it is not known how much of it counts. `packed`: its slots as they
        came. Raises `Refused`, with nothing changed but the norms that are remembered, for an implausibly long update,
        or one that no sum can hold.

        The first updates of a job have little to be compared with. They are held until enough nodes have reported;
        those that are too long are then excluded.
        """
        state = self._state
        limit = self._limit_norm(update, now)
        algorithm = state.settings.algorithm
        discount = algorithm.staleness_weight(state.progress.version - update.version)
        weight = update.weight * discount
        long = [one for one in state.sum.held if one.update.norm > limit]
        waits, ready = self._sort_held(update.node, weight, long)
        if waits or ready:
            bound = fsum(self._bound(one) for one in ready)
            state.sum.totals.check(update.slots, algorithm.fold_weight(update, discount), update.norm, bound)
        state.sum.held = [one for one in state.sum.held if one not in ready]
        effects = [effect for one in ready for effect in self._fold_held(one, one.update.weight, now)]
        if waits:
            state.sum.held.append(HeldReport(report, packed, replace(update, slots={}), discount))
        else:
            self._add(update, discount)
        state.recent_norms.add_weight(update.node, weight)
        state.round.add_report(report, task)
        state.sum.shares.add(update.node, weight)
        return effects + self._exclude_all(long, partial(self._describe_norm, limit=limit), now) if long else effects

    def _sort_held(self, new: str, weight: float, long: Sequence[HeldReport]) -> tuple[bool, list[HeldReport]]:
        """Return whether a report of node `new` is held, and the held ones, without `long`, that can be folded now."""
        total, share_max, waits = self._state.sum, self._state.settings.weight_fraction_max, True
        held = kept = [one for one in total.held if one not in long]
        if self._is_judged:
            shares = total.shares.without(long)
            waits = shares.is_excessive(new, share_max, new, weight)
            kept = [one for one in held if shares.is_excessive(one.update.node, share_max, new, weight)]
        kept = kept[max(0, len(kept) + waits - HELD_MAX) :]
        return waits, [one for one in held if one not in kept]

    def _bound(self, one: HeldReport) -> float:
        """Return a bound on the magnitudes that a held report adds to the sum."""
        return self._state.settings.algorithm.fold_weight(one.update, one.discount) * one.update.norm

    @property
    def _is_judged(self) -> bool:
        """Return True if an update's norm is limited by what is typical, or not at all."""
        return not self._state.settings.norm_factor or len(self._state.recent_norms.norms) >= NODES_LEAST

    def _limit_norm(self, update: Update, now: float) -> float:
        """Return the greatest plausible norm. Raises `Refused` for an update that is longer."""
        state, factor = self._state, self._state.settings.norm_factor
        recent = state.recent_norms
        limit = recent.add_norm(update.node, update.norm, factor)
        if not self._is_judged and len(recent.norms) > 1 and self._has_three_nodes(now):
            limit = recent.first_limit(factor, self._model_norm())
        if update.norm > limit:
            why = self._describe_norm(update.norm, limit)
            state.bounded_nodes[update.node] = why
            raise Refused(why, code="update.norm")
        return limit

    def _describe_norm(self, norm: float, limit: float) -> str:
        """Return why an update of that norm is too long."""
        if not self._is_judged:
            return describe_first_norm(norm, limit)
        return describe_norm(norm, limit, self._state.settings.norm_factor)

    def _has_three_nodes(self, now: float) -> bool:
        """Return True if there are enough nodes to compare their updates."""
        return len(self._state.eligibility.askable_members(now)) >= NODES_LEAST

    def _model_norm(self) -> float:
        return norm(tree_slot(self._state.store.slots, "model"))

    def lacks_comparison(self, now: float) -> bool:
        """Return True if the only update so far is longer than the model, and other nodes can show what is plausible.

        A version must not be made of it.
        """
        state = self._state
        if self._is_judged or len(state.recent_norms.norms) > 1 or not state.sum.held:
            return False
        return self._has_three_nodes(now) and max(one.update.norm for one in state.sum.held) > self._model_norm()

    def drop_without_comparison(self, now: float) -> list[Effect]:
        """Exclude the updates that no version must be made of, because the job cannot wait for others."""
        if not self.lacks_comparison(now):
            return []
        why = "no other node has reported, so it is unknown whether an update of norm {:.6g} is plausible"
        return self._exclude_all(self._state.sum.held, why.format, now)

    def _add(self, update: Update, discount: float) -> None:
        """Add an update to the totals. Raises what the algorithm raises, with the totals unchanged."""
        state = self._state
        state.sum.totals = state.settings.algorithm.fold(state.sum.totals, update, discount)

    def _fold_held(self, one: HeldReport, weight: float, now: float) -> list[Effect]:
        """Fold a held report with that weight; exclude it if the sum cannot take it."""
        state = self._state
        layouts = state.settings.algorithm.update_layout(state.store.slots)
        try:
            slots = unpack(state.settings.plan.filters, one.packed, layouts)
            self._add(replace(one.update, slots=slots, weight=weight), one.discount)
        except (InvalidPayload, Refused) as refusal:
            why = refusal.message
            return self._exclude_all([one], lambda _: why, now)
        return []

    def fold_all_held(self, now: float) -> list[Effect]:
        """Fold all that is held, before a version closes: of the heaviest node, as much as its share allows. The light
        nodes come first."""
        state, share_max = self._state, self._state.settings.weight_fraction_max
        weights = state.sum.shares.weights
        found = state.sum.weigh_held(share_max, state.recent_norms.typical_weight)
        state.sum.held, effects, excess = [], [], defaultdict[str, float](float)
        for one, weight in sorted(found, key=lambda pair: weights[pair[0].update.node]):
            if weight < one.update.weight:
                state.sum.reduced[one.report.task] = weight
                excess[one.update.node] += (one.update.weight - weight) * one.discount
            effects += self._fold_held(one, weight, now)
        total = fsum(weights.values()) - fsum(excess.values())
        claims = [(node, weights[node], lost) for node, lost in excess.items() if node in weights]
        return [*effects, *(warn for claim in claims for warn in self._warn_of_share(*claim, total))]

    def _warn_of_share(self, node: str, claimed: float, excess: float, total: float) -> list[Effect]:
        """Note that a node's weight was not counted in full; tell people unless they know."""
        state = self._state
        why = describe_weight(claimed, claimed - excess, total, state.settings.plan.bounds.weight_fraction_max)
        state.bounded_nodes[node] = why
        is_news = state.recent_norms.add_reduced(node, claimed)
        return [state.event("warning", f"{node}: {why}", node)] if is_news else []

    def _exclude_all(self, long: Sequence[HeldReport], why: Callable[[float], str], now: float) -> list[Effect]:
        """Exclude reports that were held, and are in the shares; count one failure for each node."""
        effects: list[Effect] = []
        for one in long:
            self._state.sum.drop(one)
            effects += self._take_back(one.report, why(one.update.norm))
        for node, text in {one.update.node: why(one.update.norm) for one in long}.items():
            effects += self.count_failure(self._state.roster[node], text, now)
        return effects

    def _take_back(self, report: Report, why: str) -> list[Effect]:
        """Remove a report that has counted from the round. The caller corrects the sum."""
        state = self._state
        state.round.remove_report(report)
        state.bounded_nodes[report.node] = why
        member = state.roster[report.node]
        if member.last_ack is not None and member.last_ack.task == report.task:
            member.last_ack = Ack(report.task, False, why)  # the answer if the node asks again
        return [state.event("refusal", f"{report.node}: {why}", report.node)]

    def count_failure(self, member: RosterMember, why: str, now: float) -> list[Effect]:
        """Count a failed task; report it when the node has failed too often to be asked again soon."""
        pause = member.count_failure(why, now)
        self._state.round.failed.add(member.node)
        if pause is None:
            return []
        until = f"for {pause:g} s, or until it restarts"
        text = f"{member.node} failed {member.failures} times in a row and is not asked {until}: {why}"
        return [self._state.event("warning", text, member.node)]

    # Models that peers hand back

    def bound_handed_back(self, now: float) -> list[Effect]:
        """Check models that peers hand back against the bounds, compared with each other; sum again if needed."""
        current, bounds = self._state.round, self._state.settings.plan.bounds
        limit = plausible_norm({report.node: report.norm for report in current.reports}, bounds.norm_factor)
        effects: list[Effect] = []
        for report in [report for report in current.reports if report.norm > limit]:
            why = describe_norm(report.norm, limit, bounds.norm_factor)
            effects += self._take_back(report, why)
            effects += self.count_failure(self._state.roster[report.node], why, now)
        is_changed = bool(effects)
        shares, share_max = WeightShares(), bounds.weight_fraction_max
        for report in current.reports:
            shares.add(report.node, report.weight)
        for report in current.reports:  # each node hands back one
            allowed = shares.allowed_weight(report.node, share_max, None)
            if report.weight > allowed:
                self._state.sum.reduced[report.task] = allowed
                is_changed, total = True, allowed / share_max  # also if people are not warned of it again
                effects += self._warn_of_share(report.node, report.weight, report.weight - allowed, total)
        if is_changed:
            self.sum_handed_back()
        return effects

    def sum_handed_back(self) -> None:
        """Make the sum of the models that peers have handed back."""
        state = self._state
        state.sum.totals = state.empty_totals()
        for report in state.round.reports:
            assert report.blob is not None
            state.sum.totals.add(state.store.blobs.get(report.blob), state.sum.weight_of(report), report.norm)
