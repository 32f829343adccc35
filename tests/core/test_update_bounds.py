"""One node's influence is bounded without any setting: by what is typical of all, and by its share of the weight."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.admm import ADMM
from shoal.algorithms.asgd import AsyncSGD
from shoal.algorithms.fedprox import FedProx
from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import InvalidJob
from shoal.core.job.round_sum import HELD_MAX
from shoal.core.job.update_bounds import (
    NODES_KEPT,
    NODES_LEAST,
    RecentNorms,
    UpdateBounds,
    lower_median,
)
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import ModelVersion, Save
from shoal.core.protocol.message import SwitchMode, Task
from shoal.core.server.hub import Hub
from shoal.schedules.buffer import Buffer
from shoal.schedules.divergence import Divergence
from shoal.schedules.rounds import Rounds
from tests.core.bounded_job import ALGORITHM, LIE, BoundedJob, ack, texts


def test_an_update_of_1e15_does_not_count() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Rounds(quorum=3, min_nodes=4))
    job.round(a=1.0, b=1.2, c=0.8, liar=1.0)
    assert job.model == pytest.approx(1.0)
    job.round(a=1.0, b=1.0)
    effects = job.report("liar", LIE)
    assert not ack(effects).counted
    assert "an update of norm 1e+15 is 1e+15 times the typical 1" in ack(effects).why
    assert texts(effects, "refusal") == [f"liar: {ack(effects).why}"]
    assert job.hub.state.bounded_nodes == {"liar": ack(effects).why}
    job.report("c", 1.0)
    assert job.hub.progress.version == 2
    assert job.model == pytest.approx(2.0)
    job.round(a=1.0, b=1.0, liar=1.0, c=1.0)
    assert job.hub.state.bounded_nodes == {}


@pytest.mark.parametrize("task", [("liar", "a", "b", "c"), ("a", "liar", "b", "c"), ("a", "b", "liar", "c")])
def test_not_in_the_first_round_either(task: tuple[str, ...]) -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Rounds(quorum=3, min_nodes=4))
    seen = [event for node in task for event in texts(job.report(node, LIE if node == "liar" else 1.0), "refusal")]
    assert len(seen) == 1
    assert "1e+15" in seen[0]
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(1.0)
    again = job.hub.roster["liar"].last_ack
    assert again is not None
    assert not again.counted


def test_the_sum_is_the_same_to_the_bit_as_without_the_liar() -> None:
    said = {"liar": LIE, "a": 0.1, "b": 0.7, "c": 0.3}
    job, honest = BoundedJob("a", "b", "c", "liar", schedule=Rounds(quorum=3, min_nodes=4)), BoundedJob("a", "b", "c")
    for node, length in said.items():
        job.report(node, length, 3.0)
        if node != "liar":
            honest.report(node, length, 3.0)
    assert job.model == honest.model


def test_three_refusals_and_it_is_not_asked_again() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Rounds(quorum=3, min_nodes=4))
    job.round(a=1.0, b=1.0, c=1.0, liar=1.0)
    for _ in range(3):
        assert not ack(job.report("liar", LIE)).counted
        job.round(a=1.0, b=1.0, c=1.0)
    assert job.hub.roster["liar"].is_set_aside
    assert job.model == pytest.approx(4.0)


def test_honest_first_rounds_of_unlike_nodes_count() -> None:
    """One has a hundred times as many batches as the others, and so an update that is nearly as much longer."""
    job = BoundedJob("a", "b", "c")
    job.round(a=0.01, b=0.01, c=0.9)
    assert job.hub.progress.version == 1
    assert not job.hub.state.bounded_nodes


def test_norms_that_fall_and_rise_again_count() -> None:
    job = BoundedJob("a", "b", "c")
    for length in (1.0, 1e-3, 1e-9, 0.0, 0.0, 1.0, 50.0, 2000.0):
        job.round(a=length, b=length, c=length)
    assert not job.hub.state.bounded_nodes
    assert job.hub.progress.version == 8


def test_when_all_grow_at_once_the_limit_follows() -> None:
    """A round is lost, not the job: refused norms are remembered like others."""
    job = BoundedJob("a", "b", "c")
    job.round(a=1.0, b=1.0, c=1.0)
    for _ in range(6):
        for node in job.nodes:
            if isinstance(job.hub.poll_reply(node), Task):
                job.report(node, 1e6)
    assert job.hub.progress.version > 1
    assert not job.hub.state.bounded_nodes


def test_one_or_two_nodes_have_nobody_to_be_compared_with() -> None:
    for nodes in (("a",), ("a", "b")):
        job = BoundedJob(*nodes)
        for length in (1.0, 1e9, 1.0):
            for node in nodes:
                assert ack(job.report(node, length, 1e8 if node == "a" else 1.0)).counted
        assert job.hub.progress.version == 3
        assert not job.hub.state.bounded_nodes


def test_a_stranger_who_is_asked_alone_is_compared_with_earlier_rounds() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Buffer(size=1, min_nodes=4))
    job.round(a=1.0, b=1.0, c=1.0)
    assert not ack(job.report("liar", LIE)).counted
    assert job.hub.progress.version == 2  # the first report waited for the second one
    assert job.model == pytest.approx(2.0)


def test_a_weight_of_999_999_999_does_not_drown_the_others() -> None:
    job = BoundedJob("a", "b", "c", "liar")
    for node in ("a", "b", "c"):
        job.report(node, 1.0, 100.0)
    effects = job.report("liar", -2.0, 999_999_999.0)
    share = UpdateBounds.weight_fraction_max
    assert job.model == pytest.approx(1.0 * (1 - share) - 2.0 * share)
    (version,) = [e.what for e in effects if isinstance(e, Save) and isinstance(e.what, ModelVersion)]
    assert {node: weight for node, _, weight, _ in version.reports}["liar"] == pytest.approx(900.0)
    assert version.weight == pytest.approx(1200.0)
    (warning,) = texts(effects, "warning")
    assert "liar: a weight of 1e+09 counts as 900" in warning
    assert job.hub.state.bounded_nodes.keys() == {"liar"}


def test_nor_that_of_a_single_other_one() -> None:
    """Two of four are asked; the weights of the other two are known."""
    job = BoundedJob("a", "b", "c", "liar", schedule=Rounds(cohort=2, quorum=2, min_nodes=4))
    for _ in range(20):
        for node in job.nodes:
            if isinstance(job.hub.poll_reply(node), Task):
                lies = node == "liar" and len(job.hub.state.recent_norms.weights) >= 3
                job.report(node, -1.0 if lies else 1.0, 999_999_999.0 if lies else 100.0)
    weights = told_weights(job)
    assert len(weights) > 2
    assert max(weights) == pytest.approx(300.0)


def told_weights(job: BoundedJob) -> list[float]:
    """Return the weights of the liar's updates in versions, by a second hub with the same events."""
    twin = Hub(job.hub.settings.plan, job.hub.settings.algorithm, job.hub.settings.schedule, job.blobs)
    effects = [effect for event, now in job.journal for effect in twin.on(event, now)]  # type: ignore[arg-type]
    versions = [e.what for e in effects if isinstance(e, Save) and isinstance(e.what, ModelVersion)]
    return [weight for one in versions for node, _, weight, _ in one.reports if node == "liar"]


def test_nor_in_several_reports_of_one_version() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Buffer(size=8, min_nodes=4))
    for node in ("liar", "a", "liar", "b", "liar", "c", "liar", "liar"):
        job.report(node, -1.0 if node == "liar" else 1.0, 1e8 if node == "liar" else 1.0)
    assert job.hub.progress.version == 1
    assert job.model == pytest.approx(1.0 - 2 * UpdateBounds.weight_fraction_max, abs=1e-6)


def test_weights_as_unlike_as_honest_ones_are_count_in_full() -> None:
    job = BoundedJob("a", "b", "c")
    for node, weight in {"a": 1.0, "b": 2.0, "c": 9.0}.items():
        assert not texts(job.report(node, weight, weight), "warning")
    assert job.model == pytest.approx((1 + 4 + 81) / 12, abs=1e-14)
    assert not job.hub.state.bounded_nodes


def test_a_heavy_contribution_that_the_hub_keeps() -> None:
    job = BoundedJob("a", "b", "c", algorithm=ADMM())
    for node, weight in {"a": 1.0, "b": 1.0, "c": 999_999_999.0}.items():
        job.report(node, -1.0 if node == "c" else 1.0, weight)
    assert job.model == pytest.approx(1.0 - 2 * UpdateBounds.weight_fraction_max)
    plain = BoundedJob("a", "b", "c", algorithm=ADMM(weighted=False))
    for node, weight in {"a": 1.0, "b": 1.0, "c": 999_999_999.0}.items():
        plain.report(node, -1.0 if node == "c" else 1.0, weight)
    assert plain.model == pytest.approx(1 / 3)
    assert not plain.hub.state.bounded_nodes


def test_a_heavy_report_under_fedprox() -> None:
    job = BoundedJob("a", "b", "c", algorithm=FedProx())
    for node, weight in {"a": 1.0, "b": 1.0, "c": 999_999_999.0}.items():
        job.report(node, -1.0 if node == "c" else 1.0, weight)
    assert job.model == pytest.approx(1.0 - 2 * UpdateBounds.weight_fraction_max)
    assert job.hub.state.bounded_nodes.keys() == {"c"}


def test_the_weight_is_no_matter_where_all_count_alike() -> None:
    job = BoundedJob("a", "b", "c", schedule=Rounds(quorum=3, min_nodes=3), algorithm=AsyncSGD(momentum=0.0))
    for node, weight in {"a": 1.0, "b": 1.0, "c": 1e9}.items():
        job.report(node, 1.0, weight)
    assert job.model == pytest.approx(1.0)
    assert not job.hub.state.bounded_nodes


def test_a_job_can_do_without_and_says_so() -> None:
    job = BoundedJob("a", "b", "c", bounds=UpdateBounds(0.0, 1.0))
    job.report("a", 1.0)
    job.report("b", 1.0)
    job.report("c", LIE, 1e9)
    assert job.model == pytest.approx(LIE)
    with pytest.raises(InvalidJob, match="norm_factor"):
        UpdateBounds(norm_factor=0.5)
    with pytest.raises(InvalidJob, match="weight_fraction_max"):
        UpdateBounds(weight_fraction_max=0.2)


def test_the_journal_gives_the_same_verdicts() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Rounds(quorum=3, min_nodes=4))
    job.round(liar=LIE, a=1.0, b=1.2, c=0.8)
    state, at = json.loads(json.dumps(job.hub.snapshot())), len(job.journal)
    job.report("liar", LIE)
    job.round(a=1.0, b=1.0, c=1.0)
    twin = Hub(job.hub.settings.plan, ALGORITHM, job.hub.settings.schedule, job.blobs, state)
    for event, now in job.journal[at:]:
        twin.on(event, now)  # type: ignore[arg-type]
    assert twin.snapshot() == job.hub.snapshot()
    assert twin.state.bounded_nodes == job.hub.state.bounded_nodes


def test_what_is_remembered_is_bounded() -> None:
    recent = RecentNorms()
    for number in range(1000):
        recent.add_norm(f"n{number}", 1.0, 100.0)
        recent.add_weight(f"n{number}", 1.0)
        recent.add_reduced(f"n{number}", 1.0)
    assert len(recent.norms) == len(recent.weights) == len(recent.reduced) == NODES_KEPT
    job = BoundedJob("a", schedule=Buffer(size=HELD_MAX + 10))
    for _ in range(HELD_MAX + 9):
        job.report("a", 1.0)
    assert len(job.hub.state.sum.held) == HELD_MAX
    job.report("a", 11.0)
    assert job.model == pytest.approx(1.0 + 10.0 / (HELD_MAX + 10))


def test_a_liar_among_peers_that_hand_back() -> None:
    job = BoundedJob("a", "b", "c", "liar")
    job.round(a=1.0, b=1.0, c=1.0, liar=1.0)
    job.on(SwitchMode("gossip"))
    job.on(SwitchMode("server"))
    for node in ("a", "liar", "b"):
        job.report(node, LIE if node == "liar" else 1.0)
    effects = job.report("c", 1.0)
    assert any("1e+15" in text for text in texts(effects, "refusal"))
    assert job.model == pytest.approx(2.0)
    assert job.hub.progress.mode == "server"


def test_a_heavy_one_among_peers_that_hand_back() -> None:
    job = BoundedJob("a", "b", "c", "liar")
    job.round(a=1.0, b=1.0, c=1.0, liar=1.0)
    job.on(SwitchMode("gossip"))
    job.on(SwitchMode("server"))
    for node in ("a", "b", "c"):
        job.report(node, 1.0)
    effects = job.report("liar", -1.0, 999_999_999.0)
    assert job.model == pytest.approx(1.0 + 1.0 - 2 * UpdateBounds.weight_fraction_max)
    assert any("counts as 9" in text for text in texts(effects, "warning"))


def measured(w: float, var: float) -> Tree:
    """A model, or an update, with a statistic."""
    return Tree.of({"w": np.array([w]), "bn.var": np.array([var])}, statistics=["bn.var"])


def test_statistics_count_by_their_distance_from_the_present_ones() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Rounds(quorum=3, min_nodes=4), start=measured(0.0, 5e3))
    for node, var in {"a": 5003.0, "b": 5004.0, "c": 5002.0, "liar": 5001.0}.items():
        job.report_update(node, measured(0.0, var))
    assert tree_slot(job.hub.store.slots, "model")["bn.var"].tolist() == [5002.5]
    effects = job.report_update("liar", measured(0.0, 5e5))
    assert not ack(effects).counted
    assert "an update of norm 49499" in ack(effects).why


def test_nor_does_a_liar_among_peers_that_hand_back_statistics() -> None:
    job = BoundedJob("a", "b", "c", "liar", start=measured(0.0, 5e3))
    for node in ("a", "b", "c", "liar"):
        job.report_update(node, measured(1.0, 5001.0))
    job.on(SwitchMode("gossip"))
    job.on(SwitchMode("server"))
    for node in ("a", "liar", "b"):
        job.report_update(node, measured(1.0, 1e9 if node == "liar" else 5002.0))
    effects = job.report_update("c", measured(1.0, 5002.0))
    assert any("an update of norm 9.99995e+08" in text for text in texts(effects, "refusal"))
    assert tree_slot(job.hub.store.slots, "model")["bn.var"].tolist() == [5002.0]


def test_a_liar_under_dynamic_averaging() -> None:
    job = BoundedJob("a", "b", "c", "liar", schedule=Divergence(delta=1.0, min_nodes=4, balancing="all"))
    for _ in range(2):
        for node in job.nodes:
            if isinstance(job.hub.poll_reply(node), Task):
                job.report(node, 1.0)
    assert job.hub.progress.version >= 1
    before = job.model
    for node in ("liar", "a", "b", "c"):
        if isinstance(job.hub.poll_reply(node), Task):
            job.report(node, LIE if node == "liar" else 1.0)
    assert abs(job.model - before) < 10


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0, 2.0, 3.0])), max_size=40))
def test_the_typical_norm_is_the_greatest_median_so_far(said: list[tuple[int, float]]) -> None:
    recent, known, greatest = RecentNorms(), dict[int, float](), 0.0
    for node, norm_ in said:
        recent.add_norm(str(node), norm_, 100.0)
        known[node] = norm_
        if len(known) >= NODES_LEAST:
            greatest = max(greatest, lower_median(known.values()))
        assert recent.typical_norm == greatest
