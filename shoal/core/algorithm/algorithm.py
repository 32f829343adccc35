"""What is computed. The base class is federated averaging; a subclass overrides what differs.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Algorithm 1. In displacements d_k = w_k - w_t:

    w_{t+1} = w_t + sum_k n_k d_k / sum_k n_k      over the nodes k that reported

An algorithm is a frozen dataclass: its fields are its configuration, its form in the dashboard and its row in the docs.
It holds no state. What must last lives in *slots* (named trees and numbers, checkpointed by the hub) or in a node's
private *memory* (slots too, committed only when the node's report was acknowledged).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from shoal.core.capability import Capability, check_learner
from shoal.core.errors import InvalidPayload
from shoal.core.learner import Budget, Learner, Tick, no_tick
from shoal.core.message import Kind, Metrics, OrderId, Status
from shoal.core.metric import EVAL_WEIGHT, PROBE
from shoal.core.parts import Divides, Part
from shoal.core.sums import Totals
from shoal.core.tree import Layout, Slots, Tree, sub


@dataclass(frozen=True)
class Task:
    """An order with its body opened."""

    order: OrderId
    kind: Kind
    version: int
    seed: int
    slots: Slots
    tick: Tick = no_tick
    base: Slots = field(default_factory=dict)
    """What both ends hold, where the order names one."""
    numbers: Metrics = field(default_factory=dict)
    """What the schedule lets the node know."""
    check: int = 0
    """How often this task came to `Going` already."""
    carry: Slots | None = None
    """What the last `Going` left; None at the first time."""
    recalled: bool = False
    """Whether the hub wants the report now."""


@dataclass(frozen=True)
class Going:
    """Nothing to report yet: do the next piece. `told` (None: nothing) and `state` go to the hub as a status."""

    carry: Slots
    told: Metrics | None = None
    state: bytes = b""


@dataclass(frozen=True)
class Update:
    """A report with its body opened. `norm` bounds the magnitude of every number in it."""

    node: str
    version: int
    weight: float
    slots: Slots
    norm: float
    sent: Slots = field(default_factory=dict)
    """What the node was sent with the order, where the algorithm asks for it (`Algorithm.rebuilds`)."""


@dataclass(frozen=True)
class Local:
    """What one node made of a task: its update, and its private memory afterwards (unchanged when None)."""

    weight: float
    slots: Slots = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    memory: Slots | None = None


def tree_slot(slots: Slots, name: str) -> Tree:
    """The tree in that slot. Raises `InvalidPayload` when the slot is missing or holds a number."""
    value = slots.get(name)
    if not isinstance(value, Tree):
        raise InvalidPayload(f"slot {name!r} should hold a tree", code="payload.slots")
    return value


@dataclass(frozen=True)
class Algorithm:
    """Federated averaging (FedAvg). Fields: what a node does with an order."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "Federated averaging (McMahan et al. 2017)"
    based: ClassVar[bool] = False
    """Whether it can work against a base that stays for several versions; schedules that set one need that."""
    estimates: ClassVar[bool] = False
    """Whether nodes tell what `estimate` needs, and wait for a schedule that looks at it."""
    gossips: ClassVar[bool] = True
    """Whether nodes can carry on without the hub: it keeps nothing but the model; see `stateful`."""

    synchronous: ClassVar[bool] = False
    """Whether all reports of a version must be about that version, because `step` makes no sense of older ones."""

    divides: ClassVar[Divides] = ""
    """How the model can be split over shards (`shoal.core.shards`): "weights": `step` makes each weight of what is
    known of that weight alone; "sums": of sums over the whole model too, which `step_part` asks for; "": it cannot."""

    rebuilds: ClassVar[bool] = False
    """Whether `fold` needs what the node was sent (`Update.sent`), to rebuild a model from its difference to that."""

    changeable: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "lr")
    """Fields that an operator may change while a job runs: those that every order reads anew."""

    alike: ClassVar[bool] = False
    """Whether every report counts alike, whatever its node holds; else by its weight."""

    @property
    def needs(self) -> frozenset[Capability]:
        """Return what a learner must be able to do beyond its six methods; `shoal.core.capability` refuses others."""
        return frozenset()

    epochs: float = 1.0
    """E: passes over the local data per round."""
    batch_size: int = 32
    """B: examples per local step; 0 takes all at once."""
    lr: float = 0.1
    """The local learning rate."""

    @property
    def stateful(self) -> str:
        """Return the setting that makes the hub keep more than the model, where `gossips` is true without it."""
        return ""

    def init(self, model: Tree) -> Slots:
        """The hub's slots for an initial model."""
        return {"model": model}

    def order(self, slots: Slots, node: str, kind: Kind) -> Slots:
        """The slots that a node is sent with an order of that kind."""
        return {"model": slots["model"]}

    def reply(self, slots: Slots) -> dict[str, Layout | None]:
        """The slots of an update and their layouts (None: a number): a payload is checked against it unread."""
        return {"model": tree_slot(slots, "model").layout}

    def budget(self, task: Task) -> Budget:
        """How much a node trains for a task."""
        return Budget(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, seed=task.seed)

    def local(self, learner: Learner, task: Task, memory: Slots) -> Local | Going:
        """The node's part: evaluate what was sent, train on it, report the displacement."""
        base = tree_slot(task.slots, "model")
        learner.load(base)
        metrics = learner.evaluate()
        trained = learner.train(self.budget(task), tick=task.tick)
        return Local(trained.weight, {"model": sub(learner.model(), base)}, metrics | trained.metrics)

    def trained(self, metrics: Metrics) -> float | None:
        """The share of all that it should train that a node has trained, as its last report tells; None: no saying."""
        return None

    def estimate(self, statuses: Sequence[Status]) -> float | None:
        """What a schedule may compare with its threshold, from the latest status of every node; None: nothing."""
        return None

    def discount(self, staleness: int) -> float:
        """The factor on the weight of a report that is `staleness` versions old."""
        return 1.0

    def fold(self, totals: Totals, update: Update, discount: float) -> Totals:
        """Take one report into the round's totals."""
        totals.add(update.slots, update.weight * discount if self.weighs else discount, update.norm)
        return totals

    @property
    def weighs(self) -> bool:
        """Whether what a report counts depends on the weight that its node claims."""
        return not self.alike

    def reweigh(self, totals: Totals, update: Update, weight: float, discount: float) -> Totals:
        """Let an update that was folded count with that weight in place of its own. (For a `fold` that adds in
        proportion to the weight; another one overrides this as well, or its weights are not bounded.)"""
        count = totals.count
        totals = self.fold(totals, replace(update, weight=weight - update.weight), discount)
        totals.count = count
        return totals

    def step(self, slots: Slots, totals: Totals) -> Slots:
        """The next version's slots. Uses the totals up."""
        return {**slots, "model": totals.mean_onto("model", tree_slot(slots, "model"))}

    def step_part(self, slots: Slots, totals: Totals) -> Part[Slots]:
        """`step` on a part of the model: yields what the part adds to sums over all of it (`shoal.core.parts`)."""
        yield from ()
        return self.step(slots, totals)


def perform(algorithm: Algorithm, learner: Learner, task: Task, memory: Slots) -> Local | Going:
    """Do a task of any kind, or its next piece: the node's part, the same in every world.

    Raises `InvalidJob` where the learner lacks what the algorithm needs.
    """
    if task.kind != "evaluate":
        check_learner(algorithm, learner)
    if task.kind == "init":
        return Local(0.0, {"model": learner.init(task.seed)})
    if task.kind == "evaluate":
        learner.load(tree_slot(task.slots, "model"))
        if task.numbers.get(PROBE):
            budget = Budget(batch_size=algorithm.batch_size, seed=task.seed)
            trained, _ = learner.gradient(budget, tick=task.tick)
            return Local(trained.weight, {}, trained.metrics)
        metrics = learner.evaluate()
        return Local(max(0.0, metrics.get(EVAL_WEIGHT, 0.0)), {}, metrics)
    return algorithm.local(learner, task, memory)
