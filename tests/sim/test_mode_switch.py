"""A running job moves to its peers and back: scenarios by hand, and hundreds of drawn ones."""

from typing import Literal

import pytest

from shoal.core.algorithm.filter import check_filters
from shoal.core.failover.failover import Failover
from shoal.core.protocol.machine import ReportRejected
from shoal.core.protocol.message import Report
from shoal.core.server.roster import PAUSE_S
from shoal.plugins import algorithms, filters, schedules
from shoal.sim.__main__ import main
from shoal.sim.hosts.coordinator import check_report
from shoal.sim.hosts.world import OperatorAction
from shoal.sim.network.faults import NetworkCut, NetworkSplit
from shoal.sim.scenarios import switching
from shoal.sim.scenarios.swarm import draining
from shoal.sim.scenarios.switching import draw, draw_plain, run_seed
from shoal.validation.config_checks import of_carrying_on, of_schedule
from tests.sim.peers_scenario import PeerStage
from tests.support.sampling import nightly

SEEDS = 600
CHUNK = 10


@pytest.mark.parametrize("first", nightly(range(0, SEEDS, CHUNK), but=[0]))
def test_no_switch_loses_anything(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed)


@pytest.mark.parametrize("seed", [5180])
def test_what_seeds_have_found_stays_mended(seed: int) -> None:
    """5180: the first model, whose acknowledgement was lost, was added to itself when its node went away."""
    run_seed(seed, drawn=draw_plain)


@pytest.mark.parametrize("seed", [5, 8, 17, 26, 90, 228])
def test_what_seeds_of_other_jobs_have_found_stays_mended(seed: int) -> None:
    """5, 17: filters rounded the merged model against the old reference, also where judges had measured it as it was.
    8: work against a base, in hand at the switch, was added to a version that held a part of it already.
    26: the job returned because of a node that was outside its hours, and was not asked for its model.
    90: a node reported to a schedule that asks no node before the end, so that no node went on.
    228: a weight that was reduced a second time was added in full, because no node was warned of it again."""
    run_seed(seed)


def test_the_swarm_draws_every_job_that_may_go_to_its_peers() -> None:
    jobs = [draw(seed).setup for seed in range(SEEDS)]
    drawn = {job.algorithm.name for job in jobs}
    assert drawn == {name for name, kind in algorithms().items() if kind.mixed_slots}
    assert {job.schedule.name for job in jobs} == schedules().keys()
    kept = {name for name, kind in filters().items() if not kind().sends_differences}
    assert {one.name for job in jobs for one in job.plan.filters} == kept
    assert any(not one.suits_models for job in jobs if job.schedule.relative_to_reference for one in job.plan.filters)
    for job in jobs:
        check_filters(job.plan.filters)
        errors = [*of_schedule(job.algorithm, job.schedule), *of_carrying_on(job.algorithm)]
        assert errors == [], (job.algorithm, job.schedule)


def test_the_swarm_of_switches_is_varied() -> None:
    runs = [draw(seed) for seed in range(SEEDS)]
    assert {action.what for run in runs for action in run.actions} == {"kill", "gossip", "server"}
    for share in (
        [bool(run.setup.faults.cuts) for run in runs],
        [run.setup.faults.node_crashes > 0 for run in runs],
        [run.setup.faults.coordinator_crashes > 0 for run in runs],
        [run.setup.faults.message_loss > 0 for run in runs],
        [bool(run.conditions.cuts) for run in runs],
        [bool(run.setup.plan.filters) for run in runs],
        [run.failover.failover.failover_quorum == "majority" for run in runs],
        [len(run.actions) > 3 for run in runs],
        [bool(run.setup.node_info) for run in runs],
        [any(one.what == "drain" for one in draining(run.seed, run.setup)) for run in runs],
        [any(one.what == "block" for one in draining(run.seed, run.setup)) for run in runs],
    ):
        assert SEEDS / 10 < sum(share) < SEEDS * 0.95


def test_a_dead_coordinator_is_done_without_and_takes_the_job_back() -> None:
    stage = PeerStage()
    stage.until(11.0)
    before = stage.hub.progress.version
    stage.world.coordinator.kill(120.0)
    assert stage.gossip_at(60.0) - 11.0 <= 45.0
    stage.until(130.0)
    learned = [len(stage.world.peer(node).log.learned) for node in stage.nodes]
    assert min(learned) > 20
    stage.finish()
    merged = stage.history.versions[before + 1]
    assert merged.why == "back at the server: the models of 5 nodes merged"
    assert {node: weight for node, _, weight, _ in merged.reports} == stage.weights
    assert [version.number for version in stage.history.versions] == list(range(41))
    for node in stage.nodes:
        rounds = [one.round for one in stage.world.peer(node).log.learned]
        assert rounds == list(range(1, len(rounds) + 1)), "a local round was made twice, or left out"


@pytest.mark.parametrize("action", ["drain", "block"])
def test_a_node_drained_in_an_outage_hands_back_once(action: Literal["drain", "block"]) -> None:
    stage = PeerStage()
    stage.until(11.0)
    before = stage.hub.progress.version
    stage.world.coordinator.kill(120.0)
    stage.world.operator.plan(OperatorAction(60.0, action, "n1"))
    stage.finish()
    assert stage.history.versions[before + 1].why == "back at the server: the models of 5 nodes merged"
    assert sum(text.startswith("back to the server") for _, text in stage.history.said) == 1
    assert not any(node == "n1" for one in stage.history.versions[before + 2 :] for node, *_ in one.reports)
    assert len(stage.world.peer("n1").log.mode_changes) == 3


def refusing(stage: PeerStage, node: str, times: int) -> list[float]:
    """Let the coordinator refuse so many models that this node hands back; when it did."""
    coordinator, refused = stage.world.coordinator, list[float]()
    receive = coordinator._receive_report

    def refuse(report: Report) -> None:
        task = coordinator.hub.roster[report.node].task
        handed_back = report.node == node and task is not None and task.kind == "gossip"
        counts = isinstance(check_report(coordinator.hub, coordinator.blobs, report), Report)
        if handed_back and counts and len(refused) < times:
            refused.append(stage.clock.now)
            coordinator._send(node, ReportRejected(report.task, "not finite"))
        else:
            receive(report)

    coordinator._receive_report = refuse  # type: ignore[method-assign]
    return refused


def test_nobody_waits_for_a_node_whose_model_was_refused() -> None:
    """It is among peers still and obeys no task: it is given none before it is back, and then its model counts."""
    stage = PeerStage(versions=60)
    refused = refusing(stage, "n1", 1)
    stage.switch("gossip", 20.0)
    stage.switch("server", 40.0)
    stage.until(45.0)
    assert len(refused) == 1
    before = stage.hub.progress.version
    stage.until(65.0)
    assert stage.hub.progress.version >= before + 9, "each round takes two seconds"
    assert (stage.world.peer("n1").peer.state, stage.hub.roster["n1"].task) == ("gossip", None)
    stage.finish()
    merges = [version for version in stage.history.versions if version.why.startswith("back at the server")]
    taken = [{node for node, *_ in version.reports} for version in merges]
    assert taken == [set(stage.nodes) - {"n1"}, set(stage.nodes)]
    assert stage.world.peer("n1").peer.state == "coordinated"


def test_the_others_are_not_stopped_again_and_again_for_a_model_that_is_always_refused() -> None:
    stage = PeerStage(versions=120)
    refused = refusing(stage, "n1", 1000)
    stage.switch("gossip", 20.0)
    stage.switch("server", 40.0)
    stage.finish()
    assert len(refused) == 4
    assert refused[3] - refused[2] >= PAUSE_S, "after three refusals only after a pause, longer each time"
    assert sum("back at the server" in version.why for version in stage.history.versions) == 4
    assert stage.clock.now < 40.0 + 4 * 30.0 + 120 * 2.0 + 60.0


def test_an_operators_order_reaches_a_node_whose_model_was_refused() -> None:
    """It is among peers by itself then; called back with the others, it hands back what it has."""
    stage = PeerStage(versions=60)
    refusing(stage, "n1", 1)
    stage.switch("gossip", 20.0)
    stage.switch("server", 40.0)
    stage.switch("gossip", 46.0)
    stage.until(55.0)
    task = stage.world.peer("n1").peer.task
    assert task is not None
    assert task.kind == "gossip"
    stage.until(90.0)
    assert stage.hub.progress.mode == "gossip", "nobody has called them back"


def test_work_in_hand_at_the_death_counts() -> None:
    """All are in the middle of a round: it becomes the first one among peers, and none of it is done again."""
    stage = PeerStage()
    stage.until(11.0)
    in_hand = {node: stage.world.peer(node).worker.task for node in stage.nodes}
    assert all(task is not None and task.kind == "train" for task in in_hand.values())
    begun = {node: stage.world.nodes[node].work.tasks_started for node in stage.nodes}
    stage.world.coordinator.kill(300.0)
    stage.until(40.0)  # done, and not reported; not away yet
    assert {node: stage.world.nodes[node].work.tasks_started for node in stage.nodes} == begun
    assert all(stage.world.peer(node).worker.unacknowledged is not None for node in stage.nodes)
    base = stage.hub.progress.version
    start = stage.blobs.get(stage.history.versions[base].model)["model"]
    said = {node: stage.world.peer(node).worker.unacknowledged.blob for node in stage.nodes}  # type: ignore[union-attr]
    moved = {node: stage.blobs.get(ref)["model"] for node, ref in said.items()}  # type: ignore[arg-type]
    stage.gossip_at(60.0)
    for node in stage.nodes:
        peer = stage.world.peer(node).peer
        assert peer.gossip is not None
        if not peer.gossip.me.local_rounds and not peer.gossip.me.counts.version_vector.keys() - {node}:
            assert peer.gossip.me.model["w"] == pytest.approx(start["w"] + moved[node]["w"])  # type: ignore[index]


def test_work_that_outlasts_the_switch_is_the_first_local_round() -> None:
    """A round takes a minute: no node begins it again because the coordinator has died in the middle of it."""
    stage = PeerStage(pace_s=60.0)
    stage.until(90.0)
    begun = {node: stage.world.nodes[node].work.tasks_started for node in stage.nodes}
    stage.world.coordinator.kill(600.0)
    assert stage.gossip_at(130.0) < 120.0
    stage.until(119.0)
    assert {node: stage.world.nodes[node].work.tasks_started for node in stage.nodes} == begun
    stage.until(122.0)
    for node in stage.nodes:
        peer = stage.world.peer(node)
        assert [one.round for one in peer.log.learned] == [1]
        assert stage.world.nodes[node].work.tasks_started == begun[node] + 1


def test_an_operator_sends_the_job_away_and_calls_it_back() -> None:
    stage = PeerStage()
    stage.until(10.5)
    version = stage.hub.progress.version
    stage.switch("gossip", 0.0)
    stage.until(20.0)
    assert stage.states() == {"gossip"}
    assert stage.hub.progress.mode == "gossip"
    stage.until(60.0)
    assert stage.hub.progress.version in (version, version + 1)
    stage.switch("server", 0.0)
    stage.until(70.0)
    assert stage.states() == {"coordinated"}
    stage.finish()
    state_changes = [text for _, text in stage.history.said if "carry on:" in text or "back to the server" in text]
    assert state_changes == ["the peers carry on: by an operator", "back to the server: by an operator"]
    assert {stage.world.peer(node).peer.term for node in stage.nodes} == {1}


def test_a_node_whose_own_way_is_broken_is_relayed() -> None:
    stage = PeerStage(cuts=[NetworkCut("n2", 10.0, 90.0)])
    stage.until(40.0)
    assert stage.world.peer("n2").peer.reachability.relay
    version = stage.hub.progress.version
    stage.until(50.0)
    later = stage.history.versions[version + 1 : version + 3]
    assert all("n2" in {node for node, *_ in one.reports} for one in later)
    stage.finish()
    assert not any(stage.world.peer(node).log.learned for node in stage.nodes), "nobody had a reason to go away"
    assert stage.world.peer("n2").peer.reachability.relay == "", "its own way is whole again"


def test_two_sides_go_on_and_meet_again() -> None:
    """Three nodes stay with the coordinator, five are cut off from both for two minutes."""
    cut_off = frozenset({"n4", "n5", "n6", "n7", "n8"})
    stage = PeerStage(
        count=8,
        cuts=[NetworkCut(node, 20.0, 140.0) for node in cut_off],
        splits=[NetworkSplit(cut_off, 20.0, 140.0)],
        versions=150,
    )
    stage.until(140.0)
    assert {stage.world.peer(node).peer.state for node in cut_off} == {"gossip"}
    assert {stage.world.peer(node).peer.state for node in ("n1", "n2", "n3")} == {"coordinated"}
    advanced = stage.hub.progress.version
    assert advanced > 10
    stage.finish()
    merges = [one for one in stage.history.versions if one.why.startswith("back at the server")]
    assert merges
    assert cut_off <= {node for one in merges for node, *_ in one.reports}
    assert merges[0].number > advanced


def test_a_minority_waits_where_the_majority_decides() -> None:
    cut_off = frozenset({"n6", "n7", "n8"})
    stage = PeerStage(
        count=8,
        cuts=[NetworkCut(node, 20.0, 140.0) for node in cut_off],
        splits=[NetworkSplit(cut_off, 20.0, 140.0)],
        failover=Failover(failover_quorum="majority", min_gossip_s=30.0),
        versions=100,
    )
    stage.until(139.0)
    assert {stage.world.peer(node).peer.state for node in cut_off} == {"suspect"}
    stage.finish()
    assert not any(stage.world.peer(node).log.learned for node in stage.nodes)


def test_a_coordinator_that_flaps_moves_the_job_once() -> None:
    """Ten times up for 5 s and down for 10 s: at most one way there and one way back."""
    stage = PeerStage(versions=30)
    stage.until(21.0)
    for turn in range(10):
        stage.clock.at(21.0 + 15.0 * turn, stage.world.coordinator.kill, 10.0)
    stage.finish()
    gone = [len(stage.world.peer(node).log.mode_changes) for node in stage.nodes]
    assert max(gone) <= 3, "with a server, without, with one again"


def test_a_zombies_orders_are_refused() -> None:
    """A node that has declared a term ignores messages of older ones."""
    cut_off = frozenset({"n1", "n2", "n3", "n4"})
    stage = PeerStage(
        cuts=[NetworkCut(node, 20.0, 100.0) for node in cut_off],
        splits=[NetworkSplit(cut_off, 20.0, 100.0)],
        versions=150,
    )
    stage.until(108.0)
    numbers = stage.hub.tasks.term
    for node in cut_off:
        peer = stage.world.peer(node).peer
        assert peer.state == "gossip"
        assert peer.term > 1
    assert numbers > 1, "the hub that was knocked at takes a higher term"
    stage.finish()


def test_a_run_that_breaks_says_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--switching", "3", "--count", "2"]) == 0
    assert "2 runs, none failed" in capsys.readouterr().out
    monkeypatch.setattr(switching, "STEPS_MAX", 100)
    assert main(["--switching", "3"]) == 1
    assert "python -m shoal.sim --switching 3 --trace" in capsys.readouterr().out
