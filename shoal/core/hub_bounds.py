"""What a hub does with updates that are implausibly long or heavy (`shoal.core.bounds`)."""

from __future__ import annotations

from shoal.core.algorithm import Algorithm, Update
from shoal.core.bounds import UPDATES_KEPT, Shares, longest, too_heavy, too_long
from shoal.core.errors import Refused
from shoal.core.hub_state import HubState
from shoal.core.machine import Effect, Note
from shoal.core.message import Ack, Order, Report
from shoal.core.roster import Member


class HubBounds(HubState):
    """Between the state and what a hub does: every method changes the state, and returns what follows from it."""

    def _fold(self, report: Report, order: Order, update: Update, now: float) -> list[Effect]:
        """Take an update into the sum. Raises `Refused` for one that is implausibly long.

        The first reports of a job have nothing to be compared with. They are kept until there are enough of them; then
        one that is too long is taken out again.
        """
        factor = self.plan.bounds.norm_factor
        limit = self.recent.longest(update.node, update.norm, factor)
        if limit is not None and update.norm > limit:
            why = too_long(update.norm, limit, factor)
            self.limited[update.node] = why
            raise Refused(why, code="update.norm")
        discount, gathered = self.algorithm.discount(self.version - update.version), self.gathered
        gathered.totals = self.algorithm.fold(gathered.totals, update, discount)
        self.recent.weighed(update.node, update.weight * discount)
        gathered.take(report, order)
        gathered.shares.take(report, update, discount)
        if limit is None and len(gathered.unjudged) < UPDATES_KEPT:
            gathered.unjudged.append((report, update))
        if limit is None or not gathered.unjudged:
            return []
        earlier, gathered.unjudged = gathered.unjudged, []
        long = [(told, too_long(one.norm, limit, factor)) for told, one in earlier if one.norm > limit]
        if not long or len(earlier) + 1 != len(gathered.reports):  # else not all that was summed is at hand
            return []
        effects = [effect for told, why in long for effect in self._exclude(told, why, now)]
        out = {told.order for told, _ in long}
        self._fold_anew([*((told, one) for told, one in earlier if told.order not in out), (report, update)])
        return effects

    def _fold_anew(self, updates: list[tuple[Report, Update]]) -> None:
        gathered = self.gathered
        gathered.totals, gathered.shares = self.nothing(), Shares()
        for report, update in updates:
            discount = self.algorithm.discount(self.version - update.version)
            gathered.totals = self.algorithm.fold(gathered.totals, update, discount)
            gathered.shares.take(report, update, discount)

    def _exclude(self, report: Report, why: str, now: float) -> list[Effect]:
        """A report that has counted does not after all. Its sum must be made anew."""
        self.gathered.forget(report)
        self.limited[report.node] = why
        member = self.roster[report.node]
        if member.answered is not None and member.answered.order == report.order:
            member.answered = Ack(report.order, False, why)  # should it ask again
        said = Note("refusal", f"{report.node}: {why}", self.version, report.node)
        return [said, *self._count_failure(member, now)]

    def _count_failure(self, member: Member, now: float) -> list[Effect]:
        """Remember a failed order; say so when the node has failed too often to be asked again soon."""
        pause = member.fail(now)
        self.gathered.failed.add(member.node)
        if pause is None:
            return []
        until = f"for {pause:g} s, or until it restarts"
        text = f"{member.node} failed {member.failures} times in a row and is not asked {until}"
        return [Note("warning", text, self.version, member.node)]

    def _cap_share(self) -> list[Effect]:
        """Before a version is made: take out of the sum what one node weighs too much."""
        gathered, algorithm, share_max = self.gathered, self.algorithm, self.plan.bounds.share_max
        kind = type(algorithm)
        bounded = algorithm.weighs and (kind.fold is Algorithm.fold or kind.reweigh is not Algorithm.reweigh)
        shares = gathered.shares
        excess = shares.excess(share_max, self.recent.weight) if bounded else 0.0
        if excess <= 0:
            return []
        whole = sum(one.weight * discount for _, one, discount in shares.kept)
        for report, update, discount in shares.kept:
            counted = gathered.counted[report.order] = update.weight * ((whole - excess) / whole)
            gathered.totals = algorithm.reweigh(gathered.totals, update, counted, discount)
        return self._note_share(shares, excess, share_max)

    def _note_share(self, shares: Shares, excess: float, share_max: float) -> list[Effect]:
        node = shares.heaviest
        claimed = shares.weights[node]
        why = too_heavy(claimed, claimed - excess, share_max)
        self.limited[node] = why
        return [Note("warning", f"{node}: {why}", self.version, node)]

    def _bound_back(self, now: float) -> list[Effect]:
        """The same for models that peers hand back: they are compared with each other, and summed anew if need be."""
        gathered, bounds = self.gathered, self.plan.bounds
        limit = longest({report.node: report.norm for report in gathered.reports}, bounds.norm_factor)
        effects: list[Effect] = []
        for report in [report for report in gathered.reports if report.norm > limit]:
            effects += self._exclude(report, too_long(report.norm, limit, bounds.norm_factor), now)
        shares = Shares()
        for report in gathered.reports:
            shares.take(report, Update(report.node, report.version, report.weight, {}, report.norm), 1.0)
        excess = shares.excess(bounds.share_max, None)
        if excess > 0:
            gathered.counted = {one.order: one.weight - excess for one, _, _ in shares.kept}  # each hands back once
            effects += self._note_share(shares, excess, bounds.share_max)
        if effects:
            self._sum_back()
        return effects

    def _sum_back(self) -> None:
        """Sum up what peers have handed back."""
        self.gathered.totals = self.nothing()
        for report in self.gathered.reports:
            assert report.body is not None
            weight = self.gathered.weight_of(report)
            self.gathered.totals.add(self.bodies.get(report.body), weight, report.norm)
