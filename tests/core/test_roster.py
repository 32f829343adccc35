"""Members, and signs of life."""

import json

from shoal.core.message import Ack, Order, Ref
from shoal.core.roster import FAILURES_MAX, GIVEN_KEPT, Leases, Roster


def order(n: int, body: Ref | None = None) -> Order:
    return Order((1, n), "a", "train", 3, 7, body)


def test_members_come_in_the_order_of_their_names() -> None:
    roster = Roster()
    for node in ("c", "a", "b"):
        roster.welcome(node)
    roster["b"].here = False
    roster["c"].failures = FAILURES_MAX
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
    busy.failures, busy.here = 2, False
    again = Roster.restore(json.loads(json.dumps(roster.state())))
    assert again.all() == roster.all()
    assert again.state() == roster.state()


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
