"""Reports that are held until it is known how much of them counts: no sum is corrected, and no event stops a job."""

from math import fsum

import numpy as np
import pytest

from shoal.algorithms.admm import ADMM
from shoal.algorithms.dynamic import DynamicAveraging
from shoal.algorithms.fedasync import FedAsync
from shoal.core.algorithm.algorithm import Algorithm, Update
from shoal.core.errors import Refused
from shoal.core.job.round_sum import HeldReport, RoundSum
from shoal.core.job.update_bounds import UpdateBounds
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import Effect, ModelVersion, Save
from shoal.core.protocol.message import Report, SwitchMode, Task, TaskFailed
from shoal.core.server.hub import Hub
from shoal.filters.half import Half
from shoal.schedules.buffer import Buffer
from shoal.schedules.divergence import Divergence
from shoal.schedules.rounds import Rounds
from tests.core.bounded_job import ALGORITHM, LIE, BoundedJob, ack, texts

SHARE = UpdateBounds.weight_fraction_max


def at(value: float) -> Tree:
    return Tree.of({"w": np.array([value, 0.0, 0.0, 0.0])})


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_heavy_report_in_a_fixed_sum_stops_no_job(first: int) -> None:
    job = BoundedJob("a", "b", "c", "liar", precision="fixed")
    order = ["a", "b", "c"]
    order.insert(first, "liar")
    for node in order:
        assert ack(job.report(node, 1.0, 3e6 if node == "liar" else 1.0)).counted
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(1.0)


def test_a_heavy_report_takes_no_room_from_others_in_a_fixed_sum() -> None:
    """4,000,000 of 4,194,304 are taken at once; the others need 1,500,000."""
    job = BoundedJob("liar", "a", "b", "c", precision="fixed", bounds=UpdateBounds(weight_fraction_max=0.5))
    assert ack(job.report("liar", -1.0, 4e6)).counted
    for node in ("a", "b", "c"):
        assert ack(job.report(node, 1.0, 5e5)).counted
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(0.0)


def test_a_report_that_fits_no_sum_is_refused_when_it_comes() -> None:
    job = BoundedJob("a", "b", "c", precision="fixed")
    answer = ack(job.report("a", 1.0, 5e6))
    assert not answer.counted
    assert "a fixed sum holds magnitudes up to" in answer.why
    assert not job.hub.state.round.reports


def test_what_does_not_fit_beside_the_others_is_excluded_before_a_version_closes() -> None:
    """Two nodes have no limit of their shares; each report fits by itself, and not both."""
    job = BoundedJob("a", "b", precision="fixed")
    job.report("a", -1.0, 4e6)
    effects = job.report("b", 1.0, 1e6)
    assert [text[:3] for text in texts(effects, "refusal")] == ["a: "]
    assert job.hub.progress.version == 0
    again = job.hub.poll_reply("a")
    assert isinstance(again, Task)
    job.report("a", 1.0, 1e6)
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(1.0)


def test_a_report_that_is_excluded_by_the_close_that_it_causes_is_not_acknowledged() -> None:
    job = BoundedJob("a", "b", precision="fixed")
    job.report("a", 1.0, 1e6)
    assert not ack(job.report("b", -1.0, 4e6)).counted


def test_a_version_of_which_nothing_is_left_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    job = BoundedJob("a", schedule=Buffer(size=1))
    monkeypatch.setattr(type(job.hub.settings.algorithm), "fold", refuse)
    effects = job.report("a", 1.0)
    assert texts(effects, "refusal") == ["a: not today"]
    assert job.hub.progress.version == 0
    monkeypatch.undo()
    job.report("a", 1.0)
    assert job.hub.progress.version == 1


def refuse(*_: object) -> None:
    raise Refused("not today", code="update.norm")


@pytest.mark.parametrize("size", [16, 64])
def test_a_fast_node_counts_for_its_share_in_a_long_buffer(size: int) -> None:
    """However many reports it sends: none of them is taken out of the sum again."""
    job = BoundedJob("fast", "a", "b", "c", schedule=Buffer(size=size, min_nodes=4))
    for number in range(size - 3):
        job.report("fast", -1.0 if number % 2 else 1.0, 100.0)
    for node in ("a", "b", "c"):
        job.report(node, 0.1, 10.0)
    odd = 1.0 / (size - 3)  # the mean of what it sent
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(SHARE * odd + (1 - SHARE) * 0.1)


def test_a_version_lists_the_weights_that_count() -> None:
    job = BoundedJob("fast", "a", "b", schedule=Buffer(size=12, min_nodes=3))
    effects: list[Effect] = []
    for node in ("fast", "a", *["fast"] * 9, "b"):
        effects = job.report(node, 1.0, 3.0 if node == "fast" else 0.5)
    (version,) = [e.what for e in effects if isinstance(e, Save) and isinstance(e.what, ModelVersion)]
    assert len(version.reports) == 12
    assert version.weight == fsum(weight for _, _, weight, _ in version.reports)
    assert fsum(weight for node, _, weight, _ in version.reports if node == "fast") == pytest.approx(3.0)


def test_people_are_told_once_of_a_node_with_much_data() -> None:
    job = BoundedJob("a", "b", "c")
    told = []
    for _ in range(12):
        for node, weight in {"a": 1000.0, "b": 100.0, "c": 60.0}.items():
            told += texts(job.report(node, 1.0, weight), "warning")
    assert job.hub.progress.version == 12
    (warning,) = told
    assert "a weight of 1000 counts as 480" in warning
    assert "this one claims 86.2 %" in warning
    for node, weight in {"a": 3000.0, "b": 100.0, "c": 60.0}.items():
        told += texts(job.report(node, 1.0, weight), "warning")
    assert len(told) == 2


def test_updates_in_filters_are_held_as_they_came() -> None:
    job = BoundedJob("a", "b", "c", filters=(Half(),))
    job.round(a=1.0, b=1.0, c=1.0)
    job.report("a", 0.5, 900.0)
    (held,) = job.hub.state.sum.held
    assert held.update.slots == {}
    for node in ("b", "c"):
        job.report(node, 0.5, 1.0)
    assert job.model == pytest.approx(1.5)


def test_the_later_contribution_of_a_node_stays_under_admm() -> None:
    job = BoundedJob("a", "b", "c", algorithm=ADMM(), schedule=Buffer(size=4, min_nodes=3))
    for node, length in (("a", 5.0), ("a", 3.0), ("b", 1.0), ("c", 1.0)):
        job.report(node, length)
    assert job.model == pytest.approx(5.0 / 3)


def test_a_held_report_counts_in_the_divergence() -> None:
    """None of the first reports is in the sum, and still their mean is compared with the threshold."""
    job = BoundedJob("a", "b", "c", schedule=Divergence(delta=1.0, min_nodes=3, balancing="double"))
    job.report("a", 10.0)
    view = job.hub.state.make_view(0.0)
    assert job.hub.state.sum.held
    assert view.monitor.divergence() == pytest.approx(100.0)


def test_a_weight_that_vanishes_with_its_discount_divides_nothing() -> None:
    rest = RoundSum(Totals())
    for node, weight in (("a", 9.0), ("b", 1.0), ("c", 1.0)):
        rest.shares.add(node, weight)
    report = Report("a", (1, 1), 0, 5e-324, None)
    rest.held = [HeldReport(report, {}, Update("a", 0, 5e-324, {}, 1.0), 0.5)]
    assert [weight for _, weight in rest.weigh_held(SHARE, None)] == [0.0]


# The first updates of a job


def four(**how: object) -> BoundedJob:
    return BoundedJob("liar", "a", "b", "c", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [("liar", "a"), ("a", "liar")])
def test_of_two_first_updates_a_far_longer_one_does_not_count(order: tuple[str, ...]) -> None:
    job = four(schedule=Rounds(quorum=2, min_nodes=4, deadline_s=10.0))
    told = [text for node in order for text in texts(job.report(node, LIE if node == "liar" else 1.0), "refusal")]
    (refusal,) = told
    assert "liar: an update of norm 1e+15 is too long for one of a job's first" in refusal
    job.now = 11.0
    job.report("b", 1.0)
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", [FedAsync(), Algorithm()], ids=["fedasync", "fedavg"])
def test_no_version_is_made_of_a_single_first_update(algorithm: Algorithm) -> None:
    job = four(schedule=Buffer(size=1, min_nodes=4), algorithm=algorithm)
    effects = job.report("liar", LIE)
    assert job.hub.progress.version == 0
    assert "a second report, to compare the first one with" in job.hub.progress.waiting_for
    assert not texts(effects, "refusal")
    effects = job.report("a", 1.0)
    assert texts(effects, "refusal")
    assert job.hub.progress.version == 1
    assert abs(job.model) <= 1.0
    assert ack(job.report("b", 1.0)).counted
    assert job.hub.progress.version == 2


def test_another_node_is_asked_where_one_trains_at_a_time() -> None:
    job = four(schedule=Buffer(size=1, min_nodes=4, concurrency=1))
    (first,) = [node for node in job.nodes if isinstance(job.hub.poll_reply(node), Task)]
    job.report(first, LIE)
    (second,) = [node for node in job.nodes if isinstance(job.hub.poll_reply(node), Task)]
    assert second != first
    job.report(second, 1.0)
    assert job.model == pytest.approx(1.0)


def test_a_node_that_failed_is_asked_again_if_there_is_no_other() -> None:
    job = four(schedule=Buffer(size=1, min_nodes=4, concurrency=1))
    for _ in range(3):
        (node,) = [node for node in job.nodes if isinstance(job.hub.poll_reply(node), Task)]
        job.on(TaskFailed(node, task_of(job, node).id, "no luck"))
    (last,) = [node for node in job.nodes if isinstance(job.hub.poll_reply(node), Task)]
    job.report(last, LIE)
    (again,) = [node for node in job.nodes if isinstance(job.hub.poll_reply(node), Task)]
    job.report(again, 1.0)
    assert job.model == pytest.approx(1.0)


def task_of(job: BoundedJob, node: str) -> Task:
    task = job.hub.poll_reply(node)
    assert isinstance(task, Task)
    return task


def test_nodes_that_train_without_end_are_asked_for_what_they_have() -> None:
    job = four(schedule=Divergence(delta=1.0, min_nodes=4, balancing="double"), algorithm=DynamicAveraging())
    job.report("liar", 0.5)  # within the threshold: a version could be made of it
    tasks = [job.hub.poll_reply(node) for node in ("a", "b", "c")]
    assert [task.recall for task in tasks if isinstance(task, Task)] == [True, True, True]
    for node in ("a", "b", "c"):
        job.report(node, 1.0)
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(3.5 / 4)


def test_an_update_that_is_no_longer_than_the_model_counts_alone() -> None:
    job = four(schedule=Buffer(size=1, min_nodes=4), start=at(2.0))
    job.report("a", 1.5)
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(3.5)


def test_two_updates_may_be_as_long_as_the_model() -> None:
    job = four(schedule=Rounds(quorum=2, cohort=2, min_nodes=4), start=at(1000.0))
    asked = [node for node in job.nodes if isinstance(job.hub.poll_reply(node), Task)]
    for node, length in zip(asked, (0.001, 900.0), strict=True):
        assert ack(job.report(node, length)).counted
    assert job.hub.progress.version == 1


def test_a_first_update_that_waits_is_dropped_when_the_job_goes_to_its_peers() -> None:
    job = four(schedule=Buffer(size=1, min_nodes=4))
    job.report("liar", LIE)
    effects = job.on(SwitchMode("gossip"))
    assert texts(effects, "refusal") == [
        "liar: no other node has reported, so it is unknown whether an update of norm 1e+15 is plausible"
    ]
    assert job.model == 0.0
    assert job.hub.progress.mode == "gossip"


def test_the_journal_gives_the_same_held_reports() -> None:
    job = four(schedule=Buffer(size=3, min_nodes=4))
    job.report("liar", LIE)
    job.report("a", 1.0, 900.0)
    twin = Hub(job.hub.settings.plan, ALGORITHM, job.hub.settings.schedule, job.blobs)
    for event, now in job.journal:
        twin.on(event, now)  # type: ignore[arg-type]
    assert twin.snapshot() == job.hub.snapshot()
    assert [one.report for one in twin.state.sum.held] == [one.report for one in job.hub.state.sum.held]
    assert len(twin.state.sum.held) == 1
