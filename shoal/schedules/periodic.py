"""Periodic averaging: the coordinator's side. At every check a share of the nodes is averaged.

    share = 1        all report at each check, all get the mean: sigma_b of Kamp et al., ECML-PKDD 2018
    0 < share < 1    at each check a random share is asked and gets its mean, the others train on: what that paper calls
                     federated averaging
    share = 0        nobody speaks before the end: its "no communication"

The nodes keep step: a check begins when all have made the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import InvalidJob
from shoal.core.message import Metrics
from shoal.core.schedule import Advance, Anchored, Ask, Close, Decision, Recall, View, Wait, check_patience, gathering


@dataclass(frozen=True)
class Periodic(Anchored):
    """Average a share of the nodes at every check."""

    name: ClassVar[str] = "periodic"
    title: ClassVar[str] = "Periodic averaging"

    share: float = 1.0
    """C: of the nodes, those that are averaged at each check; 0: none before the end."""
    deadline_s: float = 600.0
    """Seconds to wait for a check, or for those who were asked."""
    min_nodes: int = 1
    """Nodes that must have joined before training begins."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InvalidJob(f"periodic: share is {self.share}, but a share of the nodes lies in [0, 1]")
        check_patience(self.name, self.deadline_s, self.min_nodes)

    @property
    def ahead(self) -> int:
        """One check at a time where some of the nodes will be asked."""
        return 1 if 0 < self.share < 1 else 0

    def numbers(self, view: View, close: Close | None) -> Metrics:
        """The share, from which nodes know whether they are waited for."""
        return {"share": self.share}

    def decide(self, view: View) -> list[Decision]:
        """Greet newcomers, then average, or wait."""
        if wait := gathering(view, self.min_nodes):
            return wait
        learning = set(view.members) - view.finished
        if not learning and not view.busy and view.reports:
            return [Close(f"all {len(view.members)} nodes have trained enough", rebase=True, last=True)]
        # Who has trained enough is left alone, unless there is nobody else to make the last version of.
        wanted = learning or set(view.members)
        fresh = tuple(node for node in view.idle if node in wanted and node not in view.reports)
        if fresh:
            return [Ask(fresh, "train", f"{len(fresh)} asked from version {view.version}")]
        if self.share == 1 or view.left <= 1:
            return self._average_all(view)
        if self.share == 0:
            return [Wait("nobody is asked before the end")]
        return self._average_some(view)

    def _average_all(self, view: View) -> list[Decision]:
        if not view.reports and view.left > 1:
            return [Wait("not all have made their check")]
        late = view.opened is not None and view.now >= view.opened + self.deadline_s
        asked = sorted(set(view.busy) - view.recalled)
        if view.left <= 1 and asked:
            return [Recall(tuple(asked), "all are asked for the last version")]
        if not view.reports:
            return [Wait("those who were asked have not answered")]
        if view.busy and not late:
            assert view.opened is not None
            return [Wait(f"{len(view.reports)} of {len(view.members)} reports", view.opened + self.deadline_s)]
        missing = f", {len(view.busy)} too late" if view.busy else ""
        return [Close(f"mean of all {len(view.reports)}{missing}", _learning(view), rebase=True)]

    def _average_some(self, view: View) -> list[Decision]:
        pending = sorted(view.recalled & set(view.busy))
        if not view.recalled and (view.busy or not view.reports):
            if set(view.busy) - view.waiting or not view.busy:
                return [Wait("not all have made their check")]
            wanted = view.pick(sorted(view.busy), max(1, round(self.share * len(view.members))))
            why = f"{len(wanted.nodes)} of {len(view.members)} are averaged{wanted.because}"
            return [Recall(wanted.nodes, why)]
        until = (view.recalled_at or view.now) + self.deadline_s
        if pending and view.now < until:
            return [Wait(f"{len(pending)} were asked and have not answered", until)]
        if not view.reports:
            rest = tuple(sorted(set(view.busy) - view.recalled))
            return [Recall(rest, "nobody has answered: all are asked")] if rest else [Wait("nobody has answered")]
        done = f"mean of {len(view.reports)} of {len(view.members)}"
        return [Close(done, _learning(view) or view.reports, keep=True), Advance()]


def _learning(view: View) -> tuple[str, ...]:
    """Those who reported and have not trained enough."""
    return tuple(node for node in view.reports if node not in view.finished)
