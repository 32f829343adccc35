"""The gate on the way back: what peers hand back is measured by some of them before it becomes a version.

Each judge measures the newest version and the merged model on its own data, one after the other. If accuracy falls by
more than the gate, or the loss explodes, the job is paused and an operator decides: nothing is dropped silently, and
nobody trains on a bad model meanwhile. Judges that fail or stay away are not waited for longer than `return_s`; a model
that nobody could measure is taken.
"""

from __future__ import annotations

from shoal.core.message import Metrics, Ref, Report
from shoal.core.metric import ACCURACY, LOSS, Means
from shoal.core.schedule import Ask, Close, Decision, View, Wait
from shoal.core.tree import Slots
from shoal.core.words import counted

JUDGES = 5
"""How many nodes measure, at most: those with the most examples."""

LOSS_FACTOR, LOSS_FLOOR, LOSS_SLACK = 1.5, 0.3, 0.5
"""A loss above `LOSS_FACTOR` times the one before (taken as `LOSS_FLOOR` at least), plus `LOSS_SLACK`, has exploded."""


class Trial:
    """One merged model on trial. `ref` names its stored slots."""

    def __init__(self, ref: Ref, slots: Slots, reports: list[Report], opened: float) -> None:
        self.ref, self.slots, self.opened = ref, slots, opened
        heaviest = sorted(reports, key=lambda report: (-report.weight, report.node))[:JUDGES]
        self.judges = sorted(report.node for report in heaviest)
        self.held = False
        self._measured: dict[str, list[tuple[Metrics, float]]] = {node: [] for node in self.judges}

    def shown(self, node: str, newest: Slots) -> Slots:
        """What a judge measures next: the newest version first, then the merged model."""
        return self.slots if self._measured[node] else newest

    def take(self, report: Report) -> None:
        """A judge has measured what it was shown."""
        self._measured[report.node].append((report.metrics, report.weight))

    def excuse(self, node: str) -> bool:
        """A judge cannot measure anything now; whether it was one."""
        if node not in self.judges:
            return False
        self.judges.remove(node)
        return True

    def decide(self, view: View, patience_s: float) -> list[Decision]:
        """Ask judges, wait for them, or have done."""
        at_it = [
            node
            for node in self.judges
            if node in view.members and node not in view.failed and len(self._measured[node]) < 2
        ]
        due = self.opened + patience_s
        if self.held or not at_it or view.now >= due:
            return [Close(self.text())]
        idle = tuple(node for node in at_it if node not in view.busy)
        if idle:
            return [Ask(idle, "evaluate", "")]
        return [Wait(f"{counted(len(at_it), 'node')} measure the merged model", due)]

    def worse(self, gate: float) -> bool:
        """Whether the merged model is so much worse that an operator should look at it."""
        before, after = self._means()
        if ACCURACY in before and ACCURACY in after:
            return not after[ACCURACY] >= before[ACCURACY] - gate  # so that NaN is worse
        if LOSS in before and LOSS in after:
            return not after[LOSS] <= LOSS_FACTOR * max(before[LOSS], LOSS_FLOOR) + LOSS_SLACK
        return False

    def text(self) -> str:
        """What was found, for people."""
        before, after = self._means()
        for name, word in ((ACCURACY, "accuracy"), (LOSS, "loss")):
            if name in before and name in after:
                judges = counted(len(self._pairs()), "node")
                return f"{word} {after[name]:.4g} after {before[name]:.4g}, measured by {judges}"
        return "nobody has measured it"

    def _pairs(self) -> dict[str, list[tuple[Metrics, float]]]:
        return {node: both for node, both in self._measured.items() if len(both) == 2}

    def _means(self) -> tuple[Metrics, Metrics]:
        """Over those who have measured both models, so that the same data are behind both numbers."""
        before, after = Means(), Means()
        for node, ((first, weight), (second, _)) in self._pairs().items():
            before.add(first, weight, node)
            after.add(second, weight, node)
        return before.values(), after.values()
