"""Impossible jobs are refused before the start if possible; otherwise they harm no other job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import shoal
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.filter import Filter
from shoal.core.errors import InvalidJob
from shoal.core.model.tree import Layout, Tree
from shoal.jobs.job_tables import GossipConfig, JobTable
from shoal.jobs.spec import JobSpec, check_job, parse_job
from shoal.plugins import algorithms, filters
from shoal.validation.config_checks import server_state_setting
from tests.algorithms.softmax import unbalanced

KEEPERS = sorted(name for name, kind in algorithms().items() if not kind.mixed_slots)


def job(**tables: Any) -> dict[str, Any]:
    return {"name": "j", **tables}


@pytest.mark.parametrize("name", KEEPERS)
def test_a_method_that_does_not_declare_gossip_is_refused_it(name: str) -> None:
    asked = job(algorithm={"name": name}, gossip={"allowed": True})
    (mistake,) = [one for one in check_job(asked) if one.place[0] == "gossip"]
    assert mistake.place == ("gossip", "allowed")
    assert mistake.text.startswith(f"{name} keeps more than the model")
    assert "fedavg" in mistake.hint
    assert "fedadam" in KEEPERS


def test_a_setting_that_keeps_more_than_the_model_at_the_coordinator_is_refused_gossip() -> None:
    """Each peer would run an Adam of its own, and the moments would be lost on the way back."""
    fda = {"name": "fda", "server": "adam"}
    variance, gossip = {"name": "variance"}, {"allowed": True}
    (mistake,) = check_job(job(algorithm=fda, schedule=variance, gossip=gossip))
    assert mistake.place == ("gossip", "allowed")
    assert mistake.text.startswith('fda with server = "adam" keeps more than the model at the coordinator')
    assert mistake.hint == 'leave out gossip.allowed, or leave server = "adam" out of [algorithm]'
    assert check_job(job(algorithm=fda, schedule=variance)) == []
    assert check_job(job(algorithm={"name": "fda"}, schedule=variance, gossip=gossip)) == []


def settings_of(kind: type[Algorithm]) -> list[Algorithm]:
    """The algorithm as it is by default, and with every other word that one of its settings may be."""
    words = {name: get_args(hint) for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}
    return [kind(), *(kind(**{name: word}) for name, known in words.items() for word in known)]


@pytest.mark.parametrize("name", sorted(name for name, kind in algorithms().items() if kind.mixed_slots))
def test_what_may_be_carried_on_without_the_coordinator_keeps_nothing_there_but_what_peers_mix(name: str) -> None:
    model = Tree.of({f"{name}.weight": np.zeros((2, 2), np.float32) for name in ("lora_A", "lora_B")})  # fits any
    for algorithm in settings_of(algorithms()[name]):
        assert bool(server_state_setting(algorithm)) == (algorithm.init(model).keys() != {*algorithm.mixed_slots})


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_a_foreign_hyper_parameter_is_told_with_a_suggestion(name: str) -> None:
    (mistake,) = check_job(job(algorithm={"name": name, "batch_sizes": 8}))
    assert mistake.place == ("algorithm", "batch_sizes")
    assert mistake.text == f"algorithm {name}: no field 'batch_sizes'"
    assert mistake.hint == "did you mean 'batch_size'?"


def test_a_hyper_parameter_of_another_method() -> None:
    (mistake,) = check_job(job(algorithm={"name": "fedavg", "mu": 0.1}))
    assert mistake.text == "algorithm fedavg: no field 'mu'"
    assert mistake.hint == "known: batch_size, epochs, lr"


@dataclass(frozen=True, kw_only=True)
class Needy(Algorithm):
    """A user's method, whose field has no default."""

    name: ClassVar[str] = "needy"
    temper: float
    """How hot it may get."""


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"gossip": {"allow": True}}, "did you mean 'allowed'?"),
        ({"gossip": {"loss": 3}}, "did you mean 'loss_ratio_max'?"),
        ({"gossip": {"mode": "on"}}, GossipConfig.common),
        ({"limits": {"zzz": 1}}, "known: norm_factor, update_norm_max, weight_fraction_max, weight_max"),
        ({"min_node": 3}, "did you mean 'min_nodes' in [schedule]?"),
        ({"lr": 0.1}, "did you mean 'lr' in [algorithm]?"),
        ({"algorithm": {"name": "fedprox"}, "mu": 0.1}, "did you mean 'mu' in [algorithm]?"),
        ({"job": {"seed": 1}}, "leave out the line [job]: its keys stand at the beginning of the file"),
        (
            {"schedule": "dynamic"},
            'write preset = "dynamic", or leave the schedule out: it follows from the algorithm',
        ),
        ({"zzz": 1}, "common keys: name, preset, rounds, seed, learner; tables: algorithm, schedule, gossip, limits"),
    ],
)
def test_an_unknown_key_is_told_with_few_suggestions(values: dict[str, Any], hint: str) -> None:
    (mistake,) = check_job({"name": "a", "rounds": 1, **values})
    assert mistake.hint == hint


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        (GossipConfig, "allowed mixing local_rounds min_peers coordinator_timeout_s"),
        (JobSpec, "name preset rounds seed learner algorithm schedule gossip limits"),
    ],
)
def test_the_hint_of_a_large_table_names_keys_that_exist(table: type[JobTable], keys: str) -> None:
    assert [key for key in keys.split() if key not in table.common or key not in table.model_fields] == []


def test_the_hint_for_gossip_says_how_a_running_job_is_switched() -> None:
    assert "shoal switch JOB gossip" in GossipConfig.common


def test_a_missing_hyper_parameter_is_told_with_what_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algorithms(), "needy", Needy)
    (mistake,) = check_job(job(algorithm={"name": "needy"}))
    assert mistake.place == ("algorithm", "temper")
    assert mistake.text == "algorithm needy: temper is missing, and has no default"
    assert mistake.hint == "set temper = …: How hot it may get."
    both = check_job(job(algorithm={"name": "needy", "tempr": 1.0}))
    assert [one.place[-1] for one in both] == ["tempr", "temper"]
    assert both[0].hint == "did you mean 'temper'?"
    assert check_job(job(algorithm={"name": "needy", "temper": 1.0})) == []


@dataclass(frozen=True)
class OneWay(Filter):
    """A user's filter that forgets how to decode."""

    name: ClassVar[str] = "one_way"

    def layout(self, layout: Layout) -> Layout:
        return Layout.of([("gone", "U8", (0,))])

    def encode(self, tree: Tree, seed: int) -> Tree:
        return Tree(self.layout(tree.layout), b"")


def test_a_list_of_filters_that_cannot_be_undone_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(filters(), "one_way", OneWay)
    with pytest.raises(InvalidJob, match="one_way cannot be undone"):
        parse_job(job(filters=[{"name": "one_way"}]))


def test_a_report_above_the_bound_of_staleness_does_not_count_and_its_node_begins_anew() -> None:
    """The slow one is ten versions late; the others go on, and the slow one has not failed."""
    schedule = {"name": "buffer", "size": 1, "staleness_max": 2, "min_nodes": 3}
    given = job(rounds=40, algorithm={"name": "fedbuff", "lr": 0.5}, schedule=schedule, seed=1)
    result = shoal.simulate(parse_job(given), unbalanced(tested=True), slow={"node-2": 10.0})
    told = [event for event in result.events if event.kind == "refusal"]
    assert told
    assert {event.node for event in told} == {"node-2"}
    assert all("versions too late" in event.text for event in told)
    assert result.state == "done"
    assert len(result.versions) == 41
    assert not [event for event in result.events if event.kind == "warning"], "nobody is given up"
    assert result.accuracy > 0.8


def test_all_that_is_wrong_is_said_at_once() -> None:
    """One mistake is raised as itself, with its hint apart."""
    with pytest.raises(InvalidJob) as one:
        parse_job({"name": "x", "round": 3})
    assert (one.value.message, one.value.hint) == ("round: unknown key", "did you mean 'rounds'?")
    with pytest.raises(InvalidJob) as several:
        parse_job({"name": "x", "round": 3, "algorithm": {"name": "fedprx"}})
    assert several.value.message.splitlines() == [
        "2 mistakes",
        "  round: unknown key (did you mean 'rounds'?)",
        "  no algorithm is called 'fedprx' (did you mean 'fedprox'?)",
    ]
