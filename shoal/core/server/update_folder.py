"""The folding of updates into a round's sum, within the bounds of `shoal.core.job.update_bounds`."""

from __future__ import annotations

from shoal.core.algorithm.algorithm import Algorithm, Update
from shoal.core.errors import Refused
from shoal.core.job.update_bounds import (
    UPDATES_KEPT,
    WeightShares,
    describe_norm,
    describe_weight,
    plausible_norm,
)
from shoal.core.protocol.machine import Effect
from shoal.core.protocol.message import Ack, Report, Task
from shoal.core.server.hub_state import HubState
from shoal.core.server.roster import RosterMember


class UpdateFolder:
    """Folds updates, refuses implausible ones and limits each node's share of the weight."""

    def __init__(self, state: HubState) -> None:
        self._state = state

    def fold(self, report: Report, task: Task, update: Update, now: float) -> list[Effect]:
        """Fold an update. Raises `Refused` for one that is implausibly long.

        The first updates of a job have nothing to be compared with. They are kept until enough nodes have reported;
        then those that are too long are taken out again.
        """
        state, settings = self._state, self._state.settings
        factor = 0.0 if settings.algorithm.exact_updates else settings.plan.bounds.norm_factor
        limit = state.recent_norms.add_norm(update.node, update.norm, factor)
        if limit is not None and update.norm > limit:
            why = describe_norm(update.norm, limit, factor)
            state.bounded_nodes[update.node] = why
            raise Refused(why, code="update.norm")
        current = state.round
        weight = self._add(update)
        state.recent_norms.add_weight(update.node, update.weight * weight)
        current.add_report(report, task)
        state.sum.shares.add(report, update, weight)
        if limit is None and len(state.sum.unchecked) < UPDATES_KEPT:
            state.sum.unchecked.append((report, update))
        if limit is None or not state.sum.unchecked:
            return []
        earlier, state.sum.unchecked = state.sum.unchecked, []
        long = [(one, describe_norm(update_.norm, limit, factor)) for one, update_ in earlier if update_.norm > limit]
        if not long or len(earlier) + 1 != len(current.reports):  # some of the summed updates are not at hand
            return []
        effects = [effect for one, why in long for effect in self._exclude(one, why, now)]
        out = {one.task for one, _ in long}
        self._fold_again([*((one, each) for one, each in earlier if one.task not in out), (report, update)])
        return effects

    def _add(self, update: Update) -> float:
        """Add an update to the totals and return its staleness weight."""
        state, algorithm = self._state, self._state.settings.algorithm
        weight = algorithm.staleness_weight(state.progress.version - update.version)
        state.sum.totals = algorithm.fold(state.sum.totals, update, weight)
        return weight

    def _fold_again(self, updates: list[tuple[Report, Update]]) -> None:
        state = self._state
        state.sum.totals, state.sum.shares = state.empty_totals(), WeightShares()
        for report, update in updates:
            state.sum.shares.add(report, update, self._add(update))

    def _exclude(self, report: Report, why: str, now: float) -> list[Effect]:
        """Remove a report that was folded. The caller must make the sum again."""
        state = self._state
        state.round.remove_report(report)
        state.bounded_nodes[report.node] = why
        member = state.roster[report.node]
        if member.last_ack is not None and member.last_ack.task == report.task:
            member.last_ack = Ack(report.task, False, why)  # the answer if the node asks again
        return [state.event("refusal", f"{report.node}: {why}", report.node), *self.count_failure(member, now)]

    def count_failure(self, member: RosterMember, now: float) -> list[Effect]:
        """Count a failed task; report it when the node has failed too often to be asked again soon."""
        pause = member.count_failure(now)
        self._state.round.failed.add(member.node)
        if pause is None:
            return []
        until = f"for {pause:g} s, or until it restarts"
        text = f"{member.node} failed {member.failures} times in a row and is not asked {until}"
        return [self._state.event("warning", text, member.node)]

    def cap_shares(self) -> list[Effect]:
        """Take the excess weight of the heaviest node out of the sum, before a version closes."""
        state = self._state
        algorithm, share_max = state.settings.algorithm, state.settings.plan.bounds.weight_fraction_max
        kind = type(algorithm)
        bounded = algorithm.uses_weights and (kind.fold is Algorithm.fold or kind.reweigh is not Algorithm.reweigh)
        shares = state.sum.shares
        excess = shares.excess(share_max, state.recent_norms.typical_weight) if bounded else 0.0
        if excess <= 0:
            return []
        whole = sum(one.weight * weight for _, one, weight in shares.kept)
        for report, update, weight in shares.kept:
            counted = state.sum.reduced[report.task] = update.weight * ((whole - excess) / whole)
            state.sum.totals = algorithm.reweigh(state.sum.totals, update, counted, weight)
        return self._warn_of_share(shares, excess, share_max)

    def _warn_of_share(self, shares: WeightShares, excess: float, share_max: float) -> list[Effect]:
        node = shares.heaviest
        claimed = shares.weights[node]
        why = describe_weight(claimed, claimed - excess, share_max)
        self._state.bounded_nodes[node] = why
        return [self._state.event("warning", f"{node}: {why}", node)]

    # Models that peers hand back

    def bound_handed_back(self, now: float) -> list[Effect]:
        """Check models that peers hand back against the bounds, compared with each other; sum again if needed."""
        current, bounds = self._state.round, self._state.settings.plan.bounds
        limit = plausible_norm({report.node: report.norm for report in current.reports}, bounds.norm_factor)
        effects: list[Effect] = []
        for report in [report for report in current.reports if report.norm > limit]:
            effects += self._exclude(report, describe_norm(report.norm, limit, bounds.norm_factor), now)
        shares = WeightShares()
        for report in current.reports:
            shares.add(report, Update(report.node, report.version, report.weight, {}, report.norm), 1.0)
        excess = shares.excess(bounds.weight_fraction_max, None)
        if excess > 0:  # each node hands back one report
            self._state.sum.reduced = {one.task: one.weight - excess for one, _, _ in shares.kept}
            effects += self._warn_of_share(shares, excess, bounds.weight_fraction_max)
        if effects:
            self.sum_handed_back()
        return effects

    def sum_handed_back(self) -> None:
        """Make the sum of the models that peers have handed back."""
        state = self._state
        state.sum.totals = state.empty_totals()
        for report in state.round.reports:
            assert report.body is not None
            state.sum.totals.add(state.store.blobs.get(report.body), state.sum.weight_of(report), report.norm)
