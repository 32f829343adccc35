"""What must hold in every run, whatever goes wrong. Checked after every event.

    once          no update counts in two versions, nor twice in one; no node counts twice in a version, unless the
                  schedule asks it again
    kept          an update that was acknowledged as counted is in a closed version, or in the one being gathered
    numbered      versions are consecutive, and begin with the initial model
    fresh         an update counts only in the version that its order was given for, or as much later as is admitted
    sum           a version's model is the weighted mean of exactly the updates that it lists
    asked         who is given an order to train may be asked at that moment (`shoal.core.selection`)
    order         an order's id names one order for ever; what is sent with it is what the algorithm wants sent
    memory        private memory is replaced only after a counted acknowledgement, by the memory that belongs to the
                  counted report; work starts from the memory of the node's last counted report
    replay        snapshot and journal lead to the same effects and the same state as the first time

What must hold besides in dynamic averaging: see `shoal.sim.anchored`.
That the schedule settles, that every body is there when it is needed, and that a run ends is seen where it is run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from shoal.core.algorithm import Update, tree_slot
from shoal.core.anchor import SYNC
from shoal.core.filter import pack_onto, unpack
from shoal.core.hub import Hub
from shoal.core.machine import Effect, Event, Rejected, Result, Save, Send, Version, Work
from shoal.core.message import Ack, Bodies, Message, Order, OrderId, Ref, Report
from shoal.core.sums import Totals
from shoal.core.tree import Array, Slots, Tree, digest, to_float
from shoal.sim.anchored import Anchored, Violation, require
from shoal.sim.watch import Watch

__all__ = ["Checker", "Violation", "require"]

Key = tuple[str, OrderId]
"""A report is known by its node and its order."""

TOLERANCE = 1e-6
"""Between a model in float32 and the recomputed one, relative to the greater of 1 and the value."""


class Checker(Watch):
    """Holds what the outside has seen against what the hub says."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._history: list[Sequence[Effect]] = []
        self._orders: dict[OrderId, Order] = {}
        self._versions: list[Version] = []
        self._base: Version | None = None
        self._closed: dict[Key, int] = {}  # version by report
        self._acked: set[Key] = set()  # as counted, and in no closed version yet
        self._at_crash: list[Any] = []
        self._memories = Memories()
        self._anchored = Anchored(bodies)

    def fed(self, index: int, event: Event, now: float, effects: Sequence[Effect], hub: Hub) -> None:
        """Every event of the journal, the first time and again."""
        if index < len(self._history):
            again = self._history[index] == effects
            require(again, "replay: event {}, {}, has other effects than the first time", index, event)
            return
        require(index == len(self._history), "replay: event {} is fed before {}", index, len(self._history))
        self._history.append(effects)
        self._acked -= {key for key in self._acked if _taken_back(hub, *key)}
        for effect in effects:
            if isinstance(effect, Send):
                if isinstance(effect.body, Order):
                    self._check_asked(effect.body, hub, now)
                    self._check_order(effect.body, hub)
                elif isinstance(effect.body, Ack) and effect.body.counted and isinstance(event, Report):
                    self._memories.counted(event)
            elif isinstance(effect, Save) and isinstance(effect.what, Version):
                self._check_version(effect.what, hub)
        self._anchored.fed(event, effects, hub)
        if isinstance(event, Report) and hub.phase == "running":
            self._check_round(hub)

    def _check_asked(self, order: Order, hub: Hub, now: float) -> None:
        if order.id in self._orders or order.kind != "train":
            return
        one, selection = hub.roster[order.node].candidate, hub.plan.selection
        closed = "" if hub.schedule.anchored else selection.closed(one, now + hub.epoch)
        require(not selection.excludes(one), "asked: {} is asked: {}", one, selection)
        told, form = hub.roster[order.node].about.model, tree_slot(hub.slots, "model").layout.form
        require(told in (None, form), "asked: {} has another model: {}", order.node, told)
        require(not closed, "asked: {} is asked at {} s of the day: {}", one, (now + hub.epoch) % 86400, closed)

    def _check_order(self, order: Order, hub: Hub) -> None:
        known = self._orders.setdefault(order.id, order)
        same = replace(order, rev=known.rev, recall=known.recall, until=known.until)
        require(known == same, "order: {} has the id of {}", order, known)
        require(order.base in (None, *hub.refs()), "order: {} names a base that nobody holds", order)
        if known is order and hub.slots and order.version == hub.version:  # else it was given before a close
            slots = hub.algorithm.order(hub.slots, order.node, order.kind)
            whole = hub.plan.differs and order.base is None
            wanted = self._bodies.put(slots if whole else hub.anchor.sent(slots))
            require(order.body == wanted, "order: {} does not carry what the algorithm wants sent", order)

    def _check_round(self, hub: Hub) -> None:
        nodes = [report.node for report in hub.gathered.reports]
        if not hub.schedule.again:
            require(len(set(nodes)) == len(nodes), "once: a node counts twice in one version: {}", nodes)
        for report in hub.gathered.reports:
            version = self._closed.get((report.node, report.order))
            require(version is None, "once: {} has counted in version {} already", report, version)

    def _check_version(self, version: Version, hub: Hub) -> None:
        require(version.number == len(self._versions), "numbered: {} where {} is due", version, len(self._versions))
        keys = [(node, order) for node, order, _, _ in version.reports]
        known = set(keys) if hub.schedule.again else {node for node, _ in keys}
        require(len(known) == len(keys), "once: a node counts twice in {}", version)
        for key in keys:
            require(key not in self._closed, "once: {} is in {}, and in an earlier version", key, version)
            self._closed[key] = version.number
            made_for, since = self._orders[key[1]].version, self._base.number if self._base else version.number - 1
            in_time = made_for >= since or (not self._base and hub.schedule.admits(since - made_for))
            require(in_time, "fresh: {} counts an update that was made for {}", version, made_for)
        missing = self._acked - set(keys)
        require(not missing, "kept: {} lacks {}, which were acknowledged as counted", version, missing)
        self._acked.clear()
        if self._versions:
            self._check_sum(self._base or self._versions[-1], version, hub)
        self._versions.append(version)
        if hub.schedule.anchored and hub.anchor.numbers[SYNC]:
            self._base = version

    def _check_sum(self, before: Version, version: Version, hub: Hub) -> None:
        """Fold the listed updates once more, from last to first, onto the version before; add the models by hand."""
        base, found = self._bodies.get(before.model), self._bodies.get(version.model)
        expected, filters = hub.algorithm.reply(base), hub.plan.filters
        totals, by_hand, weights = Totals(hub.plan.sums), 0.0 * floats(tree_slot(base, "model")), 0.0
        for node, _, weight, name in reversed(version.reports):
            slots = unpack(filters, self._bodies.get(Ref(name, 0)), expected)
            norm = max(largest(value) for value in slots.values())
            totals = hub.algorithm.fold(totals, Update(node, before.number, weight, slots, norm), 1.0)
            by_hand += weight * floats(tree_slot(slots, "model"))
            weights += weight
        require(weights == version.weight > 0, "sum: {} lists a weight of {}", version, weights)
        if filters and hub.based:
            self._check_filtered(hub, version.number, totals, base, found)
            return
        gap = distance(hub.algorithm.step(base, totals), found)
        good = gap == 0 if hub.plan.sums == "fixed" else gap <= TOLERANCE
        require(good, "sum: {} is {} away from the sum of what it lists", version, gap)
        wanted = floats(tree_slot(base, "model")) + by_hand / weights
        gap = relative(wanted, floats(tree_slot(found, "model")))
        require(gap <= TOLERANCE, "sum: {} is {} away from the weighted mean of what it lists", version, gap)

    def _check_filtered(self, hub: Hub, number: int, totals: Totals, base: Slots, found: Slots) -> None:
        """The model is the one that receivers make of what is sent; to the bit where the order of sums is no matter."""
        model, seed = tree_slot(hub.algorithm.step(base, totals), "model"), hub.plan.seed_of(number)
        _, received = pack_onto(hub.plan.filters, model, tree_slot(base, "model"), seed)
        gap = apart(received, tree_slot(found, "model"))
        require(gap == 0 or hub.plan.sums != "fixed", "sum: the model is {} away from what its receivers have", gap)

    def sent(self, node: str, message: Message | Rejected, hub: Hub) -> None:
        """Everything that leaves the coordinator."""
        if not isinstance(message, Ack) or not message.counted or self._kind(message.order) != "train":
            return
        key = (node, message.order)
        if key not in self._closed:
            here = any((report.node, report.order) == key for report in hub.gathered.reports) or _taken_back(hub, *key)
            require(here, "kept: {} is acknowledged as counted, but it is in no version", key)
            self._acked.add(key)

    def _kind(self, order: OrderId) -> str:
        require(order in self._orders, "order: {} is acknowledged, but it was never given", order)
        return self._orders[order].kind

    def names(self, hub: Hub) -> list[Ref | None]:
        """What the next version will be checked against."""
        return [*(report.body for report in hub.gathered.reports), self._base.model if self._base else None]

    def crashed(self, hub: Hub) -> None:
        """Remember what the next process must find."""
        self._at_crash = everything(hub)

    def restored(self, hub: Hub) -> None:
        """The state is the one that was lost, to the last bit."""
        if self._at_crash:
            for before, after in zip(self._at_crash, everything(hub), strict=True):
                require(before == after, "replay: the state was {}, and is now {}", before, after)
        held = {(report.node, report.order) for report in hub.gathered.reports}
        gone = {key for key in self._acked - held if not _taken_back(hub, *key)}
        require(not gone, "kept: {} were acknowledged as counted, and are gone", gone)

    def started(self, node: str, work: Work) -> None:
        """A node begins an order."""
        self._memories.started(node, work)
        self._anchored.started(node, work)

    def holds(self, node: str, base: Ref | None) -> None:
        """A node has begun to hold this."""
        self._anchored.holds(node, base)

    def worked(self, node: str, order: OrderId, result: Result) -> None:
        """A node has a result."""
        self._memories.worked(node, order, result)

    def committed(self, node: str, memory: Ref) -> None:
        """A node replaces its private memory."""
        self._memories.committed(node, memory)

    def fell(self, node: str, memory: Ref | None, spared: bool) -> None:
        """A node's process died."""
        if not spared:
            self._memories.forgot(node, memory)


class Memories:
    """What each node's private memory must be."""

    def __init__(self) -> None:
        self._now: dict[str, Ref | None] = {}
        self._made: dict[Key, dict[str, Ref | None]] = {}  # memory, by the digest of the update made with it
        self._counted: dict[str, tuple[Key, str]] = {}  # each node's last counted report, and the digest of its update
        self._gone: set[Key] = set()  # made, but no longer on the node's disk
        self._damaged: set[Key] = set()  # made by a node whose disk was damaged later: it may have been made anew

    def worked(self, node: str, order: OrderId, result: Result) -> None:
        """These belong together: an update, and the memory after it."""
        made = self._made.setdefault((node, order), {})
        made[result.body.digest if result.body else ""] = result.memory
        self._gone.discard((node, order))

    def counted(self, report: Report) -> None:
        """From now on the memory of this report is the right one, if the node still has it."""
        key, name = (report.node, report.order), report.body.digest if report.body else ""
        if key == self._counted.get(report.node, (None,))[0]:
            return
        self._counted[report.node] = key, name
        memory = self._made[key][name]
        if memory is not None and key not in self._gone:
            self._now[report.node] = memory

    def started(self, node: str, work: Work) -> None:
        """Work begins from the right memory."""
        right = self._now.get(node)
        require(work.memory == right, "memory: {} starts from it instead of {}", work, right)

    def committed(self, node: str, memory: Ref) -> None:
        """Only what belongs to the last counted report."""
        key, name = self._counted.get(node, (None, ""))
        made = self._made[key] if key else {}
        right = memory in made.values() if key in self._damaged else made.get(name) == memory
        require(right, "memory: {} commits {}, which does not belong to its last report, {}", node, memory, key)
        self._now[node] = memory

    def forgot(self, node: str, memory: Ref | None) -> None:
        """Nothing can be asked of a node whose disk is damaged but that it goes on from what is left."""
        self._now[node] = memory
        lost = {key for key in self._made if key[0] == node}
        self._gone |= lost
        self._damaged |= lost


def _taken_back(hub: Hub, node: str, order: OrderId) -> bool:
    """Whether a report was found to be implausible after it had been acknowledged as counted."""
    member = hub.roster.get(node)
    answered = member.answered if member is not None else None
    return answered is not None and answered.order == order and not answered.counted


def floats(tree: Tree) -> Array:
    """All the tree's floats, one after the other, in float64."""
    parts = [to_float(tree.block(s.start, s.stop), s.dtype) for s in tree.layout.segments if s.is_float]
    return np.concatenate(parts) if parts else np.zeros(0)


def largest(value: Tree | float) -> float:
    """The greatest magnitude of a slot's numbers."""
    return float(np.abs(floats(value)).max(initial=0.0)) if isinstance(value, Tree) else abs(value)


def relative(a: Array, b: Array) -> float:
    """The greatest difference, relative to the greater of 1 and the value."""
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(a)), initial=0.0))


def distance(a: Slots, b: Slots) -> float:
    """The greatest relative difference between two sets of slots; infinite when they are not alike."""
    if a.keys() != b.keys():
        return inf
    return max(apart(left, b[name]) for name, left in a.items())


def apart(a: Tree | float, b: Tree | float) -> float:
    """The same for one slot; whole numbers must be equal."""
    if isinstance(a, Tree) and isinstance(b, Tree):
        whole = [(s.start, s.stop) for s in a.layout.segments if not s.is_float]
        same = a.layout == b.layout and all(np.array_equal(a.block(*place), b.block(*place)) for place in whole)
        return relative(floats(a), floats(b)) if same else inf
    if isinstance(a, Tree) or isinstance(b, Tree):
        return inf
    return abs(a - b) / max(1.0, abs(a))


def everything(hub: Hub) -> list[Any]:
    """All that a hub knows, to the last bit, in a form that can be compared."""
    totals = deepcopy(hub.gathered.totals)
    gathered = {name: digest(totals.mean(name)) for name in sorted(totals.trees)} if totals.weight else {}
    plain = ("opened", "population", "asked", "failed", "measured", "recalled", "recalled_at", "nbytes", "reports")
    sent = hub.anchor.sent(hub.slots)
    return [
        json.dumps(hub.state(), sort_keys=True),
        deepcopy([getattr(hub.gathered, name) for name in plain]),
        [replace(member) for member in hub.roster.all()],  # not in the snapshot's own words, which may forget something
        (hub.anchor.base, hub.anchor.numbers, digests(hub.anchor.held), digests(sent)),
        (totals.weight, dict(totals.numbers), gathered),
        {version: means.values() for version, means in hub.gathered.means.items()},
        digests(hub.slots),
    ]


def digests(slots: Slots) -> dict[str, str | float]:
    """Slots by their contents."""
    return {name: digest(value) if isinstance(value, Tree) else value for name, value in slots.items()}
