"""The plan of the last averaging, and one peer's way through it."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from shoal.core.gossip.gossip_state import GossipState, LivePeers, RoundCounts
from shoal.core.mixing.final_averaging import FREE, OVER, TRIES, AveragingStep, FinalAveraging, plan, ring_name
from shoal.core.protocol.peer_message import ExchangeDeny, ExchangeRequest
from shoal.filters.quantize import Quantize
from shoal.sim.hosts.toy_models import toy_tree
from shoal.sim.network.blobs import MemoryBlobs

ROUNDS, PATIENCE_S = 3, 10.0
MEMBERS = ("a", "b", "c", "d")


class Exact:
    """Peers that carry their plans out in any order, with exact numbers."""

    def __init__(self, count: int) -> None:
        self.rng = Random(count)
        names = [f"n{number:02}" for number in range(count)]
        self.models = {name: Fraction(number) for number, name in enumerate(names)}
        self.masses = {name: Fraction(self.rng.randint(1, 9)) for name in names}
        self.rest = {name: list(plan(names, name)) for name in self.rng.sample(names, count)}
        self.sent = dict.fromkeys(names, 0)

    def total(self) -> Fraction:
        return sum((self.masses[name] * model for name, model in self.models.items()), Fraction())

    def meets(self, name: str) -> bool:
        """Return whether that peer's current exchange is its partner's too."""
        one = self.rest[name][0] if self.rest[name] else None
        other = self.rest[one.partner][:1] if one is not None else []
        return (
            one is not None and one.asks and [(other.number, other.partner) for other in other] == [(one.number, name)]
        )

    def exchange(self) -> None:
        a = self.rng.choice([name for name in self.rest if self.meets(name)])
        mine = self.rest[a].pop(0)
        b, theirs = mine.partner, self.rest[mine.partner].pop(0)
        assert (theirs.asks, mine.kept_part + theirs.kept_part) == (False, 1)
        whole = self.masses[a] + self.masses[b]
        mean = (self.masses[a] * self.models[a] + self.masses[b] * self.models[b]) / whole
        self.models[a] = self.models[b] = mean
        self.masses[a], self.masses[b] = Fraction(mine.kept_part) * whole, Fraction(theirs.kept_part) * whole
        self.sent[a], self.sent[b] = self.sent[a] + 1, self.sent[b] + 1


@pytest.mark.parametrize("count", range(2, 34))
def test_all_come_to_the_mean_of_all(count: int) -> None:
    """With ceil(log2 n) models sent per peer on average; one more than that, at most two, by those with an extra."""
    peers = Exact(count)
    total, mean = peers.total(), peers.total() / sum(peers.masses.values())
    while any(peers.rest.values()):
        peers.exchange()
        assert peers.total() == total
    assert set(peers.models.values()) == {mean}
    assert all(mass > 0 for mass in peers.masses.values())
    assert sum(peers.sent.values()) / count <= (count - 1).bit_length()
    assert max(peers.sent.values()) <= (count - 1).bit_length() + 1


class One:
    """Peer `a` of four, all of whom rest."""

    def __init__(self, members: tuple[str, ...] = MEMBERS) -> None:
        model = {"model": toy_tree((1.0, 0.0, 0.0), 0)}
        peers = LivePeers(frozenset(members) - {"a"})
        counts = RoundCounts({"a": ROUNDS}, rounds=ROUNDS, rounds_done=True)
        self.me = GossipState("a", 1, 1.0, model, MemoryBlobs(), Random(1), ROUNDS, peers, counts)
        self.doubling = FinalAveraging(PATIENCE_S)
        self.doubling.advance(self.me, 0.0, hindered=False)

    def hears(self, *nodes: str, now: float = 0.0, rounds: int = ROUNDS) -> None:
        """Each of these says how many rounds it has made."""
        for node in nodes:
            self.doubling.record_rounds(ExchangeRequest(node, (node, 1, 1), 1.0, rounds), self.me, now)
        self.doubling.advance(self.me, now, hindered=False)

    def number(self, now: float = 0.0) -> int:
        return self.doubling.progress(self.me, now, free=True)

    def refused(self, message: ExchangeRequest, now: float = 0.0) -> bool:
        return bool(self.doubling.refusal(message, self.me, now))


def planned(node: str, step: int, ring: str = ring_name(MEMBERS)) -> ExchangeRequest:
    return ExchangeRequest(node, (node, 1, 1), 1.0, ROUNDS, step, ring)


def test_it_begins_when_all_have_made_their_rounds() -> None:
    one = One()
    one.hears("b", "c")
    one.hears("d", rounds=ROUNDS - 1)
    assert (one.doubling.current, one.number()) == (None, 1)
    assert one.doubling.partners_to_ask(one.me, 0.0) == {"d"}
    assert one.refused(ExchangeRequest("b", ("b", 1, 1), 1.0, ROUNDS)), "neither has anything new"
    assert not one.refused(ExchangeRequest("d", ("d", 1, 1), 1.0, 1)), "what d learns is wanted"
    one.hears("d")
    assert one.doubling.current == AveragingStep(3, "b", 0.5, True)
    assert one.doubling.partners_to_ask(one.me, 0.0) == {"b"}
    assert one.number() == 3
    assert one.doubling.progress(one.me, 0.0, free=False) == 1, "not while it is in another exchange"


def test_who_does_not_hear_from_all_goes_on_as_before() -> None:
    one = One()
    one.hears("b", "c")
    assert one.doubling.partners_to_ask(one.me, PATIENCE_S - 1) == {"d"}
    assert one.doubling.partners_to_ask(one.me, PATIENCE_S + 1) is None
    assert one.number(PATIENCE_S + 1) == 0
    assert not one.refused(ExchangeRequest("b", ("b", 1, 1), 1.0, ROUNDS), PATIENCE_S + 1)


def test_only_the_exchange_at_hand_is_entered_into() -> None:
    one = One()
    one.hears("b", "c", "d")
    assert not one.refused(planned("b", 3))
    assert one.refused(planned("c", 3)), "not the partner"
    assert one.refused(planned("b", 4)), "not yet"
    assert one.refused(planned("b", 3, ring_name("abc"))), "it means other members"
    assert one.refused(planned("b", FREE)), "no other exchange meanwhile"
    assert one.refused(ExchangeRequest("b", ("b", 1, 1), 1.0, ROUNDS))


def test_it_is_over_after_the_last() -> None:
    one = One()
    one.hears("b", "c", "d")
    one.doubling.record_step(one.me, 3, 5.0, 1.0, whole=True)
    assert one.doubling.current == AveragingStep(4, "c", 0.5, True)
    assert one.me.convergence.consensus_with == frozenset()
    one.doubling.record_step(one.me, 4, 4.0, 2.0, whole=True)
    assert (one.doubling.is_over, one.number(), one.doubling.mass) == (True, OVER, 4.0)
    assert one.me.convergence.consensus_with == set(MEMBERS)
    assert one.me.counts.version_vector == dict.fromkeys(MEMBERS, ROUNDS)
    assert one.doubling.partners_to_ask(one.me, 2.0) == {"b", "c", "d"}
    one.hears("b", "c", rounds=ROUNDS + 1)
    assert one.doubling.partners_to_ask(one.me, 2.0) == {"d"}
    assert one.refused(ExchangeRequest("b", ("b", 1, 1), 1.0, ROUNDS + 1)), "both have the mean"
    assert not one.refused(ExchangeRequest("d", ("d", 1, 1), 1.0, ROUNDS)), "d may have fallen out"
    one.doubling.record_step(one.me, FREE, 4.0, 3.0, whole=True)
    assert one.number() == 0, "it is not the mean any more"


def test_models_that_are_far_apart_meet_in_several_exchanges() -> None:
    one = One()
    one.hears("b", "c", "d")
    for _ in range(TRIES - 1):
        one.doubling.record_step(one.me, 3, 1.0, 1.0, whole=False)
        assert one.number() == 3
    one.doubling.record_step(one.me, 3, 1.0, 1.0, whole=False)
    assert one.number() == 0


@pytest.mark.parametrize(
    ("step", "at", "number"),
    [
        (1, 100.0, 3),  # it has to make earlier ones, or is in another exchange
        (1, 1000.0, 0),
        (3, PATIENCE_S - 1, 3),
        (3, PATIENCE_S + 1, 0),  # it is there, and does not want this
        (4, 0.0, 0),
        (0, 0.0, 0),
        (OVER, 0.0, 0),
    ],
)
def test_a_partner_that_is_not_ready_is_waited_for(step: int, at: float, number: int) -> None:
    one = One()
    one.hears("b", "c", "d")
    one.doubling.record_denial(ExchangeDeny("c", ("a", 1, 1), "no", 0.0, ROUNDS, 0), at, 20.0)
    assert one.number() == 3, "c is not the partner"
    one.doubling.record_denial(ExchangeDeny("b", ("a", 1, 1), "no", 0.0, ROUNDS, step), at, 20.0)
    assert one.number() == number


def test_who_does_not_ask_waits_a_while_first() -> None:
    one = One()
    one.me.node = "b"
    one.me.peers = LivePeers(frozenset("acd"))
    one.hears("a", "c", "d", now=5.0)
    assert one.doubling.current == AveragingStep(3, "a", 0.5, False)
    assert one.doubling.due_at == 5.0 + PATIENCE_S


def test_it_fails_when_a_member_goes_and_is_not_tried_again() -> None:
    one = One()
    one.hears("b", "c", "d")
    one.me.peers = LivePeers(frozenset("bc"))
    one.doubling.advance(one.me, 1.0, hindered=False)
    assert (one.number(), one.doubling.partners_to_ask(one.me, 1.0)) == (0, None)
    one.me.peers = LivePeers(frozenset("bcd"))
    one.hears("d", now=2.0)
    assert one.number() == 0


def test_an_old_exchange_that_is_in_doubt_holds_it_up_for_a_while() -> None:
    one = One()
    one.hears("b", "c", "d")
    one.doubling.advance(one.me, PATIENCE_S - 1, hindered=True)
    assert one.number() == 3
    one.doubling.advance(one.me, PATIENCE_S + 1, hindered=True)
    assert one.number() == 0


def test_a_process_that_died_in_the_middle_of_it_keeps_its_mass_and_does_not_go_on() -> None:
    one, again = One(), One()
    one.hears("b", "c", "d")
    one.doubling.record_step(one.me, 3, 5.0, 1.0, whole=True)
    again.doubling.restore(one.doubling.state())
    again.hears("b", "c", "d")
    assert (again.doubling.mass, again.number()) == (5.0, 0)
    fresh = One()
    fresh.doubling.restore(One().doubling.state())
    fresh.hears("b", "c", "d")
    assert (fresh.doubling.mass, fresh.number()) == (None, 3)


@pytest.mark.parametrize(("members", "number"), [(MEMBERS, 3), (MEMBERS[:3], 0)])
def test_what_filters_round_off_is_kept_only_where_no_mass_is_given_away(members: tuple[str, ...], number: int) -> None:
    one = One(members)
    one.me.filters = (Quantize(),)
    one.hears(*members[1:])
    assert one.number() == number


def test_no_more_than_its_examples_takes_part_where_masses_stay() -> None:
    one = One()
    assert (one.doubling.weight(one.me, 0), one.doubling.kept_part(0)) == (1.0, None)
    one.doubling.record_step(one.me, FREE, 5.0, 0.0, whole=True)
    assert (one.doubling.weight(one.me, 0), one.doubling.weight(one.me, FREE)) == (1.0, 5.0)
    assert one.doubling.kept_part(FREE) == 0.5
    one.doubling.record_step(one.me, FREE, 0.25, 0.0, whole=True)
    assert one.doubling.weight(one.me, 0) == 0.25
