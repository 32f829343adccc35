"""The hub's promises that a transcript cannot show."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.errors import InvalidPayload
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.update_bounds import UpdateBounds
from shoal.core.model.aggregation import SumKind
from shoal.core.model.tree import Slots, Tree, digest, norm
from shoal.core.protocol.machine import (
    Effect,
    JobEvent,
    Measured,
    ModelVersion,
    NodeLost,
    Restarted,
    Save,
    Send,
    TaskDone,
    Timer,
)
from shoal.core.protocol.message import Ack, BlobRef, Join, Leave, Poll, Report, Task, TaskFailed
from shoal.core.scheduling.schedule import Ask, Close, Decision, View, Wait
from shoal.core.server.hub import Hub
from shoal.schedules.buffer import Buffer
from shoal.schedules.rounds import Rounds
from shoal.sim.hosts.toy_models import CountingAlgorithm, toy_tree
from shoal.sim.network.blobs import MemoryBlobs

NODES = ("a", "b", "c", "d", "e")


def model(*numbers: float) -> Tree:
    return Tree.of({"w": np.array(numbers)})


def restored(hub: Hub) -> Hub:
    """Return the hub of its snapshot, after JSON."""
    settings, snapshot = hub.settings, json.loads(json.dumps(hub.snapshot()))
    return Hub(settings.plan, settings.algorithm, settings.schedule, hub.store.blobs, snapshot)


def hub_of(blobs: MemoryBlobs, sums: SumKind = "float64", **how) -> Hub:
    """A hub at the beginning of its first round, with five nodes."""
    start = blobs.put({"model": how.pop("model", model(1.0, 2.0))})
    more = {
        name: how.pop(name)
        for name in ("filters", "accuracy_drop_max", "bounds", "lr_schedule", "early_stop", "stages")
        if name in how
    }
    plan = JobPlan(how.pop("versions", 3), 7, sums, start, **more)
    algorithm = how.pop("algorithm", Algorithm())
    hub = Hub(plan, algorithm, how.pop("schedule", Rounds(min_nodes=5, quorum=5)), blobs)
    for event in (Restarted(), *map(Join, NODES)):
        hub.on(event, 0.0)
    return hub


def report(hub: Hub, node: str, slots: Slots, weight: float) -> Report:
    task = hub.poll_reply(node)
    assert isinstance(task, Task)
    size = max(norm(value) if isinstance(value, Tree) else abs(value) for value in slots.values())
    return Report(node, task.id, task.version, weight, hub.store.blobs.put(slots), {}, size)


def acks(effects: list[Effect]) -> list[Ack]:
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Ack)]


UPDATES = st.lists(
    st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(0.5, 500)),
    min_size=len(NODES),
    max_size=len(NODES),
)


@given(UPDATES, st.permutations(NODES))
def test_the_model_does_not_depend_on_who_reports_first(updates, task) -> None:
    results: dict[str, list[Tree]] = {"float64": [], "fixed": []}
    for sums, models in results.items():
        for nodes in (NODES, task):
            hub = hub_of(MemoryBlobs(), sums, bounds=UpdateBounds(0.0, 1.0))  # type: ignore[arg-type]
            for node in nodes:
                x, y, weight = updates[NODES.index(node)]
                hub.on(report(hub, node, {"model": model(x, y)}, weight), 1.0)
            assert hub.progress.version == 1
            models.append(tree_slot(hub.store.slots, "model"))
    one, two = results["float64"]
    assert np.allclose(one["w"], two["w"], rtol=1e-12, atol=1e-12 * 1e3)
    one, two = results["fixed"]
    assert digest(one) == digest(two)


def test_a_snapshot_is_json_and_gives_the_same_hub() -> None:
    blobs = MemoryBlobs()
    hub = hub_of(blobs, algorithm=CountingAlgorithm(), model=toy_tree((1.0, 2.0, 3.0), 0))
    hub.on(TaskFailed("e", (1, 5), "no"), 1.0)
    for node in NODES:
        for _ in range(2):
            task = hub.poll_reply(node)
            if isinstance(task, Task) and task.version == 0:
                slots: Slots = {
                    "model": toy_tree((0.1, 0.2, 0.3), 1),
                    "turn": 1.0,
                    "mark": toy_tree((0.0, 0.0, 1.0), 1),
                }
                hub.on(report(hub, node, slots, 2.0), 2.0)
    assert hub.progress.version == 1
    state = hub.snapshot()
    twin = restored(hub)
    assert twin.snapshot() == state
    for node in NODES:
        assert twin.poll_reply(node) == hub.poll_reply(node)
        given_back = twin.roster[node]
        assert given_back == hub.roster[node]
    event = report(hub, "c", {"model": toy_tree((0.0, 0.0, 0.0), 2), "turn": 2.0, "mark": toy_tree((0, 0, 1), 1)}, 1.0)
    assert twin.on(event, 3.0) == hub.on(event, 3.0)


def test_the_snapshot_of_a_new_hub_is_a_new_hub() -> None:
    blobs = MemoryBlobs()
    plan = JobPlan(1)
    hub = Hub(plan, Algorithm(), Rounds(), blobs)
    twin = Hub(plan, Algorithm(), Rounds(), blobs, json.loads(json.dumps(hub.snapshot())))
    assert twin.on(Restarted(), 0.0) == hub.on(Restarted(), 0.0)
    assert twin.on(Join("a"), 0.0) == hub.on(Join("a"), 0.0)


@pytest.mark.parametrize(
    ("slots", "why"),
    [
        ({}, r"slots \[\] instead of \['model'\]"),
        ({"model": model(1.0, 2.0), "c": 1.0}, r"slots \['c', 'model'\] instead of"),
        ({"model": 1.0}, "slot 'model' is of the wrong kind"),
        ({"model": model(1.0)}, r"w is F64\[2\] in one tree, w is F64\[1\] in the other"),
        ({"model": Tree.of({"v": np.zeros(2)})}, r"w is F64\[2\] in one tree, v is F64\[2\]"),
    ],
)
def test_a_foreign_payload_is_refused_and_changes_nothing(slots: Slots, why: str) -> None:
    blobs = MemoryBlobs()
    hub = hub_of(blobs)
    effects = hub.on(Report("a", (1, 1), 0, 1.0, blobs.put(slots), {"eval/loss": 1.0}, 1.0), 1.0)
    (ack,) = acks(effects)
    assert not ack.counted
    assert re.search(why, ack.why)
    assert any(isinstance(effect, JobEvent) and effect.kind == "refusal" and effect.node == "a" for effect in effects)
    assert not hub.state.round.reports
    assert not hub.state.sum.means
    assert not hub.state.sum.totals.trees
    assert hub.state.sum.totals.weight == 0


def test_what_a_report_must_carry() -> None:
    hub = hub_of(MemoryBlobs())
    assert hub.reports.layouts("train") == {"model": model(1.0, 2.0).layout}
    assert hub.reports.layouts("init") == hub.reports.layouts("evaluate") == {}


def test_what_a_poll_would_change() -> None:
    hub = hub_of(MemoryBlobs())
    assert hub.is_poll_repeated("a")
    assert not hub.is_poll_repeated("x")
    hub.on(Poll("x"), 1.0)
    assert hub.is_poll_repeated("x")


def test_an_initial_model_without_a_model_is_refused() -> None:
    blobs = MemoryBlobs()
    hub = Hub(JobPlan(1), Algorithm(), Rounds(), blobs)
    for event in (Restarted(), Join("a")):
        hub.on(event, 0.0)
    (ack,) = acks(hub.on(Report("a", (1, 1), 0, 1.0, blobs.put({"weights": model(1.0)})), 1.0))
    assert ack == Ack((1, 1), False, "slot 'model' should hold a tree")
    assert hub.progress.phase == "waiting"


def test_orders_that_carry_the_same_are_stored_once() -> None:
    """Storing means hashing: with a hundred megabytes and fifty nodes that would take seconds."""

    class Counting(MemoryBlobs):
        puts = 0

        def put(self, slots: Slots) -> BlobRef:
            self.puts += 1
            return super().put(slots)

    blobs = Counting()
    hub = hub_of(blobs)
    tasks = [hub.poll_reply(node) for node in NODES]
    assert len({task.blob for task in tasks if isinstance(task, Task)}) == 1
    assert blobs.puts == 2  # the initial model, and version 0


@dataclass(frozen=True)
class Reserved(Algorithm):
    """Keeps a slot that is never sent."""

    def init(self, model: Tree) -> Slots:
        return {"model": model, "kept": model, "step": 0.0}


def test_a_task_without_other_slots_carries_the_model_as_it_is_stored() -> None:
    blobs = MemoryBlobs()
    hub = hub_of(blobs, algorithm=Reserved())
    refs = {task.blob for task in map(hub.poll_reply, NODES) if isinstance(task, Task)}
    assert refs == {hub.store.model} == {blobs.put({"model": model(1.0, 2.0)})}


def test_orders_of_their_own_are_not_mixed_up() -> None:
    """Trees made for one node must not be taken for those of another, wherever they lie in memory."""
    blobs = MemoryBlobs()
    hub = hub_of(blobs, algorithm=CountingAlgorithm(), model=toy_tree((1.0, 2.0, 3.0), 0))
    for node in NODES:
        task = hub.poll_reply(node)
        assert isinstance(task, Task)
        assert task.blob == blobs.put(CountingAlgorithm().task_slots(hub.store.slots, node, "train"))


def test_seeds_differ_by_node_and_version_and_stay() -> None:
    hub = hub_of(MemoryBlobs(), schedule=Rounds(min_nodes=5))
    seen = set()
    for _ in range(2):
        for node in NODES:
            task = hub.poll_reply(node)
            assert isinstance(task, Task)
            seen.add(task.seed)
        for node in NODES:
            hub.on(report(hub, node, {"model": model(0.0, 0.0)}, 1.0), 1.0)
    assert len(seen) == 10
    assert all(0 <= seed < 2**56 for seed in seen)


@dataclass(frozen=True)
class Restless(Rounds):
    """Opens rounds and closes them at once, without a report."""

    def decide(self, view: View) -> list[Decision]:
        return [Ask(view.nodes.members, "train", "again")]


def test_a_schedule_that_does_not_settle_is_an_error() -> None:
    with pytest.raises(AssertionError, match="does not settle at version 0"):
        hub_of(MemoryBlobs(), schedule=Restless())


@dataclass(frozen=True)
class Lenient(Rounds):
    """Closes at every report, and counts late ones too."""

    def accepts_staleness(self, staleness: int) -> bool:
        return staleness <= 1

    def decide(self, view: View) -> list[Decision]:
        if view.round.reporters:
            return [Close("a report", keep=True)]
        nodes = tuple(node for node in view.idle if node not in view.round.asked)
        return [Ask(nodes, "train", "go on")] if nodes else [Wait("reports")]


@dataclass(frozen=True)
class Halving(Algorithm):
    """A late report has half the weight."""

    def staleness_weight(self, staleness: int) -> float:
        return 0.5**staleness


def test_a_schedule_may_admit_late_reports() -> None:
    hub = hub_of(MemoryBlobs(), schedule=Lenient(), algorithm=Halving(), versions=9)
    made: list[ModelVersion] = []
    for node, value in (("a", 1.0), ("b", 2.0), ("c", 4.0)):
        effects = hub.on(report(hub, node, {"model": model(value, 0.0)}, 4.0), 1.0)
        made += [
            effect.what for effect in effects if isinstance(effect, Save) and isinstance(effect.what, ModelVersion)
        ]
    assert [(version.number, version.weight) for version in made] == [(1, 4.0), (2, 2.0)]
    assert tree_slot(hub.store.slots, "model")["w"][0] == 1.0 + 1.0 + 2.0
    assert acks(hub.on(report(hub, "d", {"model": model(0.0, 0.0)}, 4.0), 1.0))[0].why == "2 versions too late"


def test_events_that_are_not_for_a_hub_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        hub_of(MemoryBlobs()).on(TaskDone((1, 1)), 1.0)


def test_replacing_a_report_is_no_way_to_count_twice() -> None:
    hub = hub_of(MemoryBlobs())
    first = report(hub, "a", {"model": model(1.0, 1.0)}, 1.0)
    assert acks(hub.on(first, 1.0))[0].counted
    second = replace(first, blob=hub.store.blobs.put({"model": model(9.0, 9.0)}), weight=9.0)
    assert acks(hub.on(second, 1.0))[0].counted  # the answer of the first
    assert [one.report.blob for one in hub.state.sum.held] == [first.blob]
    assert hub.state.sum.shares.weights == {"a": 1}
    assert len(hub.state.round.reports) == 1


def test_invalid_payload_is_what_a_missing_slot_raises() -> None:
    with pytest.raises(InvalidPayload, match="slot 'c' should hold a tree"):
        tree_slot({"c": 1.0}, "c")


def test_a_report_on_an_older_version_may_be_the_first_thing_that_happens_to_the_next() -> None:
    """One may train at a time. It is lost, another is asked, both report: no other node is asked in between."""
    hub = hub_of(MemoryBlobs(), schedule=Buffer(concurrency=1, min_nodes=5))
    (first,) = (node for node in NODES if isinstance(hub.poll_reply(node), Task))
    late = report(hub, first, {"model": model(1.0, 0.0)}, 1.0)
    hub.on(NodeLost(first, "its lease ran out"), 1.0)
    (second,) = (node for node in NODES if isinstance(hub.poll_reply(node), Task) and node != first)
    other = report(hub, second, {"model": model(0.0, 1.0)}, 1.0)
    hub.on(late, 2.0)
    assert (hub.progress.version, hub.state.round.opened_at) == (1, 2.0)
    hub.on(other, 3.0)
    assert hub.progress.version == 2
    assert tree_slot(hub.store.slots, "model")["w"].tolist() == [2.0, 3.0]


def test_a_node_that_hangs_across_a_version_does_not_stop_the_next_one() -> None:
    """Two may train at a time; both hang, one of them after a report has made a version. Its deadline brings others."""
    hub = hub_of(MemoryBlobs(), versions=9, schedule=Buffer(concurrency=1, min_nodes=5, deadline_s=10.0))
    (first,) = (node for node in NODES if isinstance(hub.poll_reply(node), Task))
    hub.on(Timer(), 10.0)  # it hangs: another one is asked
    (second,) = (node for node in NODES if isinstance(hub.poll_reply(node), Task) and node != first)
    hub.on(report(hub, second, {"model": model(0.0, 1.0)}, 1.0), 11.0)
    assert hub.progress.version == 1
    for now in (21.0, 41.0, 81.0):
        hub.on(Timer(), now)
    assert sum(isinstance(hub.poll_reply(node), Task) for node in NODES) > 1


def test_a_report_that_is_too_old_is_no_failure() -> None:
    """Slow is not broken: its node is asked again, however often."""
    hub = hub_of(MemoryBlobs(), versions=100, schedule=Buffer(staleness_max=0, min_nodes=5))
    for turn in range(10):
        late = report(hub, "a", {"model": model(0.0, 0.0)}, 1.0)
        hub.on(report(hub, "b", {"model": model(0.0, 0.0)}, 1.0), turn)
        (ack,) = acks(hub.on(late, turn))
        assert (ack.counted, ack.why) == (False, "1 versions too late")
        assert isinstance(hub.poll_reply("a"), Task)
    assert hub.roster["a"].failures == 0


def measured(hub: Hub, node: str, accuracy: float, examples: float = 10.0) -> dict[str, float]:
    """Return the metrics of the newest version after that node's report."""
    metrics = {"eval/accuracy": accuracy, "eval/examples": examples, "train/loss": 1.0}
    said = replace(report(hub, node, {"model": model(0.0, 0.0)}, 1.0), metrics=metrics)
    (found,) = [effect for effect in hub.on(said, 1.0) if isinstance(effect, Measured)]
    assert found.number == hub.progress.version - (
        len(hub.state.round.reports) == 0
    )  # the version that it closed came after it
    return found.metrics


def test_a_version_of_a_few_reports_is_as_good_as_every_nodes_last_report_says() -> None:
    """Not as good as the two say that happened to report for it; one that has left says nothing any more."""
    hub = hub_of(MemoryBlobs(), schedule=Buffer(size=2, min_nodes=5), versions=9)
    for node, accuracy in zip(NODES, (0.5, 0.5, 0.9, 0.9, 0.5), strict=True):
        known = measured(hub, node, accuracy)
    assert (known["eval/nodes"], known["eval/asked"], known["eval/examples"]) == (5, 5, 50)
    assert known["eval/accuracy"] == pytest.approx(0.66)
    assert measured(hub, "c", 0.4, examples=30.0)["eval/accuracy"] == pytest.approx((0.5 * 3 + 0.4 * 3 + 0.9) / 7)
    again = restored(hub)
    again.on(Leave("d"), 1.0)
    assert measured(again, "a", 0.5)["eval/accuracy"] == pytest.approx((0.5 * 3 + 0.4 * 3) / 6)


def test_the_first_reports_of_a_buffer_are_known_to_be_a_part() -> None:
    hub = hub_of(MemoryBlobs(), schedule=Buffer(size=2, min_nodes=5))
    known = measured(hub, "a", 0.98)
    assert (known["eval/nodes"], known["eval/asked"]) == (1, 5)


def test_who_misses_deadlines_is_remembered() -> None:
    """Over a restart as well. A node asked beyond the cohort that came last in a full round missed none."""
    hub = hub_of(MemoryBlobs(), schedule=Rounds(min_nodes=5, deadline_s=10.0), versions=20)
    for start in range(0, 12 * 11, 11):
        for node in NODES[:4]:
            hub.on(report(hub, node, {"model": model(0.0, 0.0)}, 1.0), start + 1.0)
        hub.on(Timer(), start + 11.0)
    again = restored(hub)
    assert [again.roster[node].history.deadlines for node in NODES] == ["+" * 10] * 4 + ["-" * 10]
    full = hub_of(MemoryBlobs(), schedule=Rounds(min_nodes=5, cohort=4, over_select=1), versions=20)
    for node in NODES[:4]:
        full.on(report(full, node, {"model": model(0.0, 0.0)}, 1.0), 1.0)
    assert [full.roster[node].history.deadlines for node in NODES] == ["+"] * 4 + [""]


def test_the_last_model_of_a_buffer_is_measured() -> None:
    """By all who are here, those as well whose tasks of earlier versions stood when it was made."""
    hub = hub_of(MemoryBlobs(), schedule=Buffer(size=2, min_nodes=5), versions=1)
    for node in ("a", "b"):
        hub.on(report(hub, node, {"model": model(0.0, 0.0)}, 1.0), 1.0)
    assert hub.progress.phase == "evaluating"
    tasks = [hub.poll_reply(node) for node in NODES]
    assert [task.kind for task in tasks if isinstance(task, Task)] == ["evaluate"] * 5
