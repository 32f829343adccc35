"""Jobs that choose their nodes: through loss, duplication and crashes, and from the outside."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

import shoal
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.errors import InvalidJob, Refused
from shoal.core.model.tree import Tree
from shoal.core.protocol.message import NodeInfo
from shoal.core.server.eligibility import Eligibility
from shoal.plugins import selections
from shoal.sim.network.faults import Faults
from shoal.sim.scenarios.selection_runs import OTHER_MODEL, draw, run_seed
from shoal.sim.scenarios.swarm import SeedFailed
from tests.algorithms.softmax import Softmax, digits
from tests.support.sampling import extended

SEEDS = 300
CHUNK = 100


@pytest.mark.parametrize("first", extended(range(0, SEEDS, CHUNK), but=[0]))
def test_no_run_breaks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


def test_the_runs_are_varied() -> None:
    setups = [draw(seed).setup for seed in range(SEEDS)]
    chosen = [setup.plan.selection for setup in setups]
    assert {one.name for one in chosen} == {"examples", "power_of_choice", "uniform"}
    for share in (
        [bool(one.tags) for one in chosen],
        [bool(one.nodes) for one in chosen],
        [bool(one.hours) for one in chosen],
        [setup.plan.shards > 1 for setup in setups],
        [setup.plan.selection.needs_probe for setup in setups],
        [setup.schedule.name == "buffer" and setup.plan.selection.uses_reports for setup in setups],
        [any(info.hours for info in setup.node_info.values()) for setup in setups],
        [any(info.model == OTHER_MODEL for info in setup.node_info.values()) for setup in setups],
    ):
        assert sum(share) > SEEDS / 30


def test_a_seed_tells_the_same_story_twice() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        for seed in range(5):
            run_seed(seed, story.append)
    assert stories[0] == stories[1]


def test_who_may_not_be_asked_and_is_breaks_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.core.server.eligibility.Eligibility.excluded_nodes", lambda self, now: {})
    with pytest.raises(SeedFailed, match=r"(asked: |does not settle)(.|\n)*--choosing"):
        run_all()


def test_who_has_another_model_and_is_asked_breaks_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eligibility, "describe_mismatch", lambda self, member, form: "")
    with pytest.raises(SeedFailed, match=r"asked: \w+ has another model"):
        run_all()


def run_all() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


# The public way in


def learners(count: int) -> dict[str, Softmax]:
    """The digits, sorted by class, in that many parts: no two of them alike."""
    x, y = digits()
    order = y.argsort(kind="stable")
    parts = [order[start::1][:150] for start in range(0, 1500, 1500 // count)]
    return {f"n{number}": Softmax(x[part], y[part], (x[1500:], y[1500:])) for number, part in enumerate(parts)}


@pytest.mark.parametrize("name", sorted(selections()))
@pytest.mark.parametrize(
    "faults", [None, Faults(until_s=20.0, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=2)]
)
def test_each_way_runs_and_says_why(name: str, faults: Faults | None) -> None:
    spec = shoal.JobSpec(
        name="chosen",
        rounds=6,
        seed=5,
        algorithm={"name": "fedavg", "lr": 0.5},
        schedule={"name": "rounds", "cohort": 2, "min_nodes": 4},
        selection={"name": name, "tags": ["phone"]},
        aggregation_precision="fixed",
    )
    node_info = {f"n{number}": NodeInfo(("phone",)) for number in range(4)}
    runs = [shoal.simulate(spec, learners(6), faults=faults, node_info=node_info) for _ in range(2)]
    told = [event.text for event in runs[0].events]
    assert [event.text for event in runs[1].events] == told, "the same again"
    opened = [text for text in told if re.match(r"round \d+ opens", text)]
    assert len(opened) == 6
    reasons = {"uniform": "drawn at random", "examples": "drawn by examples", "power_of_choice": "highest loss of 4 of"}
    assert all(reasons[name].removesuffix(" of") in text for text in opened)
    assert any("not asked: n4, n5: without the tag phone" in text for text in told)
    assert all(runs[0].up_bytes[node] < 2000 for node in ("n4", "n5")), "only signs of life"


def test_power_of_choice_asks_every_node_before_it_asks_one_again() -> None:
    spec = shoal.JobSpec(
        name="chosen",
        rounds=3,
        schedule={"name": "rounds", "cohort": 2, "min_nodes": 6},
        selection={"name": "power_of_choice", "candidates": 6},
    )
    result = shoal.simulate(spec, learners(6))
    bytes_up = [{node: traffic.up for node, traffic in version.nodes.items()} for version in result.versions[1:]]
    trained = [{node for node, count in told.items() if count > 2000} for told in bytes_up]
    assert sum(map(len, trained)) == 6
    assert set.union(*trained) == {f"n{number}" for number in range(6)}


MEASURED = re.compile(r"(n\d) (\d\.?\d*)")


@pytest.mark.parametrize(
    "faults",
    [None, Faults(until_s=20.0, message_loss=0.2, message_duplicates=0.2, coordinator_crashes=4, node_crashes=2)],
)
def test_candidates_measure_the_newest_model_and_the_worst_served_train(faults: Faults | None) -> None:
    """pow-d: four of six are sent the model, and tell its loss on what they train on; the two highest are asked."""
    spec = shoal.JobSpec(
        name="measured",
        rounds=4,
        schedule={"name": "rounds", "cohort": 2, "quorum": 2, "min_nodes": 6},
        selection={"name": "power_of_choice", "candidates": 4, "measure": True},
        algorithm={"name": "fedavg", "lr": 0.5},
        aggregation_precision="fixed",
    )
    result = shoal.simulate(spec, Remembering.all(), faults=faults)
    told = [event.text for event in result.events if event.kind == "decision"]
    assert [text for text in told if "opens:" in text] == [
        f"round {number + 1} opens: 4 candidates measure version {number}" for number in range(4)
    ]
    opened = [text for text in told if "highest loss of 4 candidates (" in text]
    assert len(opened) == 4
    if faults is not None:
        return
    for number, text in enumerate(opened):
        losses = dict(Remembering.measured[number * 4 : number * 4 + 4])
        worst = sorted(losses, key=lambda node: -losses[node])[:2]
        assert MEASURED.findall(text) == [(node, f"{losses[node]:.4g}") for node in worst]
    sent = [sum(traffic.down > 2000 for traffic in one.nodes.values()) for one in result.versions[1:]]
    assert all(count == 4 for count in sent), "of four that measure two are sent the model once more"


class Remembering(Softmax):
    """Keeps the loss of each measurement."""

    measured: ClassVar[list[tuple[str, float]]] = []
    name = ""

    @classmethod
    def all(cls) -> dict[str, Remembering]:
        cls.measured.clear()
        found = {}
        for name, one in learners(6).items():
            found[name] = cls(one.x, one.y, one.test)
            found[name].name = name
        return found

    def gradient(self, config: TrainConfig, **more: Any) -> tuple[Trained, Tree]:
        trained, gradient = super().gradient(config, **more)
        self.measured.append((self.name, trained.metrics["train/loss"]))
        return trained, gradient


def test_what_is_said_of_nodes_is_checked() -> None:
    spec = shoal.JobSpec(name="chosen", rounds=1)
    with pytest.raises(InvalidJob, match="no such learner"):
        shoal.simulate(spec, learners(2), node_info={"x": NodeInfo()})
    with pytest.raises(Refused, match="is not a tag"):
        shoal.simulate(spec, learners(2), node_info={"n0": NodeInfo(("A b",))})
