"""A node whose model is another takes no part: it gives no model, trains nothing, and sets no node aside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.algorithm.algorithm import Algorithm, tree_slot
from shoal.core.errors import Refused
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.model_form import ModelForm, differences
from shoal.core.model.tree import Layout
from shoal.core.protocol.machine import Effect, JobEvent, NodeLost, Restarted, Timer
from shoal.core.protocol.message import Ack, ChangeSettings, Join, NodeInfo, NoTask, Report, Stop, Task
from shoal.core.scheduling.selection import Selection, parse_node_info
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import acks, model, report, restored

RIGHT = Layout.of([("w", "F64", (2,))])
WRONG = Layout.of([("w", "F64", (2,)), ("bias", "F32", (3,))])
TEXT = "its model differs from the job's (2 tensors, not 1): was it started with the right --learner, or the job with "
TEXT += "the right --model?"


def says(layout: Layout | None) -> NodeInfo:
    return NodeInfo(model=layout.form if layout is not None else None)


def hub_of(
    *layouts: Layout | None, start: bool = True, min_nodes: int = 1, tags: tuple[str, ...] = (), base_model: str = ""
) -> Hub:
    """Nodes a, b, … with models of these layouts have joined, one after the other."""
    blobs = MemoryBlobs()
    body = blobs.put({"model": model(1.0, 2.0)}) if start else None
    plan = JobPlan(9, 7, "float64", body, selection=Selection(tags=tags), base_model=base_model)
    hub = Hub(plan, Algorithm(), Rounds(min_nodes=min_nodes), blobs)
    hub.on(Restarted(), 0.0)
    for node, layout in zip("abcde", layouts, strict=False):
        hub.on(Join(node, node_info=says(layout)), 0.0)
    return hub


def warnings(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, JobEvent) and effect.kind == "warning"]


def test_it_takes_no_part_and_is_told_why_and_people_are_once() -> None:
    hub = hub_of(RIGHT, RIGHT)
    assert warnings(hub.on(Join("late", node_info=says(WRONG)), 1.0)) == [f"late takes no part: {TEXT}"]
    assert hub.poll_reply("late") == Stop(TEXT, model_differs=True)
    assert hub.eligibility.foreign_models == {"late": TEXT}
    assert "late" not in hub.eligibility.counted_nodes()
    for node in "ab":
        hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 2.0)
    assert hub.progress.version == 1, "nobody waits for it"
    twin = restored(hub)
    assert twin.poll_reply("late") == hub.poll_reply("late")
    for one in (hub, twin):
        assert warnings(one.on(Join("late", node_info=says(WRONG)), 3.0)) == []
        assert warnings(one.on(Join("later", node_info=says(WRONG)), 3.0)) == [f"later takes no part: {TEXT}"]
        one.on(Join("late", node_info=says(RIGHT)), 4.0)
        one.on(Join("later", node_info=says(None)), 4.0)
        assert one.eligibility.foreign_models == {}
        assert not isinstance(one.poll_reply("later"), Stop), "one that says nothing is asked"


def test_another_base_model_is_another_model() -> None:
    hub = hub_of(RIGHT)
    based = replace(RIGHT, base_model="ba5e" * 16)
    (text,) = warnings(hub.on(Join("late", node_info=says(based)), 1.0))
    assert "late takes no part: its model differs from the job's (base model ba5eba5eba5e, not no base model)" in text


BASE = "ba5e" * 16
BASED = replace(RIGHT, base_model=BASE)


def test_without_the_jobs_base_model_no_node_gives_the_first_model() -> None:
    why = "its model differs from the job's (no base model, not base model ba5eba5eba5e)"
    hub = hub_of(RIGHT, start=False, base_model=BASE)
    assert hub.poll_reply("a") == Stop(why, model_differs=True)
    assert hub.progress.waiting_for == f"0 of 1 node ready; not asked: a: {why}"
    assert restored(hub).poll_reply("a") == hub.poll_reply("a")
    hub.on(Join("a", node_info=says(BASED)), 1.0)
    assert isinstance(hub.poll_reply("a"), Task), "it has fetched the base model meanwhile"


def test_a_first_model_of_another_base_model_is_refused() -> None:
    hub = hub_of(None, start=False, base_model=BASE)
    task = hub.poll_reply("a")
    assert isinstance(task, Task), "it does not say what its model is"
    effects = hub.on(Report("a", task.id, 0, 1.0, hub.store.blobs.put({"model": model(1.0, 1.0)})), 2.0)
    assert acks(effects) == [
        Ack(task.id, False, "the initial model belongs to no base model, the job to base model ba5eba5eba5e")
    ]
    assert hub.store.model is None


def test_of_whom_the_job_does_not_want_it_does_not_matter() -> None:
    hub = hub_of(RIGHT, WRONG, WRONG, tags=("ship",))
    hub.on(Join("d", node_info=NodeInfo(("ship",), model=WRONG.form)), 1.0)
    hub.on(Join("e", node_info=NodeInfo(("ship",), model=RIGHT.form)), 1.0)
    assert hub.eligibility.foreign_models.keys() == {"d"}, (
        "several projects share a coordinator: nobody is to be alarmed of the others"
    )
    assert not isinstance(hub.poll_reply("b"), Stop)


def test_all_of_them_are_what_the_job_waits_for() -> None:
    hub = hub_of(WRONG, WRONG)
    assert hub.state.is_idle
    assert hub.progress.waiting_for == f"0 of 1 node ready; not asked: a, b: {TEXT}"
    hub.on(NodeLost("a"), 1.0)
    assert hub.eligibility.foreign_models.keys() == {"b"}


def test_it_gives_no_initial_model_where_others_are_more() -> None:
    hub = hub_of(WRONG, RIGHT, RIGHT, start=False, min_nodes=3)
    assert isinstance(hub.poll_reply("a"), NoTask), "though it is the first by name"
    assert hub.eligibility.foreign_models == {}, "it may be the job's yet"
    task = hub.poll_reply("b")
    assert isinstance(task, Task)
    assert task.kind == "init"
    hub.on(Report("b", task.id, 0, 1.0, hub.store.blobs.put({"model": model(1.0, 1.0)})), 2.0)
    assert hub.eligibility.foreign_models.keys() == {"a"}
    assert hub.progress.waiting_for.startswith("2 of 3 nodes ready; not asked: a: its model differs")
    hub.on(Join("d", node_info=says(RIGHT)), 3.0)
    assert hub.state.round.asked == {"b", "c", "d"}


def test_it_may_where_there_is_nobody_else() -> None:
    hub = hub_of(WRONG, RIGHT, RIGHT, start=False, min_nodes=3)
    for now in (300.0, 600.0, 900.0):
        hub.on(Timer(), now)
    task = hub.poll_reply("a")
    assert isinstance(task, Task), "the others have been asked, and say nothing"
    assert isinstance(hub_of(WRONG, RIGHT, start=False).poll_reply("a"), Task), "one against one is not a majority"


def test_who_was_asked_for_the_model_is_not_any_more_when_most_have_another() -> None:
    hub = hub_of(WRONG, start=False)
    task = hub.poll_reply("a")
    assert isinstance(task, Task)
    for node in "bc":
        hub.on(Join(node, node_info=says(RIGHT)), 1.0)
    assert isinstance(hub.poll_reply("a"), NoTask)
    effects = hub.on(Report("a", task.id, 0, 1.0, hub.store.blobs.put({"model": model(1.0, 1.0)})), 2.0)
    assert acks(effects) == [Ack(task.id, False, "task 1.1 was superseded; version is 0")]
    assert hub.store.model is None
    assert {node for node in "bc" if isinstance(hub.poll_reply(node), Task)} == {"b"}


def test_a_process_that_comes_back_with_another_learner_loses_its_order() -> None:
    hub = hub_of(RIGHT, RIGHT)
    assert isinstance(hub.poll_reply("a"), Task)
    hub.on(Join("a", node_info=says(WRONG)), 1.0)
    assert hub.poll_reply("a") == Stop(TEXT, model_differs=True)
    hub.on(report(hub, "b", {"model": model(1.0, 1.0)}, 1.0), 2.0)
    assert hub.progress.version == 1


def test_what_differs_is_named() -> None:
    same = Layout.of([("w", "F64", (2,))])
    assert RIGHT.form == same.form == tree_slot({"model": model(1.0, 2.0)}, "model").layout.form
    other = Layout.of([("w", "F64", (1, 2))])
    assert other.form != RIGHT.form
    assert other.form.beside(RIGHT.form) == "tensors of other names, types, shapes or kinds"
    assert Layout.of([("w", "F64", (3,))]).form.beside(RIGHT.form) == "3 parameters, not 2"
    assert differences(RIGHT.shown, same.shown) == []
    assert differences(WRONG.shown, RIGHT.shown) == ["bias is one too many"]
    assert differences(RIGHT.shown, WRONG.shown) == ["bias is missing"]
    assert differences(other.shown, RIGHT.shown) == ["w is F64[1, 2], not F64[2]"]


def test_a_node_tells_it_at_its_hello() -> None:
    said = {"digest": "a" * 64, "tensors": 2, "elements": 5}
    assert parse_node_info({"model": said}).model == ModelForm("a" * 64, 2, 5)
    assert parse_node_info({}).model is None
    for wrong in ([], "x", {}, said | {"digest": "A"}, said | {"tensors": True}, said | {"elements": -1}):
        with pytest.raises(Refused, match="model has a digest"):
            parse_node_info({"model": wrong})


def test_in_the_end_it_is_said_who_never_counted() -> None:
    hub = hub_of(RIGHT, RIGHT, RIGHT, min_nodes=3)
    hub.on(Join("late", node_info=says(WRONG)), 1.0)
    for node in "ab":
        hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 2.0)
    hub.on(NodeLost("c"), 3.0)
    assert hub.progress.version == 1
    hub.on(Join("e", node_info=says(RIGHT)), 3.0)
    hub.on(Join("d", node_info=says(RIGHT)), 3.0)
    assert hub.eligibility.never_counted() == (["c", "e", "late"], 5), "d came when nobody was asked any more"
    hub.on(ChangeSettings({"rounds": 2.0}), 3.0)
    for node in "abe":
        hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 4.0)
    assert hub.progress.phase == "evaluating"
    hub = restored(hub)
    for node in "abde":
        task = hub.poll_reply(node)
        assert isinstance(task, Task)
        hub.on(Report(node, task.id, task.version, 1.0), 5.0)
    assert hub.progress.ends_after_round == "2 versions, measured by 4 nodes; 2 of 5 nodes never counted: c, late"
