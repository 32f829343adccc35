"""Members, and signs of life."""

import json
from random import Random

import pytest

from shoal.core.message import About, Ack, Order, Ref, Status
from shoal.core.roster import GIVEN_KEPT, Leases, Roster


def order(n: int, body: Ref | None = None) -> Order:
    return Order((1, n), "a", "train", 3, 7, body)


def test_members_come_in_the_order_of_their_names() -> None:
    roster = Roster()
    for node in ("c", "a", "b"):
        roster.welcome(node)
    roster["b"].here = False
    roster["c"].paused_until = 9.0
    assert [member.node for member in roster.all()] == ["a", "b", "c"]
    assert [member.node for member in roster.here()] == ["a", "c"]
    assert [member.node for member in roster.able()] == ["a"]
    assert roster.get("x") is None
    assert roster.welcome("b") is roster["b"]
    assert roster["b"].here


def test_a_member_remembers_its_last_orders() -> None:
    member = Roster().welcome("a")
    for n in range(GIVEN_KEPT + 3):
        member.give(order(n))
    assert member.given == [(1, n) for n in range(3, GIVEN_KEPT + 3)]
    assert member.order == order(GIVEN_KEPT + 2)
    member.answer(Ack((1, GIVEN_KEPT + 2), True))
    assert member.order is None
    assert member.answered == Ack((1, GIVEN_KEPT + 2), True)


def test_a_roster_outlives_its_process() -> None:
    roster = Roster()
    roster.welcome("new")
    busy = roster.welcome("busy")
    busy.give(order(1))
    busy.answer(Ack((1, 1), False, "too late"))
    busy.give(order(2, Ref("d" * 64, 8)))
    busy.failures, busy.paused_until, busy.here = 4, 120.0, False
    again = Roster.restore(json.loads(json.dumps(roster.state())))
    assert again.all() == roster.all()
    assert again.state() == roster.state()


def test_who_was_asked_to_be_silent_is_lost_no_sooner() -> None:
    leases = Leases(10.0)
    leases.heard("a", 50.0)  # until then
    leases.heard("a", 3.0)
    assert len(leases) == 1
    assert leases.expired(60.0) == []
    assert leases.expired(60.5) == ["a"]
    assert len(leases) == 0


def test_a_lease_runs_out_once() -> None:
    leases = Leases(10.0)
    leases.heard("a", 0.0)
    leases.heard("b", 5.0)
    assert leases.age("a", 7.0) == 7.0
    assert leases.age("x", 7.0) is None
    assert leases.expired(10.0) == []
    assert leases.expired(10.5) == ["a"]
    assert leases.expired(11.0) == []
    assert leases.expired(99.0) == ["b"]
    leases.heard("a", 100.0)
    leases.heard("b", 100.0)
    leases.forget("a")
    leases.forget("x")
    assert leases.expired(200.0) == ["b"]


# What is kept of all members


def lists(roster: Roster) -> dict[str, object]:
    return {
        "here": [m.node for m in roster.here()],
        "able": [m.node for m in roster.able()],
        "names": list(roster.able_names()),
        "busy": list(roster.busy().items()),
        "finished": roster.finished(),
        "waiting": roster.waiting(),
    }


def reckoned(roster: Roster) -> dict[str, object]:
    """The same, made anew."""
    here = [m for m in roster.all() if m.here]
    able = [m.node for m in here if not m.suspended]
    return {
        "here": [m.node for m in here],
        "able": able,
        "names": able,
        "busy": [(m.node, m.order.kind) for m in here if m.order is not None],
        "finished": frozenset(m.node for m in here if m.finished),
        "waiting": frozenset(m.node for m in here if m.status is not None and m.waits),
    }


def anything(roster: Roster, rng: Random, n: int) -> None:
    """Something that may happen to a member."""
    if not roster.all() or rng.random() < 0.1:
        roster.welcome(f"n{rng.randrange(12)}", rng.choice([None, About(("phone",))]))
        return
    member = rng.choice(roster.all())
    match rng.randrange(7):
        case 0:
            member.here = rng.random() < 0.5
        case 1 | 2:
            kind = rng.choice(["train", "evaluate"])
            member.give(Order((1, n), member.node, kind, 3, 7, until=rng.randrange(3)))  # type: ignore[arg-type]
        case 3:
            member.answer(Ack((1, n), True))
        case 4:
            member.paused_until = rng.choice([None, 9.0])
        case 5:
            member.finished = rng.random() < 0.5
        case 6 if member.order is not None:
            member.status = Status(member.node, member.order.id, rng.randrange(3), {}, b"")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_of_all_members_is_what_they_are(seed: int) -> None:
    roster, rng = Roster(), Random(seed)
    for n in range(300):
        anything(roster, rng, n)
        if rng.random() < 0.5:  # else several things change before anybody looks
            assert lists(roster) == reckoned(roster), n
        if n == 150:
            roster = Roster.restore(json.loads(json.dumps(roster.state())))


def test_who_was_given_the_busy_keeps_them() -> None:
    roster = Roster()
    roster.welcome("a").give(order(1))
    before = roster.busy()
    roster["a"].answer(Ack((1, 1), True))
    assert (before, roster.busy()) == ({"a": "train"}, {})


def test_the_revision_rises_with_what_a_selection_goes_by() -> None:
    roster = Roster()
    member, seen = roster.welcome("a"), [0]
    for change in (
        lambda: setattr(member, "here", False),
        lambda: setattr(member, "paused_until", 9.0),
        lambda: roster.welcome("a", About(("phone",))),
        lambda: roster.welcome("b"),
    ):
        change()
        assert roster.revision > seen[-1]
        seen.append(roster.revision)
    member.give(order(1))
    member.answer(Ack((1, 1), True))
    assert roster.revision == seen[-1]
