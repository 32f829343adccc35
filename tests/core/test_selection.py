"""Selection: eligible nodes, asked nodes, and the reasons."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from shoal.algorithms.dynamic import DynamicAveraging
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.errors import InvalidJob, Refused
from shoal.core.job.job_plan import JobPlan
from shoal.core.protocol.machine import Effect, JobEvent, Restarted, Send, Timer, Wake
from shoal.core.protocol.message import Ack, DrainNode, Join, NodeInfo, NoTask, Report, Task
from shoal.core.scheduling.availability_windows import is_open, next_opening, parse_hours
from shoal.core.scheduling.selection import Candidate, Selection, draw_by_examples, parse_node_info
from shoal.core.server.hub import Hub
from shoal.jobs.spec import check_job, parse_job
from shoal.schedules.divergence import Divergence
from shoal.schedules.rounds import Rounds
from shoal.selection.examples import ByExamples
from shoal.selection.power_of_choice import PowerOfChoice
from shoal.selection.uniform import Uniform
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import restored

HOUR = 3600.0
FOUR = [Candidate(node, examples=100.0, loss=loss) for node, loss in zip("abcd", (0.1, 0.4, 0.2, 0.3), strict=True)]


# Hours


@pytest.mark.parametrize(
    ("hours", "hour", "open_"),
    [
        ((), 12.0, True),
        (("22:00-06:00",), 23.0, True),
        (("22:00-06:00",), 5.999, True),
        (("22:00-06:00",), 6.0, False),
        (("22:00-06:00",), 21.999, False),
        (("09:00-17:30",), 17.4, True),
        (("09:00-17:30",), 17.5, False),
        (("00:00-24:00",), 0.0, True),
        (("01:00-02:00", "03:00-04:00"), 2.5, False),
        (("01:00-02:00", "03:00-04:00"), 3.5, True),
    ],
)
def test_hours_of_a_day(hours: tuple[str, ...], hour: float, open_: bool) -> None:
    for day in (0, 20_000):
        assert is_open(hours, day * 24 * HOUR + hour * HOUR) is open_


def test_when_hours_begin_again() -> None:
    assert next_opening(["22:00-06:00"], 7 * HOUR) == 22 * HOUR
    assert next_opening(["01:00-02:00", "03:00-04:00"], 2.5 * HOUR) == 3 * HOUR
    assert next_opening(["01:00-02:00"], 5 * HOUR) == 25 * HOUR, "tomorrow"
    assert next_opening(["01:00-02:00"], HOUR) == 25 * HOUR, "after, never at"


@pytest.mark.parametrize("text", ["", "22-6", "24:00-06:00", "22:60-06:00", "22:00-24:01", "08:00-08:00", "always"])
def test_what_are_no_hours(text: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_hours(text)
    assert caught.value.hint


# Eligible nodes


@pytest.mark.parametrize(
    ("selection", "one", "why"),
    [
        (Selection(), Candidate("a"), ""),
        (Selection(nodes=("a", "b")), Candidate("a"), ""),
        (Selection(nodes=("b",)), Candidate("a"), "not named by the job"),
        (Selection(tags=("phone",)), Candidate("a", ("phone", "eu")), ""),
        (Selection(tags=("phone", "eu")), Candidate("a", ("phone",)), "without the tag eu"),
        (Selection(tags=("phone",)), Candidate("a"), "without the tag phone"),
    ],
)
def test_whom_a_job_leaves_out(selection: Selection, one: Candidate, why: str) -> None:
    assert selection.describe_exclusion(one) == why


def test_hours_of_the_node_the_job_and_each_tag_must_all_be_open() -> None:
    selection = Selection(hours=("00:00-12:00", "phone 03:00-04:00", "phone 05:00-06:00"))
    phone, other = Candidate("a", ("phone",)), Candidate("b", hours=("02:00-24:00",))
    assert selection.describe_closed(phone, 3.5 * HOUR) == ""
    assert selection.describe_closed(phone, 4.5 * HOUR) == "only 03:00-04:00, 05:00-06:00 UTC"
    assert selection.next_opening(phone, 4.5 * HOUR) == 5 * HOUR
    assert selection.describe_closed(other, 4.5 * HOUR) == ""
    assert selection.describe_closed(other, HOUR) == "only 02:00-24:00 UTC"
    assert selection.describe_closed(other, 13 * HOUR) == "only 00:00-12:00 UTC"
    assert selection.next_opening(other, 13 * HOUR) == 24 * HOUR


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({"tags": "phone"}, "list of words"),
        ({"tags": [7]}, "list of words"),
        ({"tags": ["Phone"]}, "is not a tag"),
        ({"tags": ["a b"]}, "is not a tag"),
        ({"tags": [str(n) for n in range(33)]}, "at most 32 tags"),
        ({"hours": ["9-17"]}, "are not hours"),
    ],
)
def test_what_a_node_may_not_say_of_itself(info: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused, match=text):
        parse_node_info(info)


def test_what_a_node_says_of_itself() -> None:
    assert parse_node_info({"device": "cpu"}) == NodeInfo()
    info = {"tags": ["phone", "eu", "phone"], "hours": ["22:00-06:00"]}
    assert parse_node_info(info) == NodeInfo(("phone", "eu"), ("22:00-06:00",))


# Which of them


def test_a_uniform_draw() -> None:
    counts: Counter[str] = Counter()
    for seed in range(2000):
        picked = Uniform().pick(FOUR, 2, Random(seed))
        assert picked.why == "drawn at random"
        assert list(picked.nodes) == sorted(set(picked.nodes))
        counts.update(picked.nodes)
    assert all(900 < count < 1100 for count in counts.values()), "1000 each, standard deviation 22"


def test_where_there_is_no_choice_there_is_no_reason() -> None:
    for selection in (Uniform(), ByExamples(), PowerOfChoice()):
        for count in (4, 5):
            assert selection.pick(FOUR, count, Random(1)).nodes == ("a", "b", "c", "d")
            assert selection.pick(FOUR, count, Random(1)).because == ""
        assert selection.pick([], 0, Random(1)).nodes == ()


def test_a_draw_by_examples() -> None:
    sizes = {"a": 100.0, "b": 200.0, "c": 700.0}
    candidates = [Candidate(node, examples=count) for node, count in sizes.items()]
    counts = Counter(one.node for seed in range(4000) for one in draw_by_examples(candidates, 1, Random(seed)))
    for node, count in sizes.items():
        assert counts[node] / 4000 == pytest.approx(count / 1000, abs=0.03)
    picked = ByExamples().pick(candidates, 2, Random(5))
    assert picked.why.startswith("drawn by examples (")
    assert all(f"{node} {sizes[node]:g}" in picked.why for node in picked.nodes)


def test_who_has_told_no_examples_counts_as_the_mean_of_the_others() -> None:
    candidates = [Candidate("a", examples=1.0), Candidate("b", examples=3.0), Candidate("c")]
    counts = Counter(one.node for seed in range(4000) for one in draw_by_examples(candidates, 1, Random(seed)))
    assert counts["c"] / 4000 == pytest.approx(2 / 6, abs=0.03)


def test_power_of_choice_takes_the_highest_losses_of_its_candidates() -> None:
    picked = PowerOfChoice(candidates=4).pick(FOUR, 2, Random(3))
    assert picked.nodes == ("b", "d")
    assert picked.why == "highest loss of 4 candidates (b 0.4, d 0.3)"
    for seed in range(50):
        drawn = {one.node for one in draw_by_examples(FOUR, 3, Random(seed))}
        worst = max(drawn, key=lambda node: next(one.loss or 0.0 for one in FOUR if one.node == node))
        assert PowerOfChoice(candidates=3).pick(FOUR, 1, Random(seed)).nodes == (worst,)


def test_power_of_choice_with_as_many_candidates_as_are_asked_goes_by_examples_alone() -> None:
    for seed in range(50):
        drawn = sorted(one.node for one in draw_by_examples(FOUR, 2, Random(seed)))
        assert list(PowerOfChoice(candidates=2).pick(FOUR, 2, Random(seed)).nodes) == drawn


def test_who_has_told_no_loss_comes_first() -> None:
    candidates = [*FOUR, Candidate("e")]
    picked = PowerOfChoice(candidates=5).pick(candidates, 2, Random(1))
    assert picked.nodes == ("b", "e")
    assert "e none yet" in picked.why


# In a hub


def hub_of(selection: Selection, nodes: dict[str, NodeInfo], **rounds: Any) -> tuple[Hub, MemoryBlobs]:
    """A hub that began at noon, whose nodes have joined and which has a model."""
    blobs = MemoryBlobs()
    start = blobs.put({"model": toy_tree((0.0, 0.0, 0.0), 0)})
    hub = Hub(JobPlan(9, 7, initial_model=start, selection=selection), Algorithm(), Rounds(**rounds), blobs)
    hub.on(Restarted(12 * HOUR), 0.0)
    for node, info in nodes.items():
        hub.on(Join(node, node_info=info), 0.0)
    return hub, blobs


def asked(hub: Hub) -> list[str]:
    return [member.node for member in hub.roster.all_members() if member.task is not None]


def texts(effects: list[Effect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, JobEvent) and effect.kind == "decision"]


def report(hub: Hub, blobs: MemoryBlobs, node: str, loss: float, now: float, weight: float = 10.0) -> list[Effect]:
    task = hub.roster[node].task
    assert task is not None
    body = blobs.put({"model": toy_tree((1.0, 0.0, 0.0), 0)})
    return hub.on(Report(node, task.id, task.version, weight, body, {"train/loss": loss}, 1.0), now)


def test_a_job_by_tag_waits_for_nodes_of_that_tag_and_says_whom_it_leaves_out() -> None:
    hub, _ = hub_of(Selection(tags=("phone",)), {"a": NodeInfo(), "b": NodeInfo(("phone",))}, min_nodes=2)
    assert asked(hub) == []
    effects = hub.on(Join("c", node_info=NodeInfo(("phone",))), 1.0)
    assert asked(hub) == ["b", "c"]
    assert texts(effects) == ["round 1 opens with 2 of 2 nodes"]
    assert texts(hub.on(Join("d"), 1.0)) == ["not asked: a, d: without the tag phone"]
    assert texts(hub.on(Join("d"), 1.0)) == [], "said once"
    assert texts(hub.on(Join("d", node_info=NodeInfo(("phone",))), 2.0)) == ["not asked: a: without the tag phone"]


def test_a_round_begins_when_the_hours_do() -> None:
    hub, _ = hub_of(
        Uniform(), {"a": NodeInfo(hours=("22:00-06:00",)), "b": NodeInfo(hours=("13:00-14:00",))}, min_nodes=1
    )
    assert asked(hub) == []
    wakes = [effect.at for effect in hub.on(Timer(), 1.0) if isinstance(effect, Wake)]
    assert wakes == [pytest.approx(HOUR, abs=0.1)], "b's, an hour after noon"
    hub.on(Timer(), wakes[0])
    assert asked(hub) == ["b"]


def test_the_day_goes_on_by_the_walls_clock_after_a_restart() -> None:
    hub, _ = hub_of(Uniform(), {"a": NodeInfo(hours=("13:00-14:00",))})
    twin = restored(hub)
    twin.on(Restarted(13.5 * HOUR), 2.0)  # the machine was off for an hour and a half
    assert asked(twin) == ["a"]


def test_what_nodes_tell_survives_a_snapshot_and_chooses_the_same_again() -> None:
    nodes = dict.fromkeys("abcd", NodeInfo(("phone",), ("00:00-24:00",)))
    hub, blobs = hub_of(PowerOfChoice(candidates=4), nodes, cohort=2, min_nodes=4)
    for step in range(6):
        for node in asked(hub):
            effects = report(hub, blobs, node, ord(node) / 100, 10.0 + step)
        (closed,) = [text for text in texts(effects) if text.startswith("version")]
        assert closed.endswith("2 of 2 reports")
        opened = texts(effects)[-1]
        assert f"round {step + 2} opens with 2 of 4 nodes, highest loss of 4 candidates (" in opened
        twin = restored(hub)
        assert twin.snapshot() == hub.snapshot()
        assert [m.candidate for m in twin.roster.all_members()] == [m.candidate for m in hub.roster.all_members()]
    assert asked(hub) == ["c", "d"], "whose losses are the highest, once all have told one"
    assert hub.roster["d"].candidate == Candidate("d", ("phone",), ("00:00-24:00",), 10.0, 1.0)


def test_a_drained_node_finishes_what_it_does_and_is_asked_nothing_more() -> None:
    hub, blobs = hub_of(Uniform(), {"a": NodeInfo(), "b": NodeInfo(), "c": NodeInfo()}, min_nodes=2)
    said = hub.on(DrainNode("a", "drained by an operator"), 1.0)
    assert texts(said) == ["not asked: a: drained by an operator"]
    assert asked(hub) == ["a", "b"], "it finishes"
    report(hub, blobs, "a", 0.5, 2.0)
    assert any("version 1: 2 of 2 reports" in text for text in texts(report(hub, blobs, "b", 0.5, 2.0)))
    assert asked(hub) == ["b", "c"]
    assert hub.eligibility.counted_nodes() == {"b", "c"}
    twin = restored(hub)
    assert twin.snapshot() == hub.snapshot()
    for one in (hub, twin):
        assert "no node is left out any more" in texts(one.on(DrainNode("a"), 3.0))
        for node in "bc":
            report(one, blobs, node, 0.5, 4.0)
        assert asked(one) == ["a", "b", "c"]


def test_a_blocked_nodes_order_is_withdrawn_and_its_report_does_not_count() -> None:
    hub, blobs = hub_of(Uniform(), {"a": NodeInfo(), "b": NodeInfo(), "c": NodeInfo()}, min_nodes=2)
    task = hub.roster["a"].task
    assert task is not None
    sent = [effect for effect in hub.on(DrainNode("a", "blocked", withdraw=True), 1.0) if isinstance(effect, Send)]
    assert [(effect.to, type(effect.message)) for effect in sent] == [("a", NoTask), ("c", Task)], "c in its place"
    body = blobs.put({"model": toy_tree((1.0, 0.0, 0.0), 0)})
    (answer,) = [e.message for e in hub.on(Report("a", task.id, 0, 10.0, body, {}, 1.0), 2.0) if isinstance(e, Send)]
    assert isinstance(answer, Ack)
    assert not answer.counted
    again = hub.on(DrainNode("a", "blocked", withdraw=True), 3.0)
    assert not [effect for effect in again if isinstance(effect, JobEvent | Send)], "said once"
    report(hub, blobs, "c", 0.5, 4.0)
    assert any("version 1: 2 of " in text for text in texts(report(hub, blobs, "b", 0.5, 4.0)))


def test_a_node_that_joins_later_is_held_by_what_is_told_of_it() -> None:
    hub, _ = hub_of(Uniform(), {"a": NodeInfo()}, min_nodes=1)
    assert texts(hub.on(Join("b", node_info=NodeInfo(drain_reason="blocked")), 1.0)) == ["not asked: b: blocked"]
    assert asked(hub) == ["a"]


def test_a_node_that_is_drained_while_its_order_has_no_end_is_relieved() -> None:
    """Dynamic averaging: a task stands until a model is too far from the reference, perhaps for ever."""
    blobs = MemoryBlobs()
    start = blobs.put({"model": toy_tree((0.0, 0.0, 0.0), 0)})
    hub = Hub(JobPlan(9, 7, initial_model=start), DynamicAveraging(), Divergence(delta=1.0), blobs)
    hub.on(Restarted(), 0.0)
    for node in "ab":
        hub.on(Join(node), 0.0)
    hub.on(DrainNode("a", "drained"), 1.0)
    assert asked(hub) == ["b"]


def test_a_loss_that_is_no_number_says_nothing() -> None:
    hub, blobs = hub_of(PowerOfChoice(), {"a": NodeInfo(), "b": NodeInfo()}, min_nodes=2)
    report(hub, blobs, "a", 0.5, 1.0)
    report(hub, blobs, "b", 0.5, 1.0)
    report(hub, blobs, "a", float("nan"), 2.0)
    assert hub.roster["a"].history.loss == 0.5


def test_an_order_that_was_given_in_time_still_counts() -> None:
    hub, blobs = hub_of(Uniform(), {"a": NodeInfo(hours=("11:00-13:00",))})
    effects = report(hub, blobs, "a", 0.5, 2 * HOUR)
    assert hub.progress.version == 1
    assert not [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Task)]
    assert "not asked: a: only 11:00-13:00 UTC" in texts(effects)


# In a job


@pytest.mark.parametrize(
    ("tables", "place", "text", "hint"),
    [
        (
            {"selection": {"name": "unifrom"}},
            ["selection", "name"],
            "no selection is called",
            "did you mean 'uniform'?",
        ),
        (
            {"selection": {"name": "power_of_choice", "candidate": 3}},
            ["selection", "candidate"],
            "no field 'candidate'",
            "did you mean 'candidates'?",
        ),
        (
            {"selection": {"name": "power_of_choice", "candidates": -1}},
            ["selection", "candidates"],
            "greater than or equal to 0",
            "",
        ),
        ({"selection": {"name": "uniform", "tags": ["A b"]}}, ["selection", "tags"], "is not a name", "a-z"),
        ({"selection": {"name": "uniform", "nodes": "a"}}, ["selection", "nodes"], "tuple", ""),
        ({"selection": {"name": "uniform", "hours": ["phone 9-17"]}}, ["selection", "hours"], "not hours", "22:00"),
        (
            {"selection": {"name": "uniform", "nodes": ["a"]}, "schedule": {"name": "rounds", "min_nodes": 2}},
            ["selection", "nodes"],
            "names 1 nodes, but schedule rounds waits for 2",
            "min_nodes",
        ),
        (
            {
                "selection": {"name": "power_of_choice", "candidates": 3},
                "schedule": {"name": "rounds", "cohort": 3, "over_select": 1},
            },
            ["selection", "candidates"],
            "asks 4 nodes, but selection draws 3 candidates",
            "above 4",
        ),
        (
            {
                "selection": {"name": "power_of_choice"},
                "schedule": {"name": "periodic"},
                "algorithm": {"name": "periodic"},
            },
            ["selection", "name"],
            "keeps its nodes",
            "buffer or rounds",
        ),
        (
            {
                "selection": {"name": "power_of_choice", "measure": True},
                "schedule": {"name": "buffer"},
                "algorithm": {"name": "fedbuff"},
            },
            ["selection", "measure"],
            "which schedule buffer does not let them",
            "choose schedule rounds",
        ),
        (
            {
                "selection": {"name": "uniform", "hours": ["22:00-06:00"]},
                "schedule": {"name": "divergence"},
                "algorithm": {"name": "dynamic"},
            },
            ["selection", "hours"],
            "can keep no hours",
            "buffer or rounds",
        ),
    ],
)
def test_mistakes_are_told_before_the_start(tables: dict[str, Any], place: list[str], text: str, hint: str) -> None:
    (mistake,) = check_job({"name": "x", **tables})
    assert list(mistake.place)[: len(place)] == place
    assert text in mistake.text
    assert hint in mistake.hint


def test_a_job_without_a_selection_draws_uniformly() -> None:
    assert parse_job({"name": "x"}).plan().selection == Uniform()
    chosen = parse_job({"name": "x", "selection": {"name": "power_of_choice", "tags": ["phone"]}})
    assert chosen.plan().selection == PowerOfChoice(tags=("phone",))
