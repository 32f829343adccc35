"""Ring all-reduce: exact, the same bits everywhere, less than two models each; or nothing at all."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.model.tree import Tree, digest
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.peer_message import ExchangeAbort, Received, RingChunk
from shoal.mixing.all_reduce import AllReduce, cut, joined
from shoal.sim.network.blobs import MemoryBlobs
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.mixing_runs import MixingRun
from tests.core.strategies import trees
from tests.mixing.quiet_network import One, names, still, vector


@given(trees(), st.integers(1, 9))
def test_pieces_make_the_whole(drawn: tuple[Tree, ...], count: int) -> None:
    (tree,) = drawn
    pieces = [cut(tree, piece, count) for piece in range(count)]
    lengths = [piece.layout.elements for piece in pieces]
    assert max(lengths) - min(lengths) <= 1
    again = joined(tree.layout, pieces)
    assert again.layout == tree.layout
    assert bytes(again.buffer) == bytes(tree.buffer)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 11])
def test_on_a_quiet_network_it_is_exact_and_costs_less_than_two_models(size: int) -> None:
    swarm = still(AllReduce(), size)
    mean = swarm.mean()
    greatest = max(int(me.model["seen"]) for me in swarm.holdings.values())
    swarm.round()
    np.testing.assert_allclose(swarm.models(), np.broadcast_to(mean, (size, 7)), rtol=1e-15 * size, atol=1e-15)
    assert len({digest(me.model) for me in swarm.holdings.values()}) == 1
    assert {int(me.model["seen"]) for me in swarm.holdings.values()} == {greatest}
    parts = [message for message in swarm.sent if isinstance(message, RingChunk)]
    assert len(parts) == size * 2 * (size - 1)
    assert swarm.models_sent == pytest.approx(2 * (size - 1) / size)
    assert not any(mixer.is_busy or mixer.blob_refs() for mixer in swarm.mixers.values())


def test_a_whole_piece_is_passed_on_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither stored nor hashed again; the others are stored for as long as the round is open."""
    stored: list[str] = []
    put = MemoryBlobs.put
    monkeypatch.setattr(MemoryBlobs, "put", lambda self, slots: stored.append("for good"))
    monkeypatch.setattr(MemoryBlobs, "put_transient", lambda self, slots: (stored.append("chunk"), put(self, slots))[1])
    swarm = still(AllReduce(), 5)
    swarm.round()
    assert stored == ["chunk"] * 5 * 5
    assert sum(isinstance(message, RingChunk) for message in swarm.sent) == 5 * 8


def test_half_precision_and_other_types() -> None:
    """The mean goes round, not the sum, which float16 could not hold."""
    rng = np.random.default_rng(0)
    models = {
        name: Tree.of({
            "half": rng.uniform(1e4, 6e4, 5).astype(np.float16),
            "single": rng.normal(size=3).astype(np.float32),
            "steps": np.array([number, -number], np.int32),
        })
        for number, name in enumerate(names(4))
    }  # fmt: skip
    weights = dict(zip(models, (1000.0, 1.0, 359.0, 10.0), strict=True))
    swarm = MixingRun(AllReduce(), models, weights)
    swarm.round()
    shares = np.array([weights[name] for name in models]) / sum(weights.values())
    (left,) = {digest(me.model) for me in swarm.holdings.values()}
    model = swarm.holdings["n000"].model
    assert digest(model) == left
    for name, tolerance in (("half", 4e-3), ("single", 4e-7)):
        wide = np.stack([one[name].astype(np.float64) for one in models.values()])
        np.testing.assert_allclose(model[name].astype(np.float64), shares @ wide, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(model["steps"], [3, 0])


def test_provenance_travels() -> None:
    swarm = still(AllReduce(), 4)
    swarm.holdings["n000"].counts.version_vector = {"n000": 5}
    swarm.round()
    assert [me.counts.version_vector.get("n000") for me in swarm.holdings.values()] == [5, 5, 5, 5]


def test_loss_is_made_good() -> None:
    swarm = still(
        AllReduce(retransmit_s=0.01),
        5,
        conditions=PeerNetworkConditions(message_loss=0.3, message_duplicates=0.3, delay_s=0.01),
    )
    mean = swarm.mean()
    for _ in range(5):
        swarm.round()
    np.testing.assert_allclose(swarm.models(), np.broadcast_to(mean, (5, 7)), atol=1e-14)


def test_who_was_away_catches_up() -> None:
    swarm = still(AllReduce(exchange_timeout_s=0.5), 4, away=lambda round_: ["n001", "n002"] if round_ < 3 else [])
    for _ in range(4):
        swarm.round()
    assert len({digest(me.model) for me in swarm.holdings.values()}) == 1
    assert {mixer.round for mixer in swarm.mixers.values()} == {4}


# One of two peers, by hand: a sends piece 0, b piece 1; then each the other, summed


def pair(value: float = 0.0) -> One:
    return One(AllReduce(exchange_timeout_s=10.0), {"b"}, Tree.of({"w": np.array([value, value])}))


def part(one: One, step: int, value: float, round_: int = 1, **more: Any) -> RingChunk:
    piece = 1 if step == 0 else 0
    body = one.body(Tree.of({"F64": np.array([value])}), "piece")
    told = {"piece": piece, "weight": 1.0 if step == 0 else 2.0, "blob": body, "group": ring_name(one), **more}
    return RingChunk("b", round_, step, **told)


def ring_name(one: One) -> str:
    """As the peer itself says it."""
    other = pair()
    ((_, sent),) = other.turn(0.0)
    return sent.group


def kinds(told) -> list[type]:
    return [type(message) for _, message in told]


def test_a_round_by_hand() -> None:
    one = pair()
    ((to, first),) = one.turn(0.0)
    assert (to, first.round, first.step, first.piece, first.weight) == ("b", 1, 0, 0, 1.0)
    told = one.hear(part(one, 0, 4.0), 0.5)
    assert kinds(told) == [Received, RingChunk]
    assert (told[1][1].step, told[1][1].piece, told[1][1].weight) == (1, 1, 2.0)
    np.testing.assert_array_equal(one.blobs.get(told[1][1].blob)["piece"]["F64"], [2.0])
    assert one.mixer.is_waiting
    np.testing.assert_array_equal(one.w, [0.0, 0.0])
    one.hear(part(one, 1, 2.5), 0.6)
    assert not one.mixer.is_waiting
    np.testing.assert_array_equal(one.w, [2.5, 2.0])


def test_parts_may_overtake_each_other_and_come_twice() -> None:
    one = pair()
    one.turn(0.0)
    one.hear(part(one, 1, 2.5), 0.1)
    one.hear(part(one, 1, 2.5), 0.2)
    one.hear(part(one, 0, 4.0), 0.3)
    np.testing.assert_array_equal(one.w, [2.5, 2.0])
    assert kinds(one.hear(part(one, 0, 4.0), 0.4)) == [Received]
    np.testing.assert_array_equal(one.w, [2.5, 2.0])


def test_parts_that_are_not_wanted_are_not_kept() -> None:
    one = pair()
    one.turn(0.0)
    for step in (0, 0, 2, 99, -1):
        one.hear(part(one, step, 4.0), 0.1)
    assert one.mixer.open is not None
    assert not one.mixer.open.came


def test_early_parts_are_kept() -> None:
    one = pair()
    assert kinds(one.hear(part(one, 0, 4.0))) == [Received]
    assert len(one.mixer.blob_refs()) == 1
    one.turn(1.0)
    one.hear(part(one, 1, 2.5), 1.5)
    np.testing.assert_array_equal(one.w, [2.5, 2.0])


def test_of_early_parts_only_those_of_the_newest_round_are_kept() -> None:
    one = pair()
    for round_, step in ((3, 1), (5, 0), (4, 0), (5, 1), (5, 2), (5, 99), (5, -1)):
        one.hear(part(one, step, 4.0, round_))
    assert [(kept.round, kept.step) for kept in one.mixer.early["b"].values()] == [(5, 0), (5, 1)]


def test_a_part_is_repeated_until_it_is_answered() -> None:
    one = pair()
    (sent,) = one.turn(0.0)
    assert one.ring(1.0) == [sent]
    one.hear(Received("c", ("a", 1, 0)), 1.5)
    assert one.ring(3.0) == [sent]
    one.hear(Received("b", ("a", 1, 0)), 3.5)
    assert one.ring(8.0) == []


def test_the_last_part_is_repeated_after_the_round() -> None:
    one = pair()
    one.turn(0.0)
    one.hear(Received("b", ("a", 1, 0)), 0.1)
    last = one.hear(part(one, 0, 4.0), 0.5)[1]
    one.hear(part(one, 1, 2.5), 0.6)
    assert not one.mixer.is_waiting
    one.turn(1.0)
    assert last in one.ring(1.5)
    one.hear(Received("b", ("a", 1, 1)), 1.6)
    assert last not in one.ring(5.0)


def test_who_misses_a_part_keeps_its_model_and_says_so() -> None:
    one = pair(1.0)
    one.turn(0.0)
    one.hear(part(one, 0, 4.0), 2.0)
    assert one.mixer.alarm <= 12.0
    one.ring(11.9)
    assert one.mixer.is_waiting
    told = one.ring(12.0)
    assert [message for _, message in told if isinstance(message, ExchangeAbort)] == [
        ExchangeAbort("a", ("a", 1, 0), "it was given up")
    ]
    assert (one.mixer.is_waiting, one.mixer.given_up) == (False, 1)
    np.testing.assert_array_equal(one.w, [1.0, 1.0])
    assert "silent" in next(effect.text for effect in one.effects if isinstance(effect, JobEvent))
    late = one.hear(part(one, 1, 2.5), 13.0)
    assert kinds(late) == [ExchangeAbort]
    np.testing.assert_array_equal(one.w, [1.0, 1.0])
    assert not one.mixer.is_busy


def test_who_hears_that_another_gave_up_gives_up() -> None:
    one = pair()
    one.turn(0.0)
    one.hear(ExchangeAbort("x", ("x", 1, 0)), 1.0)
    assert one.mixer.is_waiting  # x is not a neighbor on the ring
    one.hear(ExchangeAbort("b", ("b", 1, 0)), 1.0)
    assert not one.mixer.is_waiting


def test_a_round_that_was_given_up_before_it_began_is_not_begun() -> None:
    one = pair()
    one.hear(ExchangeAbort("b", ("b", 1, 0)))
    assert kinds(one.turn(1.0)) == [ExchangeAbort]
    assert not one.mixer.is_waiting
    assert kinds(one.turn(2.0)) == [RingChunk]


def test_who_means_other_peers_is_not_gone_on_with() -> None:
    one = pair()
    one.turn(0.0)
    told = one.hear(part(one, 0, 4.0, group="others"), 0.5)
    assert kinds(told) == [ExchangeAbort, ExchangeAbort]
    assert not one.mixer.is_waiting


def test_a_predecessor_that_has_gone_is_not_waited_for() -> None:
    one = pair()
    one.turn(0.0)
    one.me.peers = LivePeers(frozenset())
    one.ring(0.5)
    assert (one.mixer.is_waiting, one.mixer.is_busy) == (False, False)


def test_who_is_behind_goes_where_its_predecessor_is() -> None:
    one = pair()
    one.turn(0.0)
    told = one.hear(part(one, 0, 4.0, 9), 0.5)
    assert [(message.round, message.step) for _, message in told if isinstance(message, RingChunk)] == [(9, 0), (9, 1)]
    one.hear(part(one, 1, 2.5, 9), 0.6)
    np.testing.assert_array_equal(one.w, [2.5, 2.0])
    assert one.turn(1.0)[0][1].round == 10


def test_who_has_done_its_part_waits_for_a_predecessor_that_may_have_ended_the_round() -> None:
    one = pair()
    one.turn(0.0)
    one.hear(part(one, 0, 4.0), 0.5)
    one.hear(part(one, 0, 4.0, 2), 0.6)
    assert one.mixer.round == 1
    one.hear(part(one, 1, 2.5), 0.7)
    np.testing.assert_array_equal(one.w, [2.5, 2.0])


@pytest.mark.parametrize(
    "bad",
    [
        lambda one: part(one, 0, nan),
        lambda one: part(one, 0, 4.0, weight=0.0),
        lambda one: part(one, 0, 4.0, weight=nan),
        lambda one: part(one, 0, 4.0, piece=0),
        lambda one: part(one, 0, 4.0, blob=one.body(vector(1.0), "piece")),
        lambda one: part(one, 0, 4.0, blob=one.body(vector(1.0), "model")),
    ],
    ids=["NaN", "weight 0", "weight NaN", "another piece", "another layout", "no piece"],
)
def test_a_part_that_must_not_be_mixed_ends_the_round(bad) -> None:
    one = pair(1.0)
    one.turn(0.0)
    one.hear(bad(one), 0.5)
    assert not one.mixer.is_waiting
    np.testing.assert_array_equal(one.w, [1.0, 1.0])


def test_a_new_process_gives_the_open_round_up_and_stands_by_the_last() -> None:
    one = pair()
    one.turn(0.0)
    other = one.reborn()
    assert kinds(other.hear(part(other, 0, 4.0))) == [ExchangeAbort]
    one.hear(part(one, 0, 4.0), 0.1)
    one.hear(part(one, 1, 2.5), 0.2)
    other = one.reborn()
    assert kinds(other.hear(part(other, 1, 2.5))) == [Received]
    assert other.turn(1.0)[0][1].round == 2


@pytest.mark.parametrize("wrong", [{"exchange_timeout_s": 0.0}, {"retransmit_s": nan}])
def test_impossible_settings_are_refused(wrong) -> None:
    with pytest.raises(InvalidJob):
        AllReduce(**wrong)
