"""Schedules of the local learning rate: their fractions, the tasks that carry them, restarts and refusals."""

from __future__ import annotations

import json
from math import cos, pi
from random import Random
from typing import Any

import pytest

import shoal
from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip import GossipPeer
from shoal.core.gossip.gossip_state import GossipState, LivePeers
from shoal.core.job.job_plan import JobPlan
from shoal.core.job.lr_schedule import LrSchedule
from shoal.core.protocol.machine import TaskDone, TaskResult, Work
from shoal.core.protocol.message import ChangeSettings
from shoal.core.server.hub import Hub
from shoal.jobs.spec import parse_job
from shoal.mixing.pairwise import Pairwise
from shoal.schedules.rounds import Rounds
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs
from tests.core.test_hub import NODES, hub_of
from tests.core.test_settings_change import close, tasks
from tests.support.learners import VectorLearner

FALLING = LrSchedule("linear", final_fraction=0.5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (LrSchedule(), [1, 1, 1, 1, 1]),
        (LrSchedule("constant", warmup_rounds=3), [0.25, 0.5, 0.75, 1, 1]),
        (LrSchedule("linear"), [1, 0.8, 0.6, 0.4, 0.2]),
        (LrSchedule("linear", warmup_rounds=1, final_fraction=0.2), [0.5, 1, 0.8, 0.6, 0.4]),
        (LrSchedule("cosine"), [(1 + cos(pi * t / 5)) / 2 for t in range(5)]),
        (LrSchedule("cosine", final_fraction=0.1), [0.1 + 0.9 * (1 + cos(pi * t / 5)) / 2 for t in range(5)]),
        (LrSchedule("step", step_rounds=2, step_factor=0.1), [1, 1, 0.1, 0.1, 0.01]),
        (LrSchedule("step", warmup_rounds=1, step_rounds=2), [0.5, 1, 1, 0.5, 0.5]),
    ],
)
def test_fractions_of_five_rounds(schedule: LrSchedule, expected: list[float]) -> None:
    assert [schedule.fraction(version, 5) for version in range(5)] == pytest.approx(expected)


def test_a_rate_stays_at_its_end_beyond_the_last_round() -> None:
    assert LrSchedule("cosine", final_fraction=0.2).fraction(9, 5) == pytest.approx(0.2)


def rates(hub: Hub) -> list[float]:
    return [numbers["algorithm.lr"] for numbers in tasks(hub)]


def falling() -> Hub:
    return hub_of(MemoryBlobs(), lr_schedule=FALLING, algorithm=Algorithm(lr=0.8), versions=4)


def test_each_version_has_its_rate_also_after_a_restart() -> None:
    hub = falling()
    assert rates(hub) == pytest.approx([0.8] * len(NODES))
    close(hub)
    assert rates(hub) == pytest.approx([0.7] * len(NODES))
    snapshot = json.loads(json.dumps(hub.snapshot()))
    schedule = Rounds(min_nodes=5, quorum=5)
    again = Hub(hub.settings.plan, Algorithm(lr=0.8), schedule, hub.store.blobs, snapshot)
    assert again.settings.algorithm.lr == pytest.approx(0.7)
    close(again)
    assert rates(again) == pytest.approx([0.6] * len(NODES))


def test_an_operator_changes_the_rate_that_fractions_are_of() -> None:
    hub = falling()
    hub.on(ChangeSettings({"algorithm.lr": 0.4}), 0.5)
    close(hub)
    assert rates(hub) == pytest.approx([0.35] * len(NODES))
    assert hub.settings.changed == {"algorithm.lr": 0.4}


def test_a_peer_without_a_coordinator_counts_its_local_rounds() -> None:
    blobs, model = MemoryBlobs(), toy_tree((1.0, 0.0, 0.0), 1)
    me = GossipState("a", 1, 1.0, {"model": model}, blobs, Random(1), peers=LivePeers(frozenset()))
    peer = GossipPeer(JobPlan(4, lr_schedule=FALLING), Algorithm(lr=0.8), me, Pairwise().mixer())
    found, effects = list[float](), peer.start(0.0)
    for _ in range(3):
        task = next(effect.task for effect in effects if isinstance(effect, Work))
        found.append(task.numbers["algorithm.lr"])
        effects = peer.on(TaskDone(task.id, TaskResult(1.0, blobs.put({"model": model}))), 0.0)
    assert found == pytest.approx([0.8, 0.7, 0.6])


class Recording(VectorLearner):
    """A learner that remembers the rates of its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def train(self, config: TrainConfig, **more: Any) -> Trained:
        self.rates.append(config.lr)
        return super().train(config, **more)


def test_learners_of_a_job_get_the_rates() -> None:
    learner = Recording()
    shoal.simulate({"name": "falls", "rounds": 4, "algorithm": {"name": "fedavg", "lr": 0.8}, **STEPS}, [learner])
    assert learner.rates == pytest.approx([0.8, 0.8, 0.08, 0.08])


STEPS = {"lr_schedule": {"kind": "step", "step_rounds": 2, "step_factor": 0.1}}


def test_a_kind_alone_is_a_table() -> None:
    job = parse_job({"name": "short", "lr_schedule": "cosine"})
    assert job.plan().lr_schedule == LrSchedule("cosine")


@pytest.mark.parametrize("name", ["dynamic", "periodic", "fda", "lbfgs"])
def test_algorithms_without_a_rate_for_each_round_refuse_it_by_name(name: str) -> None:
    with pytest.raises(InvalidJob, match=f"{name} .*so no lr_schedule applies"):
        parse_job({"name": "no", "rounds": 3, "algorithm": name, "lr_schedule": "cosine"})
