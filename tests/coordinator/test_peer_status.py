"""Views of nodes as peers: their state, the distance of their models, and their refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.trust.documents import RosterEntry
from shoal_coordinator.peers import consensus_stats, peer_status
from shoal_coordinator.schemas.peers import PROJECTIONS, PeerStatusReport
from tests.support.coordinator import Inside, inside
from tests.support.peers import GOSSIP, KEYS, OPEN, documents, join_as_peers, peer_info, send_status, status_report
from tests.support.scenario import Stage, problem, set_up
from tests.support.sse import listening
from tests.support.waiting import until

REPLAYED = "a request with that number was received before, or it is too old"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path / "data", **OPEN) as running:
        yield running


@pytest.fixture
def stage(coordinator: Inside) -> Iterator[Stage]:
    made = set_up(coordinator, gossip=GOSSIP)
    join_as_peers(made, "n0", "n1", "n2")
    documents(made)
    yield made
    made.close()


def view(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.running.get("/jobs/main/peers")
    return found


# How near models are


def of(model: Any, weight: float, **changes: Any) -> PeerStatusReport:
    """The word of a peer with that model; its books agree."""
    values: dict[str, Any] = {"model_projection": [float(part) * weight for part in model], "weight": weight}
    return PeerStatusReport.model_validate(
        {**status_report(), "expected_projection": values["model_projection"], **values, **changes}
    )


def test_what_peers_measure_is_weighted_by_their_examples() -> None:
    one = of([1.0] * PROJECTIONS, 5.0, metrics={"eval/accuracy": 0.9, "eval/examples": 30.0, "train/loss": 2.0})
    two = of([1.0] * PROJECTIONS, 10.0, metrics={"eval/accuracy": 0.5, "eval/examples": 10.0, "eval/loss": 1.0})
    mute = of([1.0] * PROJECTIONS, 10.0)
    assert consensus_stats.mean_metric([one, two, mute], "accuracy") == pytest.approx(0.8)
    assert consensus_stats.mean_metric([one, two], "loss") == pytest.approx(1.75)
    assert consensus_stats.mean_metric([mute], "accuracy") is None
    lost = of([1.0] * PROJECTIONS, 5.0, metrics={"eval/accuracy": "NaN"})
    assert consensus_stats.mean_metric([one, lost], "accuracy") is None, "the mean of what is not finite is none"


def test_consensus_is_the_distance_from_the_weighted_mean() -> None:
    rng = np.random.default_rng(3)
    models, weights = rng.normal(size=(3, PROJECTIONS)), np.array([1.0, 4.0, 5.0])
    mean = weights @ models / 10
    spread = sum(w * float(((x - mean) ** 2).sum()) for w, x in zip(weights, models, strict=True)) / 10
    found = consensus_stats.consensus([of(x, float(w)) for w, x in zip(weights, models, strict=True)])
    assert found == pytest.approx(np.sqrt(spread) / np.linalg.norm(mean))
    assert consensus_stats.consensus([of(models[0], 1.0), of(models[0], 7.0)]) == pytest.approx(0, abs=1e-12)


def test_consensus_is_unknown_where_nothing_can_be_compared() -> None:
    ones, nothing = np.ones(PROJECTIONS), np.zeros(PROJECTIONS)
    assert consensus_stats.consensus([of(ones, 1.0)]) is None
    assert consensus_stats.consensus([of(ones, 1.0), of(ones, 1.0, model_projection=[])]) is None
    assert consensus_stats.consensus([of(ones, 1.0), of(ones, 0.0)]) is None
    assert consensus_stats.consensus([of(nothing, 1.0), of(nothing, 1.0)]) is None


def test_what_exchanges_move_is_no_residual_and_what_they_lose_is() -> None:
    ones = np.ones(PROJECTIONS)
    apart = [of(ones, 2.0), of(3 * ones, 2.0)]
    mixed = [of(2 * ones, 2.0, expected_projection=report.expected_projection) for report in apart]
    assert consensus_stats.residual(mixed) == pytest.approx(0, abs=1e-12)
    lost = [mixed[0], of(1.9 * ones, 2.0, expected_projection=apart[1].expected_projection)]
    assert consensus_stats.residual(lost) == pytest.approx(0.2 / 8)
    assert consensus_stats.residual([]) is None
    assert consensus_stats.residual([of(ones, 1.0, expected_projection=[])]) is None


def test_the_greatest_numbers_that_are_taken_can_be_reckoned_with() -> None:
    huge = [1e100] * PROJECTIONS
    words = [
        of([0.0], 1.0, model_projection=huge, expected_projection=huge),
        of([0.0], 1.0, model_projection=[-1e100] * PROJECTIONS, expected_projection=huge),
    ]
    assert consensus_stats.consensus(words) is None
    assert consensus_stats.residual(words) == pytest.approx(1.0)


def test_coverage_counts_the_rounds_that_anybody_has_heard_of() -> None:
    words = {
        "a": of(
            [1.0], 1.0, local_rounds=10, rounds_by_peer={"b": 5, "gone": 5}, model_projection=[], expected_projection=[]
        ),
        "b": of([1.0], 1.0, local_rounds=20, rounds_by_peer={"a": 10}, model_projection=[], expected_projection=[]),
    }
    found = consensus_stats.coverage(words)
    assert found == {"a": pytest.approx(20 / 35), "b": pytest.approx(30 / 35)}
    assert consensus_stats.coverage({}) == {}
    assert (
        consensus_stats.coverage(
            {"a": of([1.0], 1.0, local_rounds=0, rounds_by_peer={}, model_projection=[], expected_projection=[])}
        )
        == {}
    )


# The view


def test_what_peers_tell_is_shown(stage: Stage) -> None:
    assert [row["state"] for row in view(stage)["peers"]] == [None, None, None]
    told = status_report(
        rounds_by_peer={"n0": 17, "n1": 16, "stranger": 9}, local_rounds=17, quarantine=["n1", "stranger"]
    )
    told["peers"]["stranger"] = told["peers"]["n1"]
    assert send_status(stage, **told).status_code == 204
    found = view(stage)
    first, second, third = found["peers"]
    assert found["roster"] == documents(stage)[1].version
    assert (first["name"], first["peer_id"], first["is_reachable"]) == ("n0", KEYS["n0"].peer_id, True)
    assert (first["state"], first["term"], first["local_rounds"], first["weight"]) == ("gossip", 2, 17, 1200.0)
    assert first["rounds_by_peer"] == {"n0": 17, "n1": 16}, "nothing of who is not in the roster"
    assert first["peers"] == {"n1": status_report()["peers"]["n1"]}
    assert (first["refused"], first["quarantine"]) == ({"trust.signature": 2}, ["n1"])
    assert first["coverage"] == 1.0
    assert 0 <= first["told_s"] < 60
    assert (second["state"], third["state"]) == (None, None)


def test_changes_of_state_are_remembered(stage: Stage) -> None:
    for state in ("coordinated", "suspect", "suspect", "gossip", "returning", "coordinated"):
        assert send_status(stage, **status_report(state=state)).status_code == 204
    changes = view(stage)["peers"][0]["changes"]
    assert [one["state"] for one in changes] == ["coordinated", "suspect", "gossip", "returning", "coordinated"]
    assert [one["at"] for one in changes] == sorted(one["at"] for one in changes)


def test_a_history_is_kept_while_peers_carry_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_status, "SAMPLE_S", 0.0)
    assert send_status(stage, **status_report(state="coordinated")).status_code == 204
    assert (view(stage)["now"], view(stage)["history"]) == (None, [])
    ones, threes = [2.0] * PROJECTIONS, [6.0] * PROJECTIONS
    for name, model_projection in (("n0", ones), ("n1", threes)):
        said = status_report(
            weight=2.0,
            model_projection=model_projection,
            expected_projection=model_projection,
            rounds_by_peer={},
            local_rounds=4,
        )
        assert send_status(stage, name, **said).status_code == 204
    point = until("a point of two", lambda: (now := view(stage)["now"]) and now["peers"] == 2 and now)
    assert (point["consensus"], point["residual"], point["coverage"]) == (0.5, 0.0, 0.5)
    until("more points", lambda: len(view(stage)["history"]) > 3)
    times = [one["at"] for one in view(stage)["history"]]
    assert times == sorted(times)
    for name in ("n0", "n1"):
        assert send_status(stage, name, **status_report(state="coordinated")).status_code == 204
    assert view(stage)["now"] is None, "they are back at once, not when what they told is old"


def test_the_history_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_status, "SAMPLE_S", 0.0)
    here = {"n0": RosterEntry("n0", KEYS["n0"].peer_id, KEYS["n0"].public_key, (), False, 0)}
    kept = peer_status.PeerStatuses()
    for turn in range(peer_status.HISTORY_KEPT + 50):
        kept.update("main", "n0", PeerStatusReport.model_validate(status_report(term=turn)))
        kept.sample_history("main", here)
    kept.sample_history("main", {})
    assert len(kept.view("main", here, 1).history) == peer_status.HISTORY_KEPT == 300


def test_the_silent_are_not_compared_but_their_sum_is_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_status, "SAMPLE_S", 0.0)
    ones, threes, twos = ([float(n)] * PROJECTIONS for n in (1, 3, 2))
    for name, books in (("n0", ones), ("n1", threes)):
        assert (
            send_status(
                stage, name, **status_report(weight=1.0, model_projection=twos, expected_projection=books)
            ).status_code
            == 204
        )
    until("a point of two", lambda: (now := view(stage)["now"]) and now["peers"] == 2)
    told = stage.running.coordinator.peers.statuses.statuses("main")
    told["n1"].received_at -= 3600
    point = until("a point of one", lambda: (now := view(stage)["now"]) and now["peers"] == 1 and now)
    assert (point["consensus"], point["residual"]) == (None, 0.0)
    told["n0"].received_at -= 3600
    monkeypatch.setattr(peer_status, "FRESH_S", -1.0)
    assert view(stage)["now"] is None, "what was, is not now"
    assert view(stage)["history"]


def test_pages_follow_live(stage: Stage) -> None:
    with listening(stage.running.url, job="main") as events:
        next(events)
        assert send_status(stage, **status_report()).status_code == 204
        news = next(e.data for e in events if e.name == "peers" and any(row["state"] for row in e.data["peers"]))
        assert (news["job"], news["roster"]) == ("main", documents(stage)[1].version)
        (row,) = (row for row in news["peers"] if row["name"] == "n0")
        assert (row["state"], row["local_rounds"]) == ("gossip", 17)
        stage.send("n1", "POST", "/hello", json={"peer": peer_info("n1", port=9009)})
        newer = next(e.data for e in events if e.name == "peers" and e.data["roster"] > news["roster"])
        assert newer["roster"] == news["roster"] + 1


def test_pages_are_told_only_what_has_changed(stage: Stage) -> None:
    def told(events: Any) -> dict[str, Any]:
        rows = (row for e in events if e.name == "peers" for row in e.data["peers"])
        return next(row for row in rows if row["name"] == "n0" and row["state"])

    edge = status_report()["peers"]["n1"]
    both, seen = {"n1": edge, "n2": edge}, {"n0": 17, "n1": 16, "n2": 15}
    with listening(stage.running.url, job="main") as events:
        next(events)
        send_status(stage, **status_report(peers=both, rounds_by_peer=seen))
        first = told(events)
        assert (first["partial"], set(first["peers"]), first["rounds_by_peer"]) == (False, {"n1", "n2"}, seen)
        send_status(
            stage,
            **status_report(
                peers=both | {"n2": {**edge, "exchanges": 13}}, rounds_by_peer=seen | {"n0": 18}, local_rounds=18
            ),
        )
        second = told(events)
        assert (second["partial"], second["local_rounds"], second["rounds_by_peer"]) == (True, 18, {"n0": 18, "n2": 15})
        assert second["peers"] == {"n2": {**edge, "exchanges": 13}}
        send_status(stage, **status_report(peers=both, rounds_by_peer=seen, process_number=2))
        assert told(events)["partial"] is False, "another process: nothing of what was told goes on"
        send_status(stage, **status_report(peers={"n1": edge}, rounds_by_peer=seen, process_number=2))
        assert told(events)["partial"] is False, "it speaks of n2 no more"


def test_what_went_to_and_fro_between_two_tellings_is_told() -> None:
    """A page that asked in between has seen the middle."""
    kept, edge = peer_status.PeerStatuses(), status_report()["peers"]["n1"]
    here = {name: RosterEntry(name, KEYS[name].peer_id, KEYS[name].public_key, (), False, 0) for name in ("n0", "n1")}
    for state in ("alive", None, "suspect", "alive"):
        if state is None:
            kept.changed_rows("main", here, {"n0"})
            continue
        report = status_report(peers={"n1": {**edge, "state": state}})
        kept.update("main", "n0", PeerStatusReport.model_validate(report))
    (row,) = kept.changed_rows("main", here, {"n0"})
    assert (row.partial, row.peers["n1"].state) == (True, "alive")


def test_who_may_look(stage: Stage) -> None:
    problem(stage.running.request("GET", "/api/v1/jobs/nothing/peers"), 404, "job.unknown")
    stage.running.begin("plain", nodes=1)
    assert stage.running.get("/jobs/plain/peers") == {"roster": None, "peers": [], "now": None, "history": []}


# Refusals


def refusals(stage: Stage) -> list[str]:
    return [event["text"] for event in stage.running.events("main", "refusal")]


def test_what_a_peer_refuses_is_a_note_once_a_minute(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    send_status(stage, **status_report(refused={"trust.replayed": 1, "payload.not-finite": 3}))
    send_status(stage, **status_report(refused={"trust.replayed": 1, "payload.not-finite": 3}))
    send_status(stage, **status_report(refused={"trust.replayed": 9, "payload.not-finite": 3}))
    assert refusals(stage) == [
        "n0 refused 3 messages of other peers (payload.not-finite)",
        f"n0 refused 1 message of other peers (trust.replayed): {REPLAYED}",
    ]
    monkeypatch.setattr(peer_status, "NOTE_S", 0.0)
    send_status(stage, **status_report(refused={"trust.replayed": 9, "payload.not-finite": 3}))
    assert refusals(stage)[2:] == [f"n0 refused 8 messages of other peers (trust.replayed): {REPLAYED}"]
    send_status(stage, **status_report(process_number=2, refused={"trust.replayed": 2}))
    assert refusals(stage)[3].startswith("n0 refused 2 messages"), "a new process counts from nothing"
    assert stage.running.events("main", "refusal")[0]["node"] == "n0"


def test_nodes_that_refuse_this_coordinator_are_known_until_they_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, now = peer_status.PeerStatuses(), [0.0]
    monkeypatch.setattr(peer_status, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))

    def status(at_s: float, state: str, count: int, number: int = 1) -> tuple[str, ...]:
        now[0], refused = at_s, {"trust.term-forked": count, "trust.replayed": int(at_s)}
        report = PeerStatusReport.model_validate(status_report(state=state, refused=refused, process_number=number))
        kept.update("main", "n0", report)
        return kept.refusing("main")

    assert status(0.0, "coordinated", 3) == (), "it may have refused another one"
    assert status(5.0, "coordinated", 3) == ()
    assert status(10.0, "coordinated", 4) == ("n0",)
    assert status(20.0, "suspect", 4) == ("n0",)
    assert status(40.0, "gossip", 4) == ("n0",)
    now[0] = 40.0 + peer_status.FRESH_S + 1
    assert kept.refusing("main") == (), "it is silent"
    assert status(90.0, "coordinated", 4) == ()
    assert status(95.0, "coordinated", 5) == ("n0",)
    assert status(96.0, "coordinated", 5) == ("n0",)
    assert status(97.0, "coordinated", 0, number=2) == ()


def test_a_refused_coordinator_says_so(stage: Stage) -> None:
    """As after a backup was restored."""
    for count in (0, 2):
        send_status(stage, **status_report(refused={"trust.term-forked": count}))
    assert refusals(stage) == [
        "n0 refused 2 answers of this coordinator (trust.term-forked): another coordinator holds that term"
    ]
    headline, gossip = stage.running.job("main")["headline"], stage.running.runner("main").spec.gossip
    assert headline.startswith("Refused by n0: another coordinator had the same term")
    back_s = gossip.coordinator_timeout_s + gossip.suspicion_s + gossip.min_gossip_s
    assert headline.endswith(f"this ends within about {back_s:g} s")


def test_no_node_can_fill_the_notes(stage: Stage) -> None:
    for turn in range(4):
        assert (
            send_status(
                stage, **status_report(process_number=turn + 1, refused={f"made.up-{turn}-{i}": 1 for i in range(200)})
            ).status_code
            == 204
        )
    assert len(refusals(stage)) == peer_status.NOTES_MAX
    assert len(stage.running.coordinator.peers.statuses.statuses("main")["n0"].noted_refusals) == peer_status.NOTES_MAX
