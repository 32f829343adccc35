"""Periodic averaging: the coordinator's side. At every check a fraction of the nodes is averaged.

fraction = 1        all report at each check, all get the mean: sigma_b of Kamp et al., ECML-PKDD 2018
0 < fraction < 1    at each check a random fraction is asked and gets its mean, the others train on: that paper's
                        federated averaging
fraction = 0        no report before the end: its "no communication"

The nodes keep step: a check begins when all have made the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors.ranges import Fraction, PositiveFloat, PositiveInt
from shoal.core.protocol.message import Metrics
from shoal.core.scheduling.schedule import (
    Advance,
    Ask,
    Close,
    Decision,
    Recall,
    RelativeSchedule,
    View,
    Wait,
    wait_for_nodes,
)


@dataclass(frozen=True)
class Periodic(RelativeSchedule):
    """Average a fraction of the nodes at every check."""

    name: ClassVar[str] = "periodic"
    title: ClassVar[str] = "Periodic averaging"

    fraction: Fraction = 1.0
    """C: fraction of the nodes averaged at each check; 0: average only at the end."""
    deadline_s: PositiveFloat = 600.0
    """Seconds to wait for a check, or for the models of nodes asked."""
    min_nodes: PositiveInt = 1
    """Nodes that must have joined before training begins."""

    @property
    def max_lead(self) -> int:
        """One check at a time where some of the nodes will be asked."""
        return 1 if 0 < self.fraction < 1 else 0

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """Return the fraction; nodes derive from it whether they are waited for."""
        return {"fraction": self.fraction}

    def decide(self, view: View) -> list[Decision]:
        """Greet newcomers, then average, or wait."""
        nodes = view.nodes
        if wait := wait_for_nodes(view, self.min_nodes):
            return wait
        learning = set(nodes.members) - nodes.finished
        if not learning and not nodes.busy and view.round.reporters:
            return [Close(f"all {len(nodes.members)} nodes have trained enough", rebase=True, last=True)]
        # Leave nodes alone that have trained enough, unless no others can make the last version.
        wanted = learning or set(nodes.members)
        fresh = tuple(node for node in view.idle if node in wanted and node not in view.round.reporters)
        if fresh:
            return [Ask(fresh, "train", f"{len(fresh)} asked from version {view.version}")]
        if self.fraction == 1 or view.versions_left <= 1:
            return self._average_all(view)
        if self.fraction == 0:
            return [Wait("no node is asked before the end")]
        return self._average_some(view)

    def _average_all(self, view: View) -> list[Decision]:
        current, nodes = view.round, view.nodes
        if not current.reporters and view.versions_left > 1:
            return [Wait("not all have made their check")]
        late = current.opened_at is not None and view.now >= current.opened_at + self.deadline_s
        asked = sorted(set(nodes.busy) - current.recalled)
        if view.versions_left <= 1 and asked:
            return [Recall(tuple(asked), "all are asked for the last version")]
        if not current.reporters:
            return [Wait("the nodes that were asked have not answered")]
        if nodes.busy and not late:
            assert current.opened_at is not None
            why = f"{len(current.reporters)} of {len(nodes.members)} reports"
            return [Wait(why, current.opened_at + self.deadline_s)]
        missing = f", {len(nodes.busy)} too late" if nodes.busy else ""
        return [Close(f"mean of all {len(current.reporters)}{missing}", _learning(view), rebase=True)]

    def _average_some(self, view: View) -> list[Decision]:
        current, nodes = view.round, view.nodes
        pending = sorted(current.recalled & set(nodes.busy))
        if not current.recalled and (nodes.busy or not current.reporters):
            if set(nodes.busy) - nodes.waiting or not nodes.busy:
                return [Wait("not all have made their check")]
            wanted = view.pick(sorted(nodes.busy), max(1, round(self.fraction * len(nodes.members))))
            why = f"{len(wanted.nodes)} of {len(nodes.members)} are averaged{wanted.because}"
            return [Recall(wanted.nodes, why)]
        until = (current.recalled_at or view.now) + self.deadline_s
        if pending and view.now < until:
            return [Wait(f"{len(pending)} were asked and have not answered", until)]
        if not current.reporters:
            rest = tuple(sorted(set(nodes.busy) - current.recalled))
            return [Recall(rest, "no node has answered: all are asked")] if rest else [Wait("no node has answered")]
        done = f"mean of {len(current.reporters)} of {len(nodes.members)}"
        return [Close(done, _learning(view) or tuple(current.reporters), keep=True), Advance()]


def _learning(view: View) -> tuple[str, ...]:
    """Return the nodes that reported and have not trained enough."""
    return tuple(node for node in view.round.reporters if node not in view.nodes.finished)
