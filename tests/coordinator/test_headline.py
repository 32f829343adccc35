"""The sentence under a job's title."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.aggregation import Totals
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import DrainNode, Join
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs
from shoal_coordinator.models.version_history import VersionSummary
from shoal_coordinator.presenters.headline import JobFacts, barred_nodes, headline, job_facts
from shoal_coordinator.presenters.job_presenter import state_reason
from tests.core.test_hub import model, report
from tests.core.test_layout_mismatch import RIGHT, TEXT, WRONG, hub_of
from tests.support.coordinator import Inside
from tests.support.scenario import by_hand

GOING = JobFacts("running", nodes=12, able=12, least=3, asked=4, reported=2, busy=2, version=7)
IDLE = replace(GOING, asked=0, reported=0, busy=0)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (GOING, "Round 8: 2 of 4 nodes have reported"),
        (replace(GOING, why="enough"), "Round 8: 2 of 4 nodes have reported; then it stops: enough"),
        (replace(GOING, unit="version", reported=1), "Version 8: 1 report so far, 2 nodes at work"),
        (replace(GOING, unit="sync"), "2 nodes at work; models were synchronized 7 times"),
        (
            replace(GOING, unit="sync", endless=True),
            (
                "2 nodes at work; models were synchronized 7 times; "
                "the nodes train until the job is stopped or has all its versions"
            ),
        ),
        (IDLE, "Round 8 begins"),
        (replace(IDLE, phase="waiting", nodes=0, able=0), "Waiting: no node has joined yet"),
        (replace(IDLE, phase="waiting"), "Waiting for an initial model from a node"),
        (replace(IDLE, nodes=0, able=0), "Waiting: no node has joined"),
        (replace(IDLE, nodes=1, able=1), "Waiting: 1 of 3 nodes have joined"),
        (replace(IDLE, able=0, tags=(("ship", 0), ("gpu", 7))), "Waiting: 0 of 12 nodes have the tag ship"),
        (replace(IDLE, able=2, tags=(("ship", 2),)), "Waiting: 2 of 12 nodes have the tag ship; 3 are needed"),
        (replace(IDLE, able=1, named=(1, 4)), "Waiting: 1 of the 4 nodes that the job names are here"),
        (replace(IDLE, able=0, closed=12), "Waiting: 12 of 12 nodes may not be asked at this hour"),
        (
            replace(IDLE, nodes=2, able=1, least=2, barred=(("a", "drained by an operator"),)),
            "Waiting: 1 of 2 nodes can be asked; a: drained by an operator",
        ),
        (
            replace(IDLE, nodes=4, able=1, closed=1, barred=(("a", "2 tensors, not 7"), ("b", "drained"))),
            "Waiting: 1 of 3 nodes can be asked; a: 2 tensors, not 7, and 1 more node may not be asked",
        ),
        (replace(IDLE, nodes=4, able=1, set_aside=(("a", ""),)), "Waiting: 1 of 3 nodes can be asked"),
        (
            replace(IDLE, nodes=2, able=0, set_aside=(("a", "a full disk"), ("b", "x"))),
            "Stalled: a, b failed repeatedly, and will be asked again later; last failure of a: a full disk",
        ),
        (
            replace(IDLE, phase="waiting", nodes=2, able=0, set_aside=(("a", ""), ("b", ""))),
            "Stalled: a, b failed repeatedly, and will be asked again later",
        ),
        (
            replace(GOING, phase="waiting", set_aside=(("a", ""),), able=11),
            "a failed repeatedly; 11 nodes can be asked",
        ),
        (replace(GOING, set_aside=(("a", ""),), able=11), "a failed repeatedly; 11 nodes can be asked"),
        (
            replace(
                GOING, set_aside=(("a", "x"),), able=2, waits_for="2 of 3 nodes ready; set aside after failures: a"
            ),
            "Stalled: 2 of 3 nodes ready; set aside after failures: a; last failure of a: x",
        ),
        (replace(GOING, late=(("a", 2, 2), ("slow", 8, 10))), "slow missed 8 of the last 10 deadlines"),
        (
            replace(GOING, late=(("slow", 8, 10), ("b", 4, 6))),
            "slow missed 8 of the last 10 deadlines, and 1 more node most of theirs",
        ),
        (replace(GOING, late=(("a", 4, 10), ("b", 2, 2))), "Round 8: 2 of 4 nodes have reported"),
        (replace(GOING, lost=("a", "b"), able=10), "a, b fell silent; 10 nodes can be asked"),
        (
            replace(IDLE, mode="gossip", since=16 * 3600 + 40 * 60.0, rounds=29),
            "With its peers since 16:40 UTC, 29 rounds",
        ),
        (replace(GOING, mode="returning"), "On its way back from its peers: 2 of 4 nodes have handed back"),
        (replace(IDLE, version=30, versions=30), "Version 30, the last one, is made"),
        (
            replace(GOING, refusing=("a", "b"), refused_s=90.0),
            (
                "Refused by a, b: another coordinator had the same term, as before a backup was restored; this ends "
                "within about 90 s"
            ),
        ),
        (replace(GOING, phase="evaluating"), "The final model is being measured: 2 of 4 nodes have reported"),
        (replace(GOING, paused=True, why="lunch"), "Paused: lunch"),
        (replace(GOING, trouble="no space left"), "Needs attention: no space left"),
        (replace(IDLE, phase="stopped", why="by an operator"), "Stopped: by an operator"),
        (
            replace(IDLE, phase="done", why="30 versions, measured by 4 nodes", best=(0.953, 28)),
            "Done: 30 versions, measured by 4 nodes; the best is version 28 with 95.3 %",
        ),
    ],
)
def test_what_it_says(facts: JobFacts, said: str) -> None:
    assert headline(facts) == said


def test_no_round_is_announced_after_the_last() -> None:
    """Pages are drawn while the last version is made, too."""
    seen = list[str]()

    class Watched(Algorithm):
        def step(self, slots: Slots, totals: Totals) -> Slots:
            seen.append(state_reason(hub))
            return super().step(slots, totals)

    blobs = MemoryBlobs()
    start = blobs.put({"model": model(1.0, 2.0)})
    hub = Hub(JobPlan(2, 7, "float64", start), Watched(), Rounds(min_nodes=2), blobs)
    for node in "ab":
        hub.on(Join(node), 0.0)
    for at in range(2):
        for node in "ab":
            hub.on(report(hub, node, {"model": model(1.0, 1.0)}, 1.0), 1.0 + at)
    assert (seen, hub.progress.phase) == (["round 2: 1 of 2 reports", "1 of 2 reports"], "evaluating")


def test_nodes_with_another_model_are_barred_by_their_model() -> None:
    assert barred_nodes(hub_of(RIGHT, WRONG, min_nodes=2)) == (("b", TEXT),)
    assert barred_nodes(hub_of(RIGHT, WRONG, tags=("ship",))) == (), "the job does not want it, whatever its model"


def test_a_blocked_node_is_barred_by_the_operator() -> None:
    hub = hub_of(RIGHT, RIGHT, min_nodes=2)
    hub.on(DrainNode("b", "blocked by an operator"), 1.0)
    assert barred_nodes(hub) == (("b", "blocked by an operator"),)


@pytest.mark.parametrize(("keys", "endless"), [({}, True), ({"local_steps": 50}, False), ({"epochs": 2}, False)])
def test_training_without_an_end_is_told(coordinator: Inside, keys: dict[str, int], endless: bool) -> None:
    coordinator.post("/jobs", {"spec": {"name": "main", "preset": "dynamic", "algorithm": keys}})
    facts = job_facts(coordinator.runner("main"), VersionSummary(), set(), None)
    assert facts.endless is endless


def test_a_job_whose_tag_nobody_has(coordinator: Inside) -> None:
    """Nodes that have joined take no part; the page of each says so."""
    coordinator.begin("main", nodes=1, selection={"name": "uniform", "tags": ["ship"]})
    nodes = [by_hand(coordinator, name, {"main": 10}) for name in ("n0", "n1")]
    for node in nodes:
        node.ask("GET", "/work", params={"wait_s": 0.01, "job": "main"})
    job = coordinator.job("main")
    assert (job["headline"], job["nodes"], job["members"]) == ("Waiting: 0 of 2 nodes have the tag ship", 0, 2)
    (part,) = coordinator.get("/nodes/n0")["parts"]
    assert (part["is_present"], part["excluded_text"]) == (False, "without the tag ship")
    assert [one["excluded_text"] for one in coordinator.get("/jobs/main/nodes")["nodes"]] == [
        "without the tag ship"
    ] * 2
    for node in nodes:
        node.client.close()
