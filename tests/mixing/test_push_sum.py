"""Push-sum: mass is neither lost nor doubled, whatever becomes of messages, and the weighted mean is reached."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from shoal.core.errors import InvalidJob
from shoal.core.gossip.gossip_state import LivePeers
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import JobEvent
from shoal.core.protocol.peer_message import ExchangeAbort, ExchangeQuery, PushShare, Received
from shoal.mixing.push_sum import PENDING_MAX, PushSum
from shoal.sim.network.faults import PeerNetworkConditions
from tests.mixing.quiet_network import One, names, still, vector


def mass_of(swarm) -> float:
    return sum(mixer.mass + sum(one.mass for one in mixer.pending.values()) for mixer in swarm.mixers.values())


@pytest.mark.parametrize("size", [2, 5, 8])
def test_on_a_quiet_network_all_come_to_the_weighted_mean(size: int) -> None:
    swarm = still(PushSum(), size)
    mean, mass = swarm.mean(), sum(swarm.weights.values())
    for _ in range(150):
        swarm.round()
    np.testing.assert_allclose(swarm.models(), np.broadcast_to(mean, (size, 7)), atol=1e-9)
    assert mass_of(swarm) == pytest.approx(mass, rel=1e-12)
    assert not any(mixer.is_busy for mixer in swarm.mixers.values())


def test_through_loss_and_doubling_all_come_to_the_weighted_mean() -> None:
    swarm = still(
        PushSum(retransmit_s=0.1),
        6,
        conditions=PeerNetworkConditions(message_loss=0.3, message_duplicates=0.3, delay_s=0.3, until_s=100.0),
    )
    mean, mass = swarm.mean(), sum(swarm.weights.values())
    for _ in range(150):
        swarm.round()
    assert not any(mixer.is_busy for mixer in swarm.mixers.values())
    np.testing.assert_allclose(swarm.models(), np.broadcast_to(mean, (6, 7)), atol=1e-6)
    assert mass_of(swarm) == pytest.approx(mass, rel=1e-12)


def test_one_model_is_sent_per_round() -> None:
    swarm = still(PushSum(floor=1e-9), 6)
    for _ in range(10):
        swarm.round()
    assert swarm.models_sent == pytest.approx(10)


def test_whole_numbers_take_the_greatest() -> None:
    swarm = still(PushSum(), 4)
    greatest = max(int(me.model["seen"]) for me in swarm.holdings.values())
    for _ in range(30):
        swarm.round()
    assert {int(me.model["seen"]) for me in swarm.holdings.values()} == {greatest}


# One of several peers, by hand


def alone(weight: float = 8.0, live: set[str] | None = None, **settings) -> One:
    return One(PushSum(**settings), live or {"b"}, vector(1.0), weight)


def push(one: One, number: int, mass: float = 2.0, value: float = 6.0) -> PushShare:
    return PushShare("b", ("b", 1, number), mass, one.body(vector(value)), {"b": number})


def test_a_push_is_half_of_the_mass() -> None:
    one = alone()
    ((to, sent),) = one.turn(0.0)
    assert (to, sent.mass, one.mixer.mass) == ("b", 4.0, 4.0)
    assert one.w == 1.0
    assert one.mixer.is_busy


def test_a_push_is_added_once_and_answered_each_time() -> None:
    one = alone()
    for _ in range(2):
        assert one.hear(push(one, 1)) == [("b", Received("a", ("b", 1, 1)))]
        assert one.mixer.mass == 10.0
        assert one.w == pytest.approx((8 * 1 + 2 * 6) / 10)
    assert one.me.counts.version_vector == {"b": 1}
    one.hear(push(one, 2))
    one.hear(push(one, 1))
    assert one.mixer.mass == 12.0


def test_a_push_is_sent_again_until_it_is_taken() -> None:
    one = alone()
    (sent,) = one.turn(0.0)
    assert one.mixer.alarm == 1.0
    assert one.ring(0.9) == []
    assert one.ring(1.0) == [sent]
    assert one.ring(3.0) == [sent]
    one.hear(Received("c", sent[1].id), 3.1)
    assert one.mixer.is_busy  # c has no say in it
    one.hear(Received("b", sent[1].id), 3.1)
    assert not one.mixer.is_busy
    assert one.mixer.blob_refs() == []
    assert one.ring(1000.0) == []
    assert one.mixer.alarm == inf


def test_one_push_to_each_is_under_way() -> None:
    one = alone(live={"b", "c"}, floor=0.01)
    assert {one.turn(0.0)[0][0], one.turn(0.0)[0][0]} == {"b", "c"}
    assert one.turn(0.0) == []
    assert one.mixer.mass == 2.0


def test_not_too_many_are_under_way() -> None:
    one = alone(live=set(names(2 * PENDING_MAX)), floor=1e-9)
    for _ in range(2 * PENDING_MAX):
        one.turn(0.0)
    assert len(one.mixer.pending) == PENDING_MAX


def test_who_holds_little_keeps_it() -> None:
    one = alone(live={"b", "c", "d"}, floor=0.5)
    assert one.turn(0.0)
    assert one.turn(0.0)
    assert one.mixer.mass == 2.0
    assert one.turn(0.0) == []


def test_a_new_process_knows_what_is_under_way_and_what_was_added() -> None:
    one = alone()
    (sent,) = one.turn(0.0)
    one.hear(push(one, 1))
    other = one.reborn()
    assert other.mixer.mass == 6.0
    assert other.mixer.alarm == 0.0
    assert other.ring(5.0) == [sent]
    assert other.hear(push(other, 1)) == [("b", Received("a", ("b", 1, 1)))]
    assert other.mixer.mass == 6.0


def test_a_new_process_does_not_use_an_id_again() -> None:
    one = alone(live={"b", "c"})
    ((_, first),) = one.turn(0.0)
    (_, second), (_, again) = one.reborn().turn(0.0)
    assert second.id > first.id == again.id


def test_what_is_learned_counts_with_the_examples() -> None:
    """w x grows by n d, however much mass there is: a step d is n / w times as long."""
    one = alone()
    one.hear(push(one, 1, mass=8.0, value=1.0))
    one.me.mixed = vector(4.0)
    one.turn(1.0)
    assert one.w == pytest.approx(1 + 8 / 16 * 3)


def test_what_is_learned_is_not_made_longer() -> None:
    one = alone()
    one.turn(0.0)
    assert one.mixer.mass == 4.0
    one.me.mixed = vector(4.0)
    one.turn(1.0)
    assert one.w == 4.0


def test_what_was_heard_is_not_taken_for_learned() -> None:
    one = alone()
    one.turn(0.0)
    one.hear(push(one, 1, mass=4.0))
    one.hear(push(one, 2, mass=8.0))
    before = float(one.w[0])
    one.turn(1.0)
    assert one.w == pytest.approx(before)


def test_after_the_halt_mass_is_taken_but_not_given() -> None:
    one = alone()
    one.mixer.halt()
    assert not [message for _, message in one.turn(0.0) if isinstance(message, PushShare)]
    one.hear(push(one, 1))
    assert one.mixer.mass == 10.0


def test_who_goes_asks_all_whether_anything_is_under_way_to_it() -> None:
    one = alone(live={"b", "c"})
    one.mixer.halt()
    (_, asked), _ = told = one.ring(0.0)
    assert [to for to, _ in told] == ["b", "c"]
    assert type(asked) is ExchangeQuery
    assert one.mixer.is_busy
    one.hear(ExchangeAbort("b", asked.id), 0.1)
    assert one.ring(1.0) == [("c", asked)]
    one.hear(ExchangeAbort("c", ("a", 1, 99)), 1.1)
    assert one.mixer.is_busy
    one.hear(ExchangeAbort("c", asked.id), 1.2)
    assert not one.mixer.is_busy
    assert one.ring(1000.0) == []


def test_one_that_is_gone_is_not_waited_for() -> None:
    one = alone(live={"b"})
    one.mixer.halt()
    one.ring(0.0)
    one.me.peers = LivePeers(frozenset())
    one.ring(0.1)
    assert not one.mixer.is_busy


def test_to_one_that_goes_nothing_more_is_pushed() -> None:
    one = alone(live={"b"})
    assert one.hear(ExchangeQuery("b", ("b", 1, 7))) == [("b", ExchangeAbort("a", ("b", 1, 7), "nothing is under way"))]
    assert one.turn(1.0) == []
    one.hear(push(one, 6))  # sent before it asked, and late
    assert one.turn(2.0) == []
    one.hear(push(one, 8))  # it has stayed
    assert [type(message) for _, message in one.turn(3.0)] == [PushShare]


def test_what_is_under_way_to_one_that_goes_is_answered_first() -> None:
    one = alone(live={"b"})
    (sent,) = one.turn(0.0)
    assert one.hear(ExchangeQuery("b", ("b", 1, 7)), 0.1) == [sent]
    assert one.hear(Received("b", sent[1].id), 0.2) == [("b", ExchangeAbort("a", ("b", 1, 7), "nothing is under way"))]


def test_who_stays_after_all_mixes_with_all() -> None:
    one = alone(live={"b"})
    one.mixer.halt()
    one.ring(0.0)
    one.hear(ExchangeQuery("b", ("b", 1, 7)), 0.1)
    one.mixer.resume()
    assert not one.mixer.is_busy
    assert [to for to, _ in one.turn(1.0)] == ["b"]


@pytest.mark.parametrize(
    "bad",
    [
        lambda one: push(one, 1, value=nan),
        lambda one: push(one, 1, mass=nan),
        lambda one: push(one, 1, mass=-1.0),
        lambda one: push(one, 1, mass=inf),
        lambda one: PushShare("b", ("b", 1, 1), 1.0, one.body(Tree.of({"v": np.zeros(1)}))),
    ],
    ids=["NaN", "mass NaN", "mass -1", "mass infinite", "another layout"],
)
def test_what_must_not_be_mixed_is_refused_for_ever(bad) -> None:
    one = alone()
    told = one.hear(bad(one))
    assert [type(message) for _, message in told] == [ExchangeAbort]
    assert [effect.node for effect in one.effects if isinstance(effect, JobEvent)] == ["b"]
    assert (one.mixer.mass, one.mixer.refused, one.w) == (8.0, 1, 1.0)
    other = one.reborn()
    assert [type(message) for _, message in other.hear(push(other, 1))] == [ExchangeAbort]
    assert other.w == 1.0


def test_a_push_in_another_name_is_not_heard() -> None:
    one = alone()
    body = one.body(vector(6.0))
    assert one.hear(PushShare("c", ("b", 1, 1), 2.0, body)) == []
    assert one.mixer.mass == 8.0


def test_refused_mass_comes_back() -> None:
    one = alone()
    ((_, sent),) = one.turn(0.0)
    one.hear(push(one, 1, mass=4.0))
    one.hear(ExchangeAbort("b", sent.id), 1.0)
    assert one.mixer.mass == 12.0
    assert one.w == pytest.approx((8 * 1 + 4 * 6) / 12)
    assert not one.mixer.is_busy


@pytest.mark.parametrize("wrong", [{"floor": 0.0}, {"floor": 1.5}, {"floor": nan}, {"retransmit_s": 0.0}])
def test_impossible_settings_are_refused(wrong) -> None:
    with pytest.raises(InvalidJob):
        PushSum(**wrong)
