"""Synchronous averaging with neighbors: exact where nothing goes wrong, and never stuck where something does."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.mixing.topology import Graph, complete, halves, matrix, one_peer, regular, ring, torus
from shoal.core.model.tree import Tree
from shoal.core.protocol.peer_message import ModelOffer, Received
from shoal.mixing.neighbors import Neighbors
from tests.mixing.quiet_network import One, names, still, vector

ROUNDS = 7
PAIR = Neighbors("ring", exchange_timeout_s=10.0)


def drawn(graph: str, size: int) -> Graph:
    nodes = names(size)
    return {"ring": ring, "torus": torus, "complete": complete, "regular": lambda n: regular(n, 4, 3)}[graph](nodes)


@pytest.mark.parametrize("target", ["uniform", "examples"])
@pytest.mark.parametrize("graph", ["ring", "torus", "regular", "complete"])
@pytest.mark.parametrize("size", [6, 9, 16])
def test_on_a_quiet_network_it_is_the_matrix(graph, target, size: int) -> None:
    swarm = still(Neighbors(graph, seed=3, target=target), size)
    weights = swarm.weights if target == "examples" else None
    expected = np.linalg.matrix_power(matrix(drawn(graph, size), weights), ROUNDS) @ swarm.models()
    (degree,) = {len(heard) for heard in drawn(graph, size).values()}
    for _ in range(ROUNDS):
        swarm.round()
    np.testing.assert_allclose(swarm.models(), expected, atol=1e-14)
    assert swarm.models_sent == pytest.approx(ROUNDS * degree)
    assert not any(mixer.is_busy for mixer in swarm.mixers.values())
    assert not any(mixer.blob_refs() for mixer in swarm.mixers.values())


@pytest.mark.parametrize("size", [8, 11])
def test_one_peer_by_round(size: int) -> None:
    swarm = still(Neighbors("exponential"), size)
    expected, mean = swarm.models(), swarm.models().mean(axis=0)
    for turn in range(1, 5):
        swarm.round()
        expected = halves(one_peer(names(size), turn)) @ expected
        np.testing.assert_allclose(swarm.models(), expected, atol=1e-14)
    assert swarm.models_sent == pytest.approx(4)
    if size == 8:
        np.testing.assert_allclose(swarm.models(), np.broadcast_to(mean, (8, 7)), atol=1e-14)


@pytest.mark.parametrize("target", ["uniform", "examples"])
def test_the_target_is_reached(target) -> None:
    swarm = still(Neighbors(target=target), 8)
    mean = swarm.mean(None if target == "examples" else dict.fromkeys(swarm.weights, 1.0))
    for _ in range(120):
        swarm.round()
    np.testing.assert_allclose(swarm.models(), np.broadcast_to(mean, (8, 7)), atol=1e-6)


def test_whole_numbers_take_the_greatest() -> None:
    swarm = still(Neighbors("ring"), 5)
    greatest = max(int(me.model["seen"]) for me in swarm.holdings.values())
    for _ in range(3):
        swarm.round()
    assert {int(me.model["seen"]) for me in swarm.holdings.values()} == {greatest}


def test_provenance_travels() -> None:
    swarm = still(Neighbors("ring"), 3)
    swarm.holdings["n000"].counts.version_vector = {"n000": 5}
    swarm.round()
    assert [me.counts.version_vector.get("n000") for me in swarm.holdings.values()] == [5, 5, 5]


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("graph", ["ring", "torus", "regular", "exponential", "complete"])
def test_every_number_of_peers_has_its_graph(graph, size: int) -> None:
    for degree in (2, 3, 4, 7):
        links = Neighbors(graph, degree=degree).links(names(size), 1)
        assert (min(len(heard) for heard in links.values()) > 0) == (size > 1)


# One of two neighbors, by hand


def pair() -> One:
    return One(PAIR, {"b"}, vector(0.0))


def offer(one: One, round_: int, value: float = 1.0, **more) -> ModelOffer:
    return ModelOffer(more.pop("node", "b"), round_, one.body(vector(value)), **more)


def test_it_waits_for_its_neighbor_then_mixes() -> None:
    one = pair()
    ((to, sent),) = one.turn(0.0)
    assert (to, type(sent), sent.round) == ("b", ModelOffer, 1)
    assert one.mixer.is_waiting
    assert one.hear(offer(one, 1), 0.5) == [("b", Received("a", ("b", 1, 0)))]
    assert not one.mixer.is_waiting
    assert one.w == pytest.approx(0.5)


def test_an_early_offer_is_kept() -> None:
    one = pair()
    one.hear(offer(one, 1))
    assert one.w == 0
    one.turn(0.0)
    assert not one.mixer.is_waiting
    assert one.w == pytest.approx(0.5)


def test_of_early_offers_only_the_newest_of_each_peer_is_kept() -> None:
    one = pair()
    for round_ in (5, 9, 7):
        one.hear(offer(one, round_, float(round_)))
    assert [kept.round for kept in one.mixer.early.values()] == [9]
    assert len(one.mixer.blob_refs()) == 1
    ((_, sent),) = one.turn(0.0)
    assert sent.round == 9  # a peer that is behind goes where its neighbors are
    assert one.w == pytest.approx(4.5)


def test_a_late_offer_is_answered_and_ignored() -> None:
    one = pair()
    one.turn(0.0)
    one.hear(offer(one, 1))
    one.turn(1.0)
    assert one.hear(offer(one, 1, 100.0), 1.0) == [("b", Received("a", ("b", 1, 0)))]
    assert one.mixer.is_waiting
    assert one.w == pytest.approx(0.5)


def test_a_repeated_offer_counts_once() -> None:
    one = One(Neighbors("complete"), {"b", "c"}, vector(0.0))
    one.turn(0.0)
    one.hear(offer(one, 1))
    one.hear(offer(one, 1, 100.0))
    assert one.mixer.is_waiting
    one.hear(offer(one, 1, node="c"))
    assert one.w == pytest.approx(2 / 3)


def test_a_silent_neighbor_is_not_waited_for_longer_than_patience() -> None:
    one = One(PAIR, {"b", "c"}, vector(0.0))
    one.turn(0.0)
    one.hear(offer(one, 1), 1.0)
    one.ring(9.9)
    assert one.mixer.is_waiting
    assert one.mixer.alarm <= 10.0
    one.ring(10.0)
    assert not one.mixer.is_waiting
    assert one.w == pytest.approx(1 / 3)  # the weight of c went to a


def test_a_dead_neighbor_is_not_waited_for() -> None:
    one = One(PAIR, {"b", "c"}, vector(0.0))
    one.turn(0.0)
    one.hear(offer(one, 1), 1.0)
    one.me.peers = LivePeers(frozenset({"b"}))
    one.ring(1.5)
    assert not one.mixer.is_waiting
    assert one.w == pytest.approx(1 / 3)


def test_a_neighbor_that_is_past_the_round_is_not_waited_for() -> None:
    one = One(PAIR, {"b", "c"}, vector(0.0))
    one.turn(0.0)
    one.hear(offer(one, 2, node="c"), 1.0)
    assert one.mixer.is_waiting
    one.hear(offer(one, 1), 1.0)
    assert not one.mixer.is_waiting
    assert one.w == pytest.approx(1 / 3)
    assert list(one.mixer.early) == ["c"]


def test_who_is_left_behind_by_all_goes_where_they_are() -> None:
    one = pair()
    one.turn(0.0)
    told = one.hear(offer(one, 8), 1.0)
    assert [message.round for _, message in told if isinstance(message, ModelOffer)] == [8]
    assert not one.mixer.is_waiting
    assert one.w == pytest.approx(0.5)


def test_an_offer_is_repeated_until_it_is_answered() -> None:
    one = pair()
    (sent,) = one.turn(0.0)
    one.hear(offer(one, 1), 0.5)
    assert not one.mixer.is_waiting
    assert one.mixer.is_busy
    assert one.mixer.alarm == 1.0
    assert one.ring(1.0) == [sent]
    assert one.ring(2.9) == []
    assert one.ring(3.0) == [sent]
    one.hear(Received("b", ("a", 1, 0)), 3.1)
    assert not one.mixer.is_busy
    assert one.mixer.blob_refs() == []
    assert one.ring(1000.0) == []


def test_a_newer_offer_of_the_neighbor_is_an_answer_too() -> None:
    one = pair()
    one.turn(0.0)
    one.hear(offer(one, 1), 0.5)
    one.hear(offer(one, 2), 0.6)
    assert not one.mixer.is_busy


def test_a_new_process_sends_what_may_be_missed_and_gives_the_round_up() -> None:
    one = pair()
    (sent,) = one.turn(0.0)
    other = one.reborn()
    assert not other.mixer.is_waiting
    assert other.mixer.alarm == 0.0
    assert other.ring(5.0) == [sent]
    assert [ref.digest for ref in other.mixer.blob_refs()] == [sent[1].blob.digest]
    ((_, again),) = other.turn(6.0)
    assert again.round == 2


@pytest.mark.parametrize(
    "bad",
    [
        lambda one: offer(one, 1, nan),
        lambda one: offer(one, 1, weight=0.0),
        lambda one: offer(one, 1, weight=nan),
        lambda one: ModelOffer("b", 1, one.body(Tree.of({"v": np.zeros(1)}))),
        lambda one: ModelOffer("b", 1, one.body(vector(1.0), "other")),
    ],
    ids=["NaN", "weight 0", "weight NaN", "another layout", "no model"],
)
def test_what_must_not_be_mixed_is_refused(bad) -> None:
    one = pair()
    one.turn(0.0)
    one.hear(bad(one), 0.5)
    assert one.mixer.refused == 1
    assert one.w == 0.0
    assert not one.mixer.is_waiting


@pytest.mark.parametrize(
    "wrong",
    [
        {"graph": "star"},
        {"degree": 1},
        {"target": "mine"},
        {"graph": "exponential", "target": "examples"},
        {"exchange_timeout_s": 0.0},
        {"retransmit_s": nan},
    ],
)
def test_impossible_settings_are_refused(wrong) -> None:
    with pytest.raises(InvalidJob):
        Neighbors(**wrong)
