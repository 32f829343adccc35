"""Answers get lost on their way, whole or in part, after the coordinator has sent them: nothing else does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.edge_client import dynamic_job
from tests.support.coordinator import Inside
from tests.support.history import check, final, predicted
from tests.support.node import History, Node
from tests.support.proxy import ENDPOINTS, Fate, Proxy
from tests.support.sampling import nightly
from tests.support.scenario import set_up, task_of
from tests.support.waiting import until

SIZES = {"inline": 10, "large": 66_000}
ROUNDS = 4
Swarm = Callable[..., list[Node]]
Between = Callable[..., Proxy]


@pytest.fixture
def between(coordinator: Inside) -> Iterator[Between]:
    """Makes proxies before the coordinator."""
    made: list[Proxy] = []

    def make(fate: Callable[[str, int], Fate | None] = lambda endpoint, n: None) -> Proxy:
        made.append(Proxy(lambda: coordinator.url, fate))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


FIRST = list(itertools.product(sorted(set(ENDPOINTS) - {"leave", "status"}), ("drop", "cut")))
CUT = [("download", "cut"), ("work", "cut"), ("enrol", "cut"), ("report", "cut")]
FIRST_BY_DAY = [one for one in FIRST if "drop" in one or one in CUT]
"""Each endpoint's answer is lost, and those whose content matters are cut as well."""
IN_STEP = list(itertools.product(("status", "report", "work"), ("drop", "cut")))
IN_STEP_BY_DAY = [("status", "drop"), ("report", "cut"), ("work", "cut")]


def run(coordinator: Inside, swarm: Swarm, proxy: Proxy) -> None:
    """Two jobs that make nodes use every endpoint. A round's deadline is an hour: none may be waited for."""
    history = History()
    for job in SIZES:
        # Each of the two fails once, perhaps in another job: then the report of one must not close a round.
        coordinator.begin(job, nodes=2, rounds=ROUNDS, schedule={"quorum": 2})
    nodes = swarm(
        coordinator,
        2,
        SIZES,
        history,
        where=lambda: proxy.url,
        beats=True,
        fails_once=True,
        breaks_uploads=True,
        wait_s="0.1",
    )
    for node in nodes:
        node.finish()
    check(coordinator, history, SIZES, {}, nodes=2)
    for job, size in SIZES.items():
        until("the job to be done", lambda job=job: coordinator.job(job)["state"] == "done")
        assert final(coordinator, job) == predicted(size, ROUNDS, ("n0", "n1"))


@pytest.mark.parametrize(("endpoint", "fate"), nightly(FIRST, but=FIRST_BY_DAY))
def test_the_first_three_answers_of_an_endpoint_are_lost(
    endpoint: str, fate: Fate, coordinator: Inside, between: Between, swarm: Swarm
) -> None:
    proxy = between(lambda name, n: fate if name == endpoint and n <= 3 else None)
    run(coordinator, swarm, proxy)
    assert proxy.lost[endpoint] == 3, f"only {proxy.answers[endpoint]} answers of {endpoint}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("endpoint", "fate"), nightly(IN_STEP, but=IN_STEP_BY_DAY))
def test_nodes_in_step_lose_answers(
    endpoint: str, fate: Fate, coordinator: Inside, between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status whose answer is lost, or the leave to go on: every fourth of them. Nothing is decided otherwise."""
    values = dynamic_job.job([], balancing="double", delta=1.0)
    _, foreseen = dynamic_job.simulated(values, monkeypatch)
    proxy = between(lambda name, n: fate if name == endpoint and n % 4 == 1 else None)
    coordinator.post("/jobs", {"spec": values})
    for node in dynamic_job.take_part(coordinator, tmp_path, proxy.url):
        node.finish()
    assert dynamic_job.decided(coordinator)[1] == foreseen
    assert proxy.lost[endpoint] >= 4, proxy.answers


@pytest.mark.parametrize("seed", nightly([1, 2], but=[1]))
def test_four_of_ten_answers_are_lost(seed: int, coordinator: Inside, between: Between, swarm: Swarm) -> None:
    def fate(name: str, n: int) -> Fate | None:
        chance = random.Random(f"{seed}/{name}/{n}").random()
        return "drop" if chance < 0.2 else "cut" if chance < 0.4 else None

    proxy = between(fate)
    run(coordinator, swarm, proxy)
    assert proxy.lost.total() > 20


def test_leaving_can_be_said_again(coordinator: Inside, between: Between) -> None:
    """The task goes to another node once, and people read of it once."""
    proxy = between(lambda name, n: "drop" if name == "leave" and n <= 3 else None)
    stage = set_up(coordinator)
    leaving = stage.nodes[0]
    leaving.where = lambda: proxy.url
    assert leaving.ask("POST", "/leave").status_code == 204
    assert proxy.lost["leave"] == 3
    left = until("the event", lambda: [n for n in coordinator.events("main", "node") if "left" in n["text"]])
    assert [event["text"] for event in left] == ["n0 left and handed its task back"]
    assert coordinator.job("main")["nodes"] == 2
    assert task_of(stage.nodes[2], "main")[0].kind == "train"
    stage.close()
