"""One peer's membership, by hand: what it says, to whom and when."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from random import Random

import pytest

from shoal.core.errors import InvalidJob
from shoal.core.machine import Effect, Note, Tell, Timer
from shoal.core.membership import Membership
from shoal.core.pace import Pace
from shoal.core.peer_message import Hello, MembershipMessage, News, Ping, Pong, Probe, Rumour, Silent
from shoal.core.rumours import INCARNATION_MAX

ROSTER = frozenset("abcdef")
QUIET = Pace(reprobe=0.0)


def begun(
    live: Iterable[str] = "bcde", pace: Pace = QUIET, roster: frozenset[str] = ROSTER, seed: int = 1
) -> Membership:
    """Peer `a` at second 0 of its clock, which knows these to live."""
    peer = Membership("a", rng=Random(seed), pace=pace)
    peer.admit(roster)
    peer.start(0.0)
    for node in live:
        peer.on(News("f", 0, (Rumour(node, "alive", 0),)), 0.0)
    peer.on(News("f", 0, (Rumour("f", "left", 0),)), 0.0)
    return peer


def told(effects: Iterable[Effect], *kinds: type[MembershipMessage]) -> list[Tell]:
    return [e for e in effects if isinstance(e, Tell) and isinstance(e.body, kinds or MembershipMessage)]


def notes(effects: Iterable[Effect]) -> list[str]:
    return [e.text for e in effects if isinstance(e, Note)]


def turn(peer: Membership) -> tuple[str, int, float]:
    """Let the next turn begin: whom it pings, by what number, and when."""
    pings: list[Tell] = []
    while not pings:
        now = peer.alarm
        pings = told(peer.on(Timer(), now), Ping)
    assert isinstance(pings[0].body, Ping)
    return pings[0].to, pings[0].body.seq, now


def answer(peer: Membership, node: str, seq: int, now: float, incarnation: int = 0) -> list[Effect]:
    return peer.on(Pong(node, incarnation, seq, node), now)


def silence(peer: Membership) -> str:
    """Let a turn pass in which nobody answers at all: who is accused then."""
    target, _, _ = turn(peer)
    assert peer.state_of(target) == "alive"
    while peer.state_of(target) == "alive":
        peer.on(Timer(), peer.alarm)
    return target


# ------------------------------------------------------------------------------------------------------------ turns
def test_each_has_its_turn_before_anybody_has_a_second_one() -> None:
    peer, seen, times = begun(), [], []
    for _ in range(40):
        target, seq, now = turn(peer)
        answer(peer, target, seq, now + 0.01)
        seen.append(target)
        times.append(now)
    rounds = [seen[i : i + 4] for i in range(0, 40, 4)]
    assert all(sorted(one) == list("bcde") for one in rounds)
    assert len({tuple(one) for one in rounds}) > 3  # shuffled anew
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1.0] * 39)


def test_whoever_answers_stays_and_nobody_else_is_asked() -> None:
    peer = begun()
    target, seq, now = turn(peer)
    assert answer(peer, target, seq, now + 0.3) == []
    assert peer.alarm == pytest.approx(now + 1.0)
    assert peer.heard_s(target, now + 0.5) == pytest.approx(0.2)
    assert peer.heard_s("b" if target != "b" else "c", now) == inf


def test_three_others_are_asked_when_one_does_not_answer() -> None:
    peer = begun()
    target, seq, now = turn(peer)
    assert peer.alarm == pytest.approx(now + 0.4)
    probes = told(peer.on(Timer(), now + 0.4))
    assert {probe.to for probe in probes} == set("bcde") - {target}
    assert all(isinstance(p.body, Probe) and (p.body.seq, p.body.target) == (seq, target) for p in probes)
    helper = probes[0].to
    peer.on(Pong(helper, 0, seq, target), now + 0.8)
    turn(peer)
    assert peer.state_of(target) == "alive"
    assert peer.health == 0


@pytest.mark.parametrize("wrong", ["seq", "of", "by"])
def test_other_answers_do_not_count(wrong: str) -> None:
    peer = begun("bcde", Pace(reprobe=0.0, helpers=1))
    target, seq, now = turn(peer)
    (probe,) = told(peer.on(Timer(), peer.alarm), Probe)
    other = next(node for node in "bcde" if node not in {target, probe.to})
    pong = {
        "seq": Pong(target, 0, seq + 1, target),
        "of": Pong(probe.to, 0, seq, other),
        "by": Pong(other, 0, seq, target),
    }[wrong]
    peer.on(pong, now + 0.5)
    turn(peer)
    assert peer.state_of(target) == "suspect"


def test_an_accusation_is_told_to_the_accused_first_and_again_each_period() -> None:
    peer = begun()
    target = silence(peer)
    for _ in range(2):
        effects = peer.on(Timer(), peer.alarm)
        while not told(effects, Ping):
            effects = peer.on(Timer(), peer.alarm)
        reminders = [tell.body for tell in told(effects, Ping) if tell.to == target]
        assert reminders
        assert all(body.news[0] == Rumour(target, "suspect", 0, ("a",)) for body in reminders)


# ----------------------------------------------------------------------------------------------------------- health
def test_a_peer_that_hears_nobody_doubts_itself() -> None:
    peer = begun()
    accused = silence(peer)
    assert peer.health == 3  # three helpers are silent, too
    begun_at = peer.alarm - 0.4 * (1 + peer.health)
    peer.on(Ping(accused, 1, 1), begun_at)  # so that nothing else is waited for
    peer.on(Timer(), peer.alarm)
    assert peer.alarm == pytest.approx(begun_at + 1.0 * (1 + peer.health))


def test_a_peer_whose_helpers_are_there_does_not() -> None:
    peer = begun()
    target, seq, now = turn(peer)
    for probe in told(peer.on(Timer(), peer.alarm), Probe):
        peer.on(Silent(probe.to, 0, seq, target), now + 0.9)
    turn(peer)
    assert peer.state_of(target) == "suspect"
    assert peer.health == 0


def test_health_has_bounds_and_recovers_turn_by_turn() -> None:
    peer = begun(pace=Pace(reprobe=0.0, health_most=2, suspicion=1000.0))
    for _ in range(3):
        peer.on(Timer(), peer.alarm)
        peer.on(Timer(), peer.alarm)
    healths = []
    for _ in range(4):
        target, seq, now = turn(peer)
        answer(peer, target, seq, now)
        healths.append(peer.health)
    assert healths == [2, 1, 0, 0]


def test_alone_with_one_other() -> None:
    peer = begun("b", roster=frozenset("abf"))
    assert silence(peer) == "b"
    assert peer.health == 1  # nobody could be asked
    end = peer.alarm + 10
    while peer.state_of("b") == "suspect":
        assert peer.alarm < end
        peer.on(Timer(), peer.alarm)
    assert peer.live() == frozenset()


# ------------------------------------------------------------------------------------------------------- suspicions
def dies_at(peer: Membership, node: str) -> tuple[float, list[str]]:
    """Let time pass until this one is given up. It answers, as all do, but not to the suspicion."""
    while True:
        now = peer.alarm
        effects = peer.on(Timer(), now)
        for tell in told(effects, Ping):
            answer(peer, tell.to, tell.body.seq, now)
        if peer.state_of(node) == "dead":
            return now, notes(effects)


def test_a_suspicion_lasts_the_longer_the_fewer_share_it() -> None:
    ends = []
    for accusers in ("b", "bc", "bce", "bcef"):
        peer = begun("bcdef")
        peer.on(Ping("b", 0, 1, (Rumour("d", "suspect", 0, tuple(accusers)),)), 0.25)
        end, said = dies_at(peer, "d")
        ends.append(end - 0.25)
        assert said == [f"d is dead: suspected by {', '.join(accusers)}"]
    assert ends[0] <= 12.0
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == pytest.approx(2.0)


def test_accusers_that_come_later_shorten_it_too() -> None:
    peer = begun("bcdef")
    for i, accuser in enumerate("bcef"):
        peer.on(Ping(accuser, 0, 1, (Rumour("d", "suspect", 0, (accuser,)),)), 0.1 + i / 10)
    assert dies_at(peer, "d")[0] == pytest.approx(0.1 + 2.0)


def test_a_higher_incarnation_ends_it() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (Rumour("d", "suspect", 4, ("b",)),)), 0.1)
    peer.on(Ping("d", 4, 1), 0.2)
    assert peer.state_of("d") == "suspect"  # it may not have heard of it when it said this
    peer.on(Ping("d", 5, 2), 0.3)
    assert peer.state_of("d") == "alive"
    peer.on(Ping("b", 0, 2, (Rumour("d", "dead", 4),)), 0.4)
    assert peer.state_of("d") == "alive"


def test_the_dead_come_back_by_a_single_word() -> None:
    peer = begun("bcde")
    assert notes(peer.on(Ping("b", 0, 1, (Rumour("d", "dead", 4),)), 0.1)) == ["d is dead"]
    assert peer.live() == frozenset("bce")
    (pong,) = told(peer.on(Ping("d", 4, 1), 0.2))
    assert pong.body.news[0] == Rumour("d", "dead", 4)  # so that it can answer
    effects = peer.on(Ping("d", 5, 2), 0.3)
    assert notes(effects) == ["d is back"]
    assert [type(tell.body) for tell in told(effects)] == [Pong, News]  # it may have missed much
    assert peer.live() == frozenset("bcde")


def test_who_is_behind_is_told() -> None:
    peer = begun("bcde")
    peer.on(Ping("d", 7, 1), 0.1)
    while told(peer.on(Ping("c", 0, 1), 0.1))[0].body.news:
        pass  # until it has nothing new to tell
    (pong,) = told(peer.on(Ping("b", 0, 1, (Rumour("d", "suspect", 3, ("b",)),)), 0.2))
    assert pong.body.news[0] == Rumour("d", "alive", 7)


def test_an_accused_peer_defends_itself_once() -> None:
    peer = begun("bcde")
    for _ in range(2):
        (pong,) = told(peer.on(Ping("b", 0, 1, (Rumour("a", "suspect", 0, ("b",)),)), 0.1))
        assert (pong.body.incarnation, peer.incarnation, peer.health) == (1, 1, 1)
    (pong,) = told(peer.on(Ping("c", 0, 1), 0.2))
    assert Rumour("a", "alive", 1) in pong.body.news


def test_a_peer_whose_disk_is_lost_outdoes_its_former_self() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (Rumour("a", "alive", 41),)), 0.1)
    assert (peer.incarnation, peer.health) == (42, 0)  # nobody has doubted that it lives
    peer.on(Ping("b", 0, 1, (Rumour("a", "alive", 41),)), 0.1)
    assert peer.incarnation == 42


def test_an_incarnation_that_cannot_be_outdone_does_no_harm() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (Rumour("a", "dead", INCARNATION_MAX),)), 0.1)
    assert peer.incarnation == 0


# ------------------------------------------------------------------------------------------------------- being held up
def test_a_process_that_was_held_up_accuses_nobody() -> None:
    peer = begun()
    peer.on(Ping("b", 0, 1, (Rumour("d", "suspect", 0, ("b", "c", "e")),)), 0.0)
    _, _, now = turn(peer)
    assert told(peer.on(Timer(), now + 30.0)) == []
    assert [held.state for held in peer.beliefs() if held.node != "f"].count("suspect") == 1
    assert peer.state_of("d") == "suspect"  # but it had no chance to speak
    assert peer.health == 1
    peer.on(Ping("d", 1, 1), now + 30.1)
    assert peer.state_of("d") == "alive"


def test_nor_does_it_say_that_another_is_silent() -> None:
    peer = begun()
    peer.on(Probe("b", 0, 77, "c"), 0.0)
    late = peer.alarm + 30.0
    assert told(peer.on(Timer(), late)) == []
    assert told(peer.on(Timer(), late + 0.5)) == []


def test_a_suspicion_goes_on_after_a_hold_up() -> None:
    peer = begun("bcdef")
    peer.on(Ping("b", 0, 1, (Rumour("d", "suspect", 0, ("b", "c", "e", "f")),)), 0.0)
    late = peer.alarm + 30.0
    peer.on(Timer(), late)
    end, _ = dies_at(peer, "d")
    assert end == pytest.approx(2.0 + 30.0)


def test_a_message_that_comes_before_the_late_alarm_excuses_too() -> None:
    peer = begun()
    target, _, now = turn(peer)
    peer.on(Ping("b", 0, 1), now + 30.0)
    peer.on(Timer(), now + 30.0)
    assert peer.state_of(target) == "alive"


def test_an_alarm_that_is_a_little_late_excuses_nothing() -> None:
    peer = begun()
    target, _, _ = turn(peer)
    for _ in range(2):
        peer.on(Timer(), peer.alarm + 0.3)
    assert peer.state_of(target) == "suspect"


def test_needless_alarms_do_nothing() -> None:
    peer = begun()
    _, _, now = turn(peer)
    alarm = peer.alarm
    assert [peer.on(Timer(), now + i / 100) for i in range(30)] == [[]] * 30
    assert peer.alarm == alarm


# ---------------------------------------------------------------------------------------------------------- favours
def test_one_is_probed_for_another() -> None:
    peer = begun()
    (ping,) = told(peer.on(Probe("b", 0, 77, "c"), 0.01))
    assert (ping.to, type(ping.body)) == ("c", Ping)
    assert told(peer.on(Probe("b", 0, 77, "c"), 0.02)) == []  # the same, doubled on its way
    (pong,) = told(answer(peer, "c", ping.body.seq, 0.03))
    assert (pong.to, pong.body.seq, pong.body.of) == ("b", 77, "c")
    assert told(answer(peer, "c", ping.body.seq, 0.04)) == []


def test_who_finds_nobody_says_that_it_is_there_itself() -> None:
    peer = begun(seed=3)
    turn(peer)
    now = peer.alarm - 0.3
    (ping,) = told(peer.on(Probe("b", 0, 77, "c"), now))
    said = []
    while not said:
        assert peer.alarm <= now + 0.4 + 1e-9
        said = [tell for tell in told(peer.on(Timer(), peer.alarm), Silent) if tell.to == "b"]
    assert (said[0].body.seq, said[0].body.target) == (77, "c")
    assert told(answer(peer, "c", ping.body.seq, now + 0.5)) == []


def test_a_probe_of_oneself_is_a_ping() -> None:
    (pong,) = told(begun().on(Probe("b", 0, 77, "a"), 0.01))
    assert (pong.to, pong.body.seq, pong.body.of) == ("b", 77, "a")


# ------------------------------------------------------------------------------------------------------- the dead
def pinged(peer: Membership, seconds: float) -> Counter[str]:
    """Whom it pings in that time; all that are believed to live answer."""
    found: Counter[str] = Counter()
    end = peer.alarm + seconds
    while peer.alarm < end:
        now = peer.alarm
        for tell in told(peer.on(Timer(), now), Ping):
            found[tell.to] += 1
            if tell.to in peer.live():
                answer(peer, tell.to, tell.body.seq, now)
    return found


@pytest.mark.parametrize(("reprobe", "least", "most"), [(0.0, 0, 0), (0.5, 160, 240), (1.0, 400, 400)])
def test_the_dead_are_pinged_for_ever(reprobe: float, least: int, most: int) -> None:
    peer = begun(pace=Pace(reprobe=reprobe))
    peer.on(Ping("b", 0, 1, (Rumour("c", "dead", 0), Rumour("d", "dead", 0))), 0.0)
    found = pinged(peer, 400.0)
    assert least <= found["c"] + found["d"] <= most
    assert abs(found["c"] - found["d"]) <= (found["c"] + found["d"]) / 3
    assert found["b"] + found["e"] == 400
    assert found["f"] == 0  # it has left


def test_the_dead_are_told_that_they_are() -> None:
    peer = begun("bc", Pace(reprobe=1.0), roster=frozenset("abcf"))
    peer.on(Ping("b", 0, 1, (Rumour("c", "dead", 4),)), 0.0)
    for _ in range(50):  # much longer than it is news to others
        now = peer.alarm
        for tell in told(peer.on(Timer(), now), Ping):
            assert isinstance(tell.body, Ping)
            assert tell.to == "b" or tell.body.news[0] == Rumour("c", "dead", 4)
            if tell.to == "b":
                answer(peer, "b", tell.body.seq, now)


def test_a_peer_that_knows_nobody_tries_everybody() -> None:
    peer = begun("", QUIET)
    found = pinged(peer, 200.0)
    assert set(found) == set("bcde")
    assert sum(found.values()) == 200


def test_old_beliefs_kill_nobody_who_is_known_to_live() -> None:
    peer = begun("bcde")
    peer.on(Ping("c", 2, 1), 0.1)
    old = (Rumour("c", "dead", 2), Rumour("d", "suspect", 0, ("b",)), Rumour("e", "dead", 3))
    peer.on(News("b", 0, old), 0.2)
    assert [peer.state_of(node) for node in "cde"] == ["alive", "suspect", "dead"]


# ------------------------------------------------------------------------------------------------ coming and going
def test_a_newcomer_asks_until_somebody_has_told() -> None:
    peer = Membership("a", rng=Random(2), pace=QUIET, incarnation=3)
    peer.admit(ROSTER)
    assert peer.alarm == inf
    effects = peer.start(5.0)
    assert len({tell.to for tell in told(effects, Hello)}) == 3
    assert all(tell.body == Hello("a", 3, (Rumour("a", "alive", 3),)) for tell in told(effects))
    assert 5.0 <= peer.alarm <= 6.0
    for _ in range(3):
        assert len(told(peer.on(Timer(), peer.alarm), Hello)) == 1
    peer.on(News("b", 0, (Rumour("c", "alive", 0),)), peer.alarm)
    assert peer.live() == frozenset("bc")
    for _ in range(6):
        assert told(peer.on(Timer(), peer.alarm), Hello) == []


def test_a_newcomer_is_told_everything_in_pieces() -> None:
    others = [f"p{i}" for i in range(10)]
    peer = begun(others[1:], Pace(reprobe=0.0, news_most=4), roster=frozenset([*others, "f"]))
    assert [peer.state_of("p0"), len(peer.live())] == ["dead", 9]
    for i in range(50):
        peer.on(Ping("p1", 0, i), 0.0)  # no news are left
    for _ in range(2):  # also for one that is known already: its process may have started anew
        tables = told(peer.on(Hello("p2", 0), 0.0), News)
        assert [len(tell.body.news) for tell in tables] == [4, 4, 2]
        assert tables[0].body.news[0] == Rumour("p2", "alive", 0)
        said = {rumour.node: rumour.state for tell in tables for rumour in tell.body.news}
        assert said == {**dict.fromkeys(others[1:], "alive"), "f": "left"}


def test_goodbye() -> None:
    peer = begun()
    turn(peer)
    effects = peer.leave()
    assert {tell.to for tell in told(effects, News)} == set("bcde")
    assert all(tell.body.news == (Rumour("a", "left", 0),) for tell in told(effects))
    assert peer.on(Ping("b", 0, 1), 9.0) == []
    assert peer.on(Timer(), 9.0) == []
    assert peer.alarm == inf


def test_who_has_left_may_come_again() -> None:
    peer = begun()
    effects = peer.on(News("b", 0, (Rumour("b", "left", 0),)), 0.0)
    assert notes(effects) == ["b has left"]
    assert peer.state_of("b") == "left"
    (news,) = told(peer.on(Hello("b", 0), 0.1), News)
    assert news.body.news[0] == Rumour("b", "left", 0)
    assert notes(peer.on(Ping("b", 1, 1), 0.2)) == ["b is back"]


# -------------------------------------------------------------------------------------------------------- strangers
@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Ping("z", 0, 1, (Rumour("b", "dead", 9),)), "z: is not admitted"),
        (Ping("a", 0, 1, (Rumour("b", "dead", 9),)), "a: is not admitted"),
        (Hello("z", 0), "z: is not admitted"),
        (Probe("b", 0, 1, "z", (Rumour("b", "dead", 9),)), "b: wants z probed, which is not admitted"),
        (Ping("b", -1, 1, (Rumour("c", "dead", 9),)), "b: incarnation -1 is not"),
        (Ping("b", 0, 1, (Rumour("c", "dead", 9), Rumour("d", "dead", -1))), "b: incarnation -1 is not"),
        (News("b", 0, (Rumour("c", "dead", 9),) * 65), "b: told 65 rumours at once, at most 64"),
    ],
)
def test_what_is_refused_changes_nothing(message: MembershipMessage, why: str) -> None:
    peer = begun()
    held, incarnation = peer.beliefs(), peer.incarnation
    (note,) = peer.on(message, 0.0)
    assert isinstance(note, Note)
    assert (note.kind, note.node) == ("refusal", message.node)
    assert note.text.startswith(why)
    assert (peer.beliefs(), peer.incarnation) == (held, incarnation)
    assert peer.heard_s("b", 0.0) == inf


def test_rumours_about_strangers_and_of_strangers_are_passed_over() -> None:
    peer = begun()
    news = (Rumour("z", "alive", 1), Rumour("c", "suspect", 0, ("x", "y", "z")))
    effects = peer.on(Ping("b", 0, 1, news), 0.0)
    assert notes(effects) == []
    assert peer.state_of("c") == "suspect"
    assert not set("xyz") & {name for held in peer.beliefs() for name in (held.node, *held.accusers)}
    with pytest.raises(KeyError):
        peer.state_of("z")


def test_who_is_no_longer_admitted_is_forgotten_at_once() -> None:
    peer = begun("bcde")
    peer.on(Ping("b", 0, 1, (Rumour("c", "suspect", 0, ("b", "d")),)), 0.0)
    peer.on(Probe("b", 0, 1, "c"), 0.0)
    peer.on(Probe("d", 0, 1, "b"), 0.0)
    target, seq, now = turn(peer)
    peer.admit(ROSTER - {"b", target} | {"g"})
    assert "b" not in repr(peer.beliefs())
    assert peer.state_of("g") == "dead"
    assert peer.heard_s("b", now) == inf
    assert notes(answer(peer, target, seq, now)) == [f"{target}: is not admitted"]
    for _ in range(20):
        effects = peer.on(Timer(), peer.alarm)
        assert all(tell.to not in {"b", target} for tell in told(effects))
        assert "b" not in repr([tell.body.news for tell in told(effects)])
    peer.admit(ROSTER)
    assert peer.state_of("b") == "dead"  # and nothing of what was known comes back with it
    peer.on(Ping("b", 0, 9), peer.alarm)
    assert peer.state_of("b") == "alive"


def test_a_peer_is_alive_to_itself_and_no_peer_of_its_own() -> None:
    peer = begun()
    assert peer.state_of("a") == "alive"
    assert "a" not in peer.live()


@pytest.mark.parametrize(
    "wrong",
    [
        {"period_s": 0.4},
        {"timeout_s": 0.0},
        {"period_s": inf},
        {"helpers": -1},
        {"health_most": -1},
        {"slack": 0.5},
        {"suspicion": 0.0},
        {"reprobe": 1.1},
        {"retell": 0.0},
        {"news_most": 0},
    ],
)
def test_paces_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidJob, match="pace: "):
        Pace(**wrong)
