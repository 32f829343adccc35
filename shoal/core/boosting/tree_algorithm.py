"""Algorithms of boosted trees: what those have in common that differ in how a round's reports grow decision trees.

Round 1: each node reports a quantile sketch, and the hub makes the edges of the bins and the base score. Later rounds:
the subclass. When all decision trees are complete, nodes report that they have finished, and the job ends.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.algorithm.algorithm import Algorithm, LocalResult, LocalTask, Update, tree_slot
from shoal.core.algorithm.capability import Capability
from shoal.core.algorithm.learner import GrowsTrees, Learner, Trained
from shoal.core.boosting.ensemble import Ensemble
from shoal.core.boosting.sketch import check_sketch, merge_labels, merge_sketches, sketch_layout
from shoal.core.boosting.splits import SplitRule
from shoal.core.errors.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat
from shoal.core.model.aggregation import Totals, TreeSum
from shoal.core.model.tree import Layout, Slots, Tree
from shoal.core.protocol.message import ScheduleFamily
from shoal.core.protocol.metrics import FINISHED

SKETCH, DONE = "sketch", "done"
"""Slots of an update: in the first round, and when nothing is left to grow."""


@dataclass(frozen=True)
class TreeAlgorithm(Algorithm):
    """A subclass says what nodes send of a decision tree, and how the hub grows it."""

    mixed_slots: ClassVar[tuple[str, ...]] = ()
    schedules: ClassVar[tuple[ScheduleFamily, ...]] = ("synchronous",)
    unweighted: ClassVar[bool] = True
    exact_updates: ClassVar[bool] = True
    changeable: ClassVar[tuple[str, ...]] = ()

    epochs: NonNegativeFloat = 1.0
    """Not used: each round goes once through all rows."""
    batch_size: NonNegativeInt = 0
    """Not used."""
    lr: PositiveFloat = 0.3
    """eta: the factor on the value of each leaf."""
    reg_lambda: NonNegativeFloat = 1.0
    """lambda: added to the sum of Hessians of a leaf."""
    gamma: NonNegativeFloat = 0.0
    """The least gain of a split."""
    min_child_weight: NonNegativeFloat = 1.0
    """The least sum of Hessians on either side of a split."""

    @property
    def required_capabilities(self) -> frozenset[Capability]:
        """Learners make sketches and histograms."""
        return frozenset({"trees"})

    @property
    def rule(self) -> SplitRule:
        """Return the settings of splits and leaves."""
        return SplitRule(self.lr, self.reg_lambda, self.gamma, self.min_child_weight)

    def init(self, model: Tree) -> Slots:
        """Return the slots. Raises `InvalidPayload` for a model that is not an ensemble."""
        Ensemble.of(model)
        return {"model": model}

    def update_layout(self, slots: Slots) -> dict[str, Layout | None]:
        """Return the layout of what the present stage needs."""
        ensemble = Ensemble.of(tree_slot(slots, "model"))
        if ensemble.is_complete:
            return {DONE: None}
        if not ensemble.has_edges:
            return {SKETCH: sketch_layout(ensemble.features, ensemble.bins)}
        return self.growth_layout(ensemble)

    @abstractmethod
    def growth_layout(self, ensemble: Ensemble) -> dict[str, Layout | None]:
        """Return the slots of an update that grows a decision tree."""

    def local(self, learner: Learner, task: LocalTask, memory: Slots) -> LocalResult:
        """Measure the model, then do what the present stage needs."""
        assert isinstance(learner, GrowsTrees)
        model = tree_slot(task.slots, "model")
        ensemble = Ensemble.of(model)
        learner.load(model)
        metrics = learner.evaluate()
        if not ensemble.has_edges:
            known, sketch = learner.sketch()
            return LocalResult(known.weight, {SKETCH: sketch}, metrics | known.metrics)
        if ensemble.is_complete:
            return LocalResult(1.0, {DONE: 1.0}, {**metrics, FINISHED: 1.0})
        known, slots = self.grow(learner, ensemble, task)
        return LocalResult(known.weight, slots, metrics | known.metrics)

    @abstractmethod
    def grow(self, learner: GrowsTrees, ensemble: Ensemble, task: LocalTask) -> tuple[Trained, Slots]:
        """Return the node's part of a decision tree."""

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Check an update, and add it; sketches, and what else is not summed, each by itself."""
        for name, value in update.slots.items():
            if isinstance(value, Tree):
                check_sketch(value) if name == SKETCH else self.check_growth(name, value)
        kept = {self.slot_of(name, update.node): value for name, value in update.slots.items()}
        for name, value in kept.items():
            if isinstance(value, Tree):  # the grain of fixed-point sums is for weights
                totals.trees.setdefault(name, TreeSum(value.layout, "float64"))
        totals.add(kept, 1.0, 1.0)
        return totals

    def slot_of(self, name: str, node: str) -> str:
        """Return the slot of the totals that an update's slot is added to."""
        return f"{name}.{node}" if name == SKETCH else name

    @abstractmethod
    def check_growth(self, name: str, value: Tree) -> None:
        """Raise `InvalidPayload` for an update with impossible numbers."""

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """Make the edges from the sketches, or grow."""
        ensemble = Ensemble.of(tree_slot(slots, "model"))
        sketches = [totals.mean(name) for name in sorted(totals.trees) if name.startswith(f"{SKETCH}.")]
        if sketches:
            made = ensemble.with_edges(merge_sketches(sketches, ensemble.bins), *merge_labels(sketches))
        elif ensemble.is_complete:
            return slots
        else:
            made = self.grown(ensemble, totals)
        return {"model": made.to_model()}

    @abstractmethod
    def grown(self, ensemble: Ensemble, totals: Totals) -> Ensemble:
        """Return the ensemble that a round's reports make."""
