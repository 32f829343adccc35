"""The check of a merged model: some nodes measure what peers hand back before it becomes a version.

Each evaluator measures the newest version and the merged model on its own data, one after the other. If accuracy falls
by more than the limit, or the loss explodes, the job is paused and an operator decides: nothing is dropped silently,
and no node trains on a bad model meanwhile. Evaluators that fail or stay away are not waited for longer than
`handback_timeout_s`; a model that none could measure is taken.
"""

from __future__ import annotations

from shoal.core.errors.phrases import counted
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef, Metrics, Report
from shoal.core.protocol.metrics import ACCURACY, LOSS, Means
from shoal.core.scheduling.schedule import Ask, Close, Decision, View, Wait

EVALUATORS_MAX = 5
"""Greatest number of evaluators: the nodes with the most examples."""

LOSS_FACTOR, LOSS_FLOOR, LOSS_SLACK = 1.5, 0.3, 0.5
"""A loss above `LOSS_FACTOR` times the one before (taken as `LOSS_FLOOR` at least), plus `LOSS_SLACK`, has exploded."""


class MergeCheck:
    """One merged model on trial. `ref` names its stored slots."""

    def __init__(self, ref: BlobRef, slots: Slots, reports: list[Report], opened: float) -> None:
        self.ref, self.slots, self.opened = ref, slots, opened
        heaviest = sorted(reports, key=lambda report: (-report.weight, report.node))[:EVALUATORS_MAX]
        self.evaluators = sorted(report.node for report in heaviest)
        self.is_held = False
        self._measured: dict[str, list[tuple[Metrics, float]]] = {node: [] for node in self.evaluators}

    def next_slots(self, node: str, newest: Slots) -> Slots:
        """Return the model that an evaluator measures next: the newest version first, then the merged model."""
        return self.slots if self._measured[node] else newest

    def add_report(self, report: Report) -> None:
        """Note an evaluator's measurement."""
        self._measured[report.node].append((report.metrics, report.weight))

    def excuse(self, node: str) -> bool:
        """Remove an evaluator that cannot measure now; return whether it was one."""
        if node not in self.evaluators:
            return False
        self.evaluators.remove(node)
        return True

    def decide(self, view: View, patience_s: float) -> list[Decision]:
        """Ask judges, wait for them, or have done."""
        at_it = [
            node
            for node in self.evaluators
            if node in view.nodes.members and node not in view.round.failed and len(self._measured[node]) < 2
        ]
        due = self.opened + patience_s
        if self.is_held or not at_it or view.now >= due:
            return [Close(self.describe())]
        idle = tuple(node for node in at_it if node not in view.nodes.busy)
        if idle:
            return [Ask(idle, "evaluate", "")]
        return [Wait(f"{counted(len(at_it), 'node')} measure the merged model", due)]

    def is_worse(self, gate: float) -> bool:
        """Return True if the merged model is so much worse that an operator should look at it."""
        before, after = self._means()
        if ACCURACY in before and ACCURACY in after:
            return not after[ACCURACY] >= before[ACCURACY] - gate  # so that NaN is worse
        if LOSS in before and LOSS in after:
            return not after[LOSS] <= LOSS_FACTOR * max(before[LOSS], LOSS_FLOOR) + LOSS_SLACK
        return False

    def describe(self) -> str:
        """Return the result as a sentence."""
        before, after = self._means()
        for name, word in ((ACCURACY, "accuracy"), (LOSS, "loss")):
            if name in before and name in after:
                judges = counted(len(self._pairs()), "node")
                return f"{word} {after[name]:.4g} after {before[name]:.4g}, measured by {judges}"
        return "no node has measured it"

    def _pairs(self) -> dict[str, list[tuple[Metrics, float]]]:
        return {node: both for node, both in self._measured.items() if len(both) == 2}

    def _means(self) -> tuple[Metrics, Metrics]:
        """Return the means over evaluators that have measured both models, so that both rest on the same data."""
        before, after = Means(), Means()
        for node, ((first, weight), (second, _)) in self._pairs().items():
            before.add(first, weight, node)
            after.add(second, weight, node)
        return before.values(), after.values()
